//! The flow thread: reads what is announced and what is proposed, and writes the tables of flows.
//!
//! Announcements come first: they are read before each few proposals, so that a revocation waits for a few judgements at
//! most, and not for the ring to be empty.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use dataplane::drops::Direction;
use dataplane::kernel_path::{
    Event, EventReader, FlowGrant, FlowKey, FlowTable, InstallError, Installed, KernelPathError,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use super::budget::Budget;
use super::conntrack::Tracking;
use super::counts::FlowCounts;
use super::facts::FlowFacts;
use super::policy;
use super::refusal::Refusal;
use super::revoke::{self, Cause, Effect, Watch};
use super::{FlowError, Wake};
use crate::causes::causes;

/// What the thread works with.
pub(super) struct Work {
    table: FlowTable,
    events: EventReader,
    watch: Watch,
    tracking: Tracking,
    facts: watch::Receiver<Arc<FlowFacts>>,
    /// Takes the events that are no proposals.
    others: mpsc::Sender<Event>,
    counts: Arc<FlowCounts>,
    budget: Budget,
    /// When a refusal of the kernel was logged last.
    warned: Option<Duration>,
    /// When the flows end that a service before this one judged and no packet has proposed since.
    inherited_until: Option<Duration>,
    /// Proposals read since `window` began.
    read: usize,
    window: Duration,
}

/// A proposal, as [`Event::Flow`] has it.
struct Proposal {
    direction: Direction,
    key: FlowKey,
    peer: Option<std::net::Ipv4Addr>,
    epoch: u32,
    ends_at_socket: bool,
}

impl Work {
    /// Opens what it needs in the calling thread's network namespace. The watch is open before the epoch begins, so no
    /// change falls between.
    pub(super) fn begin(
        table: FlowTable,
        facts: watch::Receiver<Arc<FlowFacts>>,
        others: mpsc::Sender<Event>,
        counts: Arc<FlowCounts>,
    ) -> Result<Work, FlowError> {
        let netlink = |what| move |source| FlowError::Netlink { what, source };
        let now = now();
        let watch = Watch::open().map_err(netlink("changes of routes"))?;
        if let Some(connections) = watch.connections() {
            let filtered = table.filter_forgotten(connections);
            let _ = filtered.inspect_err(|error| {
                info!(
                    "every connection that ends is looked at, which takes processor time: {}",
                    causes(error)
                );
            });
        }
        let mut work = Work {
            events: table.events()?,
            watch,
            tracking: Tracking::open().map_err(netlink("connection tracking"))?,
            table,
            facts,
            others,
            counts,
            budget: Budget::new(now),
            warned: None,
            inherited_until: None,
            read: 0,
            window: now,
        };
        work.begin_epoch()?;
        Ok(work)
    }

    /// Goes on with the flows of a service before this one for [`INHERITED`], if no rule changed since it followed the last
    /// change; else they end.
    fn begin_epoch(&mut self) -> Result<(), KernelPathError> {
        // Another process may have written them since this one read them.
        self.table.read_settings()?;
        let (followed, present) = (self.table.rules_generation(), revoke::rules_generation());
        if has_followed_all(followed, present) {
            self.table.add_epoch()?;
            self.inherited_until = Some(now() + INHERITED);
        } else {
            self.table.next_epoch()?;
            // Else the tables are new, without a flow.
            if followed != 0 {
                self.counts.revoke_all(Cause::Start);
            }
        }
        match present {
            Some(generation) => self.table.note_rules_generation(generation),
            None => Ok(()),
        }
    }

    /// Works until it is stopped or the sender of facts has gone. Flows go on then, as after a kill: the next thread has them
    /// judged anew. Where this one fails there may be no other, and they end.
    pub(super) fn run(mut self, wake: &Wake) -> Result<(), FlowError> {
        let ran = self.work(wake);
        if ran.is_err() {
            self.table.next_epoch()?;
        }
        ran
    }

    fn work(&mut self, wake: &Wake) -> Result<(), FlowError> {
        let netlink = |source| FlowError::Netlink {
            what: "announcements of the kernel",
            source,
        };
        self.follow_connections();
        loop {
            let is_stopped = self
                .wait(wake)
                .map_err(|source| FlowError::Thread { source })?;
            let is_last = is_stopped || self.facts.has_changed().is_err();
            let facts = Arc::clone(&self.facts.borrow_and_update());
            let (table, counts) = (&self.table, &self.counts);
            let mut failure = None;
            let mut revoke = |effect| {
                // What follows one that failed may rest on it.
                if failure.is_none() {
                    failure = apply(table, counts, effect).err();
                }
            };
            self.watch
                .read(&facts, now(), &mut revoke)
                .map_err(netlink)?;
            if let Some(source) = failure {
                return Err(FlowError::Tables { source });
            }
            // What is announced now the next service would not know of.
            if is_last {
                return Ok(());
            }
            self.follow_connections();
            self.judge_some(&facts)
                .map_err(|source| FlowError::Tables { source })?;
            self.watch.leave_connections(now());
            self.end_inherited()
                .map_err(|source| FlowError::Tables { source })?;
        }
    }

    /// Ends the inherited flows that no packet has proposed, once their time is over.
    fn end_inherited(&mut self) -> Result<(), KernelPathError> {
        if self.inherited_until.is_some_and(|until| now() >= until) {
            self.inherited_until = None;
            // Not if another cause has ended them meanwhile.
            if self.table.end_earlier_epochs()? {
                self.counts.revoke_all(Cause::Start);
            }
        }
        Ok(())
    }

    /// Has forgotten connections announced, where programs follow flows.
    fn follow_connections(&mut self) {
        if self.table.is_in_use() {
            // Where the kernel refuses, no flow is installed: each judgement asks again.
            let _ = self.watch.follow_connections(now() + UNUSED);
        }
    }

    /// Waits for an announcement, for a proposal if any may be read now, or to be woken. Returns whether the thread is to
    /// end.
    fn wait(&self, wake: &Wake) -> io::Result<bool> {
        let pause = self.pause();
        let (watched, unread) = self.watch.descriptors(now());
        let mut descriptors = vec![PollFd::new(&wake.event, PollFlags::IN)];
        descriptors.extend(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        if pause.is_none() {
            let events = self.events.as_fd();
            descriptors.push(PollFd::from_borrowed_fd(events, PollFlags::IN));
        }
        let inherited = self
            .inherited_until
            .map(|until| until.saturating_sub(now()));
        let limits = pause.into_iter().chain(unread).chain(inherited);
        let longest = limits.fold(TICK, Duration::min);
        let longest = Timespec::try_from(longest).ok();
        match poll(&mut descriptors, longest.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let woken = descriptors.first();
        let is_woken = woken.is_some_and(|woken| !woken.revents().is_empty());
        Ok(is_woken && wake.take())
    }

    /// How long no further proposal is read, after many in a short time.
    fn pause(&self) -> Option<Duration> {
        let passed = now().saturating_sub(self.window);
        let is_spent = self.read >= MOST_READ && passed < WINDOW;
        is_spent.then(|| WINDOW.saturating_sub(passed))
    }

    fn judge_some(&mut self, facts: &FlowFacts) -> Result<(), KernelPathError> {
        for _ in 0..BATCH {
            let now = now();
            if now.saturating_sub(self.window) >= WINDOW {
                (self.window, self.read) = (now, 0);
            }
            if self.read >= MOST_READ {
                return Ok(());
            }
            let event = match self.events.next() {
                Some(event) => event,
                None => return Ok(()),
            };
            self.read += 1;
            let Event::Flow {
                direction,
                key,
                peer,
                epoch,
                ends_at_socket,
            } = event
            else {
                // What is lost here is reported again as long as it lasts.
                let _ = self.others.try_send(event);
                continue;
            };
            self.counts.propose();
            let proposal = Proposal {
                direction,
                key,
                peer,
                epoch,
                ends_at_socket,
            };
            let mut judged = self.judge(&proposal, facts, now);
            if judged == Ok(Installed::New)
                && let Err(refusal) = self.judge_again(&key, now)
            {
                self.table.remove(direction, &key)?;
                judged = Err(refusal);
            }
            match judged {
                Ok(installed) => self.counts.install(installed == Installed::New),
                Err(refusal) => {
                    debug!(?key, ?direction, refusal = refusal.name(), "flow refused");
                    self.counts.refuse(refusal);
                }
            }
        }
        Ok(())
    }

    fn judge(
        &mut self,
        proposal: &Proposal,
        facts: &FlowFacts,
        now: Duration,
    ) -> Result<Installed, Refusal> {
        if proposal.epoch != self.table.epoch() {
            return Err(Refusal::Outdated);
        }
        let (direction, key) = (proposal.direction, proposal.key);
        let ends = policy::ends(direction, &key, facts)?;
        if proposal.peer != Some(ends.peer) {
            return Err(Refusal::Outdated);
        }
        if !self.budget.take(ends.pod, now) {
            return Err(Refusal::OverShare);
        }
        let connection = self
            .tracking
            .get(&key)
            .map_err(|error| self.warn(&error, now))?;
        let allowed = policy::lifetime(&key, connection.as_ref())?;
        if let Some(connection) = connection.filter(|_| allowed.is_strict) {
            let made = self.tracking.make_liberal(&connection);
            made.map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => Refusal::NoConnection,
                _ => self.warn(&error, now),
            })?;
        }
        let grant = FlowGrant {
            direction,
            key,
            peer: ends.peer,
            pod: ends.pod,
            epoch: proposal.epoch,
            until: now + allowed.lifetime,
            direct_tcp: proposal.ends_at_socket,
        };
        let followed = self.watch.follow_connections(grant.until);
        followed.map_err(|error| self.warn(&error, now))?;
        self.table.install(&grant).map_err(|error| match error {
            InstallError::OtherEpoch => Refusal::Outdated,
            InstallError::NotPeers => Refusal::NoPeer,
            InstallError::NoPod => Refusal::NotPod,
            InstallError::Kernel(error) => self.warn(&error, now),
        })
    }

    /// That a connection is still the one that was judged, now that its flow has an entry. The end of one that was forgotten
    /// before the entry was written has not passed the filter; the kernel marks a connection as dying before it announces
    /// its end (`nf_ct_delete`, net/netfilter/nf_conntrack_core.c), so it is seen here.
    fn judge_again(&mut self, key: &FlowKey, now: Duration) -> Result<(), Refusal> {
        let connection = self
            .tracking
            .get(key)
            .map_err(|error| self.warn(&error, now))?;
        policy::is_as_judged(key, connection.as_ref())
    }

    /// Logs a refusal of the kernel, at most once a minute.
    fn warn(&mut self, error: &dyn std::error::Error, now: Duration) -> Refusal {
        let is_due = |warned: Duration| now.saturating_sub(warned) >= WARN_EVERY;
        if self.warned.is_none_or(is_due) {
            self.warned = Some(now);
            warn!(
                "a flow is not installed, its packets pass the host's stack: {}",
                causes(error)
            );
        }
        Refusal::KernelRefused
    }
}

fn apply(table: &FlowTable, counts: &FlowCounts, effect: Effect) -> Result<(), KernelPathError> {
    match effect {
        Effect::All(cause) => {
            table.next_epoch()?;
            counts.revoke_all(cause);
            debug!(cause = cause.name(), "all flows revoked");
        }
        Effect::Pod { address, ifindex } => {
            if table.revoke_pod(address, ifindex)? {
                counts.revoke_pod();
                debug!(%address, ifindex, "flows of a pod revoked");
            }
        }
        Effect::RulesFollowed(generation) => table.note_rules_generation(generation)?,
        Effect::Connection(original, reply) => {
            let mut was_there = false;
            for key in [original, reply] {
                for direction in [Direction::Outbound, Direction::Inbound] {
                    was_there |= table.remove(direction, &key)?;
                }
            }
            if was_there {
                counts.end();
            }
        }
    }
    Ok(())
}

/// Whether a service before this one followed every change of rules: `followed` is the generation that it noted, 0 if none,
/// and `present` that of now, if the kernel has one and says so.
fn has_followed_all(followed: u32, present: Option<u32>) -> bool {
    // Without nf_tables there is no rule of it to follow.
    followed == present.unwrap_or_default()
}

/// CLOCK_MONOTONIC, which the tables go by.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative.
    Duration::new(
        now.tv_sec.try_into().unwrap_or_default(),
        now.tv_nsec.try_into().unwrap_or_default(),
    )
}

/// How long flows that a service before this one judged may be proposed, by one packet a second each, before they end.
const INHERITED: Duration = Duration::from_secs(3);
/// How long the kernel goes on to announce forgotten connections after flows went out of use.
const UNUSED: Duration = Duration::from_secs(5);
/// Proposals judged before announcements are read again: about a millisecond.
const BATCH: usize = 16;
/// Proposals read in each [`WINDOW`]: what is left in the ring waits, and what the ring does not hold is proposed again.
/// Reading and refusing one without a question to the kernel costs less than a microsecond.
const MOST_READ: usize = 512;
const WINDOW: Duration = Duration::from_millis(10);
/// The longest wait: less than [`UNUSED`], which is counted anew after each. Where flows come into use the thread is woken.
const TICK: Duration = Duration::from_secs(4);
const WARN_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_go_on_only_where_each_change_of_rules_was_followed() {
        assert!(has_followed_all(7, Some(7)));
        assert!(has_followed_all(0, None), "a kernel without nf_tables");
        for (followed, present) in [(7, Some(8)), (7, Some(1)), (0, Some(7)), (7, None)] {
            assert!(
                !has_followed_all(followed, present),
                "{followed} {present:?}"
            );
        }
    }
}
