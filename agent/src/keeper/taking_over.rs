//! The lock had, or everything taken over from the agent that has it: the side of the agent that comes second.
//!
//! Theory of operation. `tartan run --take-over INSTANCE` that finds the lock of its run directory held waits for it, and asks
//! the agent that holds it to hand over ([`super::handover`], which has the table of what can happen meanwhile):
//!
//! ```text
//!   waiting ── asks ──▶ answered ── table ──▶ beside ── ready ▶ ── ◀ go ──▶ forwarding ── ◀ given+lock, taken ▶ ──▶ alone
//!      ▲ │ lock free        │                   │                            │
//!      │ └──▶ alone         └── refused, or its service ends: killed ────────┘
//!      └────────────────────────────────────────┘
//! ```
//!
//! Its own keeper has the service in hand from the beginning, and says to the other keeper what that would hear of a service.
//! What the service deposits stays here: it is of use to this keeper alone.
//!
//! Where the other keeper ends without a last word (its end of the channel is closed, and its lock free), this one takes the
//! lock and goes on with what it has. A lock that is held then is another agent's, and the service is killed.
//!
//! It asks at once, and again after 1 s, then later and later, up to every 30 s. The log has each new reason once. An agent
//! that does not know the request refuses it with an error, and is waited for like any other. An instance that has handed over
//! never asks ([`super::handed_over`]): two pods of one node would take everything from each other without end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use cni_shim::RunDir;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::channel::{
    Channel, ChannelError, DESCRIPTORS_PER_MESSAGE, FromKeeper, FromService, HAND_OVER_FORMAT,
    PROTOCOL, TablePart, read_packet,
};
use super::child::Ending;
use super::handed_over;
use super::lock::{Lock, LockError};
use super::progress::{Ended, Progress, Step};
use super::running::{Handed, Running};
use super::service_manager::ServiceManager;
use super::supervision::{DYING_PATIENCE, Keeper, START_PATIENCE};
use super::table::{DescriptorTable, ENTRY_LIMIT};
use super::upgrade::{TABLE_PATIENCE, tell, why_ended};
use super::{DIFFERS, Identity, KeeperError, LOCK_FILE};
use crate::api::wire::{Reply, Request};
use crate::causes::causes;
use crate::signals::Signals;

/// What an agent begins with.
pub(super) enum Entered {
    /// The lock, and nothing else.
    Alone(Lock),
    /// What another agent had, and the service that has taken over, where there is one already.
    TakenOver(Box<(Keeper, Option<Running>)>),
    /// It was asked to stop before.
    Stopped,
}

/// Waits for the lock, and asks for it unless `is_second`: this process has handed over. An agent without an instance does
/// neither.
///
/// # Errors
/// As [`Lock::take`].
pub(super) async fn enter(
    identity: &Identity,
    is_second: bool,
    signals: &mut Signals,
) -> Result<Entered, KeeperError> {
    let path = identity.run_dir.join(LOCK_FILE);
    let Some(instance) = &identity.instance else {
        return Ok(Entered::Alone(Lock::take(&path)?));
    };
    let asks = !is_second && !handed_over::has(&identity.run_dir, instance);
    let mut manager = ServiceManager::from_environment();
    let mut asking = Asking::default();
    loop {
        let held = match Lock::take(&path) {
            Ok(lock) => {
                handed_over::note(&identity.run_dir, None, instance);
                return Ok(Entered::Alone(lock));
            }
            Err(error @ LockError::Held { .. }) => error,
            Err(error) => return Err(error.into()),
        };
        manager.alive();
        if !asks {
            let sentence = "this instance has handed over, and waits until no other agent runs";
            if asking.is_new(sentence) {
                info!("{sentence}");
            }
        } else if asking.is_due() {
            debug!("{}", causes(&held));
            let attempt = match take_over(identity, instance, signals).await {
                Attempt::Differs(reason) => {
                    info!("{reason}; the service that runs is to end first");
                    take_over_afterwards(identity, instance, signals).await
                }
                attempt => attempt,
            };
            match attempt {
                Attempt::TakenOver(all) => return Ok(Entered::TakenOver(all)),
                Attempt::Stopped => return Ok(Entered::Stopped),
                Attempt::InVain(reason) => {
                    warn!(
                        "this agent has not come to forward, and waits {} s: {reason}",
                        PAUSE_IN_VAIN.as_secs()
                    );
                    asking.much_later();
                    continue;
                }
                Attempt::Refused(reason) | Attempt::Differs(reason) => {
                    if asking.is_new(&reason) {
                        warn!(
                            "this agent does not take over from the one that runs, and waits for it: {reason}"
                        );
                    }
                    asking.later();
                    // It may have ended meanwhile.
                    continue;
                }
            }
        }
        tokio::select! {
            biased;
            () = signals.stop() => return Ok(Entered::Stopped),
            () = sleep(TRY_EVERY) => {}
        }
    }
}

/// When the other agent is asked, and what has been said of it.
struct Asking {
    at: Instant,
    pause: Duration,
    said: String,
}

impl Default for Asking {
    fn default() -> Asking {
        Asking {
            at: Instant::now(),
            pause: FIRST_PAUSE,
            said: String::new(),
        }
    }
}

impl Asking {
    fn is_due(&self) -> bool {
        Instant::now() >= self.at
    }

    fn later(&mut self) {
        self.at = Instant::now() + self.pause;
        self.pause = self.pause.saturating_mul(2).min(LONGEST_PAUSE);
    }

    /// The next request may cost a pause again.
    fn much_later(&mut self) {
        self.at = Instant::now() + PAUSE_IN_VAIN;
    }

    /// Whether that was not said last.
    fn is_new(&mut self, sentence: &str) -> bool {
        let is_new = self.said != sentence;
        sentence.clone_into(&mut self.said);
        is_new
    }
}

/// What became of one request.
enum Attempt {
    TakenOver(Box<(Keeper, Option<Running>)>),
    /// Why not, with the remedy.
    Refused(String),
    /// The same where the service that runs has paused, or ended, for it.
    InVain(String),
    /// The service needs other descriptors than the one that runs has.
    Differs(String),
    Stopped,
}

async fn take_over(identity: &Identity, instance: &str, signals: &mut Signals) -> Attempt {
    let answered = tokio::select! {
        biased;
        () = signals.stop() => return Attempt::Stopped,
        answered = request(identity, instance, false) => answered,
    };
    let (channel, table, about) = match answered {
        Ok(answered) => answered,
        Err(reason) => return Attempt::Refused(reason),
    };
    info!(
        descriptors = table.names().len(),
        "the agent that runs hands over: a service is started beside its own"
    );
    let started = Beside::start(identity, channel, table, about).await;
    match started {
        Ok(beside) => beside.run(identity, instance, signals).await,
        Err(refused) => refused,
    }
}

/// The same where the other service ends first: ours is started afterwards, as after a death. A signal waits for that: the other
/// agent has nothing any more.
async fn take_over_afterwards(
    identity: &Identity,
    instance: &str,
    signals: &mut Signals,
) -> Attempt {
    let answered = tokio::select! {
        biased;
        () = signals.stop() => return Attempt::Stopped,
        answered = request(identity, instance, true) => answered,
    };
    let (channel, table, about) = match answered {
        Ok(answered) => answered,
        Err(reason) => return Attempt::Refused(reason),
    };
    let path = identity.run_dir.join(LOCK_FILE);
    let given = timeout(TABLE_PATIENCE, channel.receive::<FromKeeper>()).await;
    let (lock, from) = match given {
        Ok(Ok(Some((FromKeeper::Given { from }, descriptors)))) => {
            match descriptors.into_iter().next() {
                Some(lock) => (Lock::adopt_from_another(lock, &path), Some(from)),
                None => return Attempt::InVain(NO_LOCK.to_owned()),
            }
        }
        Ok(Ok(Some((FromKeeper::Refused(reason), _)))) => return Attempt::InVain(reason),
        Ok(Ok(None)) => match free_lock(identity).await {
            Ok(lock) => (lock, None),
            Err(error) => return Attempt::InVain(causes(&error)),
        },
        Ok(Ok(Some(_))) => return Attempt::InVain(NOT_UNDERSTOOD.to_owned()),
        Ok(Err(error)) => return Attempt::InVain(causes(&error)),
        Err(_elapsed) => return Attempt::InVain("it does not hand over".to_owned()),
    };
    handed_over::note(&identity.run_dir, from.as_deref(), instance);
    // The lock is ours, whatever has become of the other one.
    let _ = tell(&channel, &FromService::Taken).await;
    info!("taken over: a service is started");
    let mut keeper = Keeper::in_place_of_another(identity.clone(), lock, table, about);
    // No service of this program has: where it ends by itself this agent ends, and the other one has the lock again.
    keeper.has_forwarded = false;
    Attempt::TakenOver(Box::new((keeper, None)))
}

/// Asks for everything: a channel, the table and what is said of it.
///
/// # Errors
/// Why it is not had, with the remedy.
async fn request(
    identity: &Identity,
    instance: &str,
    ends_first: bool,
) -> Result<(Channel, DescriptorTable, TablePart), String> {
    let channel = ask(identity, instance, ends_first).await?;
    let table = timeout(TABLE_PATIENCE, receive(&channel)).await;
    let (table, about) = table.map_err(|_elapsed| "it does not send what it has".to_owned())??;
    Ok((channel, table, about))
}

/// Asks for the channel.
///
/// # Errors
/// Why there is none, with the remedy.
async fn ask(identity: &Identity, instance: &str, ends_first: bool) -> Result<Channel, String> {
    let silent = |error: io::Error| format!("it does not answer ({error})");
    let asked = async {
        let socket = RunDir::at(&identity.run_dir).socket();
        let mut stream = UnixStream::connect(socket).await.map_err(silent)?;
        let request = Request::HandOver {
            instance: instance.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            format: HAND_OVER_FORMAT,
            ends_first,
        };
        let mut line = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
        line.push(b'\n');
        stream.write_all(&line).await.map_err(silent)?;
        let mut text = Vec::new();
        loop {
            let read = || read_packet(stream.as_fd());
            let packet = stream.async_io(Interest::READABLE, read).await;
            let packet = packet.map_err(silent)?;
            if let Some(descriptor) = packet.descriptors.into_iter().next() {
                return Channel::adopt(descriptor).map_err(|error| causes(&error));
            }
            let is_end = packet.text.is_empty();
            text.extend(packet.text);
            if is_end || text.len() > LONGEST_ANSWER {
                return Err(refusal(&text));
            }
        }
    };
    match timeout(ANSWER_PATIENCE, asked).await {
        Ok(answered) => answered,
        Err(_elapsed) => Err("it does not answer".to_owned()),
    }
}

/// Why, by what came instead of a channel: the line of the API, and one of the keeper.
fn refusal(text: &[u8]) -> String {
    let lines = || text.split(|byte| *byte == b'\n');
    for line in lines() {
        match serde_json::from_slice(line) {
            Ok(Reply::Error(reason)) if reason.contains("unknown variant") => {
                return "it is of a release that does not hand over: stop it (delete its pod), and this one starts"
                    .to_owned();
            }
            Ok(Reply::Error(reason)) => return reason,
            _ => {}
        }
    }
    let steps = lines().filter_map(|line| serde_json::from_slice(line).ok());
    for step in steps {
        if let Step::Ended(ended) = step
            && let Some(reason) = ended.reason
        {
            return reason;
        }
    }
    "it has closed the connection".to_owned()
}

/// Receives the whole table, and what is said of it.
///
/// # Errors
/// Why it did not come.
async fn receive(channel: &Channel) -> Result<(DescriptorTable, TablePart), String> {
    let mut table = DescriptorTable::default();
    for _ in 0..=ENTRY_LIMIT / DESCRIPTORS_PER_MESSAGE {
        let received = channel.receive().await.map_err(|error| causes(&error))?;
        let (part, descriptors) = match received {
            Some((FromKeeper::Table(part), descriptors)) => (part, descriptors),
            Some((FromKeeper::Refused(reason), _)) => return Err(reason),
            Some(_) => return Err(NOT_UNDERSTOOD.to_owned()),
            None => return Err(ENDED.to_owned()),
        };
        if part.names.len() != descriptors.len() {
            return Err(
                "descriptors of it did not arrive: raise the limit of open descriptors (ulimit -n)"
                    .to_owned(),
            );
        }
        for (name, descriptor) in part.names.iter().zip(descriptors) {
            let kept = table.deposit(name.clone(), vec![descriptor]);
            kept.map_err(|error| error.to_string())?;
        }
        if part.last {
            return Ok((table, part));
        }
    }
    Err(NOT_UNDERSTOOD.to_owned())
}

/// Our service beside the other agent's.
struct Beside {
    /// To the other keeper.
    other: Channel,
    running: Running,
    table: DescriptorTable,
    about: TablePart,
    is_ready: bool,
    has_go: bool,
    is_forwarding: bool,
}

/// How the time of two agents ends.
enum End {
    /// All is ours.
    Given {
        from: String,
        lock: OwnedFd,
    },
    /// The other one wants no more of it.
    Refused(String),
    /// It is told why.
    Failed(String),
    /// It is told that ours needs other descriptors.
    Differs(String),
    /// Without a word.
    OtherEnded,
    Stopped,
}

impl Beside {
    /// Starts the service and gives it the table.
    async fn start(
        identity: &Identity,
        other: Channel,
        table: DescriptorTable,
        about: TablePart,
    ) -> Result<Beside, Attempt> {
        let failed = async |reason: String| {
            // Where the other one does not listen, it is gone, and its lock free.
            let _ = tell(&other, &FromService::Failed(reason.clone())).await;
            Attempt::Refused(reason)
        };
        let described = TablePart {
            protocol: PROTOCOL,
            beside: true,
            ..about.clone()
        };
        let handed = match Handed::of(&table, &described) {
            Ok(handed) => handed,
            Err(error) => return Err(failed(causes(&error)).await),
        };
        let mut running = match Running::start(&identity.program) {
            Ok(running) => running,
            Err(error) => return Err(failed(causes(&error)).await),
        };
        running.has_table = true;
        match timeout(TABLE_PATIENCE, handed.send(&running.channel)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(causes(&error)).await),
            Err(_elapsed) => {
                return Err(failed("the new service did not read its table".to_owned()).await);
            }
        }
        Ok(Beside {
            other,
            running,
            table,
            about,
            is_ready: false,
            has_go: false,
            is_forwarding: false,
        })
    }

    async fn run(mut self, identity: &Identity, instance: &str, signals: &mut Signals) -> Attempt {
        match self.attend(identity, signals).await {
            End::Given { from, lock } => {
                let lock = Lock::adopt_from_another(lock, &identity.run_dir.join(LOCK_FILE));
                handed_over::note(&identity.run_dir, Some(&from), instance);
                if let Err(error) = tell(&self.other, &FromService::Taken).await {
                    // The lock is ours, whatever has become of it.
                    info!("{}", causes(&error));
                }
                info!(from, "taken over: this agent goes on");
                self.alone(identity, lock).await
            }
            End::OtherEnded => {
                let reason = match free_lock(identity).await {
                    Ok(lock) => {
                        handed_over::note(&identity.run_dir, None, instance);
                        info!(
                            "the agent that handed over has ended: this one goes on with what it has"
                        );
                        return self.alone(identity, lock).await;
                    }
                    Err(error) => causes(&error),
                };
                self.give_up(reason).await
            }
            End::Refused(reason) => self.give_up(reason).await,
            End::Failed(reason) => {
                let has_go = self.has_go;
                let other = self.end_service().await;
                // Only now: the other service may read again.
                let _ = tell(&other, &FromService::Failed(reason.clone())).await;
                refused(has_go, reason)
            }
            End::Differs(reason) => {
                let other = self.end_service().await;
                let _ = tell(&other, &FromService::Failed(reason.clone())).await;
                Attempt::Differs(reason)
            }
            End::Stopped => {
                let other = self.end_service().await;
                let reason = "the agent that was to take over was asked to stop".to_owned();
                let _ = tell(&other, &FromService::Failed(reason)).await;
                Attempt::Stopped
            }
        }
    }

    /// Attends to both until one agent is to go on.
    async fn attend(&mut self, identity: &Identity, signals: &mut Signals) -> End {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let Running {
                channel,
                service,
                is_reload_due,
                ..
            } = &mut self.running;
            let said: Result<(), ChannelError> = tokio::select! {
                biased;
                is_stop = signals.stop_or_reload() => match is_stop {
                    true => return End::Stopped,
                    // Once it forwards alone.
                    false => { *is_reload_due = true; Ok(()) }
                },
                message = self.other.receive::<FromKeeper>() => match message {
                    Ok(Some((FromKeeper::Go, _))) if self.is_ready && !self.has_go => {
                        self.has_go = true;
                        match tell(channel, &FromKeeper::Go).await {
                            Ok(()) => Ok(()),
                            Err(error) => return End::Failed(causes(&error)),
                        }
                    }
                    Ok(Some((FromKeeper::Given { from }, descriptors))) => {
                        match descriptors.into_iter().next() {
                            Some(lock) => return End::Given { from, lock },
                            None => return End::Failed(NO_LOCK.to_owned()),
                        }
                    }
                    Ok(Some((FromKeeper::Refused(reason), _))) => return End::Refused(reason),
                    Ok(Some(_)) => return End::Failed(NOT_UNDERSTOOD.to_owned()),
                    Ok(None) => return End::OtherEnded,
                    Err(error) => return End::Failed(causes(&error)),
                },
                message = channel.receive::<FromService>() => match message {
                    Ok(Some((FromService::Ready, _))) if !self.is_ready => {
                        self.is_ready = true;
                        tell(&self.other, &FromService::Ready).await
                    }
                    Ok(Some((FromService::Waiting, _))) => Ok(()),
                    Ok(Some((FromService::Forwarding, _))) if self.has_go => {
                        self.is_forwarding = true;
                        tell(&self.other, &FromService::Forwarding).await
                    }
                    Ok(Some((FromService::Deposit(name), descriptors))) if self.has_go => {
                        match self.table.deposit(name, descriptors) {
                            Ok(()) => Ok(()),
                            Err(error) => return End::Failed(error.to_string()),
                        }
                    }
                    Ok(Some((FromService::Withdraw(name), _))) if self.has_go => {
                        self.table.withdraw(&name);
                        Ok(())
                    }
                    Ok(Some((FromService::Reloaded, _))) if self.is_forwarding => Ok(()),
                    // It answers callers already.
                    Ok(Some((FromService::Upgrade(_) | FromService::HandOver(_), connection))) if self.is_forwarding => {
                        let reason = "another upgrade is under way: try again".to_owned();
                        let progress = Progress::new(connection.into_iter().next());
                        progress.say(&Step::Ended(Ended::unchanged(reason)));
                        Ok(())
                    }
                    Ok(Some((message, _))) => {
                        return End::Failed(format!("the new service said {message:?} at a wrong time: install a sound build"));
                    }
                    Ok(None) => {
                        let ending = service.end_within(DYING_PATIENCE).await;
                        return why(identity, &ending);
                    }
                    Err(error) => return End::Failed(causes(&error)),
                },
                ending = service.ended() => return why(identity, &ending),
                () = sleep(deadline.saturating_duration_since(Instant::now())), if !self.is_ready => {
                    return End::Failed(format!("the new service was not ready within {} s", START_PATIENCE.as_secs()));
                }
            };
            if said.is_err() {
                // What it said before it ended comes first.
                return match self.other.receive_waiting::<FromKeeper>() {
                    Ok(Some((FromKeeper::Refused(reason), _))) => End::Refused(reason),
                    _ => End::OtherEnded,
                };
            }
        }
    }

    /// This agent alone, from now on.
    async fn alone(self, identity: &Identity, lock: Lock) -> Attempt {
        let Beside {
            mut running,
            table,
            about,
            is_ready,
            has_go,
            is_forwarding,
            ..
        } = self;
        let mut keeper = Keeper::in_place_of_another(identity.clone(), lock, table, about);
        running.started = Instant::now();
        if is_forwarding {
            keeper.forwards(&mut running);
        } else if is_ready
            && !has_go
            && let Err(error) = tell(&running.channel, &FromKeeper::Go).await
        {
            // It has ended, which is seen next.
            warn!("{}", causes(&error));
        }
        Attempt::TakenOver(Box::new((keeper, Some(running))))
    }

    /// The other agent goes on, which sees by its channel that this one has given up.
    async fn give_up(self, reason: String) -> Attempt {
        let has_go = self.has_go;
        drop(self.end_service().await);
        refused(has_go, reason)
    }

    /// Nothing of what the service had is open here afterwards.
    async fn end_service(self) -> Channel {
        let Beside {
            other, mut running, ..
        } = self;
        if let Err(error) = running.service.kill().await {
            warn!(%error, "the new service cannot be waited for");
        }
        other
    }
}

/// Why this agent does not go on, by whether the other's service has paused for it.
fn refused(has_go: bool, reason: String) -> Attempt {
    match has_go {
        true => Attempt::InVain(reason),
        false => Attempt::Refused(reason),
    }
}

/// Why our service has ended.
fn why(identity: &Identity, ending: &io::Result<Ending>) -> End {
    let reason = why_ended(&identity.run_dir, ending);
    match ending {
        Ok(ending) if ending.code() == Some(DIFFERS) => End::Differs(reason),
        _ => End::Failed(reason),
    }
}

/// The lock that an agent has left which ends.
async fn free_lock(identity: &Identity) -> Result<Lock, LockError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match Lock::take(&identity.run_dir.join(LOCK_FILE)) {
            Err(LockError::Held { .. }) if Instant::now() < deadline => sleep(LOCK_STEP).await,
            taken => return taken,
        }
    }
}

const ENDED: &str = "it has ended";
const NO_LOCK: &str = "its lock did not arrive: raise the limit of open descriptors (ulimit -n)";
const NOT_UNDERSTOOD: &str = "it is not understood: install a sound build";
/// How often it is tried whether the lock is free.
const TRY_EVERY: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// After a request for which the service that runs has paused in vain: no packet passed meanwhile.
const PAUSE_IN_VAIN: Duration = Duration::from_secs(600);
/// Longer than an agent pauses for another upgrade.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of two lines.
const LONGEST_ANSWER: usize = 128 * 1024;
/// For the kernel to close what a process has open that was killed.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_STEP: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_why_with_the_remedy() {
        let older = br#"{"error":"not a request: unknown variant `hand-over`, expected one of"}"#;
        assert!(refusal(older).contains("delete its pod"));
        assert_eq!(refusal(br#"{"error":"no"}"#), "no");
        let of_keeper = b"{\"ok\":{}}\n{\"step\":\"ended\",\"outcome\":\"unchanged\",\"from\":\"\",\"to\":null,\"pause_us\":null,\"keeper\":false,\"reason\":\"later\"}\n";
        assert_eq!(refusal(of_keeper), "later");
        assert_eq!(refusal(b""), "it has closed the connection");
        assert_eq!(refusal(b"\xff{"), "it has closed the connection");
    }

    #[test]
    fn it_asks_at_once_and_then_later_and_later() {
        let mut asking = Asking::default();
        assert!(asking.is_due());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            pauses.push(asking.pause.as_secs());
            asking.later();
            assert!(!asking.is_due());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    }
}
