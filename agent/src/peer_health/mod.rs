//! Peer health: whether packets get to each peer and back, how fast, how many are lost, and how large they may be.
//!
//! Not to be confused with [`crate::health`], the endpoints that tell of this node alone.
//!
//! Theory of operation. A thread of its own ([`thread`]) sends requests through [`dataplane::probe::Prober`], in the
//! format, to the port and by the address family that data takes, so that what is proved is proved of data. The peer's
//! worker answers, our worker puts the answer on a ring, and the thread takes it from there. Everything that is concluded
//! is concluded by pure code: a path ([`path`], its state machine), the search for its MTU ([`path_search`]), loss
//! ([`loss`]) and round trips ([`round_trips`], and of all paths together [`histogram`]), and the table of all paths with its schedule ([`table`]).
//!
//! ```text
//! control loop ──tables, addresses──► thread ──requests──► peer's worker
//!      ▲  problems, once a second       ▲ │                     │
//!      └────────── table ◄──────────────┘ └─ path MTU ► peers   │
//!                    ▲ tartan peers     answers ◄─ ring ◄─ our worker
//! ```
//!
//! - *Cost.* A path is asked less than once a second in the long run, all paths together 500 times a second; the memory of
//!   a path is about 1 KB, 200 bytes where it never answered.
//! - *A peer that runs flannel* is asked four times and then every 30 s. Its kernel drops a probe unseen, and it is judged
//!   by what arrives of it; it is never reported for not answering.
//! - *Trust.* Only an answer whose nonce is open at that very path proves anything good. What anyone could forge (a request,
//!   an ICMP error, a datagram of another network) only words a path that is without answers already.
//! - *Reports.* A peer that asks what is wrong with this node is told codes and subjects of its problems, by this thread and
//!   not by a worker ([`node_report`]). Only peers are told, and only to where data for them goes.
//! - *A new start* begins anew: nothing is reported before a path was asked, and nothing bad before several probes. Which
//!   peers answered before is known from the disk ([`answered_before`]).
//! - *Never:* a packet of a pod waits for it, and no peer is routed around: what is found is reported, and the path's MTU
//!   told to pods.

mod answered_before;
mod credit;
pub mod histogram;
pub mod loss;
pub mod node_report;
mod path;
mod path_search;
mod problems;
pub mod question;
pub mod report;
mod round_trips;
pub mod state;
mod table;
mod thread;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, SystemTime};

use dataplane::engine::Clock;
use dataplane::families::PublicAddresses;
use dataplane::landlock::Renounced;
use dataplane::now::Now;
use dataplane::probe::Hearing;
use dataplane::snapshot::Snapshot;

use crate::confinement::renounce_files;
use crate::problems::{Posted, Problem};
use answered_before::AnsweredBefore;
use question::Questions;
use state::State;
use table::Table;
use thread::Prober;

/// The part of the control loop that knows how peers are. Ends its thread when it is dropped.
pub struct PeerHealth {
    known: PeerHealthView,
    followed: Option<Following>,
    /// `None` where no path is probed.
    answered_before: Option<AnsweredBefore>,
    /// Until when this node's own underlay explains what is wrong with paths.
    explained_until: Option<Now>,
}

/// The same for queries.
#[derive(Clone)]
pub struct PeerHealthView(Arc<Shared>);

struct Shared {
    /// Probes are configured.
    is_on: bool,
    clock: Clock,
    /// The time of day at which that clock began.
    origin: SystemTime,
    /// Held for as long as a turn takes: a fraction of a millisecond.
    table: Mutex<Table>,
    /// What the thread is to adopt at its next turn.
    next: Mutex<Option<Adopt>>,
    /// What is asked of peers beside.
    questions: Mutex<Questions>,
    /// What is wrong with this node.
    problems: Mutex<Arc<[Posted]>>,
    /// Why a family has no socket to probe by.
    refused: Mutex<Option<String>>,
    is_stopped: AtomicBool,
    /// To be woken when there is something for it to take.
    thread: OnceLock<Thread>,
}

/// What the thread probes by.
struct Adopt {
    snapshot: Arc<Snapshot>,
    following: Following,
}

/// What the paths are of, beside the tables: another value than before means that they are to be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    /// Version of the tables.
    pub version: u64,
    /// The addresses that our sockets have.
    pub bound: PublicAddresses,
    /// MTU of the tunnel device, bytes.
    pub device_mtu: u16,
    /// Programs in the kernel receive packets: peers are told.
    pub is_kernel_path: bool,
}

impl fmt::Debug for PeerHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerHealth").finish_non_exhaustive()
    }
}

impl PeerHealth {
    /// Starts the thread. `hearing` gives what the workers hear, `clock` is theirs, and `state_dir` has which peers answered
    /// before. Without `is_on` nothing is sent.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(
        is_on: bool,
        clock: Clock,
        hearing: Hearing,
        state_dir: &Path,
    ) -> io::Result<PeerHealth> {
        let mut health = PeerHealth::without_thread(is_on, clock);
        if is_on {
            let before = AnsweredBefore::read(state_dir);
            lock(&health.known.0.table).expect_answers(before.names());
            health.answered_before = Some(before);
        }
        let prober = Prober::new(Arc::clone(&health.known.0), hearing);
        let name = "peer-health".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(|| {
            renounce_files(Renounced::AllFiles);
            prober.run();
        })?;
        health
            .known
            .0
            .thread
            .get_or_init(|| thread.thread().clone());
        Ok(health)
    }

    /// The same, knowing nothing of any peer.
    pub fn without_thread(is_on: bool, clock: Clock) -> PeerHealth {
        PeerHealth {
            known: PeerHealthView(Arc::new(Shared {
                is_on,
                clock,
                origin: origin(clock),
                table: Mutex::new(Table::new(clock.now())),
                next: Mutex::new(None),
                questions: Mutex::new(Questions::default()),
                problems: Mutex::default(),
                refused: Mutex::new(None),
                is_stopped: AtomicBool::new(false),
                thread: OnceLock::new(),
            })),
            followed: None,
            answered_before: None,
            explained_until: None,
        }
    }

    /// The same, with why there is no thread: that is a problem of its own.
    pub fn refused(is_on: bool, clock: Clock, reason: String) -> PeerHealth {
        let health = PeerHealth::without_thread(is_on, clock);
        *lock(&health.known.0.refused) = Some(reason);
        health
    }

    /// Takes the tables in force, and where our own end is. Costs nothing where all is the same.
    pub fn follow(&mut self, following: Following, snapshot: impl FnOnce() -> Arc<Snapshot>) {
        if self.followed != Some(following) {
            // Of tables alone the thread learns at its next pause: each pod that comes or goes makes new ones.
            let is_table = self.followed.is_some_and(|before| {
                let version = following.version;
                Following { version, ..before } == following
            });
            self.followed = Some(following);
            let snapshot = snapshot();
            *lock(&self.known.0.next) = Some(Adopt {
                snapshot,
                following,
            });
            if !is_table {
                self.known.0.wake();
            }
        }
    }

    /// Keeps on disk which peers answer, for the next start.
    pub fn save(&mut self) {
        if let Some(before) = &mut self.answered_before
            && let Some(names) = lock(&self.known.0.table).answering()
        {
            before.write(names);
        }
    }

    /// Takes what is wrong with this node, for peers that ask.
    pub fn tell(&self, problems: Arc<[Posted]>) {
        *lock(&self.known.0.problems) = problems;
    }

    /// Whether the peer of that name answers probes: what was refused of it before is over.
    pub fn answers(&self, peer: &str) -> bool {
        let table = lock(&self.known.0.table);
        let mut of_peer = table
            .slots()
            .iter()
            .filter(|slot| &*slot.target.name == peer);
        of_peer.any(|slot| matches!(slot.path.state().0, State::Up | State::Narrow { .. }))
    }

    /// What is wrong with paths to peers: nothing while this node's own underlay `is_down`, which is a problem that explains
    /// theirs, and for as long after it as answers take to come again.
    pub fn problems(&mut self, is_down: bool) -> Vec<Problem> {
        let now = self.known.0.clock.now();
        if is_down {
            self.explained_until = Some(now.after(EXPLAINED));
        }
        match self.explained_until {
            Some(until) if now < until => Vec::new(),
            _ => problems::of(&self.known),
        }
    }

    /// For queries.
    pub fn view(&self) -> PeerHealthView {
        self.known.clone()
    }
}

impl Shared {
    /// Ends the thread's pause.
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The time of day of a moment of the clock: the same however often it is asked.
    fn time_of(&self, moment: Now) -> SystemTime {
        self.origin + Duration::from_nanos(moment.0)
    }
}

fn origin(clock: Clock) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(Duration::from_nanos(clock.now().0))
        .unwrap_or(now)
}

impl Drop for PeerHealth {
    fn drop(&mut self) {
        self.known.0.is_stopped.store(true, Relaxed);
        self.known.0.wake();
    }
}

/// A path that is asked every 5 s has answered by then.
const EXPLAINED: Duration = Duration::from_secs(8);

/// What a panic left behind is whole: nothing is left half written at a point that can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
