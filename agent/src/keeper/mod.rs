//! The keeper: a descriptor store with one child, the service.
//!
//! Theory of operation. A userspace dataplane that dies takes its TUN queues and sockets with it: the device
//! loses its carrier and what waited in it, peers see refused ports. So `tartan run` is two processes. The *service* does the
//! work; it opens every descriptor in its start-up and deposits a duplicate here, by name. When it dies the
//! duplicates keep the carrier up and the queues filling (2048 packets per TUN queue), and the next service
//! receives the same table and reads on.
//!
//! ```text
//!            table{names}+fds, go →
//!   keeper ─────────────────────────── service      one SOCK_SEQPACKET pair, the child's standard input
//!            ← deposit+fd, withdraw, ready, forwarding, reloaded
//! ```
//!
//! For an upgrade there is a second service for a while ([`upgrade`]), and after it the keeper has its own program replaced
//! too ([`handed_state`]). A keeper that was started for it takes everything over from the keeper of another agent, and hands it
//! over to the next ([`taking_over`], [`handover`]): so does a pod of a DaemonSet that replaces another.
//!
//! States of a service: *starting* (deposits and withdrawals) → *ready* (the keeper answers *go* at once) →
//! *forwarding* (the keeper watches the workers' ticks). The keeper kills a service that is not
//! forwarding after 30 s, breaks the protocol, or has a worker whose tick has not moved for 2 to 3 s. It starts the next
//! one at once. After deaths in a row it waits: up to 5 s while no service forwards, at most 200 ms after one that did
//! ([`backoff`]). A service that ends by itself before any service ever
//! forwarded has a reason that trying again does not remove: the keeper ends with its exit code. It does the same when
//! the kernel does not start a first service; once a service has forwarded, that counts as any other death.
//!
//! Limits: 512 descriptors, one keeper per run directory (`flock`). What it never does: read a packet,
//! a configuration or a store record. The one thing it reads is the ticks in the memfd of counters.
//!
//! Under systemd the table outlives the keeper too ([`service_manager`]): what is deposited is stored there, and the next
//! keeper begins with it.
//!
//! SIGHUP goes on to the service once that forwards. Other signals have no effect ([`crate::signals`]).
//!
//! On SIGTERM or SIGINT the keeper sends the service SIGTERM, kills it after 5 s, and ends with code 0. The
//! tunnel device stays without a carrier, so that its routes do not count and the `unreachable` cluster route
//! answers: pod traffic is refused and does not leak, until the next start takes the device over or
//! `tartan cleanup` removes it. A service whose keeper died sees the end of the channel and ends too.

pub mod backoff;
pub mod channel;
pub mod child;
pub mod descriptors;
mod handed_over;
pub mod handed_state;
mod handover;
pub mod lock;
pub mod progress;
mod release;
mod running;
mod service_manager;
mod supervision;
pub mod table;
mod taking_over;
mod upgrade;
pub mod watchdog;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use dataplane::execute;
use thiserror::Error;
use tokio::time::sleep;
use tracing::{error, info, warn};

use backoff::Backoff;
use channel::ChannelError;
use child::Program;
use handed_state::State;
use lock::LockError;
use running::Running;
use service_manager::ServiceManager;
use supervision::{Keeper, Outcome};
use taking_over::Entered;

use crate::causes::causes;
use crate::signals::Signals;
use crate::start_failure;

/// Name under which the service deposits its memfd of counters.
pub const COUNTERS: &str = "counters";

/// The longest time from a request for an upgrade to the last word on it.
pub const LONGEST_UPGRADE: Duration = upgrade::LONGEST;

/// Exit code of a service that was started beside another, and needs other descriptors than that has.
pub const DIFFERS: u8 = 4;

/// The keeper's lock in the run directory.
pub const LOCK_FILE: &str = "lock";

/// Why the keeper itself gave up. A service's death is no such reason.
#[derive(Debug, Error)]
pub enum KeeperError {
    /// Another agent, or a directory that cannot be written.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// No signal handler.
    #[error("cannot listen for signals; check the limit of open descriptors (ulimit -n)")]
    Signals(#[source] io::Error),
    /// No timer.
    #[error("cannot have a timer; check the limit of open descriptors (ulimit -n)")]
    Clock(#[source] io::Error),
    /// No child.
    #[error(
        "cannot start the service {path}; put the binary back, or start the new one by its path"
    )]
    Start {
        /// The binary.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// No end of the child.
    #[error("cannot wait for the service; restart tartan")]
    Wait(#[source] io::Error),
    /// Nothing to go on with.
    #[error(
        "the keeper's new program cannot go on where the one before was; the agent starts anew"
    )]
    State(#[source] io::Error),
    /// No socket.
    #[error("cannot talk to the service")]
    Channel(#[source] ChannelError),
}

impl KeeperError {
    /// Whether the same may succeed later: a binary that is being replaced, a kernel out of memory, processes
    /// or descriptors. Ending would take the device from pods that a later try may serve again.
    fn may_pass(&self) -> bool {
        matches!(
            self,
            KeeperError::Start { .. } | KeeperError::Channel(_) | KeeperError::Clock(_)
        )
    }
}

/// What a keeper is started with.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Where the lock lies, and what callers look for.
    pub run_dir: PathBuf,
    /// What the service is started from.
    pub program: Program,
    /// The filter of the log.
    pub log: String,
    /// The name by which it takes over from an agent that runs, and hands over to the next; none: it does neither.
    pub instance: Option<String>,
}

/// Keeps one service running until SIGTERM or SIGINT; returns the exit code. Needs a tokio runtime with I/O,
/// time and signals.
///
/// # Errors
/// [`KeeperError`]: another agent on the run directory, or a kernel that lets no first service start.
pub async fn run(identity: Identity) -> Result<u8, KeeperError> {
    let mut signals = Signals::listen().map_err(KeeperError::Signals)?;
    match begin(identity, false, &mut signals).await? {
        Some((keeper, running)) => keep_on(keeper, running, signals).await,
        None => Ok(0),
    }
}

/// Waits for the lock, or takes over from the agent that has it; none where this agent is asked to stop before.
async fn begin(
    identity: Identity,
    has_handed_over: bool,
    signals: &mut Signals,
) -> Result<Option<(Keeper, Option<Running>)>, KeeperError> {
    match taking_over::enter(&identity, has_handed_over, signals).await? {
        Entered::Alone(lock) => {
            let keeper = Keeper::new(identity, lock, ServiceManager::from_environment());
            // An agent before this one may have left it.
            start_failure::forget(&keeper.run_dir);
            Ok(Some((keeper, None)))
        }
        Entered::TakenOver(all) => Ok(Some(*all)),
        Entered::Stopped => Ok(None),
    }
}

/// Goes on where the program before this one in the same process was.
///
/// # Errors
/// [`KeeperError`], where nothing is there to go on with.
pub async fn go_on(state: State) -> Result<u8, KeeperError> {
    let signals = Signals::listen().map_err(KeeperError::Signals)?;
    execute::take_signals().map_err(KeeperError::Signals)?;
    let (keeper, running) = state.adopt().map_err(KeeperError::State)?;
    keep_on(keeper, Some(running), signals).await
}

/// Until the end of the process; after a hand-over as an agent that comes second.
async fn keep_on(
    mut keeper: Keeper,
    mut running: Option<Running>,
    mut signals: Signals,
) -> Result<u8, KeeperError> {
    loop {
        let ended = keep(&mut keeper, running.take(), &mut signals).await;
        let code = match ended {
            Ok(Ended::HandedOver { is_stop_due }) => {
                let identity = keeper.let_go().await;
                if is_stop_due {
                    return Ok(0);
                }
                match begin(identity, true, &mut signals).await? {
                    Some(next) => (keeper, running) = next,
                    None => return Ok(0),
                }
                continue;
            }
            Ok(Ended::Code(code)) => Ok(code),
            Err(error) => Err(error),
        };
        keeper.manager.stopping();
        let run_dir = keeper.run_dir.clone();
        keeper.close().await;
        if let Ok(0) = code {
            start_failure::forget(&run_dir);
        }
        return code;
    }
}

/// How it ends that a keeper has a service.
enum Ended {
    /// With the process.
    Code(u8),
    /// Another agent goes on. `is_stop_due` where this one was asked to stop meanwhile.
    HandedOver { is_stop_due: bool },
}

async fn keep(
    keeper: &mut Keeper,
    mut running: Option<Running>,
    signals: &mut Signals,
) -> Result<Ended, KeeperError> {
    let mut backoff = Backoff::default();
    loop {
        let reason = match keeper.run_service(running.take(), signals).await {
            Ok(Outcome::Stopped(ending)) => {
                info!("stopped: the service {}", ending.words());
                return Ok(Ended::Code(0));
            }
            Ok(Outcome::HandedOver { is_stop_due }) => {
                return Ok(Ended::HandedOver { is_stop_due });
            }
            Ok(Outcome::Died(ending)) => {
                let is_reread_due = std::mem::take(&mut keeper.is_reread_due);
                let must_work = !keeper.has_forwarded && !is_reread_due;
                if let (Some(code), true) = (ending.code(), must_work) {
                    error!(
                        "the service {} before it forwarded; not started again",
                        ending.words()
                    );
                    return Ok(Ended::Code(code.max(1)));
                }
                if ending.code().is_none() && keeper.forwarding_since.is_none() {
                    // It was killed before it could note the reason itself.
                    start_failure::note(&keeper.run_dir, &format!("it {}", ending.words()));
                }
                keeper.restarts = keeper.restarts.saturating_add(1);
                keeper.last_end = Some(ending.words());
                format!("the service {}", ending.words())
            }
            Err(error) if keeper.has_forwarded && error.may_pass() => {
                let reason = causes(&error);
                start_failure::note(&keeper.run_dir, &reason);
                reason
            }
            Err(error) => return Err(error),
        };
        let wait = backoff.after(keeper.forwarding_since.map(|since| since.elapsed()));
        warn!(
            descriptors = keeper.table.names().len(),
            "{reason}; the next starts in {} ms",
            wait.as_millis()
        );
        keeper.manager.alive();
        keeper
            .manager
            .status(&format!("{reason}; the next starts soon"));
        tokio::select! {
            biased;
            () = signals.stop() => return Ok(Ended::Code(0)),
            () = pause(wait) => {}
        }
    }
}

/// No pause at all of zero: a timer's steps are 1 ms.
async fn pause(wait: Duration) {
    if !wait.is_zero() {
        sleep(wait).await;
    }
}

/// Variables that are meant for the keeper, and not for a program that it starts.
const VARIABLES: [&str; 8] = {
    let [socket, watchdog, of_process, process, count, names, store] = service_manager::VARIABLES;
    let state = handed_state::VARIABLE;
    [
        socket, watchdog, of_process, process, count, names, store, state,
    ]
};
