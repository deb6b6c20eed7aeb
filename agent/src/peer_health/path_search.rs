//! The largest outer packet that a path carries, by probing (RFC 8899, datagram packetization layer path MTU discovery).
//!
//! Theory of operation. A probe is *small* (as small as it can be) or of a *size*. While all is well, every probe that
//! keeps a path watched has the full size: the largest that is known to pass, or, before one did, the largest that pods'
//! packets make (the *ceiling*). So a black hole is met by the first probe after it opens.
//!
//! - *Watch.* Two full ones in a row that are lost, while a small one that was sent no earlier is answered, are a black
//!   hole: it is no loss, and no dead path. The pair of the second full one and the small one is sent as soon as the first
//!   is lost ("confirmed by a further probe").
//!   Pods' packets that cease to flow, all at once, are a sign like one that is lost ([`PathSearch::suspect`]).
//! - *Seek.* The first round asks sizes that links have ([`LIKELY`]), and the full one twice more: where that passes, the
//!   search is over and was for nothing. Later rounds of up to three sizes cut the range between a size that passes and one
//!   that does not to a quarter, and try one byte more than a likely size first: three rounds find a likely size, up to ten
//!   any other, to the byte. Where none of the first round is answered, a *low* round asks whether the floor passes. Behind
//!   each round a small probe is sent, and losses count only once that one is answered: a peer that answers little at all,
//!   because a forger draws its answers, is not a narrow path. In the end a *last* round sends the smallest size that was
//!   lost twice more, and once the one that is found: neither a lost probe nor a path that has died may make the path look
//!   narrow.
//! - *Meanwhile.* From the first round on pods are told the largest size that has passed in this search, so that TCP goes
//!   on before the size is known to the byte. It is no measure: what was measured before stays so until the search has
//!   ended, and a full-size probe that passes after that replaces what was told.
//! - *Raise.* A path that is narrower than the ceiling is tried with one byte more [`RAISE_FIRST`] after it was found so, and
//!   then every [`RAISE_EVERY`] (RFC 8899's PMTU_RAISE_TIMER is 10 minutes; a probe costs less here than packets cut small).
//!   Where that passes, a search upwards begins with the ceiling.
//!
//! The *floor* is the least that every path is taken to carry (`dataplane::mtu::min_inner`). Where it is not even that, the
//! floor is what is measured, and packets are lost as they are without a search.

use std::time::Duration;

use dataplane::now::Now;

/// What is known of one path, and what is asked next. Sizes are bytes of outer packet.
#[derive(Clone, Debug)]
pub(super) struct PathSearch {
    floor: u16,
    ceiling: u16,
    measured: Option<u16>,
    phase: Phase,
    raise_due: Now,
    /// When the latest small probe that was answered had been sent.
    small: Option<Now>,
    /// What is measured was the ceiling before the ceiling grew, and no larger size was tried yet.
    is_outgrown: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    /// So many full-size probes in a row were lost; when the first of them was sent.
    Watch {
        misses: u8,
        first: Now,
    },
    Seek(Seek),
}

#[derive(Clone, Debug)]
struct Seek {
    /// The full size that was lost; `None` in a search upwards.
    from: Option<u16>,
    /// What pods were told meanwhile.
    told: Option<u16>,
    /// Passes, or is the floor.
    good: u16,
    /// It has passed in this search.
    is_proved: bool,
    /// Does not pass, or is above the ceiling.
    bad: u16,
    round: Round,
    trials: Vec<Trial>,
    /// When the latest round was sent.
    asked: Now,
    /// How often the last round has refuted what was found.
    refuted: u8,
    /// The small probe behind the latest round is answered.
    is_backed: bool,
    /// How often a round was sent again, because that one was not answered.
    repeated: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    Split,
    Low,
    Last,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    size: u16,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unsent,
    Sent,
    Passed,
    Lost,
}

impl PathSearch {
    /// A path of which nothing is known.
    pub(super) fn new(floor: u16, ceiling: u16) -> PathSearch {
        PathSearch {
            floor: floor.min(ceiling),
            ceiling,
            measured: None,
            phase: Phase::WATCH,
            raise_due: Now::default(),
            small: None,
            is_outgrown: false,
        }
    }

    /// Takes other bounds. What was measured stays, as far as it lies within them. A path that carried all that there was
    /// is not narrow under a larger ceiling before a larger packet was tried.
    pub(super) fn bound(&mut self, floor: u16, ceiling: u16) {
        if (floor.min(ceiling), ceiling) == (self.floor, self.ceiling) {
            return;
        }
        let was_whole = self.is_outgrown || self.measured.is_some_and(|size| size >= self.ceiling);
        *self = PathSearch {
            is_outgrown: was_whole && self.measured.is_some_and(|size| size < ceiling),
            measured: self.measured.map(|measured| measured.min(ceiling)),
            ..PathSearch::new(floor, ceiling)
        };
    }

    /// The largest packet known to pass; `None` before anything is.
    pub(super) fn measured(&self) -> Option<u16> {
        self.measured
    }

    /// The largest packet known to pass, where it is known that larger ones do not.
    pub(super) fn narrow(&self) -> Option<u16> {
        let measured = self.measured.filter(|_| !self.is_outgrown);
        measured.filter(|measured| *measured < self.ceiling)
    }

    /// The largest packet that pods' packets make.
    pub(super) fn ceiling(&self) -> u16 {
        self.ceiling
    }

    /// The size of the probes that watch the path.
    pub(super) fn full(&self) -> u16 {
        self.measured.unwrap_or(self.ceiling)
    }

    /// The sizes to send now, all of them at once; empty while none is.
    pub(super) fn unsent(&self) -> Vec<u16> {
        let Phase::Seek(seek) = &self.phase else {
            return Vec::new();
        };
        let unsent = seek.trials.iter();
        let unsent = unsent.filter(|trial| trial.outcome == Outcome::Unsent);
        unsent.map(|trial| trial.size).collect()
    }

    /// Notes that they are on their way.
    pub(super) fn mark_sent(&mut self, now: Now) {
        if let Phase::Seek(seek) = &mut self.phase {
            seek.asked = now;
            seek.is_backed = false;
            for trial in &mut seek.trials {
                if trial.outcome == Outcome::Unsent {
                    trial.outcome = Outcome::Sent;
                }
            }
        }
    }

    /// Sends a round again whose losses show nothing, and ends a search of which no outcome is to be expected any more.
    pub(super) fn expire(&mut self, now: Now) {
        let Phase::Seek(seek) = &mut self.phase else {
            return;
        };
        let waits_for = now.since(seek.asked);
        if waits_for >= SEEK_LASTS || seek.repeated > MOST_REPEATED {
            self.phase = Phase::WATCH;
        } else if waits_for >= ROUND_LASTS && !seek.is_open() {
            seek.repeated += 1;
            seek.asked = now;
            for trial in &mut seek.trials {
                trial.outcome = Outcome::Unsent;
            }
        }
    }

    /// When [`raise`](PathSearch::raise) is worth a call; `None` while it is not.
    pub(super) fn raise_due(&self) -> Option<Now> {
        let is_narrow = self
            .measured
            .is_some_and(|measured| measured < self.ceiling);
        (is_narrow && matches!(self.phase, Phase::Watch { .. })).then_some(self.raise_due)
    }

    /// The size to try whether the path carries more by now, if that is due.
    pub(super) fn raise(&mut self, now: Now) -> Option<u16> {
        self.raise_due().filter(|due| now >= *due)?;
        self.raise_due = now.after(RAISE_EVERY);
        self.measured.map(|measured| measured.saturating_add(1))
    }

    /// Takes in that a packet of `size` passed. Returns what the path is now known to carry, where that is to be told.
    pub(super) fn passed(&mut self, size: u16, now: Now) -> Option<u16> {
        let full = self.full();
        match &mut self.phase {
            Phase::Watch { .. } if size == full => {
                self.phase = Phase::WATCH;
                self.measured = Some(size);
                self.measured.filter(|_| !self.is_outgrown)
            }
            Phase::Watch { .. } if size > full && size < self.ceiling => {
                self.measured = Some(size);
                let above = self.ceiling.saturating_add(1);
                self.phase = Phase::Seek(Seek::upwards(size, above, now));
                self.measured.filter(|_| !self.is_outgrown)
            }
            Phase::Watch { .. } if size > full => {
                self.measured = Some(size.min(self.ceiling));
                self.is_outgrown = false;
                self.phase = Phase::WATCH;
                self.measured
            }
            Phase::Watch { .. } => None,
            Phase::Seek(seek) if seek.from.is_some_and(|from| size >= from) => {
                // No hole: the probes before were lost by chance, or late.
                self.phase = Phase::WATCH;
                self.measured = Some(full);
                self.measured.filter(|_| !self.is_outgrown)
            }
            Phase::Seek(seek) => {
                let known = seek.mark(size, Outcome::Passed);
                if !known && size > seek.good {
                    // The late answer to a probe that was given up.
                    seek.good = size;
                    seek.is_proved = true;
                    if size >= seek.bad {
                        seek.bad = self.ceiling.saturating_add(1);
                    }
                    seek.split();
                }
                self.judge(now)
            }
        }
    }

    /// Takes in that a packet of `size`, sent at `sent`, was lost. Returns as [`passed`](PathSearch::passed).
    pub(super) fn lost(&mut self, size: u16, sent: Now, now: Now) -> Option<u16> {
        let full = self.full();
        match &mut self.phase {
            Phase::Watch { misses, first } if size == full => {
                if *misses == 0 {
                    *first = sent;
                }
                *misses = misses.saturating_add(1);
                self.seek_if_hole(now);
                None
            }
            Phase::Watch { .. } => {
                self.is_outgrown &= size < full;
                None
            }
            Phase::Seek(seek) => {
                seek.mark(size, Outcome::Lost);
                self.judge(now)
            }
        }
    }

    /// Takes in that the path was dead: full-size probes were lost with all others, and show no black hole. To search for
    /// one after each outage would take all the credit that the next one is to be found with.
    pub(super) fn forget_losses(&mut self) {
        if matches!(self.phase, Phase::Watch { .. }) {
            self.phase = Phase::WATCH;
        }
    }

    /// Takes in that the small probe sent at `sent` was answered.
    pub(super) fn small_passed(&mut self, sent: Now, now: Now) {
        self.small = self.small.max(Some(sent));
        self.seek_if_hole(now);
    }

    /// Takes in that the small probe behind a round, sent at `sent`, was answered. Returns as
    /// [`passed`](PathSearch::passed).
    pub(super) fn behind_passed(&mut self, sent: Now, now: Now) -> Option<u16> {
        if let Phase::Seek(seek) = &mut self.phase {
            seek.is_backed |= sent >= seek.asked;
        }
        self.judge(now)
    }

    /// Begins to seek where full-size probes are lost and a small one that was sent no earlier is answered.
    fn seek_if_hole(&mut self, now: Now) {
        if let Phase::Watch { misses, first } = self.phase
            && misses >= HOLE_MISSES
            && self.small.is_some_and(|small| small >= first)
            && self.may_be_hole()
        {
            self.phase = Phase::Seek(Seek::downwards(self.floor, self.full(), now));
        }
    }

    /// Whether the path is taken to carry more than every path is: else there is nothing to seek where a full-size probe is
    /// lost.
    pub(super) fn may_be_hole(&self) -> bool {
        self.full() > self.floor
    }

    /// Takes in that the pods' packets to the peer have ceased to flow: this counts as one lost full-size probe, for those
    /// that are sent from now on.
    pub(super) fn suspect(&mut self, now: Now) {
        if let Phase::Watch { misses, first } = &mut self.phase
            && *misses == 0
        {
            (*misses, *first) = (1, now);
        }
    }

    /// Whether a search is going on: full-size probes say nothing meanwhile.
    pub(super) fn is_seeking(&self) -> bool {
        matches!(self.phase, Phase::Seek(_))
    }

    /// Ends the round if it is decided, and its losses count.
    fn judge(&mut self, now: Now) -> Option<u16> {
        let Phase::Seek(seek) = &mut self.phase else {
            return None;
        };
        let has_lost = seek
            .trials
            .iter()
            .any(|trial| trial.outcome == Outcome::Lost);
        if seek.is_open() || (has_lost && !seek.is_backed) {
            return None;
        }
        match seek.judge(self.ceiling) {
            Verdict::Open => seek.news(),
            Verdict::Found(measured) => Some(self.settle(measured, now)),
            // Small ones pass, and not even the floor does.
            Verdict::Nothing => Some(self.settle(self.floor, now)),
        }
    }

    fn settle(&mut self, measured: u16, now: Now) -> u16 {
        self.measured = Some(measured);
        self.is_outgrown = false;
        self.phase = Phase::WATCH;
        self.raise_due = now.after(RAISE_FIRST);
        measured
    }
}

impl Phase {
    const WATCH: Phase = Phase::Watch {
        misses: 0,
        first: Now(0),
    };
}

enum Verdict {
    /// Further rounds are needed.
    Open,
    /// This much passes, and no more.
    Found(u16),
    /// Nothing passes.
    Nothing,
}

impl Seek {
    fn new(good: u16, bad: u16, from: Option<u16>, now: Now) -> Seek {
        Seek {
            from,
            told: None,
            good,
            bad,
            is_proved: from.is_none(),
            round: Round::Split,
            trials: Vec::new(),
            asked: now,
            refuted: 0,
            is_backed: false,
            repeated: 0,
        }
    }

    /// From `good`, which passes.
    fn upwards(good: u16, bad: u16, now: Now) -> Seek {
        let mut seek = Seek::new(good, bad, None, now);
        // The ceiling is the likeliest.
        seek.begin(Round::Split, &[bad.saturating_sub(1)]);
        seek
    }

    /// Below `full`, which was lost.
    fn downwards(floor: u16, full: u16, now: Now) -> Seek {
        let mut seek = Seek::new(floor, full, Some(full), now);
        let mut sizes: Vec<u16> = LIKELY.into();
        sizes.retain(|size| *size > floor && *size < full);
        if sizes.is_empty() {
            sizes = seek.quarters();
        }
        sizes.extend([full, full]);
        seek.begin(Round::Split, &sizes);
        seek
    }

    /// A round of sizes between the two bounds, if there are any.
    fn split(&mut self) {
        let sizes = self.quarters();
        self.begin(Round::Split, &sizes);
    }

    fn quarters(&self) -> Vec<u16> {
        let gap = self.bad.saturating_sub(self.good);
        let at = |quarter: u16| {
            let step = (u32::from(gap) * u32::from(quarter) / 4) as u16;
            self.good + step.max(quarter)
        };
        let mut sizes: Vec<u16> = [1, 2, 3].map(at).into();
        if LIKELY.contains(&self.good)
            && let Some(least) = sizes.first_mut()
        {
            *least = self.good + 1;
        }
        sizes.retain(|size| *size > self.good && *size < self.bad);
        sizes.dedup();
        sizes
    }

    /// What pods are to be told now, if it is another size than before.
    fn news(&mut self) -> Option<u16> {
        let is_news = self.from.is_some() && self.is_proved && self.told != Some(self.good);
        is_news.then(|| *self.told.insert(self.good))
    }

    fn begin(&mut self, round: Round, sizes: &[u16]) {
        self.round = round;
        let trial = |size: &u16| Trial {
            size: *size,
            outcome: Outcome::Unsent,
        };
        self.trials = sizes.iter().map(trial).collect();
    }

    /// Notes the outcome of one trial of that size; whether there was one.
    fn mark(&mut self, size: u16, outcome: Outcome) -> bool {
        let place = |wanted| {
            let mut trials = self.trials.iter();
            trials.position(|trial| trial.size == size && trial.outcome == wanted)
        };
        // An answer may come after its probe was given up.
        let late = || place(Outcome::Lost).filter(|_| outcome == Outcome::Passed);
        let place = place(Outcome::Sent).or_else(late);
        let trial = place.and_then(|place| self.trials.get_mut(place));
        trial.map(|trial| trial.outcome = outcome).is_some()
    }

    /// Whether outcomes of this round are missing.
    fn is_open(&self) -> bool {
        let is_open = |trial: &Trial| matches!(trial.outcome, Outcome::Unsent | Outcome::Sent);
        self.trials.iter().any(is_open)
    }

    /// Goes on to the next round: all outcomes of this one are there, and count.
    fn judge(&mut self, ceiling: u16) -> Verdict {
        let of = |outcome: Outcome| -> Vec<u16> {
            let trials = self.trials.iter().filter(|trial| trial.outcome == outcome);
            trials.map(|trial| trial.size).collect()
        };
        let (passed, lost) = (of(Outcome::Passed), of(Outcome::Lost));
        let best = passed.into_iter().max();
        self.is_proved |= best.is_some();
        match (self.round, best) {
            (Round::Split, Some(best)) => {
                let above = lost.into_iter().filter(|size| *size > best);
                self.bad = above.min().unwrap_or(self.bad);
                self.good = best;
            }
            (Round::Split, None) => match lost.first() {
                Some(least) if self.is_proved => self.bad = *least,
                Some(least) => {
                    self.bad = lost.get(1).copied().unwrap_or(self.bad);
                    self.begin(Round::Low, &[self.good, *least]);
                    return Verdict::Open;
                }
                None => {}
            },
            (Round::Low | Round::Last, None) => return Verdict::Nothing,
            (Round::Low, Some(best)) => {
                if best == self.good {
                    self.bad = lost.into_iter().max().unwrap_or(self.bad);
                }
                self.good = best;
            }
            (Round::Last, Some(best)) if best == self.good => return Verdict::Found(best),
            (Round::Last, Some(best)) => {
                self.good = best;
                self.bad = ceiling.saturating_add(1);
                self.refuted += 1;
            }
        }
        self.go_on(ceiling)
    }

    fn go_on(&mut self, ceiling: u16) -> Verdict {
        if self.refuted > MOST_REFUTED {
            return Verdict::Found(self.good);
        }
        self.split();
        if !self.trials.is_empty() {
            if self.bad > ceiling && !self.trials.iter().any(|trial| trial.size == ceiling) {
                // Upwards the ceiling is the likeliest.
                self.trials.pop();
                self.trials.push(Trial {
                    size: ceiling,
                    outcome: Outcome::Unsent,
                });
            }
            return Verdict::Open;
        }
        if self.bad > ceiling {
            return Verdict::Found(self.good);
        }
        self.begin(Round::Last, &[self.bad, self.bad, self.good]);
        Verdict::Open
    }
}

/// Full-size probes lost in a row that are no chance.
const HOLE_MISSES: u8 = 2;
/// Searches begun anew because the last round refuted them: the path loses much, or changes.
const MOST_REFUTED: u8 = 3;
/// After that time a small probe that was sent with a round is lost ...
const ROUND_LASTS: Duration = Duration::from_secs(1);
/// ... and the round is sent again, so many times.
const MOST_REPEATED: u8 = 4;
/// No probe is waited for as long as this, and none waits as long to be sent.
const SEEK_LASTS: Duration = Duration::from_secs(12);
/// When a path that was just found to be narrow is tried first: a measure that loss has made too small lasts no longer ...
const RAISE_FIRST: Duration = Duration::from_secs(1);
/// ... and how often after that.
const RAISE_EVERY: Duration = Duration::from_secs(5);
/// The sizes that links and tunnels have, ascending: what every IPv6 link carries, tunnels of several kinds, VXLAN within
/// Ethernet, PPPoE, Ethernet.
const LIKELY: [u16; 5] = [1280, 1400, 1450, 1492, 1500];

#[cfg(test)]
mod tests;
