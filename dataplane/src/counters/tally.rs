//! What one worker writes on the page.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

use super::totals::{Batches, Flow, OffloadsInUse};
use super::word;
use crate::drop_counts::Parties;
use crate::drops::{Direction, DropReason};
use crate::sys::page::Page;
use crate::worker::{Amount, Work};

/// One worker's block of words; the worker is its only writer.
pub(crate) struct Tally {
    pub(super) page: Arc<Page>,
    /// Its first word there.
    pub(super) first: usize,
}

impl Tally {
    /// Ends a step by the snapshot of that version. A reader of the version knows that the worker has given up the
    /// snapshots before it, hence the order.
    pub(crate) fn tick(&self, snapshot: u64) {
        self.add(TICK, 1);
        self.word(SNAPSHOT).store(snapshot, Release);
    }

    /// Notes which offloads are in use, and how many more were given up.
    pub(crate) fn offloads(&self, in_use: OffloadsInUse, given_up: u64) {
        self.word(OFFLOADS).store(in_use.bits(), Relaxed);
        if given_up > 0 {
            self.add(GIVEN_UP, given_up);
        }
    }

    /// Notes what a step has moved, as one batch of each direction that has something.
    pub(crate) fn batch(&self, work: Work) {
        let both = [
            (OUTBOUND_BATCHES, work.outbound),
            (INBOUND_BATCHES, work.inbound),
        ];
        for (first, Amount { packets, bytes }) in both {
            if packets > 0 {
                self.add(first, 1);
                self.add(first + 1, packets as u64);
                self.add(first + 2, bytes as u64);
            }
        }
    }

    /// Adds to the times in which the worker had work and in which it had none.
    pub(crate) fn time(&self, busy: Duration, idle: Duration) {
        self.add(BUSY, busy.as_nanos() as u64);
        self.add(IDLE, idle.as_nanos() as u64);
    }

    pub(super) fn batches(&self, direction: Direction) -> Batches {
        let first = match direction {
            Direction::Outbound => OUTBOUND_BATCHES,
            Direction::Inbound => INBOUND_BATCHES,
        };
        let [count, packets, bytes] = [0, 1, 2].map(|place| self.word(first + place).load(Relaxed));
        Batches {
            count,
            packets,
            bytes,
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

    /// Counts a probe that was received, and then answered or heard.
    pub(crate) fn probe(&self) {
        self.add(base(Direction::Inbound) + PROBES, 1);
    }

    /// The one place where a packet is dropped. It counts at its peer and pod too: after the total, which is therefore never
    /// below the sum over peers, or over pods.
    pub(crate) fn drop(
        &self,
        direction: Direction,
        reason: DropReason,
        packets: u64,
        of: Parties<'_>,
    ) {
        self.add(base(direction) + DROPS + reason as usize, packets);
        of.count(direction, reason, packets);
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

    pub(crate) fn suppress_icmp_error(&self) {
        self.add(UNANSWERED, 1);
    }

    pub(super) fn inbound(&self, place: usize) -> u64 {
        self.word(base(Direction::Inbound) + place).load(Relaxed)
    }

    pub(super) fn received(&self, direction: Direction) -> u64 {
        self.word(base(direction) + RECEIVED).load(Relaxed)
    }

    pub(super) fn flow(&self, direction: Direction) -> Flow {
        Flow::of_words(|place| self.word(base(direction) + place).load(Relaxed))
    }

    /// Single writer: a load and a store, no locked instruction.
    fn add(&self, index: usize, amount: u64) {
        let word = self.word(index);
        word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        word(&self.page, self.first + index)
    }
}

const fn base(direction: Direction) -> usize {
    match direction {
        Direction::Outbound => 16,
        Direction::Inbound => 16 + FLOW,
    }
}

// Places inside a worker's block.
pub(super) const TICK: usize = 0;
pub(super) const SNAPSHOT: usize = 1;
pub(super) const UNANSWERED: usize = 2;
pub(super) const OFFLOADS: usize = 3;
pub(super) const GIVEN_UP: usize = 4;
pub(super) const BUSY: usize = 5;
pub(super) const IDLE: usize = 6;
/// Of each: batches, packets, bytes.
const OUTBOUND_BATCHES: usize = 8;
const INBOUND_BATCHES: usize = 11;

// Places inside a direction's words.
pub(super) const RECEIVED: usize = 0;
pub(super) const ORIGINATED: usize = 1;
pub(super) const SENT: usize = 2;
pub(super) const DELIVERED: usize = 3;
pub(super) const HELD: usize = 4;
pub(super) const HANDED_OVER: usize = 5;
pub(super) const TAKEN_OVER: usize = 6;
pub(super) const PROBES: usize = 7;
pub(super) const DROPS: usize = 8;

/// Words of one direction: room for 56 reasons.
pub(super) const FLOW: usize = 64;
