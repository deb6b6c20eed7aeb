//! The workers as threads: started, released, given snapshots, watched and stopped.
//!
//! Theory of operation: [`Engine::start`] makes one thread per worker; each pins itself, registers its descriptors with
//! a poll of its own, gives up what it does not need ([`confinement`]), and waits. Nothing is read before [`Engine::go`], so that two services never read one descriptor.
//! [`Engine::publish`] builds a snapshot beside the old one, swaps a pointer and wakes the workers; each adopts it
//! before its next step, and control frees what it had afterwards ([`publication`](crate::publication)).
//! [`Engine::rebind`] gives each worker other sockets in the same way, when the node's underlay address has moved: what
//! was read is finished, what is held leaves through the new ones, and nothing that came for the old address is read
//! any more. Control never waits for a worker, a worker never waits for control.
//!
//! Several workers share the flows that the kernel does not spread ([`crate::steer`]), and wake each other for it. At the
//! end each reads no more, says that it gives the others nothing more, and goes on delivering until all have said so:
//! nothing is left between them. The same is done where another service is to read the descriptors ([`Engine::pause`]):
//! then the threads stay, and go on where they were if that service does not come to it ([`Engine::resume`]).

mod confinement;
#[cfg(feature = "faults")]
mod escape;
mod moderation;
mod spin;
mod thread;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::capture::Captures;
use crate::counters::Counters;
use crate::device::tunnel::Tunnel;
use crate::heavy_flows::FlowWatch;
use crate::inbound::Refused;
use crate::now::Now;
use crate::probe::Hearing;
use crate::publication::Publication;
use crate::sent::SentDatagrams;
use crate::snapshot::Snapshot;
use crate::spec::Spec;
use crate::steer::{Senders, Steering};
use crate::underlay::socket::Sockets;
use confinement::Confinement;
use thread::Thread;

/// What one worker owns, and the core it is pinned to.
pub struct WorkerSetup {
    /// Its queue of the tunnel device.
    pub device: Tunnel,
    /// Its sockets.
    pub underlay: Sockets,
    /// The core, by the kernel's number; `None` leaves the choice to the scheduler.
    pub core: Option<usize>,
    /// How long it goes on looking for packets, at most, before it sleeps; zero sleeps at once.
    pub spin: Duration,
}

/// Running workers.
pub struct Engine {
    shared: Arc<Shared>,
    counters: Counters,
    threads: Vec<Thread>,
}

/// The clock of an engine's workers, for readers of what they learned.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// One that begins now.
    pub fn begin() -> Clock {
        Clock(Instant::now())
    }

    /// The time now.
    pub fn now(self) -> Now {
        Now(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// What a worker saw and control should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An outer source that no peer has, speaking for an inner source that one does. `underlay-sources` of that peer
    /// would accept it.
    RefusedSource {
        /// The outer source.
        outer: IpAddr,
        /// The inner source.
        inner: IpAddr,
        /// The name of the peer that owns the inner source.
        owner: Option<String>,
    },
    /// A peer's datagram of another VXLAN network.
    OtherVni {
        /// The peer's name.
        peer: String,
        /// The network.
        vni: u32,
    },
}

/// Why the workers cannot start.
#[derive(Debug)]
pub enum EngineError {
    /// The counters page was made for another number of workers.
    Counters {
        /// Workers to start.
        workers: usize,
        /// Workers of the page.
        page: usize,
    },
    /// Another number of workers has sockets than there are.
    Sockets {
        /// Sets of sockets given.
        given: usize,
        /// Workers that run.
        workers: usize,
    },
    /// No poll, waker or thread to be had.
    Kernel(io::Error),
}

struct Shared {
    publication: Publication,
    go: AtomicBool,
    stop: AtomicBool,
    device_lost: AtomicBool,
    /// Workers that have read and delivered to the end, and wait to read again.
    parked: AtomicUsize,
    /// How often they were told to read again.
    resumed: AtomicUsize,
    /// Workers that may still give each other something.
    senders: Senders,
    /// The origin of this engine's time.
    start: Instant,
}

impl Engine {
    /// Starts one thread per worker with the snapshot of `spec`. Nothing is read before [`Engine::go`].
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn start(
        setups: Vec<WorkerSetup>,
        counters: Counters,
        spec: &Spec,
    ) -> Result<Engine, EngineError> {
        if setups.len() != counters.workers() {
            return Err(EngineError::Counters {
                workers: setups.len(),
                page: counters.workers(),
            });
        }
        let shared = Arc::new(Shared {
            publication: Publication::new(spec),
            go: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            device_lost: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            resumed: AtomicUsize::new(0),
            senders: Senders::new(),
            start: Instant::now(),
        });
        let mut engine = Engine {
            shared,
            counters,
            threads: Vec::with_capacity(setups.len()),
        };
        // A single worker shares with no other.
        let several = Some(setups.len()).filter(|workers| *workers > 1);
        let mut group = several.map_or(vec![], Steering::group).into_iter();
        let key = RandomState::new().hash_one(0);
        let sent = SentDatagrams::group(setups.len(), key);
        // Without a filter each worker says itself that it is not confined.
        let confinement = Confinement::new().ok();
        for ((index, setup), sent) in setups.into_iter().enumerate().zip(sent) {
            let place = (index, group.next(), sent);
            let confinement = confinement.clone();
            match Thread::start(place, setup, confinement, &engine.counters, &engine.shared) {
                Ok(thread) => engine.threads.push(thread),
                Err(error) => {
                    // Those already started would sit on their queues and sockets for ever.
                    engine.stop();
                    return Err(EngineError::Kernel(error));
                }
            }
        }
        Ok(engine)
    }

    /// Lets the workers read.
    pub fn go(&self) {
        self.shared.go.store(true, Ordering::Release);
        self.wake();
    }

    /// Has the workers read no more, and finish what they have read: after [`Engine::go`]. Returns at once;
    /// [`Engine::is_paused`] says when they have.
    pub fn pause(&self) {
        self.shared.go.store(false, Ordering::Release);
        self.wake();
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    /// Whether no worker reads, or holds anything that it has read.
    pub fn is_paused(&self) -> bool {
        self.shared.parked.load(Ordering::Acquire) == self.threads.len()
    }

    /// Lets the workers read again. What they wrote on the page of counters may have been written over meanwhile, by a
    /// service that has ended. Only paused workers are resumed: returns whether they are.
    pub fn resume(&self) -> bool {
        if !self.is_paused() {
            return false;
        }
        // Before any of them moves: none of them is to see the others gone.
        self.threads.iter().for_each(|_| self.shared.senders.join());
        self.shared.parked.store(0, Ordering::Release);
        self.shared.go.store(true, Ordering::Release);
        self.shared.resumed.fetch_add(1, Ordering::Release);
        true
    }

    /// Builds the snapshot of `spec` from the one before and hands it to the workers.
    pub fn publish(&self, spec: &Spec) {
        self.shared.publication.publish(spec);
        self.wake();
        self.free_retired();
    }

    /// Frees the snapshots that every worker has replaced by a later one. Workers free none, so this is to be called
    /// some time after [`Engine::publish`].
    pub fn free_retired(&self) {
        let publication = &self.shared.publication;
        if publication.waiting() > 0 {
            let totals = self.counters.read();
            let adopted = totals.of_running().map(|worker| worker.snapshot).min();
            publication.free(adopted.unwrap_or(u64::MAX));
        }
    }

    /// Gives each worker other sockets, in the order of the workers, in the place of those it has, and lets it close
    /// those. A socket of both sets, as its duplicate, loses nothing.
    ///
    /// # Errors
    /// [`EngineError`]; every worker keeps what it has.
    pub fn rebind(&self, sockets: Vec<Sockets>) -> Result<(), EngineError> {
        if sockets.len() != self.threads.len() {
            return Err(EngineError::Sockets {
                given: sockets.len(),
                workers: self.threads.len(),
            });
        }
        // First all that may be refused, then the hand-over: never one worker here and another there.
        for (index, (thread, watched)) in self.threads.iter().zip(&sockets).enumerate() {
            if let Err(error) = thread.watch(watched) {
                let before = self.threads.iter().zip(&sockets).take(index);
                before.for_each(|(thread, sockets)| thread.unwatch(sockets));
                return Err(EngineError::Kernel(error));
            }
        }
        for (thread, sockets) in self.threads.iter().zip(sockets) {
            thread.rebind(sockets);
        }
        Ok(())
    }

    /// The snapshot published last.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.publication.latest()
    }

    /// Whether every worker forwards by a snapshot at least as new as `version`.
    pub fn adopted(&self, version: u64) -> bool {
        let totals = self.counters.read();
        totals.of_running().all(|worker| worker.snapshot >= version)
    }

    /// Whether the tunnel device was deleted under a worker. Nothing but opening it anew helps.
    pub fn device_lost(&self) -> bool {
        self.shared.device_lost.load(Ordering::Relaxed)
    }

    /// The workers that the kernel refused to pin to their core, by their numbers.
    pub fn unpinned(&self) -> impl Iterator<Item = usize> {
        let threads = self.threads.iter().enumerate();
        let unpinned = threads.filter(|(_, thread)| thread.unpinned.load(Ordering::Relaxed));
        unpinned.map(|(worker, _)| worker)
    }

    /// Why a worker is not confined to the system calls that it needs, if one is not.
    pub fn unconfined(&self) -> Option<String> {
        let mut reasons = self.threads.iter().map(|thread| thread.unconfined.get());
        reasons.find_map(|reason| reason.cloned())
    }

    /// What the workers noticed since the last call; at most a few hundred, the rest is forgotten.
    pub fn notices(&self) -> Vec<Notice> {
        let snapshot = self.snapshot();
        let owner = |inner| {
            let id = snapshot.cluster.fib.lookup(inner)?;
            Some(snapshot.cluster.peers.peer(id)?.name.clone())
        };
        let seen = self
            .threads
            .iter()
            .flat_map(|thread| std::iter::from_fn(|| thread.refused.pop()));
        let peer = |outer| Some((snapshot.cluster.peers.by_source(outer)?.1).name.clone());
        seen.filter_map(|refused| match refused {
            Refused::Source { outer, inner } => Some(Notice::RefusedSource {
                outer,
                inner,
                owner: owner(inner),
            }),
            Refused::Vni { outer, vni } => Some(Notice::OtherVni {
                peer: peer(outer)?,
                vni,
            }),
        })
        .collect()
    }

    /// What the workers hear of probes, for a thread that asks them.
    pub fn hearing(&self) -> Hearing {
        Hearing::of(self.threads.iter().map(|thread| Arc::clone(&thread.heard)))
    }

    /// The workers' clock.
    pub fn clock(&self) -> Clock {
        Clock(self.shared.start)
    }

    /// The switch and the reader of what the workers count of flows.
    pub fn flow_watch(&self) -> FlowWatch {
        let tables = self.threads.iter().map(|thread| Arc::clone(&thread.flows));
        FlowWatch::new(tables, self.clock())
    }

    /// Starts captures of what the workers carry. All of one engine share their limit: it is to be asked for once.
    pub fn captures(&self) -> Captures {
        let points = self
            .threads
            .iter()
            .map(|thread| Arc::clone(&thread.capture));
        let wakers = self.threads.iter().map(|thread| Arc::clone(&thread.waker));
        Captures::new(points, wakers.collect(), self.clock())
    }

    /// Ends the workers: they read no more, send what they hold or drop it after its time, and return.
    pub fn stop(self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        for thread in self.threads {
            // A worker that panicked has aborted the process already.
            let _ = thread.handle.join();
        }
    }

    fn wake(&self) {
        for thread in &self.threads {
            thread.wake();
        }
    }
}

impl Shared {
    /// Whether the workers may read.
    fn may_read(&self) -> bool {
        self.go.load(Ordering::Acquire)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn now(&self) -> Now {
        Clock(self.start).now()
    }
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::Counters { workers, page } => {
                write!(
                    f,
                    "{workers} workers cannot use a counters page made for {page}: stop the agent and start it again"
                )
            }
            EngineError::Sockets { given, workers } => {
                write!(
                    f,
                    "{given} sets of sockets are not one for each of {workers} workers: restart Tartan"
                )
            }
            EngineError::Kernel(error) => {
                write!(f, "the kernel refuses a worker its poll or thread: {error}")
            }
        }
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EngineError::Kernel(error) => Some(error),
            EngineError::Counters { .. } | EngineError::Sockets { .. } => None,
        }
    }
}
