//! Everything handed over to another agent, which goes on in the place of this one: the side of the agent that runs.
//!
//! Theory of operation. A pod of a rolling update is an agent with a keeper of its own, in other PID and mount namespaces; it
//! shares the network namespace, the run directory and the state directory. It asks over the API socket
//! ([`super::taking_over`]). This keeper answers with one end of a channel, by which the other keeper speaks as a service
//! does, so an upgrade's states are those of a hand-over ([`super::upgrade`]), and the same second bounds its pause. Two
//! things differ. The other service is no child, so it cannot be killed from here: its keeper does that. And there is a last
//! word:
//!
//! ```text
//!   this keeper   table+fds ▶        ◀ ready   pause, go ▶        ◀ forwarding   given+lock ▶        ◀ taken   service ends
//!   other keeper     its service reads, checks                takes over                      owns all
//! ```
//!
//! *Given* has the lock's descriptor beside it. A lock of flock(2) belongs to the open file, so it is held as long as either
//! keeper has it open, and is not free between. This keeper closes its own, and the table, after *taken*; until then it can go
//! back. After that it holds nothing and waits for the lock as any agent does that comes second, but never asks for it. The
//! other agent notes in the run directory which instance has handed over ([`super::handed_over`]), so that this one does not
//! ask either when its process is started anew.
//!
//! No service reads without `service.lock` in the run directory, which it takes on *go* and gives up in its pause. So two never
//! read, whatever becomes of the keepers; nothing here depends on a process id.
//!
//! | Meanwhile | Then |
//! |---|---|
//! | the other service refuses, ends, or is not ready or does not forward in time | its keeper kills it, and the old service goes on |
//! | the other keeper is killed before *taken* | its service ends with it, and the old service goes on |
//! | the other keeper is stopped (SIGSTOP) before *given* | it is refused; the old service goes on, or starts anew, once `service.lock` is free: until then the other one forwards |
//! | the other keeper is stopped after *given* | the old service waits, paused, until that says *taken* or ends |
//! | this keeper is killed | its service ends; the other keeper takes the free lock and goes on with the table that it has |
//! | this keeper is killed before its table was sent | the other keeper takes the free lock and starts as any agent |
//! | this keeper is killed after *given* | the other one has the lock, and goes on |
//! | the old service does not pause, or changes its descriptors | the other one is refused, and asks again later |
//! | the old service ends | as in an upgrade: before *pause* a service is started, after it the other one goes on |
//! | a second agent asks | it is refused, and asks again later |
//! | this agent is asked to stop before *given* | the other one is refused, and starts once the lock is free |
//! | this agent is asked to stop after *given* | it ends, and touches nothing |
//!
//! A service that needs other descriptors (another number of workers, another port) cannot start beside the old one. Its keeper
//! asks anew then, for the old service to end first: the table and the lock follow, and a service is started as after a death.
//! That is a pause for as long as a start takes, and there is no way back: where the other keeper is gone before *taken*, this
//! one starts a service.
//!
//! An agent hands over only where it was started to take over itself: a service of the host is not taken over by a pod.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use tracing::{info, warn};

use super::channel::{
    Channel, FromKeeper, FromService, HAND_OVER_FORMAT, HandOverRequest, Upgraded, write_packet,
};
use super::progress::{Ended, Progress, Step};
use super::running::Running;
use super::supervision::{Keeper, START_PATIENCE, STOP_PATIENCE, Verdict};
use super::upgrade::{Both, Event, Failure, Newcomer, TABLE_PATIENCE, tell, tell_beside, unix_now};
use crate::causes::causes;
use crate::signals::Signals;
use crate::ticker::Ticker;

/// Why another agent does not take over that says nothing more.
pub(super) const GONE: &str = "the agent that was to take over is gone";

impl Keeper {
    /// Hands over to the agent at the other end of the connection. Returns where the old service goes on.
    ///
    /// # Errors
    /// What is to be done about the old service otherwise: nothing more, where the other agent goes on.
    pub(super) async fn hand_over_to(
        &mut self,
        old: &mut Running,
        request: HandOverRequest,
        connection: &Progress,
        signals: &mut Signals,
        ticker: &mut Ticker,
    ) -> Result<(), Verdict> {
        let HandOverRequest {
            instance,
            version,
            format,
            ends_first,
            from,
        } = request;
        info!(
            instance,
            version, "another agent asks to take over from this one"
        );
        let channel = match self.answer(&instance, format, connection) {
            Ok(channel) => channel,
            Err(reason) => {
                warn!("not handed over: {reason}");
                connection.say(&Step::Ended(Ended::unchanged(reason)));
                return Ok(());
            }
        };
        if ends_first {
            return Err(self.end_first(old, &channel, signals, ticker).await);
        }
        let upgraded = Upgraded {
            from,
            at: unix_now(),
        };
        let handed = match self.table_for(Some(upgraded)) {
            Ok(handed) => handed,
            Err(error) => {
                refuse(&channel, causes(&error)).await;
                return Ok(());
            }
        };
        let deadline = Instant::now() + START_PATIENCE;
        let mut both = Both::new(old, Newcomer::Agent(&channel), signals, ticker);
        let silent = Progress::new(None);
        let brought = self.bring_in(&mut both, handed, deadline, &silent).await;
        let Both {
            old,
            old_ended,
            is_stop_due,
            ..
        } = both;
        match brought {
            Ok((_, pause)) => {
                info!(
                    instance,
                    version,
                    "handed over: no service read for {} ms at most",
                    pause.as_millis()
                );
                if old_ended.is_none() {
                    self.end_old(old).await;
                }
                Err(Verdict::HandedOver { is_stop_due })
            }
            Err(Failure::Unchanged(reason)) => {
                warn!("not handed over: {reason}");
                Ok(())
            }
            Err(Failure::Returned(reason, pause)) => {
                warn!(
                    "not handed over, the service forwards again after {} ms: {reason}",
                    pause.as_millis()
                );
                Ok(())
            }
            Err(Failure::Old(verdict)) => Err(verdict),
        }
    }

    /// Ends the service, and hands over what it had.
    async fn end_first(
        &mut self,
        old: &mut Running,
        channel: &Channel,
        signals: &mut Signals,
        ticker: &mut Ticker,
    ) -> Verdict {
        info!("the service ends before the other agent's starts, which needs other descriptors");
        let ending = old.service.stop(STOP_PATIENCE).await;
        self.drain(old);
        let sent = match self.table_for(None) {
            Ok(handed) => timeout(TABLE_PATIENCE, handed.send(channel)).await,
            Err(error) => Ok(Err(error)),
        };
        let unsent = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(causes(&error)),
            Err(_elapsed) => Some("the other agent does not read".to_owned()),
        };
        if let Some(reason) = unsent {
            warn!("not handed over: {reason}");
            refuse(channel, reason).await;
            return Verdict::Died(ending);
        }
        let mut both = Both::new(old, Newcomer::Agent(channel), signals, ticker);
        both.old_ended = Some(ending);
        match self.give(&mut both).await {
            Ok(()) => Verdict::HandedOver {
                is_stop_due: both.is_stop_due,
            },
            Err(failure) => {
                warn!("not handed over: {}", failure.reason());
                let ended = both.old_ended.take();
                refuse(channel, failure.reason()).await;
                Verdict::Died(ended.unwrap_or(Err(io::ErrorKind::NotFound.into())))
            }
        }
    }

    /// Gives the other agent its end of a channel. Returns ours.
    ///
    /// # Errors
    /// Why it is refused, with the remedy.
    fn answer(
        &self,
        instance: &str,
        format: u32,
        connection: &Progress,
    ) -> Result<Channel, String> {
        match &self.instance {
            None => {
                return Err(
                    "the agent that runs was not started with --take-over, and keeps what it has: stop it, and this one starts"
                        .to_owned(),
                );
            }
            Some(own) if own == instance => {
                return Err(format!(
                    "the agent that runs is {own} too: give each agent a --take-over of its own"
                ));
            }
            Some(_) => {}
        }
        if format != HAND_OVER_FORMAT {
            return Err(
                "the agent that runs is of a release that does not hand over to this one: stop it, and this one starts"
                    .to_owned(),
            );
        }
        let (ours, theirs) = Channel::pair().map_err(|error| causes(&error))?;
        let connection = connection.descriptor().ok_or_else(|| GONE.to_owned())?;
        write_packet(connection, b"\n", &[theirs.as_fd()]).map_err(|_| GONE.to_owned())?;
        Ok(ours)
    }

    /// The last word to another agent, whose service forwards: all is its own. A service of this keeper's needs none.
    ///
    /// # Errors
    /// `Unchanged`, where the other agent is gone and the old service is to go on.
    pub(super) async fn give(&mut self, both: &mut Both<'_>) -> Result<(), Failure> {
        let Newcomer::Agent(channel) = both.new else {
            return Ok(());
        };
        let given = FromKeeper::Given {
            from: self.instance.clone().unwrap_or_default(),
        };
        let lock = self.lock.descriptor();
        let said = tell_beside(channel, &given, &[lock]).await;
        said.map_err(|error| Failure::Unchanged(causes(&error)))?;
        // From here on the other one may own everything, so its word or its end is waited for, however long that takes.
        loop {
            match self.next(both, Instant::now() + REMINDER).await {
                Event::New(FromService::Taken, _) => return Ok(()),
                Event::New(message, _) => {
                    warn!(
                        ?message,
                        "the agent that takes over said this at a wrong time"
                    );
                }
                Event::NewEnded(reason) => return Err(Failure::Unchanged(reason)),
                Event::OldEnded(ending) => both.old_ended = Some(ending),
                Event::Old(message, descriptors) => {
                    let _ = self.attend_old(message, descriptors);
                }
                Event::Stop => {
                    both.is_stop_due = true;
                    return Ok(());
                }
                Event::Late => warn!(
                    "the agent that takes over does not say that it has: stop it, and this one goes on"
                ),
                // Not of a service that has paused.
                Event::OldStalled(_) => {}
            }
        }
    }
}

/// Tells another agent that it does not take over, and waits until its service has ended: it closes the channel then.
pub(super) async fn refuse(channel: &Channel, reason: String) {
    if let Err(error) = tell(channel, &FromKeeper::Refused(reason)).await {
        // It is gone, or does not read.
        info!("{}", causes(&error));
    }
    let closed = async {
        // What it says meanwhile is of no use any more.
        while let Ok(Some(_)) = channel.receive::<FromService>().await {}
    };
    if timeout(END_PATIENCE, closed).await.is_err() {
        warn!("the agent that was to take over does not give up what it was given: stop it");
    }
}

/// For the other keeper to kill its service. After that the old service finds out by `service.lock`.
const END_PATIENCE: Duration = Duration::from_secs(2);
const REMINDER: Duration = Duration::from_secs(10);
