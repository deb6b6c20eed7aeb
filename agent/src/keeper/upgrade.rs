//! Another program's service in the place of the one that runs.
//!
//! Theory of operation. Two services are there for a while, and never two that read:
//!
//! ```text
//!   old   forwards ──────────────── pause ▶ reads no more, finishes ▶ paused ─────────────── end ▶ ends
//!   new        table ▶ reads, checks ▶ ready ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ go ▶ takes over ▶ forwarding
//!                                            ├────────── at most 1 s ─────────────────────┤
//! ```
//!
//! Until *pause* nothing is changed, here or on the host, and whatever is wrong with the program leaves the old service as it
//! is. From *pause* on the new one has a second: if it does not forward by then, or ends, it is killed, and the old one gets
//! *resume*. What the new one deposits and withdraws meanwhile is set aside, and becomes the table with its *forwarding*.
//!
//! | Meanwhile | Then |
//! |---|---|
//! | the old one does not pause | the new one is killed, the old one gets *resume* |
//! | the old one deposits or withdraws | the table is another than the new one's: as above |
//! | the old one ends before *pause*, or a worker of it hangs | the new one is killed, and a service is started as after any death |
//! | the old one ends after *pause* | the new one gets *go*, and as long as any start |
//! | the old one does not go on after *resume* | it is killed |
//! | the agent is asked to stop | the new one is killed, and the old one stops |
//! | this keeper is killed | both services see the end of their channels, and end |
//!
//! Another agent that takes over ([`super::handover`]) goes through the same states: to this keeper it is the new service.

use std::future::{Future, pending};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tokio::time::{Instant as Moment, sleep_until, timeout};
use tracing::{info, warn};

use super::channel::{Channel, ChannelError, FromKeeper, FromService, UpgradeRequest, Upgraded};
use super::child::{Ending, Program, Service};
use super::handover;
use super::progress::{Ended, Outcome, Progress, Step};
use super::release::{self, Release};
use super::running::{Handed, Running};
use super::supervision::{Keeper, START_PATIENCE, Verdict, check};
use crate::causes::causes;
use crate::signals::Signals;
use crate::start_failure;
use crate::ticker::Ticker;

/// What a new service has said of the table, to be done once it forwards.
type SetAside = Vec<(FromService, Vec<OwnedFd>)>;

/// Why the old service stays, or why there is nothing to stay.
pub(super) enum Failure {
    /// It was not touched.
    Unchanged(String),
    /// It had paused.
    Returned(String, Duration),
    /// It is to be stopped, or is gone.
    Old(Verdict),
}

/// What happens while there are two.
pub(super) enum Event {
    Stop,
    Old(FromService, Vec<OwnedFd>),
    OldEnded(io::Result<Ending>),
    New(FromService, Vec<OwnedFd>),
    /// In words.
    NewEnded(String),
    Late,
    /// A worker of the old one hangs, in words.
    OldStalled(String),
}

/// What is to take the place.
struct Wanted<'a> {
    path: &'a Path,
    release: &'a Release,
    /// The version that runs.
    from: String,
    /// When it is to be ready.
    deadline: Instant,
}

/// What is to take the place of the old service.
pub(super) enum Newcomer<'a> {
    /// A service of this keeper's.
    Service(&'a mut Running),
    /// Another agent, which has its service in hand itself.
    Agent(&'a Channel),
}

impl Newcomer<'_> {
    /// The channel, and the process where it is a child.
    fn parts(&mut self) -> (&Channel, Option<&mut Service>) {
        match self {
            Newcomer::Service(running) => (&running.channel, Some(&mut running.service)),
            Newcomer::Agent(channel) => (channel, None),
        }
    }
}

/// The end of a service that is a child.
async fn end_of(service: Option<&mut Service>) -> io::Result<Ending> {
    match service {
        Some(service) => service.ended().await,
        None => pending().await,
    }
}

/// Both services, and what the keeper waits by.
pub(super) struct Both<'a> {
    pub(super) old: &'a mut Running,
    /// How it ended, if it has.
    pub(super) old_ended: Option<io::Result<Ending>>,
    /// It has been told to pause: its workers' ticks stand still by right, and time is short.
    is_paused: bool,
    pub(super) new: Newcomer<'a>,
    /// The agent was asked to stop when that could not be done at once.
    pub(super) is_stop_due: bool,
    signals: &'a mut Signals,
    ticker: &'a mut Ticker,
}

impl<'a> Both<'a> {
    pub(super) fn new(
        old: &'a mut Running,
        new: Newcomer<'a>,
        signals: &'a mut Signals,
        ticker: &'a mut Ticker,
    ) -> Both<'a> {
        Both {
            old,
            old_ended: None,
            is_paused: false,
            new,
            is_stop_due: false,
            signals,
            ticker,
        }
    }
}

impl Failure {
    /// In words.
    pub(super) fn reason(&self) -> String {
        match self {
            Failure::Unchanged(reason) | Failure::Returned(reason, _) => reason.clone(),
            Failure::Old(Verdict::Stop | Verdict::HandedOver { .. }) => {
                "the agent was asked to stop".to_owned()
            }
            Failure::Old(Verdict::Kill(reason)) => {
                format!("the service that ran was killed: {reason}")
            }
            Failure::Old(Verdict::Died(Ok(ending))) => {
                format!("the service that ran {}", ending.words())
            }
            Failure::Old(Verdict::Died(Err(error))) => {
                format!("the service that ran is gone: {error}")
            }
        }
    }
}

impl Keeper {
    /// Has the program of `request` take the place of the service `old`. Returns the new service and the last word on it, or
    /// none where the old one goes on.
    ///
    /// # Errors
    /// What is to be done about the old one, where that is.
    pub(super) async fn upgrade(
        &mut self,
        old: &mut Running,
        request: UpgradeRequest,
        progress: &Progress,
        signals: &mut Signals,
        ticker: &mut Ticker,
    ) -> Result<Option<(Running, Ended)>, Verdict> {
        let path = request.program.map(PathBuf::from);
        let path = path.unwrap_or_else(|| self.started_by.clone());
        let deadline = Instant::now() + START_PATIENCE;
        info!(program = %path.display(), "an upgrade is asked for");
        let mut ended = Ended {
            outcome: Outcome::Unchanged,
            from: request.version.clone(),
            to: None,
            pause_us: None,
            keeper: false,
            reason: None,
        };
        let asked = self.meanwhile(old, signals, ticker, release::ask(&path));
        let asked = match asked.await {
            Ok(release) => release.map_err(Failure::Unchanged),
            Err(verdict) => Err(Failure::Old(verdict)),
        };
        let replaced = match asked {
            Err(failure) => Err(failure),
            Ok(release) => {
                ended.to = Some(release.version.clone());
                progress.say(&Step::Starting {
                    program: path.display().to_string(),
                    version: release.version.clone(),
                });
                let version = request.version;
                let wanted = Wanted {
                    path: &path,
                    release: &release,
                    from: version,
                    deadline,
                };
                self.replace(old, wanted, progress, signals, ticker).await
            }
        };
        let failure = match replaced {
            Ok((new, pause)) => {
                ended.outcome = Outcome::Upgraded;
                ended.pause_us = Some(microseconds(pause));
                return Ok(Some((new, ended)));
            }
            Err(failure) => failure,
        };
        let reason = failure.reason();
        warn!("no upgrade: {reason}");
        ended.reason = Some(reason);
        let verdict = match failure {
            Failure::Unchanged(_) => None,
            Failure::Returned(_, pause) => {
                ended.outcome = Outcome::Returned;
                ended.pause_us = Some(microseconds(pause));
                None
            }
            Failure::Old(verdict) => {
                if !matches!(verdict, Verdict::Stop) {
                    ended.outcome = Outcome::Restarted;
                }
                Some(verdict)
            }
        };
        progress.say(&Step::Ended(ended));
        verdict.map_or(Ok(None), Err)
    }

    /// The same with a program that has told what it is. Returns the new service, and how long no service read.
    async fn replace(
        &mut self,
        old: &mut Running,
        Wanted {
            path,
            release,
            from,
            deadline,
        }: Wanted<'_>,
        progress: &Progress,
        signals: &mut Signals,
        ticker: &mut Ticker,
    ) -> Result<(Running, Duration), Failure> {
        let program = Program {
            path: path.to_owned(),
            arguments: self.program.arguments.clone(),
        };
        let upgraded = Upgraded {
            from,
            at: unix_now(),
        };
        let handed = self.table_for(Some(upgraded.clone()));
        let handed = handed.map_err(|error| Failure::Unchanged(causes(&error)))?;
        let new = Running::start(&program);
        let mut new = new.map_err(|error| Failure::Unchanged(causes(&error)))?;
        info!(
            pid = new.service.id(),
            "a service is started beside the one that runs"
        );
        let mut both = Both::new(old, Newcomer::Service(&mut new), signals, ticker);
        let replaced = self.bring_in(&mut both, handed, deadline, progress);
        let (set_aside, pause) = replaced.await?;
        progress.say(&Step::Forwarding {
            pause_us: microseconds(pause),
        });
        let has_old_ended = both.old_ended.is_some();
        for (message, descriptors) in set_aside {
            self.store(message, descriptors);
        }
        self.program = program;
        info!(
            from = upgraded.from,
            to = release.version,
            "upgraded: no service read for {} ms",
            pause.as_millis()
        );
        self.upgraded = Some(upgraded);
        new.has_table = true;
        new.is_reload_due = old.is_reload_due;
        self.forwards(&mut new);
        if !has_old_ended {
            self.end_old(old).await;
        }
        self.manager.has_forgotten().await;
        Ok((new, pause))
    }

    /// From the table to *forwarding*, and to the last word between two keepers where there are two; or back to the old
    /// service. Returns what the new one has said of the table, and how long no service read.
    pub(super) async fn bring_in(
        &mut self,
        both: &mut Both<'_>,
        handed: Handed,
        deadline: Instant,
        progress: &Progress,
    ) -> Result<(SetAside, Duration), Failure> {
        let (channel, _) = both.new.parts();
        let sent = timeout(TABLE_PATIENCE, handed.send(channel));
        let sent = self.meanwhile(both.old, both.signals, both.ticker, sent);
        let prepared = match sent.await {
            Ok(Ok(Ok(()))) => self.prepare(both, deadline).await,
            Ok(Ok(Err(error))) => Err(Failure::Unchanged(causes(&error))),
            Ok(Err(_elapsed)) => Err(Failure::Unchanged(
                "the new service did not read its table: install a sound build".to_owned(),
            )),
            Err(verdict) => Err(Failure::Old(verdict)),
        };
        if let Err(failure) = prepared {
            self.end_new(both, &failure).await;
            return Err(failure);
        }
        progress.say(&Step::Ready);
        let paused = Instant::now();
        let switched = match self.switch(both, paused).await {
            Ok(set_aside) => {
                let pause = paused.elapsed();
                let given = self.give(both).await;
                given.map(|()| (set_aside, pause))
            }
            Err(failure) => Err(failure),
        };
        match switched {
            Ok(switched) => Ok(switched),
            Err(failure) => {
                self.end_new(both, &failure).await;
                Err(self.go_back(both, failure, paused).await)
            }
        }
    }

    /// Until the new service is ready.
    async fn prepare(&mut self, both: &mut Both<'_>, deadline: Instant) -> Result<(), Failure> {
        loop {
            let reason = match self.next(both, deadline).await {
                Event::New(FromService::Ready, _) => return Ok(()),
                Event::New(FromService::Waiting, _) => continue,
                Event::New(..) => {
                    "the new service changes what is not its own yet: install a sound build"
                        .to_owned()
                }
                Event::NewEnded(words) => words,
                Event::Late => {
                    let limit = START_PATIENCE.as_secs();
                    format!("the new service was not ready within {limit} s: see the agent's log")
                }
                Event::Old(message, descriptors) => match self.attend_old(message, descriptors) {
                    None => continue,
                    Some(reason) => reason,
                },
                Event::OldEnded(ending) => return Err(Failure::Old(Verdict::Died(ending))),
                Event::OldStalled(reason) => return Err(Failure::Old(Verdict::Kill(reason))),
                Event::Stop => return Err(Failure::Old(Verdict::Stop)),
            };
            return Err(Failure::Unchanged(reason));
        }
    }

    /// From *pause* to *forwarding*. Returns what the new service has said of the table. A failure that is not of the old
    /// service is `Unchanged`, as if it had not paused.
    async fn switch(&mut self, both: &mut Both<'_>, paused: Instant) -> Result<SetAside, Failure> {
        let mut deadline = paused + PATIENCE;
        both.is_paused = true;
        let told = tell(&both.old.channel, &FromKeeper::Pause).await;
        if let Err(error) = told {
            return Err(Failure::Old(both.old.broken(&error).await));
        }
        let mut has_paused = false;
        let mut set_aside = Vec::new();
        loop {
            let reason = match self.next(both, deadline).await {
                Event::Old(FromService::Paused, _) if !has_paused => {
                    has_paused = true;
                    if let Err(error) = tell(both.new.parts().0, &FromKeeper::Go).await {
                        causes(&error)
                    } else {
                        continue;
                    }
                }
                Event::Old(message, descriptors) => match self.attend_old(message, descriptors) {
                    None => continue,
                    Some(reason) => reason,
                },
                Event::OldEnded(ending) => {
                    // Nothing is left to go back to: it is a start after a death, and has the time of one.
                    if self.drain(both.old) {
                        return Err(Failure::Old(Verdict::Died(ending)));
                    }
                    both.old_ended = Some(ending);
                    deadline = Instant::now() + START_PATIENCE;
                    if std::mem::replace(&mut has_paused, true) {
                        continue;
                    }
                    match tell(both.new.parts().0, &FromKeeper::Go).await {
                        Ok(()) => continue,
                        Err(error) => causes(&error),
                    }
                }
                Event::New(FromService::Forwarding, _) if has_paused => return Ok(set_aside),
                Event::New(message @ (FromService::Deposit(_) | FromService::Withdraw(_)), fds)
                    if has_paused && set_aside.len() < SET_ASIDE =>
                {
                    set_aside.push((message, fds));
                    continue;
                }
                Event::New(message, _) => {
                    format!(
                        "the new service said {message:?} at a wrong time: install a sound build"
                    )
                }
                Event::NewEnded(words) => words,
                Event::Late if has_paused => {
                    let limit = deadline.saturating_duration_since(paused).as_secs();
                    format!("the new service did not forward within {limit} s: see the agent's log")
                }
                Event::Late => {
                    "the service that runs did not pause: see the agent's log".to_owned()
                }
                Event::OldStalled(reason) => return Err(Failure::Old(Verdict::Kill(reason))),
                Event::Stop => return Err(Failure::Old(Verdict::Stop)),
            };
            return Err(Failure::Unchanged(reason));
        }
    }

    /// What the old service says while there are two; a reason to leave it where it is.
    pub(super) fn attend_old(
        &mut self,
        message: FromService,
        descriptors: Vec<OwnedFd>,
    ) -> Option<String> {
        match message {
            FromService::Reloaded => {
                self.manager.ready();
                None
            }
            FromService::Deposit(_) | FromService::Withdraw(_) => {
                self.store(message, descriptors);
                Some("the service that runs has just changed its descriptors: try again".to_owned())
            }
            FromService::Upgrade(_) | FromService::HandOver(_) => {
                let reason = "another upgrade is under way: try again".to_owned();
                let progress = Progress::new(descriptors.into_iter().next());
                progress.say(&Step::Ended(Ended::unchanged(reason)));
                None
            }
            _ => None,
        }
    }

    /// Waits for `work`, and attends to signals, the old service and the service manager meanwhile.
    ///
    /// # Errors
    /// What is to be done about the old service.
    async fn meanwhile<T>(
        &mut self,
        old: &mut Running,
        signals: &mut Signals,
        ticker: &mut Ticker,
        work: impl Future<Output = T>,
    ) -> Result<T, Verdict> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                is_stop = signals.stop_or_reload() => match is_stop {
                    true => return Err(Verdict::Stop),
                    false => old.is_reload_due = true,
                },
                ending = old.service.ended() => return Err(Verdict::Died(ending)),
                done = &mut work => return Ok(done),
                tick = ticker.tick() => {
                    // As in `next`.
                    let _ = tick;
                    if let Some(reason) = old.watch.as_mut().and_then(check) {
                        return Err(Verdict::Kill(reason));
                    }
                    self.manager.alive();
                }
            }
        }
    }

    /// The next thing that happens, until `deadline`. The service manager is told meanwhile that the keeper works.
    pub(super) async fn next(&mut self, both: &mut Both<'_>, deadline: Instant) -> Event {
        let is_old_here = both.old_ended.is_none();
        let is_paused = both.is_paused;
        loop {
            let old = &mut *both.old;
            let (channel, mut service) = both.new.parts();
            tokio::select! {
                biased;
                is_stop = both.signals.stop_or_reload() => match is_stop {
                    true => return Event::Stop,
                    // Whichever service goes on is to read its files.
                    false => old.is_reload_due = true,
                },
                ending = old.service.ended(), if is_old_here => return Event::OldEnded(ending),
                message = old.channel.receive(), if is_old_here => match message {
                    Ok(Some((message, descriptors))) => return Event::Old(message, descriptors),
                    Ok(None) => return Event::OldEnded(old.service.kill().await),
                    Err(error) => {
                        warn!(%error, "the service that runs is not understood");
                        return Event::OldEnded(old.service.kill().await);
                    }
                },
                message = channel.receive() => match message {
                    Ok(Some((FromService::Failed(reason), _))) if service.is_none() => {
                        return Event::NewEnded(reason);
                    }
                    Ok(Some((message, descriptors))) => return Event::New(message, descriptors),
                    Ok(None) => {
                        let Some(service) = service else {
                            return Event::NewEnded(handover::GONE.to_owned());
                        };
                        // No service reads: one that has no channel and lives is not waited for.
                        let ending = match is_paused {
                            true => service.kill().await,
                            false => service.end_within(DYING_PATIENCE).await,
                        };
                        return Event::NewEnded(self.why_new_ended(ending));
                    }
                    Err(error) => return Event::NewEnded(causes(&error)),
                },
                ending = end_of(service.as_deref_mut()) => {
                    return Event::NewEnded(self.why_new_ended(ending));
                }
                () = sleep_until(Moment::from(deadline)) => return Event::Late,
                tick = both.ticker.tick() => {
                    // A timer that fails is the reason of a verdict after the upgrade.
                    let _ = tick;
                    self.manager.alive();
                    if !is_paused && let Some(reason) = old.watch.as_mut().and_then(check) {
                        return Event::OldStalled(reason);
                    }
                }
            }
        }
    }

    /// What the new service has written down, or how it ended.
    fn why_new_ended(&self, ending: io::Result<Ending>) -> String {
        why_ended(&self.run_dir, &ending)
    }

    async fn end_new(&self, both: &mut Both<'_>, failure: &Failure) {
        match &mut both.new {
            Newcomer::Service(running) => {
                if let Err(error) = running.service.kill().await {
                    warn!(%error, "the new service cannot be waited for");
                }
                start_failure::forget(&self.run_dir);
            }
            Newcomer::Agent(channel) => handover::refuse(channel, failure.reason()).await,
        }
    }

    /// The old service ends by itself.
    pub(super) async fn end_old(&self, old: &mut Running) {
        if let Err(error) = tell(&old.channel, &FromKeeper::End).await {
            warn!("{}", causes(&error));
        }
        match old.service.end_within(END_PATIENCE).await {
            Ok(ending) => info!("the service before {}", ending.words()),
            Err(error) => warn!(%error, "the service before cannot be waited for"),
        }
    }

    /// The new service is gone: has the old one go on, if it is there.
    async fn go_back(&mut self, both: &mut Both<'_>, failure: Failure, paused: Instant) -> Failure {
        let reason = match failure {
            Failure::Unchanged(reason) => reason,
            failure => return failure,
        };
        if let Some(ending) = both.old_ended.take() {
            return Failure::Old(Verdict::Died(ending));
        }
        let old = &mut *both.old;
        if let Err(error) = tell(&old.channel, &FromKeeper::Resume).await {
            return Failure::Old(old.broken(&error).await);
        }
        let resumed = async {
            loop {
                tokio::select! {
                    biased;
                    ending = old.service.ended() => return Err(Verdict::Died(ending)),
                    message = old.channel.receive() => match message {
                        Ok(Some((FromService::Resumed, _))) => return Ok(()),
                        Ok(Some((message, descriptors))) => {
                            self.attend_old(message, descriptors);
                        }
                        Ok(None) | Err(_) => return Err(Verdict::Kill("it does not answer".to_owned())),
                    },
                }
            }
        };
        match timeout(RESUME_PATIENCE, resumed).await {
            Ok(Ok(())) => {
                let pause = paused.elapsed();
                self.watch(old);
                if std::mem::take(&mut old.is_reload_due) {
                    self.reload(&old.service);
                }
                Failure::Returned(reason, pause)
            }
            Ok(Err(verdict)) => Failure::Old(verdict),
            Err(_elapsed) => Failure::Old(Verdict::Kill(
                "it did not go on after an upgrade that failed".to_owned(),
            )),
        }
    }
}

/// What a new service has written down in `run_dir`, or how it ended.
pub(super) fn why_ended(run_dir: &Path, ending: &io::Result<Ending>) -> String {
    let noted = start_failure::read(run_dir);
    start_failure::forget(run_dir);
    let how = match ending {
        Ok(ending) => ending.words(),
        Err(error) => format!("is gone ({error})"),
    };
    match noted {
        Some(reason) => format!("the new service {how}: {reason}"),
        None => format!("the new service {how}: see the agent's log"),
    }
}

/// A message without descriptors, to another that may not read.
pub(super) async fn tell<M: Serialize>(channel: &Channel, message: &M) -> Result<(), ChannelError> {
    tell_beside(channel, message, &[]).await
}

/// A message with descriptors, to another that may not read.
pub(super) async fn tell_beside<M: Serialize>(
    channel: &Channel,
    message: &M,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), ChannelError> {
    match timeout(TELLING, channel.send(message, descriptors)).await {
        Ok(sent) => sent,
        Err(_elapsed) => Err(ChannelError::Socket(io::ErrorKind::TimedOut.into())),
    }
}

fn microseconds(pause: Duration) -> u64 {
    u64::try_from(pause.as_micros()).unwrap_or(u64::MAX)
}

pub(super) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// From *pause* to *forwarding*.
const PATIENCE: Duration = Duration::from_secs(1);
/// Less than a service manager waits for a word (WatchdogSec).
pub(super) const TABLE_PATIENCE: Duration = Duration::from_secs(8);
/// From a request to its last word, at most: the preparation; a start, where the old service dies while it pauses; the ends of
/// services, and what a service manager is waited for.
pub(super) const LONGEST: Duration = START_PATIENCE
    .saturating_mul(2)
    .saturating_add(TABLE_PATIENCE)
    .saturating_add(RESUME_PATIENCE)
    .saturating_add(END_PATIENCE)
    .saturating_add(Duration::from_secs(10));
/// A service whose channel is full does not read.
const TELLING: Duration = Duration::from_millis(200);
const DYING_PATIENCE: Duration = Duration::from_secs(1);
const END_PATIENCE: Duration = Duration::from_secs(2);
const RESUME_PATIENCE: Duration = Duration::from_secs(5);
/// Each descriptor of a full table withdrawn and deposited once.
const SET_ASIDE: usize = 1100;
