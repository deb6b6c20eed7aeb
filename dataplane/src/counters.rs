//! Every packet's fate, counted where it outlives us.
//!
//! Theory of operation: one memfd page holds, per worker, a tick, the version of the adopted snapshot, and per
//! direction the terms of the law
//!
//! `received + originated = sent + delivered + probes + Σ drops[reason] + held`
//!
//! Each word has one writer, its worker, so an addition is a plain load and store; any thread or process may read at any time. The
//! keeper holds the descriptor, so the page survives the service: what a killed service had read but not finished is
//! the imbalance of its page, which the next one books as `LostInCrash` before it starts. Blocks of different workers
//! lie on different cache lines. A node that goes on with fewer workers keeps the blocks of those it had: what they
//! counted stays in every sum. Counted are inner wire packets; a datagram refused before its inner packet is known
//! counts one. What one worker hands to another ([`crate::steer`]) is received by the one that takes it; both count
//! what passes between them.

mod tally;
mod totals;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use crate::drop_counts::Parties;
use crate::drops::{Direction, DropReason};
use crate::limits::MAX_WORKERS;
use crate::sys::page::Page;
use tally::{
    BUSY, FLOW, GIVEN_UP, HANDED_OVER, IDLE, OFFLOADS, SNAPSHOT, TAKEN_OVER, TICK, UNANSWERED,
};

pub(crate) use tally::Tally;
pub use totals::{Batches, Flow, OffloadsInUse, Totals, WorkerTotals};

/// The counters page of this node, shared with every process that holds its descriptor.
#[derive(Clone)]
pub struct Counters {
    page: Arc<Page>,
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
        counters.set_workers(workers);
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
    pub fn set_workers(&self, workers: usize) {
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

    /// Counts as lost what an earlier service held when it died, and returns how many packets that was. To be called at
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
                // Which they were died with it.
                let unknown = Parties::default();
                tally.drop(direction, DropReason::LostInCrash, imbalance, unknown);
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
                snapshot: tally.word(SNAPSHOT).load(Acquire),
                unanswered: tally.word(UNANSWERED).load(Relaxed),
                offloads: OffloadsInUse::of_bits(tally.word(OFFLOADS).load(Relaxed)),
                given_up: tally.word(GIVEN_UP).load(Relaxed),
                busy: tally.word(BUSY).load(Relaxed),
                idle: tally.word(IDLE).load(Relaxed),
                outbound_batches: tally.batches(Direction::Outbound),
                inbound_batches: tally.batches(Direction::Inbound),
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

    /// Inner packets that were read from the device so far, by all workers that there ever were. One word for each is read,
    /// where [`read`](Counters::read) reads them all.
    pub fn from_device(&self) -> u64 {
        let of = |index| self.worker(index).received(Direction::Outbound);
        (0..self.ever()).map(of).sum()
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

fn word(page: &Page, index: usize) -> &AtomicU64 {
    static OUTSIDE: AtomicU64 = AtomicU64::new(0);
    page.words().get(index).unwrap_or(&OUTSIDE)
}

// Places inside the header.
const RUNNING: usize = 1;
const EVER: usize = 2;

/// Words of one worker: a multiple of 128 bytes, so that no two workers share a cache line or its neighbour.
const BLOCK: usize = 16 + 2 * FLOW;
/// A block for the header, then one per worker.
const WORDS: usize = BLOCK * (1 + MAX_WORKERS);
/// "TARTAN", layout 1.
const MAGIC: u64 = u64::from_be_bytes(*b"TARTAN\0\x01");

#[cfg(test)]
mod tests;
