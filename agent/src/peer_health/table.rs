//! Every path of this node: which there are, which is to be asked when, and what became of it.
//!
//! Paths wait in a heap by the time of their next turn, so a turn costs by what is due and not by how many peers there
//! are. The budget of [`BUDGET`] probes a second is shared: as long as all paths fit into it, each is watched at its own
//! pace; beyond that, paths without packets of pods are watched less often, down to every 25 s with 5,000 peers, for which two fifths
//! of the budget are kept ([`WATCHING`]). The rest is for what is in doubt or has just been lost: it is asked at once, within the
//! path's own credit. Where the budget is spent, what is due stays in the heap, the longest due first.
//!
//! The paths of which pods make most use are *looked at* every [`LOOK_EVERY`], [`LOOKED`] of them: where packets of pods cease to
//! flow all at once, the path is suspected, for TCP has fallen silent then.
//!
//! With many paths what counts is how often threads wake and how much memory they touch. So more than [`MANY`] paths are judged
//! in rounds, so many of them at a time: what is known of a peer lies scattered in memory, and to fetch it of 5,000 every second
//! costs as much as to probe them. And their probes go in batches: a batch and its answers wake this thread and a worker once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dataplane::families::PerFamily;
use dataplane::now::Now;
use encap::Family;

use super::credit::Credit;
use super::histogram::Histogram;
use super::loss::Outcomes;
use super::path::{Answered, Ask, Obstacle, Pace, Path, SPARE_EVERY, Signs, WATCH_EVERY};
use super::path_search::PathSearch;

/// A path that there is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The peer's name.
    pub(super) name: Arc<str>,
    /// Its address.
    pub(super) address: IpAddr,
    /// How many paths this peer has.
    pub(super) of: u32,
    /// The least outer packet that every path carries, and the largest that pods' packets make.
    pub(super) bounds: (u16, u16),
}

/// The paths.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    by_address: HashMap<IpAddr, usize>,
    due: BinaryHeap<Reverse<(Now, usize)>>,
    /// Paths whose state is bad, by number.
    bad: BTreeSet<usize>,
    /// Paths that were asked, in that order, from the first on that may still await an answer.
    asked: VecDeque<usize>,
    budget: Credit,
    /// Where the budget did not suffice for what is due: when it is looked at again.
    spent_until: Now,
    paces: Paces,
    round: Round,
    /// The names of peers that answered probes of the service before this one.
    answered_before: BTreeSet<String>,
    /// The paths that are looked at, by number.
    looked: Vec<usize>,
    looked_at: Now,
    /// Of all paths that there ever were, by the family of the peer's address.
    round_trips: PerFamily<Histogram>,
    /// The same of the outcomes that loss is made of.
    outcomes: PerFamily<Outcomes>,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) target: Target,
    pub(super) path: Path,
    /// When it is in the heap; what else the heap has of it is old.
    scheduled: Now,
    /// Packets of pods went there, or came, within the last seconds.
    pub(super) is_busy: bool,
    packets: u64,
    /// Of them those that came or went between the last two judgements.
    used: u64,
    flow: Flow,
    /// As of the last look.
    signs: Signs,
}

/// How much pods send there.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Bytes since the service started, as of the last look.
    bytes: u64,
    /// When that was.
    at: Now,
    /// Bytes a second, the mean of late.
    rate: u64,
    /// It has ceased, and has not begun again.
    is_dry: bool,
}

/// What is known of a path's peer, as of now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) signs: Signs,
    /// Packets both ways since the service started.
    pub(super) packets: u64,
}

/// A round of looks at all paths. It goes on where other paths are to be: where they change every second it would never
/// come to the last ones.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// The path that is looked at next.
    next: usize,
    /// Paths so far that probes are answered on, with packets of pods and without, and those that are spared.
    busy: u32,
    idle: u32,
    spared: u32,
}

#[derive(Clone, Copy, Debug)]
struct Paces {
    busy: Duration,
    idle: Duration,
    /// Peers are so few that idle ones are asked by full-size probes too.
    is_full: bool,
}

impl Table {
    pub(super) fn new(now: Now) -> Table {
        Table {
            slots: Vec::new(),
            by_address: HashMap::new(),
            due: BinaryHeap::new(),
            bad: BTreeSet::new(),
            asked: VecDeque::new(),
            budget: Credit::full(MOST_BUDGET, now),
            spent_until: now,
            paces: Paces {
                busy: WATCH_EVERY,
                idle: WATCH_EVERY,
                is_full: true,
            },
            round: Round::default(),
            answered_before: BTreeSet::new(),
            looked: Vec::new(),
            looked_at: now,
            round_trips: PerFamily::each(|_| Histogram::default()),
            outcomes: PerFamily::default(),
        }
    }

    /// Takes the paths that there are to be. One of the same peer and address stays as it is. New ones are spread.
    pub(super) fn follow(&mut self, targets: Vec<Target>, now: Now) {
        let mut before: HashMap<(Arc<str>, IpAddr), Slot> = self
            .slots
            .drain(..)
            .map(|slot| ((Arc::clone(&slot.target.name), slot.target.address), slot))
            .collect();
        let spread = WATCH_EVERY.max(Duration::from_secs(1) * targets.len() as u32 / WATCHING);
        let all = targets.len().max(1) as u32;
        self.due.clear();
        self.by_address.clear();
        for (index, target) in targets.into_iter().enumerate() {
            let (floor, ceiling) = target.bounds;
            let slot = match before.remove(&(Arc::clone(&target.name), target.address)) {
                Some(mut slot) => {
                    slot.path.search.bound(floor, ceiling);
                    slot.target = target;
                    slot
                }
                None => {
                    let first = now.after(spread * index as u32 / all);
                    let mut path = Path::new(PathSearch::new(floor, ceiling), first, now);
                    if self.answered_before.contains(&*target.name) {
                        path.expect_answers();
                    }
                    Slot {
                        path,
                        scheduled: first,
                        is_busy: false,
                        packets: 0,
                        used: 0,
                        flow: Flow::default(),
                        signs: Signs::default(),
                        target,
                    }
                }
            };
            self.by_address.insert(slot.target.address, index);
            self.due.push(Reverse((slot.scheduled, index)));
            self.slots.push(slot);
        }
        // From now on a path knows itself: a name that goes and comes back is another node's, or runs something else.
        for slot in &self.slots {
            self.answered_before.remove(&*slot.target.name);
        }
        self.choose_looked();
        let bad = self.slots.iter().enumerate();
        self.bad = bad
            .filter_map(|(index, slot)| slot.path.state().0.is_bad().then_some(index))
            .collect();
        let awaiting = self.slots.iter().enumerate();
        self.asked = awaiting
            .filter_map(|(index, slot)| slot.path.awaits().then_some(index))
            .collect();
    }

    /// Takes which peers answered probes of the service before this one: paths that are new are expected to answer.
    pub(super) fn expect_answers(&mut self, names: &BTreeSet<String>) {
        self.answered_before.clone_from(names);
    }

    /// The names of the peers that are known to answer probes; `None` while there are no paths.
    pub(super) fn answering(&self) -> Option<BTreeSet<String>> {
        let answering = self.slots.iter().filter(|slot| slot.path.is_to_answer());
        let names = answering.map(|slot| slot.target.name.to_string());
        (!self.slots.is_empty()).then(|| names.collect())
    }

    /// The paths, in the order in which they were given.
    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Those whose state is bad, in the same order. Costs by how many they are.
    pub(super) fn bad(&self) -> impl Iterator<Item = &Slot> {
        self.bad.iter().filter_map(|index| self.slots.get(*index))
    }

    /// The path to that address.
    pub(super) fn slot_of(&self, address: IpAddr) -> Option<&Slot> {
        self.slots.get(*self.by_address.get(&address)?)
    }

    /// What is to be sent now: numbers of paths and what to ask them. What was learned on the way is added to `learned`.
    pub(super) fn turn(
        &mut self,
        now: Now,
        asks: &mut Vec<(usize, Ask)>,
        learned: &mut Vec<(IpAddr, u16)>,
    ) {
        let mut of_path = Vec::new();
        let tick = self.tick();
        while let Some(Reverse((at, index))) = self
            .due
            .peek()
            .copied()
            .filter(|Reverse((at, _))| *at <= now)
        {
            let pace = self.pace(index);
            let Some(slot) = self
                .slots
                .get_mut(index)
                .filter(|slot| slot.scheduled == at)
            else {
                self.due.pop();
                continue;
            };
            // As many as a turn may ask for; what it does not take is put back. Who waits is the first when there are more: put
            // off, it would come behind all that become due meanwhile.
            if !self.budget.take(MOST_OF_A_TURN, PROBE_BACK, now) {
                self.spent_until = now.after(tick);
                break;
            }
            self.due.pop();
            let before = slot.path.loss.all();
            let found = slot.path.turn(pace, now, &mut of_path);
            let outcomes = of_family(&mut self.outcomes, slot.target.address);
            outcomes.add(before, slot.path.loss.all());
            learned.extend(found.map(|mtu| (slot.target.address, mtu)));
            if slot.path.is_outdated() {
                slot.path.judge(slot.signs, now);
                note_state(&mut self.bad, index, slot);
            }
            self.budget
                .give_back(MOST_OF_A_TURN.saturating_sub(of_path.len()));
            asks.extend(of_path.drain(..).map(|ask| (index, ask)));
            slot.scheduled = slot.path.wake().max(now.after(tick));
            self.due.push(Reverse((slot.scheduled, index)));
        }
    }

    /// When [`turn`](Table::turn) is to be called next. A path that needs nothing before a later time is put there: an answer
    /// ends the doubt for which its turn was to come.
    pub(super) fn wake(&mut self) -> Option<Now> {
        while let Some(Reverse((at, index))) = self.due.peek().copied() {
            let slot = self.slots.get_mut(index);
            let Some(slot) = slot.filter(|slot| slot.scheduled == at) else {
                self.due.pop();
                continue;
            };
            let wake = slot.path.wake();
            if wake <= at || slot.path.is_urgent() {
                break;
            }
            self.due.pop();
            slot.scheduled = wake;
            self.due.push(Reverse((wake, index)));
        }
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        due.map(|due| due.max(self.spent_until))
    }

    /// When a path is due that is to be asked before all that the budget did not suffice for.
    fn at_once(&self, now: Now) -> Now {
        let first = self.due.peek().map(|Reverse((at, _))| *at);
        first.map_or(now, |first| first.min(now))
    }

    /// Within which probes that are due are sent together, and answers are waited for.
    pub(super) fn tick(&self) -> Duration {
        match self.slots.len() > MANY {
            true => BATCHED,
            false => SOON,
        }
    }

    /// Notes a probe that was sent to this address.
    pub(super) fn note_sent(&mut self, address: IpAddr, nonce: u64, ask: Ask, now: Now) {
        self.on(address, now, |path| path.note_sent(nonce, ask, now));
        self.asked.extend(self.by_address.get(&address));
    }

    /// Whether an answer may come soon. Costs by what was answered since, not by how many paths there are.
    pub(super) fn awaits(&mut self) -> bool {
        while let Some(index) = self.asked.front() {
            if self
                .slots
                .get(*index)
                .is_some_and(|slot| slot.path.awaits())
            {
                return true;
            }
            self.asked.pop_front();
        }
        false
    }

    /// Gives a path of this address to `take`, and schedules what that leads to.
    pub(super) fn on<T>(
        &mut self,
        address: IpAddr,
        now: Now,
        take: impl FnOnce(&mut Path) -> T,
    ) -> Option<T> {
        let index = *self.by_address.get(&address)?;
        let at_once = self.at_once(now);
        let slot = self.slots.get_mut(index)?;
        let before = slot.path.loss.all();
        let taken = take(&mut slot.path);
        of_family(&mut self.outcomes, address).add(before, slot.path.loss.all());
        if slot.path.is_outdated() {
            slot.path.judge(slot.signs, now);
            note_state(&mut self.bad, index, slot);
        }
        let wake = match slot.path.is_urgent() {
            true => at_once,
            false => slot.path.wake(),
        };
        if wake < slot.scheduled {
            slot.scheduled = wake;
            self.due.push(Reverse((wake, index)));
        }
        Some(taken)
    }

    /// Takes an answer. `None`: no probe of that nonce is open at the path, so it proves nothing and counts nowhere.
    pub(super) fn answer(&mut self, address: IpAddr, nonce: u64, at: Now) -> Option<Answered> {
        let answered = self.on(address, at, |path| path.answer(nonce, at))??;
        of_family(&mut self.round_trips, address).observe(answered.round_trip);
        Some(answered)
    }

    /// Round trips of all answered probes since the service started, by the family of the peer's address.
    pub(super) fn round_trips(&self) -> PerFamily<Histogram> {
        self.round_trips
    }

    /// Outcomes of the probes of which the loss of paths is made since the service started, by the family of the peer's
    /// address: what `tartan peers` shows as lost is lost here, and a trial of a size that may be too large is not in.
    pub(super) fn outcomes(&self) -> PerFamily<Outcomes> {
        self.outcomes
    }

    /// Notes an error that came in place of an answer. One that is not proven to be of a probe of ours only words a path
    /// that has lost its answers.
    pub(super) fn fail(&mut self, address: IpAddr, what: Obstacle, is_proven: bool, now: Now) {
        self.on(address, now, |path| {
            if is_proven || path.answered().is_some() {
                path.fail(what, now);
            }
        });
    }

    /// Judges the next [`MANY`] paths of this round anew, once a second, by what is `seen` of their peers. Returns those
    /// that changed, by number.
    pub(super) fn judge(&mut self, now: Now, seen: impl Fn(&Target) -> Seen) -> Vec<usize> {
        let mut changed = Vec::new();
        let paths = self.slots.iter_mut().enumerate();
        for (index, slot) in paths.skip(self.round.next).take(MANY) {
            let seen = seen(&slot.target);
            slot.is_busy = slot.packets != seen.packets;
            slot.used = seen.packets.wrapping_sub(slot.packets);
            slot.packets = seen.packets;
            slot.signs = seen.signs;
            match (slot.path.is_probed(now), slot.is_busy) {
                (false, _) => self.round.spared += 1,
                (true, true) => self.round.busy += 1,
                (true, false) => self.round.idle += 1,
            }
            if slot.path.judge(seen.signs, now) {
                note_state(&mut self.bad, index, slot);
                changed.push(index);
            }
        }
        self.round.next += MANY;
        if self.round.next >= self.slots.len() {
            self.paces = Paces::of(std::mem::take(&mut self.round));
            self.choose_looked();
        }
        changed
    }

    /// The paths with the most packets.
    fn choose_looked(&mut self) {
        let busy = self.slots.iter().enumerate();
        let busy = busy.filter(|(_, slot)| slot.is_busy && slot.path.answered().is_some());
        let mut busy: Vec<(u64, usize)> = busy.map(|(index, slot)| (slot.used, index)).collect();
        if busy.len() > LOOKED {
            busy.select_nth_unstable_by_key(LOOKED, |(used, _)| Reverse(*used));
            busy.truncate(LOOKED);
        }
        self.looked = busy.into_iter().map(|(_, index)| index).collect();
    }

    /// Looks at the paths that packets of pods use most, if it is time: `sent` gives the bytes that pods have sent to a
    /// peer since the service started.
    pub(super) fn look(&mut self, now: Now, sent: impl Fn(&Target) -> u64) {
        if now.since(self.looked_at) < LOOK_EVERY {
            return;
        }
        self.looked_at = now;
        let at_once = self.at_once(now);
        for index in std::mem::take(&mut self.looked) {
            self.looked.push(index);
            let pace = self.pace(index);
            let Some(slot) = self.slots.get_mut(index) else {
                continue;
            };
            if slot.flow.has_ceased(sent(&slot.target), now) {
                slot.path.suspect(pace, now);
                if slot.path.is_urgent() && at_once < slot.scheduled {
                    slot.scheduled = at_once;
                    self.due.push(Reverse((at_once, index)));
                }
            }
        }
    }

    /// When [`look`](Table::look) is to be called next; `None` where there is nothing to look at.
    pub(super) fn look_due(&self) -> Option<Now> {
        (!self.looked.is_empty()).then(|| self.looked_at.after(LOOK_EVERY))
    }

    fn pace(&self, index: usize) -> Pace {
        let slot = self.slots.get(index);
        let is_busy = slot.is_some_and(|slot| slot.is_busy);
        let of = slot.map_or(1, |slot| slot.target.of);
        let watch = match is_busy {
            true => self.paces.busy,
            false => self.paces.idle,
        };
        // The shares are of paths, so that only the least pause is of peers.
        let least = WATCH_EVERY * of;
        Pace {
            watch: watch.max(least),
            theirs: self.paces.idle.max(least),
            credit: Duration::from_secs(1) * of,
            is_full: is_busy || self.paces.is_full,
        }
    }
}

impl Flow {
    /// Takes the count of bytes by now; whether much flowed before, and now next to nothing.
    fn has_ceased(&mut self, bytes: u64, now: Now) -> bool {
        let passed = now.since(self.at);
        if passed > FLOW_LASTS {
            *self = Flow {
                bytes,
                at: now,
                ..Flow::default()
            };
            return false;
        }
        let new = bytes.saturating_sub(self.bytes);
        (self.bytes, self.at) = (bytes, now);
        let micros = (passed.as_micros() as u64).max(1);
        let rate = new.saturating_mul(1_000_000) / micros;
        let is_dry = self.rate >= MUCH && rate < self.rate / CEASED_BELOW;
        let has_ceased = is_dry && !self.is_dry;
        self.is_dry = is_dry;
        // What ceased is remembered for as long as TCP takes to send again.
        self.rate = self.rate - self.rate / 8 + rate / 8;
        has_ceased
    }
}

impl Paces {
    /// How the paths of a round share what is to be spent on watching.
    fn of(round: Round) -> Paces {
        let Round {
            busy, idle, spared, ..
        } = round;
        let each = |paths: u32, share: u32| WATCH_EVERY.max(Duration::from_secs(1) * paths / share);
        let for_busy = each(busy, WATCHING / 2);
        let taken = f64::from(busy) / for_busy.as_secs_f64()
            + f64::from(spared) / SPARE_EVERY.as_secs_f64();
        let left = WATCHING.saturating_sub(taken as u32).max(WATCHING / 5);
        Paces {
            busy: for_busy,
            idle: each(idle, left),
            is_full: busy + idle <= FEW,
        }
    }
}

/// Notes whether the state of that path is bad.
fn note_state(bad: &mut BTreeSet<usize>, index: usize, slot: &Slot) {
    match slot.path.state().0.is_bad() {
        true => bad.insert(index),
        false => bad.remove(&index),
    };
}

/// The value for the family of a peer's address.
fn of_family<T>(values: &mut PerFamily<T>, address: IpAddr) -> &mut T {
    match Family::of(address) {
        Family::V4 => &mut values.v4,
        Family::V6 => &mut values.v6,
    }
}

/// Probes of all paths in a second.
const BUDGET: u32 = 500;
/// Those of them that watch while all is well: a probe and its answer cost some 15 µs here and as much at the peer, whose own probes
/// cost this node the same.
const WATCHING: u32 = 200;
const PROBE_BACK: Duration = Duration::from_millis(1000 / BUDGET as u64);
/// Of them so many at once: those of a batch, and a turn.
const MOST_BUDGET: u32 = 65;
/// Full-size probes to more idle peers than this would be more than about a megabit a second.
const FEW: u32 = 100;
/// A round of a search, a pair in doubt, and one that raises.
const MOST_OF_A_TURN: usize = 11;
/// How often paths are looked at: a quarter of the time after which TCP sends again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// And how many of them: a look fetches what is known of a peer, as to judge it does.
const LOOKED: usize = 64;
/// What was seen of a flow longer ago is forgotten: the path was not looked at meanwhile.
const FLOW_LASTS: Duration = Duration::from_secs(1);
/// Bytes a second below which a flow may cease by chance: a few packets of full size between two looks.
const MUCH: u64 = 250_000;
/// A flow has ceased when less than one part in so many is left: acknowledgements go on.
const CEASED_BELOW: u64 = 8;
/// More paths than most clusters have nodes. So many are judged in a second.
const MANY: usize = 1_000;
/// A path is looked at again after this at the earliest.
const SOON: Duration = Duration::from_millis(20);
/// The same of a path among many: a tenth of a second's probes.
const BATCHED: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
