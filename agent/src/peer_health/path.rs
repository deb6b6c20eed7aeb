//! One path: the way to one underlay address of a peer, from probe to state. Pure: time is an argument, and what is to be
//! sent is returned.
//!
//! Theory of operation. A path is *watched* by a probe every [`WATCH_EVERY`]. One that is not answered in time is followed
//! at once by a full-size and a small one, so that loss, a black hole ([`super::path_search`]) and silence are told apart
//! within a second. While there is credit for it, that pair is sent earlier: when a full-size probe takes much longer than
//! those before ([`Path::doubt_after`]), and when packets of pods cease to flow ([`Path::suspect`]).
//!
//! A probe is lost when its time is over, or when one that was sent later has been answered for a while: a path keeps the
//! order of what it carries, but for a little (as RFC 8985 has it for TCP). [`LOST_PROBES`] in a row that are lost, and no
//! answer for [`SILENCE`], make the path bad; where probes are rare, that time begins with the first lost one. What else is
//! seen of the peer says how:
//!
//! | seen | state |
//! |---|---|
//! | ICMP or the kernel says that probes do not get there | `refused`, `unreachable` |
//! | its frames have another MAC than its lease | `wrong-mac` |
//! | its datagrams are of another VXLAN network | `wrong-vni` |
//! | its own packets arrive | `one-way` |
//! | nothing | `silent` |
//!
//! One answer makes it `up` again. A peer that has never answered nor sent a probe may be one that runs flannel: it is
//! asked [`FIRST_PROBES`] times and then every [`SPARE_EVERY`], and judged by what arrives of it (`heard`, `quiet`). It is
//! bad only where its host itself says so several times. A peer that answered once, answers no more, sends no probes and
//! is heard nevertheless runs flannel again: after [`FORGOTTEN`] it is judged so.

use std::time::Duration;

use dataplane::now::Now;
use encap::Mac;

use super::credit::Credit;
use super::loss::Loss;
use super::path_search::PathSearch;
use super::round_trips::RoundTrips;
use super::state::State;

/// A path and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Path {
    open: Vec<Open>,
    credit: Credit,
    pub(super) loss: Loss,
    pub(super) trips: RoundTrips,
    pub(super) search: PathSearch,
    /// When the latest answer came.
    answered: Option<Now>,
    /// It answered before this service started.
    answered_before: bool,
    /// When the latest probe of the peer's came, and since when it had heard no answer then.
    asked: Option<(Now, Option<Duration>)>,
    /// Probes that watch, lost in a row, and when the first of them was sent.
    lost: u32,
    lost_since: Now,
    /// Probes since the path is known.
    sent: u32,
    /// A small and a full-size probe are to follow at once.
    is_doubted: bool,
    /// They did, before the time of the probe that is not answered was over.
    was_early: bool,
    error: Option<Trouble>,
    /// When the next probe that watches is due.
    next: Now,
    /// As of the latest turn.
    pace: Pace,
    state: State,
    since: Now,
}

/// What an answer tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// What the path was found to carry, bytes of outer packet, where that is news.
    pub(super) learned: Option<u16>,
    /// From when the probe was sent until a worker read the answer.
    pub(super) round_trip: Duration,
}

/// A probe whose answer may still come.
#[derive(Clone, Copy, Debug)]
struct Open {
    nonce: u64,
    sent: Now,
    ask: Ask,
    is_lost: bool,
    /// It is no longer looked at for an early doubt.
    is_questioned: bool,
    /// When it is lost because a later one was answered.
    overtaken: Option<Now>,
}

/// Errors that came in place of answers.
#[derive(Clone, Debug)]
struct Trouble {
    what: Obstacle,
    first: Now,
    latest: Now,
    times: u32,
}

/// Why a probe does not get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// ICMP port unreachable.
    Refused,
    /// Anything else, in words.
    Unreachable(std::sync::Arc<str>),
}

/// A probe to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// Bytes of outer packet; `None`: as small as can be.
    pub(super) size: Option<u16>,
    /// Its loss is the path's: it is no trial of a size that may well be too large.
    pub(super) is_watch: bool,
}

/// How often a path may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Pause between two probes that watch.
    pub(super) watch: Duration,
    /// The same of the peer's probes, at most: it has as many paths, and this one may be idle to it.
    pub(super) theirs: Duration,
    /// Within which a probe comes back to the credit.
    pub(super) credit: Duration,
    /// Probes that watch are as large as packets of pods.
    pub(super) is_full: bool,
}

/// What is known of the peer beside probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Signs {
    /// When a packet of it was accepted last.
    pub(super) heard: Option<Now>,
    /// The MAC that its frames come from, where it is not its lease's.
    pub(super) other_mac: Option<Mac>,
    /// The MAC that its frames are addressed to, where it is not this node's, and when such a frame came last.
    pub(super) other_station: Option<(Mac, Now)>,
    /// The VXLAN network of its latest datagram that was not of ours, and when that came.
    pub(super) other_vni: Option<(u32, Now)>,
}

impl Path {
    /// A path of which nothing is known; its first probe is due at `first`.
    pub(super) fn new(search: PathSearch, first: Now, now: Now) -> Path {
        Path {
            open: Vec::new(),
            credit: Credit::full(MOST_CREDIT, now),
            loss: Loss::default(),
            trips: RoundTrips::default(),
            search,
            answered: None,
            answered_before: false,
            asked: None,
            lost: 0,
            lost_since: now,
            sent: 0,
            is_doubted: false,
            was_early: false,
            error: None,
            next: first,
            pace: Pace::FASTEST,
            state: State::New,
            since: now,
        }
    }

    /// Takes in that the peer answered probes of the service before this one: it does not run flannel.
    pub(super) fn expect_answers(&mut self) {
        self.answered_before = true;
    }

    /// Whether it has ever answered, and does not run flannel since, as far as is seen.
    pub(super) fn is_to_answer(&self) -> bool {
        self.has_answered() && !matches!(self.state, State::Heard | State::Quiet)
    }

    fn has_answered(&self) -> bool {
        self.answered.is_some() || self.answered_before
    }

    /// The state, and since when.
    pub(super) fn state(&self) -> (&State, Now) {
        (&self.state, self.since)
    }

    /// When an answer came last.
    pub(super) fn answered(&self) -> Option<Now> {
        self.answered
    }

    /// When the next probe that watches is due.
    pub(super) fn next(&self) -> Now {
        self.next
    }

    /// Whether it is known to answer probes or to send them. A probe of the peer's counts for [`FORGOTTEN`]: its source can
    /// be forged.
    pub(super) fn is_probed(&self, now: Now) -> bool {
        let asked = self.asked.map(|(at, _)| at);
        self.has_answered() || asked.is_some_and(|at| now.since(at) < FORGOTTEN)
    }

    /// Gives up probes whose time has passed, and says what to send now. Returns what the path was found to carry.
    pub(super) fn turn(&mut self, pace: Pace, now: Now, asks: &mut Vec<Ask>) -> Option<u16> {
        self.pace = pace;
        let learned = self.give_up(now);
        self.search.expire(now);
        let search = self.search.unsent();
        if !search.is_empty() && self.credit.take(search.len() + 1, pace.credit, now) {
            self.search.mark_sent(now);
            asks.extend(search.into_iter().map(Ask::trial));
            asks.push(Ask::BEHIND);
        }
        // A search asks more than that.
        self.is_doubted &= !self.search.is_seeking();
        self.doubt_early(pace, now);
        if self.is_doubted && self.credit.take(2, pace.credit, now) {
            self.is_doubted = false;
            // The small one last: only then it shows that the full one was not lost with everything else.
            asks.extend([Ask::full(self.search.full()), Ask::SMALL]);
            self.next = now.after(self.pause(now));
        }
        // While a search waits for credit, it goes first, for a while: what it sends shows that the path lives, too. But
        // it would wait for seconds, and a path that died meanwhile is to be noticed.
        let is_starved = !self.search.unsent().is_empty()
            && self.lost == 0
            && now < self.next.after(WATCH_EVERY);
        if now >= self.next && !is_starved && self.credit.take(1, pace.credit, now) {
            self.is_doubted = false;
            asks.push(self.watch(pace));
            self.next = now.after(self.pause(now));
        }
        if self.is_answering()
            && let Some(size) = self.search.raise(now)
            && self.credit.take(1, pace.credit, now)
        {
            asks.push(Ask::trial(size));
        }
        learned
    }

    /// Doubts the path when a full-size probe takes much longer than those before, as long as enough is left for a search.
    fn doubt_early(&mut self, pace: Pace, now: Now) {
        let after = self.doubt_after();
        for place in 0..self.open.len() {
            let Some(open) = self.open.get_mut(place).filter(|open| open.is_early()) else {
                continue;
            };
            if now < open.sent.after(after) {
                continue;
            }
            open.is_questioned = true;
            let is_new = !self.is_doubted && !self.was_early && !self.search.is_seeking();
            if is_new && self.is_answering() && self.has_spare(pace.credit, now) {
                self.is_doubted = true;
                self.was_early = true;
            }
        }
    }

    /// Whether a pair can be sent for less than a lost probe, and a search after it: takes nothing.
    fn has_spare(&self, every: Duration, now: Now) -> bool {
        self.credit.has(2 + SEARCH_CREDIT, every, now)
    }

    /// Takes in that packets of pods to the peer have ceased to flow. Most often their senders have no more to send; else the
    /// path has become narrow, or died.
    pub(super) fn suspect(&mut self, pace: Pace, now: Now) {
        let is_idle = !self.is_doubted && !self.search.is_seeking() && self.lost == 0;
        if is_idle && self.is_answering() && self.has_spare(pace.credit, now) {
            self.is_doubted = true;
            self.search.suspect(now);
        }
    }

    /// The probe that watches now.
    fn watch(&self, pace: Pace) -> Ask {
        // Where a full one was lost and nothing is to be sought, a small one shows whether the path lives.
        let is_small_due = self.lost > 0 && !self.search.may_be_hole();
        let may_be_full = self.is_answering() && !self.search.is_seeking() && !is_small_due;
        let is_full = may_be_full && (pace.is_full || self.sent.is_multiple_of(FULL_OF));
        match is_full {
            true => Ask::full(self.search.full()),
            false => Ask::SMALL,
        }
    }

    /// The pause after a probe that watches.
    fn pause(&self, now: Now) -> Duration {
        let watch = self.pace.watch;
        let trouble = self.error.as_ref();
        let trouble = trouble.filter(|error| now.since(error.latest) < self.trouble_lasts());
        let is_lost = self.lost > 0 && self.has_answered();
        let lost_for = is_lost.then(|| now.since(self.lost_since));
        let bad_for = lost_for.or(trouble.map(|error| now.since(error.first)));
        let is_forgotten =
            self.answered.is_some() && matches!(self.state, State::Heard | State::Quiet);
        match (bad_for, self.is_probed(now)) {
            _ if is_forgotten => SPARE_EVERY,
            // Whether it lasts is found out before it is said, however rarely the path is asked otherwise.
            (Some(bad_for), _) if bad_for < SILENCE => WATCH_EVERY,
            (Some(bad_for), _) if bad_for < LONG_LOST => watch.min(LOST_EVERY),
            (Some(_), _) => watch.max(LOST_EVERY),
            (None, true) => watch,
            (None, false) if self.sent + 1 < FIRST_PROBES => watch,
            (None, false) => SPARE_EVERY,
        }
    }

    /// When [`turn`](Path::turn) is to be called next.
    pub(super) fn wake(&self) -> Now {
        let (patience, doubt) = (self.patience(), self.doubt_after());
        let open = self.open.iter().filter(|open| !open.is_lost);
        let ends = open.clone().map(|open| open.lost_at(patience));
        let doubts = open.filter(|open| open.is_early());
        let ends = ends.chain(doubts.map(|open| open.sent.after(doubt)));
        let raise = self.search.raise_due().filter(|_| self.is_answering());
        ends.chain(raise)
            .chain([self.next])
            .min()
            .unwrap_or(self.next)
    }

    /// Whether something is to be sent at once.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_doubted || !self.search.unsent().is_empty()
    }

    /// Whether an answer may come soon.
    pub(super) fn awaits(&self) -> bool {
        self.open.iter().any(|open| !open.is_lost)
    }

    /// Notes a probe that was sent.
    pub(super) fn note_sent(&mut self, nonce: u64, ask: Ask, now: Now) {
        self.sent = self.sent.saturating_add(1);
        if self.open.len() >= MOST_OPEN {
            self.open.remove(0);
        }
        self.open.push(Open {
            nonce,
            sent: now,
            ask,
            is_lost: false,
            // One that follows a doubt is none itself.
            is_questioned: self.lost > 0 || self.was_early,
            overtaken: None,
        });
    }

    /// Takes an answer that came at `at`; one to no probe of ours, or the second to one, counts nothing, and tells
    /// nothing.
    pub(super) fn answer(&mut self, nonce: u64, at: Now) -> Option<Answered> {
        let is_it = |open: &Open| open.nonce == nonce && at.since(open.sent) < LATE;
        let place = self.open.iter().position(is_it)?;
        let open = self.open.remove(place);
        let round_trip = at.since(open.sent);
        self.trips.add(round_trip);
        self.answered = self.answered.max(Some(at));
        if self.lost >= LOST_PROBES {
            self.search.forget_losses();
        }
        self.lost = 0;
        self.was_early = false;
        self.error = None;
        let overtaken = at.after(self.order_lasts());
        // They lie in the order in which they were sent.
        for earlier in self.open.iter_mut().take(place) {
            earlier.overtaken.get_or_insert(overtaken);
        }
        if open.ask.is_watch && !open.is_lost {
            self.loss.count(true, at);
        }
        let learned = match open.ask.size {
            Some(size) => self.search.passed(size, at),
            None if open.ask.is_watch => {
                self.search.small_passed(open.sent, at);
                None
            }
            None => self.search.behind_passed(open.sent, at),
        };
        Some(Answered {
            learned,
            round_trip,
        })
    }

    /// Takes a probe of the peer's; `unheard`: since when it has heard no answer of ours, if it ever did.
    pub(super) fn asked(&mut self, unheard: Option<Duration>, at: Now) {
        let is_first = !self.is_probed(at);
        self.asked = Some((at, unheard));
        // It is there, or there again.
        if is_first || !self.is_answering() {
            self.next = self.next.min(at.after(AT_ONCE));
        }
    }

    /// Gives up a probe at once, because a router, or our own kernel, said that it is too large. Returns what the path was found to carry.
    pub(super) fn refuse_size(&mut self, nonce: u64, now: Now) -> Option<u16> {
        let open = self
            .open
            .iter_mut()
            .find(|open| open.nonce == nonce && !open.is_lost)?;
        open.is_lost = true;
        let Open { ask, sent, .. } = *open;
        // Once: the full one of the pair that follows is refused as well.
        let is_new = self.lost == 0 && !self.was_early && !self.search.is_seeking();
        if ask.is_watch && is_new && self.search.may_be_hole() {
            self.is_doubted = true;
            self.was_early = true;
        }
        self.search.lost(ask.size?, sent, now)
    }

    /// Whether a probe of this nonce is open.
    pub(super) fn has_open(&self, nonce: u64) -> bool {
        self.open.iter().any(|open| open.nonce == nonce)
    }

    /// Takes an error that came in place of an answer.
    pub(super) fn fail(&mut self, what: Obstacle, now: Now) {
        let lasts = self.trouble_lasts();
        match &mut self.error {
            Some(error) if now.since(error.latest) < lasts => {
                error.times = error.times.saturating_add(1);
                (error.what, error.latest) = (what, now);
            }
            _ => {
                self.error = Some(Trouble {
                    what,
                    first: now,
                    latest: now,
                    times: 1,
                });
                // Told apart soon from one that is over.
                self.next = self.next.min(now.after(WATCH_EVERY));
            }
        }
    }

    fn give_up(&mut self, now: Now) -> Option<u16> {
        let patience = self.patience();
        let mut learned = None;
        for place in 0..self.open.len() {
            let Some(open) = self.open.get_mut(place) else {
                break;
            };
            if open.is_lost || now < open.lost_at(patience) {
                continue;
            }
            open.is_lost = true;
            let Open { ask, sent, .. } = *open;
            if let Some(size) = ask.size {
                learned = self.search.lost(size, sent, now).or(learned);
            }
            if ask.is_watch {
                if self.is_probed(now) {
                    self.loss.count(false, now);
                }
                if self.lost == 0 {
                    self.lost_since = sent;
                }
                self.lost = self.lost.saturating_add(1);
                if self.lost == 1 && self.has_answered() {
                    // Also where an early pair was sent before, behind which the path had rested.
                    self.next = self.next.min(now.after(WATCH_EVERY));
                }
                // Once: a path that is dead is not asked more often for it.
                let is_new = self.lost == 1 && self.answered.is_some() && !self.was_early;
                // Where not even the least passes there is nothing to tell apart, each time anew.
                let may_be_hole = ask.size.is_none() || self.search.may_be_hole();
                self.is_doubted |= is_new && may_be_hole;
            }
        }
        self.open.retain(|open| now.since(open.sent) < LATE);
        learned
    }

    /// How long an answer is waited for.
    fn patience(&self) -> Duration {
        let expected = self.trips.expected().map(|expected| expected * 2 + MARGIN);
        expected.map_or(MOST_PATIENCE, |expected| {
            expected.clamp(LEAST_PATIENCE, MOST_PATIENCE)
        })
    }

    /// How long an answer takes at most while all is well: after that the path is doubted.
    fn doubt_after(&self) -> Duration {
        let expected = self
            .trips
            .expected()
            .map(|expected| expected * 2 + MARGIN_OF_DOUBT);
        expected.map_or(MOST_PATIENCE, |expected| {
            expected.clamp(LEAST_DOUBT, MOST_PATIENCE)
        })
    }

    /// How long after the answer to a later probe that to an earlier one may come.
    fn order_lasts(&self) -> Duration {
        let expected = self.trips.expected().unwrap_or(MOST_PATIENCE);
        (expected / 4).clamp(LEAST_ORDER, MOST_ORDER)
    }

    /// Whether it answers, as far as is known yet.
    fn is_answering(&self) -> bool {
        self.answered.is_some() && self.lost < LOST_PROBES
    }

    /// Whether what was found since shows another state: no need to wait for the next look.
    pub(super) fn is_outdated(&self) -> bool {
        match &self.state {
            State::Narrow { measured, .. } => self.search.narrow() != Some(*measured),
            State::Up => self.search.narrow().is_some(),
            _ => self.answered.is_some() && self.lost == 0,
        }
    }

    /// Judges the path anew; whether its state is another one.
    pub(super) fn judge(&mut self, signs: Signs, now: Now) -> bool {
        let next = self.next_state(signs, now);
        let is_other = !next.is_same(&self.state);
        if is_other {
            self.since = match &next {
                // Since then, not since it was noticed.
                State::Silent => self.answered.max(signs.heard).unwrap_or(now),
                State::OneWay { .. } => self.answered.unwrap_or(now),
                _ => now,
            };
        }
        self.state = next;
        is_other
    }

    fn next_state(&self, signs: Signs, now: Now) -> State {
        let is_lost =
            self.lost >= LOST_PROBES && (!self.has_answered() || self.lost_for(now) >= SILENCE);
        if self.answered.is_some() && !is_lost {
            return match self.search.narrow() {
                Some(measured) => State::Narrow {
                    measured,
                    configured: self.search.ceiling(),
                },
                None => State::Up,
            };
        }
        let within = |at: Option<Now>, patience| at.is_some_and(|at| now.since(at) < patience);
        if let Some(error) = self
            .error
            .as_ref()
            .filter(|error| self.believes(error, now))
        {
            return match &error.what {
                Obstacle::Refused => State::Refused,
                Obstacle::Unreachable(why) => State::Unreachable(why.clone()),
            };
        }
        if let Some(mac) = signs.other_mac {
            return State::WrongMac(mac);
        }
        let lasts = |at: Now| {
            now.since(at) < self.lasts(REFUSAL_LASTS)
                && self.answered.is_none_or(|answered| at > answered)
        };
        if let Some((mac, _)) = signs.other_station.filter(|(_, at)| lasts(*at)) {
            return State::WrongStation(mac);
        }
        if let Some((vni, _)) = signs.other_vni.filter(|(_, at)| lasts(*at)) {
            return State::WrongVni(vni);
        }
        let asked = self.asked.map(|(at, _)| at);
        // What was heard before the first lost probe left is no sign of life now.
        let heard = signs
            .heard
            .max(asked)
            .filter(|at| *at >= self.lost_since.after(AFTER_LOSS));
        let is_heard = within(heard, self.lasts(RECENT));
        let is_passive = !self.is_probed(now)
            || (within(signs.heard, FORGOTTEN)
                && !within(self.answered, FORGOTTEN)
                && !within(asked, FORGOTTEN));
        if is_passive {
            return match within(signs.heard, PASSIVE) {
                true => State::Heard,
                false if self.sent < FIRST_PROBES => State::New,
                false => State::Quiet,
            };
        }
        match (is_lost, is_heard) {
            (false, _) => State::New,
            (true, true) => State::OneWay {
                unheard: self
                    .asked
                    .and_then(|(at, unheard)| Some(unheard? + now.since(at))),
            },
            // What never answered is not said to have fallen silent.
            (true, false) if !self.has_answered() => State::Quiet,
            (true, false) => State::Silent,
        }
    }

    /// Whether an error is the path's state: one alone may be of a restart, and what never answered may be starting.
    fn believes(&self, error: &Trouble, now: Now) -> bool {
        let lasts = now.since(error.latest) < self.trouble_lasts();
        let long = error.latest.since(error.first);
        lasts
            && match self.answered {
                Some(_) => error.times >= 2 && self.lost_for(now) >= SILENCE,
                None => error.times >= 3 && long >= NEVER_UP,
            }
    }

    /// For how long it has answered no more, as far as probes have asked: where they are rare, the last answer is old while
    /// all is well.
    fn lost_for(&self, now: Now) -> Duration {
        if self.lost == 0 {
            return Duration::ZERO;
        }
        let answered = self.answered.unwrap_or_default();
        let was_asked_often = self.lost_since.since(answered) <= WATCH_EVERY * 2;
        now.since(match was_asked_often {
            true => answered,
            false => self.lost_since,
        })
    }

    /// How long what was seen of the peer says something of now: until its next probe at least.
    fn lasts(&self, least: Duration) -> Duration {
        least.max(self.pace.theirs + GRACE)
    }

    /// How far apart errors of one trouble may be: as far as our own probes are.
    fn trouble_lasts(&self) -> Duration {
        TROUBLE_LASTS.max(self.pace.watch + GRACE)
    }
}

impl Open {
    /// Whether it may still lead to an early doubt: that of a small one would tell no black hole.
    fn is_early(&self) -> bool {
        let Ask { size, is_watch } = self.ask;
        size.is_some() && is_watch && !self.is_lost && !self.is_questioned
    }

    fn lost_at(&self, patience: Duration) -> Now {
        let end = self.sent.after(patience);
        self.overtaken.map_or(end, |overtaken| overtaken.min(end))
    }
}

impl Pace {
    /// Of the only path that there is.
    pub(super) const FASTEST: Pace = Pace {
        watch: WATCH_EVERY,
        theirs: WATCH_EVERY,
        credit: Duration::from_secs(1),
        is_full: true,
    };
}

impl Ask {
    const SMALL: Ask = Ask {
        size: None,
        is_watch: true,
    };

    /// A small one behind a round of a search.
    const BEHIND: Ask = Ask {
        size: None,
        is_watch: false,
    };

    fn full(size: u16) -> Ask {
        Ask {
            size: Some(size),
            is_watch: true,
        }
    }

    fn trial(size: u16) -> Ask {
        Ask {
            size: Some(size),
            is_watch: false,
        }
    }
}

/// Between two probes of a path: leaves every fifth probe of one a second for doubts and searches.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(1250);
/// Probes lost in a row that are no chance.
const LOST_PROBES: u32 = 3;
/// The service of a peer that crashed is back within less.
const SILENCE: Duration = Duration::from_secs(3);
/// Probes to a peer that has answered none, before it is spared.
const FIRST_PROBES: u32 = 4;
/// Between two probes to a peer that has answered none.
pub(super) const SPARE_EVERY: Duration = Duration::from_secs(30);
/// A path that is bad is asked so often, where others are asked more rarely, to see its end soon.
const LOST_EVERY: Duration = Duration::from_secs(5);
/// And no more often than that once it is bad for so long.
const LONG_LOST: Duration = Duration::from_secs(60);
/// Of watching probes so many are full-size, where a peer is idle and peers are many: one in this many.
const FULL_OF: u32 = 3;
/// How long an answer is waited for, at least and at most; at most too where no round trip is known.
const LEAST_PATIENCE: Duration = Duration::from_millis(300);
const MOST_PATIENCE: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(100);
/// How long is waited for it before the path is doubted: a thread's turn or two, and at least twice what is expected.
const MARGIN_OF_DOUBT: Duration = Duration::from_millis(20);
const LEAST_DOUBT: Duration = Duration::from_millis(50);
/// How much later than those that were sent after them answers may come: a quarter of the round trip, as RFC 8985 has it.
const LEAST_ORDER: Duration = Duration::from_millis(20);
const MOST_ORDER: Duration = Duration::from_millis(250);
/// The probes that a path may be sent at once. A search takes 12 to 40; one that is found narrow, and narrower within seconds, is
/// searched twice.
const MOST_CREDIT: u32 = 60;
/// What early doubts leave of it: a search of most sizes.
const SEARCH_CREDIT: usize = 30;
/// An answer that comes later than that counts nothing.
const LATE: Duration = Duration::from_secs(5);
/// How long after a probe of the peer's ours is sent.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Errors further apart are not of one trouble, where paths are asked more often. More than [`LOST_EVERY`].
const TROUBLE_LASTS: Duration = Duration::from_secs(8);
/// A peer that never answered is reported when its host has refused for so long.
const NEVER_UP: Duration = Duration::from_secs(5);
/// How long a datagram that was refused for its network or its MAC counts, where the peer's probes come more often.
const REFUSAL_LASTS: Duration = Duration::from_secs(15);
/// Packets within this time are of now, where the peer's probes come more often.
const RECENT: Duration = Duration::from_secs(12);
/// By how much a probe may come later than it is due: what is due waits for the budget, and for a batch.
const GRACE: Duration = Duration::from_secs(4);
/// A packet may have been on its way when the path died.
const AFTER_LOSS: Duration = Duration::from_millis(500);
/// A peer that runs flannel sends when its pods do.
const PASSIVE: Duration = Duration::from_secs(60);
/// Without answers and probes, and with packets, for so long it runs flannel again.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// More than two rounds of a search, and what watches.
const MOST_OPEN: usize = 48;

#[cfg(test)]
mod tests;
