//! One service after the other: the table handed over, its messages answered, its workers watched.

use std::io;
use std::time::{Duration, Instant};

use dataplane::counters::Counters;
use dataplane::device;
use rustix::io::fcntl_dupfd_cloexec;
use tracing::{error, info, warn};

use super::channel::{Channel, ChannelError, FromKeeper, FromService, PROTOCOL, TablePart};
use super::child::{Ending, Program, Service};
use super::service_manager::{self, ServiceManager};
use super::table::{DescriptorTable, TableError};
use super::watchdog::{CHECK_EVERY, Watchdog};
use super::{COUNTERS, KeeperError};
use crate::host::KernelReader;
use crate::signals::Signals;
use crate::ticker::Ticker;

/// How a service ended for the keeper.
pub(super) enum Outcome {
    Stopped(Ending),
    Died(Ending),
}

/// The descriptors, and what is known of the services that had them.
pub(super) struct Keeper {
    pub(super) table: DescriptorTable,
    pub(super) manager: ServiceManager,
    pub(super) restarts: u64,
    pub(super) last_end: Option<String>,
    pub(super) has_forwarded: bool,
    /// When the present service, or the last one, began to forward.
    pub(super) forwarding_since: Option<Instant>,
}

impl Keeper {
    /// With the descriptors that the service manager has kept of a keeper before.
    pub(super) fn new(manager: ServiceManager) -> Keeper {
        let mut keeper = Keeper {
            table: DescriptorTable::default(),
            manager,
            restarts: 0,
            last_end: None,
            has_forwarded: false,
            forwarding_since: None,
        };
        keeper.take_kept();
        keeper
    }

    /// Closes what is kept. The kernel notices up to a second late that the tunnel device has no carrier any more, and drops
    /// what is sent there without a word: asked for the device, it does at once, and refuses it.
    pub(super) async fn close(self) {
        let queue = self.table.descriptor(FIRST_QUEUE);
        let device = queue.and_then(|queue| device::name_of(&queue));
        drop(self);
        let (Some(device), Ok(kernel)) = (device, KernelReader::open()) else {
            return;
        };
        // It may be gone: only the question counts.
        let _ = kernel.device_stats(&device).await;
    }

    /// What is broken, or has no name of its own, is closed, here and there: the service opens it anew. Whether the rest is
    /// what its name says is for the service to judge.
    fn take_kept(&mut self) {
        for kept in service_manager::take_kept() {
            let name = kept.name;
            self.manager.note_stored(&name);
            let taken = match kept.descriptor {
                Err(error) => Err(error.to_string()),
                Ok(_) if self.table.descriptor(&name).is_some() => {
                    self.table.withdraw(&name);
                    Err("there are two of that name".to_owned())
                }
                Ok(descriptor) => self
                    .table
                    .deposit(name.clone(), vec![descriptor])
                    .map_err(|error| error.to_string()),
            };
            if let Err(reason) = taken {
                warn!(
                    name,
                    "a descriptor that the service manager has kept is closed: {reason}"
                );
                self.manager.forget(&name);
            }
        }
        if !self.table.is_empty() {
            let descriptors = self.table.names().len();
            info!(
                descriptors,
                "the service manager has kept the descriptors of the agent before"
            );
        }
    }

    pub(super) async fn run_service(
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
        self.manager.status("the service starts");
        let outcome = match self
            .serve(&channel, &mut service, signals, &mut ticker)
            .await
        {
            Verdict::Died(ending) => Outcome::Died(ending.map_err(KeeperError::Wait)?),
            Verdict::Stop => {
                self.manager.stopping();
                let ending = service.stop(STOP_PATIENCE).await;
                Outcome::Stopped(ending.map_err(KeeperError::Wait)?)
            }
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
                    false => self.reload(service),
                },
                ending = service.ended() => return Verdict::Died(ending),
                message = channel.receive() => match message {
                    Ok(Some((FromService::Ready, _))) => {
                        if let Err(error) = channel.send(&FromKeeper::Go, &[]).await {
                            return self.broken(&error, service).await;
                        }
                    }
                    Ok(Some((FromService::Waiting, _))) => {
                        started = Instant::now();
                        self.manager.status("the service waits for its registry");
                    }
                    Ok(Some((FromService::Reloaded, _))) => self.manager.ready(),
                    Ok(Some((FromService::Forwarding, _))) => {
                        self.manager.ready();
                        self.manager.status("the service forwards");
                        self.has_forwarded = true;
                        self.forwarding_since = Some(Instant::now());
                        watch = self.counters().map(|counters| (Watchdog::default(), counters));
                        info!(pid = service.id(), "the service forwards");
                        if std::mem::take(&mut is_reload_due) {
                            self.reload(service);
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
                    self.manager.alive();
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
                protocol: PROTOCOL,
            };
            channel.send(&FromKeeper::Table(part), &descriptors).await?;
        }
        Ok(())
    }

    fn store(&mut self, message: FromService, descriptors: Vec<std::os::fd::OwnedFd>) {
        let stored: Result<(), TableError> = match message {
            FromService::Deposit(name) => {
                let stored = self.table.deposit(name.clone(), descriptors);
                match self.table.descriptor(&name) {
                    Some(descriptor) if stored.is_ok() => self.manager.store(&name, descriptor),
                    _ => {}
                }
                stored
            }
            FromService::Withdraw(name) => {
                self.manager.forget(&name);
                if !self.table.withdraw(&name) {
                    warn!(name, "the service withdrew a descriptor that is not kept");
                }
                Ok(())
            }
            FromService::Waiting
            | FromService::Ready
            | FromService::Reloaded
            | FromService::Forwarding => Ok(()),
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

    /// Has the service read its files again. The next one to forward, or its own word, ends that.
    fn reload(&mut self, service: &Service) {
        self.manager.reloading();
        if let Err(error) = service.reload() {
            warn!(%error, "the service cannot be asked to read its files again");
            self.manager.ready();
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

/// As the service names it.
const FIRST_QUEUE: &str = "tun-queue-0";
const STOP_PATIENCE: Duration = Duration::from_secs(5);
const START_PATIENCE: Duration = Duration::from_secs(30);
const DYING_PATIENCE: Duration = Duration::from_secs(1);
