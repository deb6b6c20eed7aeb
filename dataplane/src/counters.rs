//! Every packet's fate, counted where it outlives us.
//!
//! Theory of operation: one memfd page holds, per worker, a tick, the version of the adopted snapshot, and per
//! direction the terms of the law
//!
//! `received + originated = sent + delivered + Σ drops[reason] + held`
//!
//! Each word has one writer, its worker, so an addition is a plain load and store; anybody may read at any time. The
//! keeper holds the descriptor, so the page survives the service: what a killed service had read but not finished is
//! the imbalance of its page, which the next one books as `LostInCrash` before it starts. Blocks of different workers
//! lie on different cache lines. A node that goes on with fewer workers keeps the blocks of those it had: what they
//! counted stays in every sum. Counted are inner wire packets; a datagram refused before its inner packet is known
//! counts one. What one worker hands to another ([`crate::steer`]) is received by the one that takes it; both count
//! what passes between them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::device::Offloads;
use crate::drops::{Direction, DropReason};
use crate::limits::MAX_WORKERS;
use crate::sys::page::Page;

/// The counters page of this node, shared with whoever holds its descriptor.
#[derive(Clone)]
pub struct Counters {
    page: Arc<Page>,
}

/// All counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    /// One per worker that there ever was; those that run now come first.
    pub workers: Vec<WorkerTotals>,
    /// Packets that one worker has handed to another, which has not taken them yet: held by the node, and received by no
    /// worker.
    pub in_rings: u64,
    /// How many run now.
    pub running: usize,
}

/// The counters of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerTotals {
    /// Steps made; stands still when the worker hangs.
    pub tick: u64,
    /// Version of the snapshot that the worker forwards by.
    pub snapshot: u64,
    /// ICMP errors that were not made because their receiver had drawn too many. They never were packets.
    pub unanswered: u64,
    /// Offloads in use at the last step.
    pub offloads: InUse,
    /// How often an offload was given up because the kernel refused it.
    pub given_up: u64,
    /// Pod → peer.
    pub outbound: Flow,
    /// Peer → pod.
    pub inbound: Flow,
}

/// Offloads that a worker uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// What is written to the device unfinished.
    pub device: Offloads,
    /// Several datagrams are sent as one message, through every socket.
    pub trains: bool,
}

/// One direction's terms of the conservation law, in inner wire packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Came in.
    pub received: u64,
    /// Made by us: ICMP errors, fragments beyond the first.
    pub originated: u64,
    /// Went to a peer.
    pub sent: u64,
    /// Went into the tunnel device.
    pub delivered: u64,
    /// Still in our hands.
    pub held: u64,
    /// Dropped, by the reason's number.
    pub drops: [u64; DropReason::COUNT],
}

impl Counters {
    /// A new page for `workers` workers, all zero.
    ///
    /// # Errors
    /// `InvalidInput` for no or more than [`MAX_WORKERS`] workers; what memfd_create(2) and mmap(2) give.
    pub fn create(workers: usize) -> io::Result<Counters> {
        if workers == 0 || workers > MAX_WORKERS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "between 1 and 64 workers",
            ));
        }
        let page = Page::create("tartan-counters", WORDS)?;
        let counters = Counters {
            page: Arc::new(page),
        };
        counters.word(0).store(MAGIC, Relaxed);
        counters.employ(workers);
        Ok(counters)
    }

    /// The page of an earlier service.
    ///
    /// # Errors
    /// `InvalidData` if the descriptor is no counters page of this version.
    pub fn adopt(descriptor: OwnedFd) -> io::Result<Counters> {
        let counters = Counters {
            page: Arc::new(Page::adopt(descriptor, WORDS)?),
        };
        let workers = counters.workers();
        if counters.word(0).load(Relaxed) != MAGIC || workers == 0 || workers > MAX_WORKERS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a counters page of this version",
            ));
        }
        Ok(counters)
    }

    /// The descriptor to give to the keeper.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.page.as_fd()
    }

    /// How many workers count on the page now.
    pub fn workers(&self) -> usize {
        self.word(RUNNING).load(Relaxed) as usize
    }

    /// Says how many workers count on the page from now on, at most [`MAX_WORKERS`]. To be called before any of them
    /// starts.
    pub fn employ(&self, workers: usize) {
        let workers = workers.min(MAX_WORKERS);
        let ever = self.ever().max(workers);
        self.word(RUNNING).store(workers as u64, Relaxed);
        self.word(EVER).store(ever as u64, Relaxed);
    }

    /// How many blocks any worker ever counted on.
    fn ever(&self) -> usize {
        let ever = self.word(EVER).load(Relaxed) as usize;
        ever.max(self.workers()).min(MAX_WORKERS)
    }

    /// Books what an earlier service held when it died, and returns how many packets that was. To be called at
    /// take-over, before any worker starts.
    pub fn book_lost(&self) -> u64 {
        // What lay between two workers was received by none. It is the first one's now.
        self.worker(0).take_over(self.in_rings() as usize);
        let mut lost = 0;
        for index in 0..self.ever() {
            let tally = self.worker(index);
            for direction in [Direction::Outbound, Direction::Inbound] {
                tally.hold(direction, 0);
                let imbalance = u64::try_from(tally.flow(direction).balance()).unwrap_or_default();
                tally.drop(direction, DropReason::LostInCrash, imbalance);
                lost += imbalance;
            }
        }
        lost
    }

    /// Reads everything.
    pub fn read(&self) -> Totals {
        let workers = (0..self.ever()).map(|index| {
            let tally = self.worker(index);
            WorkerTotals {
                tick: tally.word(TICK).load(Relaxed),
                snapshot: tally.word(SNAPSHOT).load(Relaxed),
                unanswered: tally.word(UNANSWERED).load(Relaxed),
                offloads: InUse::of_bits(tally.word(OFFLOADS).load(Relaxed)),
                given_up: tally.word(GIVEN_UP).load(Relaxed),
                outbound: tally.flow(Direction::Outbound),
                inbound: tally.flow(Direction::Inbound),
            }
        });
        Totals {
            workers: workers.collect(),
            in_rings: self.in_rings(),
            running: self.workers(),
        }
    }

    /// Counted on both ends of the rings.
    fn in_rings(&self) -> u64 {
        let sum = |word| -> u64 {
            let words = (0..self.ever()).map(|index| self.worker(index).inbound(word));
            words.sum()
        };
        // What is taken meanwhile must not seem to have come from nowhere.
        let taken = sum(TAKEN_OVER);
        sum(HANDED_OVER).saturating_sub(taken)
    }

    /// The words that worker `index` writes.
    pub(crate) fn worker(&self, index: usize) -> Tally {
        Tally {
            page: Arc::clone(&self.page),
            first: BLOCK * (1 + index.min(MAX_WORKERS - 1)),
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        word(&self.page, index)
    }
}

impl Totals {
    /// Those of the workers that run now.
    pub fn of_running(&self) -> impl Iterator<Item = &WorkerTotals> {
        self.workers.iter().take(self.running)
    }
}

impl InUse {
    fn bits(self) -> u64 {
        let InUse { device, trains } = self;
        let flags = [device.checksum, device.tcp, device.udp, trains];
        flags
            .iter()
            .zip(0..)
            .map(|(on, bit)| u64::from(*on) << bit)
            .sum()
    }

    fn of_bits(bits: u64) -> InUse {
        let [checksum, tcp, udp, trains] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 != 0);
        let device = Offloads { checksum, tcp, udp };
        InUse { device, trains }
    }
}

impl Flow {
    /// `received + originated − sent − delivered − Σ drops − held`: 0 while the law holds.
    pub fn balance(&self) -> i128 {
        i128::from(self.received) + i128::from(self.originated)
            - i128::from(self.sent)
            - i128::from(self.delivered)
            - i128::from(self.held)
            - i128::from(self.dropped())
    }

    /// All drops together.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Drops for one reason.
    pub fn drops_of(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or_default()
    }
}

/// One worker's block of words; the worker is its only writer.
pub(crate) struct Tally {
    page: Arc<Page>,
    first: usize,
}

impl Tally {
    pub(crate) fn tick(&self, snapshot: u64) {
        self.add(TICK, 1);
        self.word(SNAPSHOT).store(snapshot, Relaxed);
    }

    /// Notes which offloads are in use, and how many more were given up.
    pub(crate) fn offloads(&self, in_use: InUse, given_up: u64) {
        self.word(OFFLOADS).store(in_use.bits(), Relaxed);
        if given_up > 0 {
            self.add(GIVEN_UP, given_up);
        }
    }

    pub(crate) fn receive(&self, direction: Direction, packets: usize) {
        self.add(base(direction) + RECEIVED, packets as u64);
    }

    pub(crate) fn originate(&self, direction: Direction, packets: usize) {
        self.add(base(direction) + ORIGINATED, packets as u64);
    }

    pub(crate) fn send(&self, packets: usize) {
        self.add(base(Direction::Outbound) + SENT, packets as u64);
    }

    pub(crate) fn deliver(&self, direction: Direction, packets: usize) {
        self.add(base(direction) + DELIVERED, packets as u64);
    }

    /// The one place where a packet is dropped.
    pub(crate) fn drop(&self, direction: Direction, reason: DropReason, packets: u64) {
        self.add(base(direction) + DROPS + reason as usize, packets);
    }

    pub(crate) fn hold(&self, direction: Direction, packets: usize) {
        self.word(base(direction) + HELD)
            .store(packets as u64, Relaxed);
    }

    /// Notes packets that go to another worker, which receives them.
    pub(crate) fn hand_over(&self, packets: usize) {
        self.add(base(Direction::Inbound) + HANDED_OVER, packets as u64);
    }

    /// Notes packets that another worker has handed over: from now on they are received.
    pub(crate) fn take_over(&self, packets: usize) {
        self.add(base(Direction::Inbound) + TAKEN_OVER, packets as u64);
        self.receive(Direction::Inbound, packets);
    }

    pub(crate) fn leave_unanswered(&self) {
        self.add(UNANSWERED, 1);
    }

    fn inbound(&self, place: usize) -> u64 {
        self.word(base(Direction::Inbound) + place).load(Relaxed)
    }

    fn flow(&self, direction: Direction) -> Flow {
        let read = |index| self.word(base(direction) + index).load(Relaxed);
        Flow {
            received: read(RECEIVED),
            originated: read(ORIGINATED),
            sent: read(SENT),
            delivered: read(DELIVERED),
            held: read(HELD),
            drops: std::array::from_fn(|reason| read(DROPS + reason)),
        }
    }

    /// Single writer: a load and a store, no locked instruction.
    fn add(&self, index: usize, amount: u64) {
        let word = self.word(index);
        word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        word(&self.page, self.first + index)
    }
}

fn word(page: &Page, index: usize) -> &AtomicU64 {
    static OUTSIDE: AtomicU64 = AtomicU64::new(0);
    page.words().get(index).unwrap_or(&OUTSIDE)
}

const fn base(direction: Direction) -> usize {
    match direction {
        Direction::Outbound => 16,
        Direction::Inbound => 16 + FLOW,
    }
}

// Places inside the header.
const RUNNING: usize = 1;
const EVER: usize = 2;

// Places inside a worker's block.
const TICK: usize = 0;
const SNAPSHOT: usize = 1;
const UNANSWERED: usize = 2;
const OFFLOADS: usize = 3;
const GIVEN_UP: usize = 4;

// Places inside a direction's words.
const RECEIVED: usize = 0;
const ORIGINATED: usize = 1;
const SENT: usize = 2;
const DELIVERED: usize = 3;
const HELD: usize = 4;
const HANDED_OVER: usize = 5;
const TAKEN_OVER: usize = 6;
const DROPS: usize = 8;

/// Words of one direction: room for 56 reasons.
const FLOW: usize = 64;
/// Words of one worker: a multiple of 128 bytes, so that no two workers share a cache line or its neighbour.
const BLOCK: usize = 16 + 2 * FLOW;
/// A block for the header, then one per worker.
const WORDS: usize = BLOCK * (1 + MAX_WORKERS);
/// "TARTAN", layout 1.
const MAGIC: u64 = u64::from_be_bytes(*b"TARTAN\0\x01");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_shared_and_an_imbalance_is_booked_once() {
        let counters = Counters::create(2).unwrap();
        let tally = counters.worker(1);
        tally.receive(Direction::Outbound, 10);
        tally.send(6);
        tally.drop(Direction::Outbound, DropReason::NoRoute, 1);
        tally.hold(Direction::Outbound, 3);
        assert_eq!(counters.read().workers[1].outbound.balance(), 0);

        let next = Counters::adopt(counters.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(next.book_lost(), 3);
        assert_eq!(next.book_lost(), 0);
        let flow = next.read().workers[1].outbound;
        assert_eq!(
            (
                flow.balance(),
                flow.held,
                flow.drops_of(DropReason::LostInCrash)
            ),
            (0, 0, 3)
        );
        assert_eq!(next.read().workers[0].outbound.received, 0);
    }

    #[test]
    fn offloads_are_kept_as_they_are_and_what_was_given_up_adds_up() {
        let counters = Counters::create(1).unwrap();
        let tally = counters.worker(0);
        for bits in 0..16 {
            let in_use = InUse::of_bits(bits);
            tally.offloads(in_use, 2);
            assert_eq!(counters.read().workers[0].offloads, in_use);
            assert_eq!(in_use.bits(), bits);
        }
        assert_eq!(counters.read().workers[0].given_up, 32);
    }

    #[test]
    fn what_a_worker_counted_that_runs_no_more_stays_in_the_sum() {
        let counters = Counters::create(2).unwrap();
        counters.worker(1).receive(Direction::Inbound, 5);
        counters.employ(1);
        let next = Counters::adopt(counters.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(next.workers(), 1);
        assert_eq!(next.book_lost(), 5);
        let totals = next.read();
        assert_eq!((totals.workers.len(), totals.of_running().count()), (2, 1));
        assert_eq!(totals.workers[1].inbound.received, 5);
        next.employ(3);
        assert_eq!(next.read().of_running().count(), 3);
        assert_eq!(next.read().workers[1].inbound.received, 5);
    }

    #[test]
    fn a_foreign_descriptor_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(Counters::adopt(file.into()).is_err());
        assert!(Counters::create(0).is_err());
        assert!(Counters::create(MAX_WORKERS + 1).is_err());
    }

    #[test]
    fn blocks_hold_both_directions() {
        const { assert!(16 + 2 * FLOW <= BLOCK && DROPS + DropReason::COUNT <= FLOW) };
    }
}
