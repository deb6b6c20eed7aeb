//! One service after the other: the table handed over, its messages answered, its workers watched.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dataplane::counters::Counters;
use dataplane::device;
use rustix::io::fcntl_dupfd_cloexec;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::channel::{
    FromKeeper, FromService, HandOverRequest, TablePart, UpgradeRequest, Upgraded,
};
use super::child::{Ending, Program, Service};
use super::lock::Lock;
use super::progress::Progress;
use super::running::Running;
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
    /// Another agent goes on. `is_stop_due` where this one was asked to stop meanwhile.
    HandedOver {
        is_stop_due: bool,
    },
}

/// The descriptors, and what is known of the services that had them.
pub(super) struct Keeper {
    pub(super) table: DescriptorTable,
    pub(super) manager: ServiceManager,
    /// What keeps a second agent out.
    pub(super) lock: Lock,
    pub(super) run_dir: PathBuf,
    /// What the next service is started from.
    pub(super) program: Program,
    /// The file by which the agent was started: an upgrade that names none is to it, and so is a start whose file is gone.
    pub(super) started_by: PathBuf,
    /// The filter of the log, for the program that is executed in this one's place.
    pub(super) log: String,
    /// The name by which this agent takes over and hands over; one without does neither.
    pub(super) instance: Option<String>,
    pub(super) restarts: u64,
    pub(super) last_end: Option<String>,
    pub(super) has_forwarded: bool,
    /// A service that waited for its registry was asked to end, so that the next one reads its files.
    pub(super) is_reread_due: bool,
    /// When the present service, or the last one, began to forward.
    pub(super) forwarding_since: Option<Instant>,
    /// The latest upgrade.
    pub(super) upgraded: Option<Upgraded>,
}

impl Keeper {
    /// With the descriptors that the service manager has kept of a keeper before.
    pub(super) fn new(identity: super::Identity, lock: Lock, manager: ServiceManager) -> Keeper {
        let mut keeper = Keeper {
            table: DescriptorTable::default(),
            manager,
            lock,
            run_dir: identity.run_dir,
            started_by: identity.program.path.clone(),
            program: identity.program,
            log: identity.log,
            instance: identity.instance,
            restarts: 0,
            last_end: None,
            has_forwarded: false,
            is_reread_due: false,
            forwarding_since: None,
            upgraded: None,
        };
        keeper.take_kept(service_manager::take_kept());
        keeper
    }

    /// With the descriptors of another agent, as `about` describes them. What a service manager has kept is of a time before.
    pub(super) fn in_place_of_another(
        identity: super::Identity,
        lock: Lock,
        table: DescriptorTable,
        about: TablePart,
    ) -> Keeper {
        let mut keeper = Keeper::new(identity, lock, ServiceManager::from_environment());
        for name in keeper.table.names() {
            keeper.manager.forget(&name);
        }
        keeper.table = table;
        for name in keeper.table.names() {
            if let Some(descriptor) = keeper.table.descriptor(&name) {
                keeper.manager.store(&name, descriptor);
            }
        }
        Keeper {
            restarts: about.restarts,
            last_end: about.last_end,
            upgraded: about.upgraded,
            // A death is followed by a start.
            has_forwarded: true,
            ..keeper
        }
    }

    /// Closes everything, as another agent has it, and returns what this one was started with.
    pub(super) async fn let_go(mut self) -> super::Identity {
        for name in self.table.names() {
            self.manager.forget(&name);
        }
        self.manager.has_forgotten().await;
        super::Identity {
            run_dir: self.run_dir,
            program: Program {
                path: self.started_by,
                arguments: self.program.arguments,
            },
            log: self.log,
            instance: self.instance,
        }
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
    fn take_kept(&mut self, kept: Vec<service_manager::Kept>) {
        let mut by_name: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for one in kept {
            by_name.entry(one.name).or_default().push(one.descriptor);
        }
        for (name, mut descriptors) in by_name {
            self.manager.note_stored(&name);
            let taken = match (descriptors.pop(), descriptors.len()) {
                (Some(Ok(descriptor)), 0) => self
                    .table
                    .deposit(name.clone(), vec![descriptor])
                    .map_err(|error| error.to_string()),
                (Some(Err(error)), 0) => Err(error.to_string()),
                (_, others) => Err(format!("there are {} of that name", others + 1)),
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

    /// Runs a service to its end, `running` or a new one, and those that take its place meanwhile.
    pub(super) async fn run_service(
        &mut self,
        running: Option<Running>,
        signals: &mut Signals,
    ) -> Result<Outcome, KeeperError> {
        let mut ticker = Ticker::every(CHECK_EVERY).map_err(KeeperError::Clock)?;
        let mut running = match running {
            Some(running) => running,
            None => self.start()?,
        };
        let outcome = match self.serve(&mut running, signals, &mut ticker).await {
            Verdict::Died(ending) => Outcome::Died(ending.map_err(KeeperError::Wait)?),
            Verdict::Stop => {
                self.manager.stopping();
                let ending = running.service.stop(STOP_PATIENCE).await;
                Outcome::Stopped(ending.map_err(KeeperError::Wait)?)
            }
            // The service has ended.
            Verdict::HandedOver { is_stop_due } => return Ok(Outcome::HandedOver { is_stop_due }),
            Verdict::Kill(reason) => {
                error!(
                    pid = running.service.id(),
                    "the service is killed: {reason}"
                );
                let ending = running.service.kill().await;
                Outcome::Died(ending.map_err(KeeperError::Wait)?)
            }
        };
        self.drain(&running);
        Ok(outcome)
    }

    /// Starts a service, which is yet to get the table.
    fn start(&mut self) -> Result<Running, KeeperError> {
        self.forwarding_since = None;
        let running = self.start_program()?;
        info!(pid = running.service.id(), "the service is started");
        self.manager.status("the service starts");
        Ok(running)
    }

    /// Attends to a service until something is to be done about it.
    async fn serve(
        &mut self,
        running: &mut Running,
        signals: &mut Signals,
        ticker: &mut Ticker,
    ) -> Verdict {
        loop {
            let (request, progress) = match self.attend(running, signals, ticker).await {
                Attended::Upgrade(request, progress) => (request, progress),
                Attended::HandOver(request, progress) => {
                    let handed = self
                        .hand_over_to(running, request, &progress, signals, ticker)
                        .await;
                    match handed {
                        Ok(()) if std::mem::take(&mut running.is_reload_due) => {
                            self.reload(&running.service);
                        }
                        Ok(()) => {}
                        Err(verdict) => return verdict,
                    }
                    continue;
                }
                Attended::End(verdict) => return verdict,
            };
            let replaced = self
                .upgrade(running, request, &progress, signals, ticker)
                .await;
            match replaced {
                // A service that goes on untouched says no word after which that would be done.
                Ok(None) if std::mem::take(&mut running.is_reload_due) => {
                    self.reload(&running.service);
                }
                Ok(None) => {}
                Ok(Some((next, ended))) => {
                    *running = next;
                    if let Some(verdict) = self.execute(running, &progress, signals, ended).await {
                        return verdict;
                    }
                }
                Err(verdict) => return verdict,
            }
        }
    }

    async fn attend(
        &mut self,
        running: &mut Running,
        signals: &mut Signals,
        ticker: &mut Ticker,
    ) -> Attended {
        if let Some(verdict) = self.hand_over(running, signals).await {
            return Attended::End(verdict);
        }
        loop {
            let Running {
                channel, service, ..
            } = running;
            tokio::select! {
                biased;
                is_stop = signals.stop_or_reload() => match is_stop {
                    true => return Attended::End(Verdict::Stop),
                    false if running.is_waiting => self.end_waiting(service),
                    // A service that starts reads its files, or has read them already.
                    false if self.forwarding_since.is_none() => running.is_reload_due = true,
                    false => self.reload(service),
                },
                ending = service.ended() => return Attended::End(Verdict::Died(ending)),
                message = channel.receive() => match message {
                    Ok(Some((FromService::Ready, _))) => {
                        self.manager.has_forgotten().await;
                        if let Err(error) = channel.send(&FromKeeper::Go, &[]).await {
                            return Attended::End(running.broken(&error).await);
                        }
                    }
                    Ok(Some((FromService::Waiting, _))) => {
                        running.started = Instant::now();
                        running.is_waiting = true;
                        self.manager.status("the service waits for its registry");
                        if std::mem::take(&mut running.is_reload_due) {
                            self.end_waiting(&running.service);
                        }
                    }
                    Ok(Some((FromService::Reloaded, _))) => self.manager.ready(),
                    Ok(Some((FromService::Forwarding, _))) => self.forwards(running),
                    Ok(Some((FromService::Upgrade(request), connection))) => {
                        let progress = Progress::new(connection.into_iter().next());
                        return Attended::Upgrade(request, progress);
                    }
                    Ok(Some((FromService::HandOver(request), connection))) => {
                        let progress = Progress::new(connection.into_iter().next());
                        return Attended::HandOver(request, progress);
                    }
                    Ok(Some((message, descriptors))) => self.store(message, descriptors),
                    Ok(None) => return Attended::End(running.broken(&"it closed the channel").await),
                    Err(error) => return Attended::End(running.broken(&error).await),
                },
                tick = ticker.tick() => {
                    if self.forwarding_since.is_none() && running.started.elapsed() > START_PATIENCE {
                        let limit = START_PATIENCE.as_secs();
                        let reason = format!("it did not forward within {limit} s");
                        return Attended::End(Verdict::Kill(reason));
                    }
                    if let Some(reason) = running.watch.as_mut().and_then(check) {
                        return Attended::End(Verdict::Kill(reason));
                    }
                    self.manager.alive();
                    let pause = running.watch.as_ref().map(|(watchdog, _)| watchdog.pause());
                    if let Err(error) = tick.and_then(|()| ticker.change(pause.unwrap_or(CHECK_EVERY))) {
                        return Attended::End(Verdict::Kill(format!(
                            "the keeper cannot watch it because its timer fails ({error}); the next service gets a new timer: if that fails too, see the kernel's log and restart tartan"
                        )));
                    }
                }
            }
        }
    }

    /// Gives a service that was just started the table, and attends to signals and its end meanwhile.
    async fn hand_over(&mut self, running: &mut Running, signals: &mut Signals) -> Option<Verdict> {
        if std::mem::replace(&mut running.has_table, true) {
            return None;
        }
        let Running {
            channel, service, ..
        } = running;
        let handed = match self.table_for(None) {
            Ok(handed) => handed,
            Err(error) => return Some(running.broken(&error).await),
        };
        let sent = tokio::select! {
            biased;
            () = signals.stop() => return Some(Verdict::Stop),
            ending = service.ended() => return Some(Verdict::Died(ending)),
            sent = handed.send(channel) => sent.map_err(|error| error.to_string()),
            () = sleep(START_PATIENCE) => Err("it did not read its table".to_owned()),
        };
        match sent {
            Ok(()) => None,
            Err(error) => Some(running.broken(&error).await),
        }
    }

    /// A service has said that it forwards.
    pub(super) fn forwards(&mut self, running: &mut Running) {
        self.manager.ready();
        self.manager.status("the service forwards");
        self.note_forwarding();
        running.is_waiting = false;
        self.watch(running);
        info!(pid = running.service.id(), "the service forwards");
        if std::mem::take(&mut running.is_reload_due) {
            self.reload(&running.service);
        }
    }

    fn note_forwarding(&mut self) {
        self.has_forwarded = true;
        self.forwarding_since = Some(Instant::now());
    }

    /// Watches its workers from now on.
    pub(super) fn watch(&self, running: &mut Running) {
        let counters = self.counters();
        running.watch = counters.map(|counters| (Watchdog::default(), counters));
    }

    /// Does with the table what a service says.
    pub(super) fn store(&mut self, message: FromService, descriptors: Vec<std::os::fd::OwnedFd>) {
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
            | FromService::Forwarding
            | FromService::Upgrade(_)
            | FromService::Paused
            | FromService::Resumed
            | FromService::HandOver(_)
            | FromService::Failed(_)
            | FromService::Taken => Ok(()),
        };
        if let Err(error) = stored {
            error!(%error, "a deposit is refused; a restart will open that descriptor anew");
        }
    }

    /// Reads what a dead service wrote before it died: a queue that it withdrew must not be handed to the next, and one that
    /// forwarded has another behind it.
    /// Returns whether any of it was about the table.
    pub(super) fn drain(&mut self, running: &Running) -> bool {
        let mut has_changed = false;
        loop {
            match running.channel.receive_waiting() {
                Ok(Some((FromService::Forwarding, _))) => self.note_forwarding(),
                Ok(Some((message, descriptors))) => {
                    has_changed |=
                        matches!(message, FromService::Deposit(_) | FromService::Withdraw(_));
                    self.store(message, descriptors);
                }
                Ok(None) => return has_changed,
                Err(error) => {
                    warn!(%error, "a message of the ended service is not understood");
                    return has_changed;
                }
            }
        }
    }

    /// Has the service read its files again. The next one to forward, or its own word, ends that.
    pub(super) fn reload(&mut self, service: &Service) {
        self.manager.reloading();
        if let Err(error) = service.reload() {
            warn!(%error, "the service cannot be asked to read its files again");
            self.manager.ready();
        }
    }

    /// A service that waits for its registry ends, and the next one starts by the files as they are.
    fn end_waiting(&mut self, service: &Service) {
        self.is_reread_due = true;
        if let Err(error) = service.reload() {
            warn!(%error, "the service cannot be asked to read its files again");
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

/// What is to be done about a service.
pub(super) enum Verdict {
    Stop,
    Kill(String),
    Died(io::Result<Ending>),
    /// Nothing: it has ended, and another agent goes on.
    HandedOver {
        is_stop_due: bool,
    },
}

/// What ends the attendance on a service, or interrupts it.
enum Attended {
    End(Verdict),
    Upgrade(UpgradeRequest, Progress),
    HandOver(HandOverRequest, Progress),
}

/// Why a service is to be killed whose worker hangs.
pub(super) fn check((watchdog, counters): &mut (Watchdog, Counters)) -> Option<String> {
    let stalled = watchdog.check(&ticks(counters), Instant::now())?;
    Some(format!(
        "worker {} has stood still for {:.1} s",
        stalled.worker,
        stalled.stalled_for.as_secs_f32()
    ))
}

/// Of every worker that runs.
fn ticks(counters: &Counters) -> Vec<u64> {
    let totals = counters.read();
    totals.of_running().map(|worker| worker.tick).collect()
}

/// As the service names it.
const FIRST_QUEUE: &str = "tun-queue-0";
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(5);
pub(super) const START_PATIENCE: Duration = Duration::from_secs(30);
pub(super) const DYING_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_that_runs_is_watched() {
        let counters = Counters::create(3).unwrap();
        assert_eq!(ticks(&counters), [0, 0, 0]);
    }
}
