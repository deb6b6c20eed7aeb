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
//!            ← deposit+fd, withdraw, ready, forwarding
//! ```
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
pub mod lock;
mod notify;
pub mod table;
pub mod watchdog;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dataplane::counters::Counters;
use rustix::io::fcntl_dupfd_cloexec;
use thiserror::Error;
use tokio::time::sleep;
use tracing::{error, info, warn};

use backoff::Backoff;
use channel::{Channel, ChannelError, FromKeeper, FromService, TablePart};
use child::{Ending, Program, Service};
use lock::{Lock, LockError};
use table::{DescriptorTable, TableError};
use watchdog::{CHECK_EVERY, Watchdog};

use crate::causes::causes;
use crate::signals::Signals;
use crate::start_failure;
use crate::ticker::Ticker;

/// Name under which the service deposits its memfd of counters.
pub const COUNTERS: &str = "counters";

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

/// Keeps one service running until SIGTERM or SIGINT; returns the exit code. Needs a tokio runtime with I/O,
/// time and signals.
///
/// # Errors
/// [`KeeperError`]: another agent on the run directory, or a kernel that lets no first service start.
pub async fn run(run_dir: PathBuf, program: Program) -> Result<u8, KeeperError> {
    let _lock = Lock::take(&run_dir.join(LOCK_FILE))?;
    // An agent before this one may have left it.
    start_failure::forget(&run_dir);
    let code = keep(&run_dir, &program).await;
    if let Ok(0) = code {
        start_failure::forget(&run_dir);
    }
    code
}

async fn keep(run_dir: &Path, program: &Program) -> Result<u8, KeeperError> {
    let mut signals = Signals::listen().map_err(KeeperError::Signals)?;
    let mut keeper = Keeper::default();
    let mut backoff = Backoff::default();
    loop {
        let reason = match keeper.run_service(program, &mut signals).await {
            Ok(Outcome::Stopped(ending)) => {
                info!("stopped: the service {}", ending.words());
                return Ok(0);
            }
            Ok(Outcome::Died(ending)) => {
                if let (Some(code), false) = (ending.code(), keeper.has_forwarded) {
                    error!(
                        "the service {} before it forwarded; not started again",
                        ending.words()
                    );
                    return Ok(code.max(1));
                }
                if ending.code().is_none() && keeper.forwarding_since.is_none() {
                    // It was killed before it could note the reason itself.
                    start_failure::note(run_dir, &format!("it {}", ending.words()));
                }
                keeper.restarts = keeper.restarts.saturating_add(1);
                keeper.last_end = Some(ending.words());
                format!("the service {}", ending.words())
            }
            Err(error) if keeper.has_forwarded && error.may_pass() => {
                let reason = causes(&error);
                start_failure::note(run_dir, &reason);
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
        tokio::select! {
            biased;
            () = signals.stop() => return Ok(0),
            () = sleep(wait) => {}
        }
    }
}

/// How a service ended for the keeper.
enum Outcome {
    Stopped(Ending),
    Died(Ending),
}

#[derive(Default)]
struct Keeper {
    table: DescriptorTable,
    restarts: u64,
    last_end: Option<String>,
    has_forwarded: bool,
    /// When the present service, or the last one, began to forward.
    forwarding_since: Option<Instant>,
}

impl Keeper {
    async fn run_service(
        &mut self,
        program: &Program,
        signals: &mut Signals,
    ) -> Result<Outcome, KeeperError> {
        self.forwarding_since = None;
        let mut ticker = Ticker::every(CHECK_EVERY).map_err(KeeperError::Clock)?;
        let (channel, theirs) = Channel::pair().map_err(KeeperError::Channel)?;
        let mut service = Service::start(program, theirs).map_err(|source| KeeperError::Start {
            path: program.path.clone(),
            source,
        })?;
        info!(pid = service.id(), "the service is started");
        let outcome = match self
            .serve(&channel, &mut service, signals, &mut ticker)
            .await
        {
            Verdict::Died(ending) => Outcome::Died(ending.map_err(KeeperError::Wait)?),
            Verdict::Stop => Outcome::Stopped(
                service
                    .stop(STOP_PATIENCE)
                    .await
                    .map_err(KeeperError::Wait)?,
            ),
            Verdict::Kill(reason) => {
                error!(pid = service.id(), "the service is killed: {reason}");
                Outcome::Died(service.kill().await.map_err(KeeperError::Wait)?)
            }
        };
        self.drain(&channel);
        Ok(outcome)
    }

    async fn serve(
        &mut self,
        channel: &Channel,
        service: &mut Service,
        signals: &mut Signals,
        ticker: &mut Ticker,
    ) -> Verdict {
        if let Err(error) = self.hand_over(channel).await {
            return self.broken(&error, service).await;
        }
        let mut watch: Option<(Watchdog, Counters)> = None;
        let mut started = Instant::now();
        let mut is_reload_due = false;
        loop {
            tokio::select! {
                biased;
                is_stop = signals.stop_or_reload() => match is_stop {
                    true => return Verdict::Stop,
                    // A service that starts reads its files, or has read them already.
                    false if self.forwarding_since.is_none() => is_reload_due = true,
                    false => reload(service),
                },
                ending = service.ended() => return Verdict::Died(ending),
                message = channel.receive() => match message {
                    Ok(Some((FromService::Ready, _))) => {
                        if let Err(error) = channel.send(&FromKeeper::Go, &[]).await {
                            return self.broken(&error, service).await;
                        }
                    }
                    Ok(Some((FromService::Waiting, _))) => started = Instant::now(),
                    Ok(Some((FromService::Forwarding, _))) => {
                        if !self.has_forwarded {
                            notify::ready();
                        }
                        self.has_forwarded = true;
                        self.forwarding_since = Some(Instant::now());
                        watch = self.counters().map(|counters| (Watchdog::default(), counters));
                        info!(pid = service.id(), "the service forwards");
                        if std::mem::take(&mut is_reload_due) {
                            reload(service);
                        }
                    }
                    Ok(Some((message, descriptors))) => self.store(message, descriptors),
                    Ok(None) => return self.broken(&"it closed the channel", service).await,
                    Err(error) => return self.broken(&error, service).await,
                },
                tick = ticker.tick() => {
                    if self.forwarding_since.is_none() && started.elapsed() > START_PATIENCE {
                        let limit = START_PATIENCE.as_secs();
                        return Verdict::Kill(format!("it did not forward within {limit} s"));
                    }
                    if let Some(reason) = watch.as_mut().and_then(check) {
                        return Verdict::Kill(reason);
                    }
                    let pause = watch.as_ref().map(|(watchdog, _)| watchdog.pause());
                    if let Err(error) = tick.and_then(|()| ticker.change(pause.unwrap_or(CHECK_EVERY))) {
                        return Verdict::Kill(format!(
                            "the keeper cannot watch it because its timer fails ({error}); the next service gets a new timer: if that fails too, see the kernel's log and restart tartan"
                        ));
                    }
                }
            }
        }
    }

    /// Waits a moment for a service that is ending anyway, so that the log gives its own end as the reason.
    async fn broken(&self, error: &impl std::fmt::Display, service: &mut Service) -> Verdict {
        match tokio::time::timeout(DYING_PATIENCE, service.ended()).await {
            Ok(ending) => Verdict::Died(ending),
            Err(_elapsed) => Verdict::Kill(error.to_string()),
        }
    }

    async fn hand_over(&self, channel: &Channel) -> Result<(), ChannelError> {
        let parts = self.table.parts();
        let count = parts.len();
        for (index, (names, descriptors)) in parts.into_iter().enumerate() {
            let part = TablePart {
                names,
                last: index + 1 == count,
                restarts: self.restarts,
                last_end: self.last_end.clone(),
            };
            channel.send(&FromKeeper::Table(part), &descriptors).await?;
        }
        Ok(())
    }

    fn store(&mut self, message: FromService, descriptors: Vec<std::os::fd::OwnedFd>) {
        let stored: Result<(), TableError> = match message {
            FromService::Deposit(name) => self.table.deposit(name, descriptors),
            FromService::Withdraw(name) => {
                if !self.table.withdraw(&name) {
                    warn!(name, "the service withdrew a descriptor that is not kept");
                }
                Ok(())
            }
            FromService::Waiting | FromService::Ready | FromService::Forwarding => Ok(()),
        };
        if let Err(error) = stored {
            error!(%error, "a deposit is refused; a restart will open that descriptor anew");
        }
    }

    /// Reads what a dead service wrote before it died: a queue that it withdrew must not be handed to the next.
    fn drain(&mut self, channel: &Channel) {
        loop {
            match channel.receive_waiting() {
                Ok(Some((message, descriptors))) => self.store(message, descriptors),
                Ok(None) => return,
                Err(error) => {
                    warn!(%error, "a message of the ended service is not understood");
                    return;
                }
            }
        }
    }

    fn counters(&self) -> Option<Counters> {
        let adopted = self
            .table
            .descriptor(COUNTERS)
            .ok_or(io::ErrorKind::NotFound.into())
            .and_then(|fd| Ok(fcntl_dupfd_cloexec(fd, 0)?))
            .and_then(Counters::adopt);
        match adopted {
            Ok(counters) => Some(counters),
            Err(error) => {
                warn!(%error, "no counters to watch: the keeper will not notice a worker that hangs");
                None
            }
        }
    }
}

enum Verdict {
    Stop,
    Kill(String),
    Died(io::Result<Ending>),
}

fn check((watchdog, counters): &mut (Watchdog, Counters)) -> Option<String> {
    let totals = counters.read();
    let ticks: Vec<u64> = totals.of_running().map(|worker| worker.tick).collect();
    let stalled = watchdog.check(&ticks, Instant::now())?;
    Some(format!(
        "worker {} has stood still for {:.1} s",
        stalled.worker,
        stalled.stalled_for.as_secs_f32()
    ))
}

/// Has the service read its files again.
fn reload(service: &Service) {
    if let Err(error) = service.reload() {
        warn!(%error, "the service cannot be asked to read its files again");
    }
}

const STOP_PATIENCE: Duration = Duration::from_secs(5);
const START_PATIENCE: Duration = Duration::from_secs(30);
const DYING_PATIENCE: Duration = Duration::from_secs(1);
