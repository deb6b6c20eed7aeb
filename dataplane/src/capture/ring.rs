//! The records of one capture from one worker, on their way to the thread that reads them.
//!
//! Theory of operation. A ring of words for one writer and one reader. `head` and `tail` count words ever written and ever
//! read; the worker moves `head` once a record is whole, the reader `tail` once it has copied it. A record that does not
//! fit is lost, and counted. Words are atomics, so no access is a data race; they lie in a memfd, of which the kernel
//! provides only pages that were written.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crossbeam_utils::CachePadded;

use super::filter::CaptureFilter;
use super::record::HEADER_WORDS;
use super::stage::Stage;
use super::{CaptureCounts, StageCounts};
use crate::drops::{Direction, DropReason};
use crate::limits::{
    CAPTURE_RING, CAPTURE_RING_LARGE, CAPTURE_SAMPLE_TIME, CAPTURE_SAMPLES, CAPTURE_SMALL,
};
use crate::now::Now;
use crate::sys::page::Page;

/// A ring and its counts; the worker writes all of them but `tail`.
pub(super) struct Ring {
    pub(super) filter: Arc<CaptureFilter>,
    page: Page,
    /// Words; a power of two.
    size: u64,
    head: CachePadded<AtomicU64>,
    tail: CachePadded<AtomicU64>,
    stages: [StageWords; Stage::ALL.len()],
    /// Wire packets dropped that passed the filter, by direction and reason.
    drops: [AtomicU64; DROPS],
    /// Of each of these the sample's time slice, and in the low half how many records it has of it.
    samples: [AtomicU64; DROPS],
    /// The same time slice, and in the low half a bit for each of the senders, 32 groups of them, that it has records of.
    senders: [AtomicU64; DROPS],
}

/// Packets that were dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropped {
    pub(super) direction: Direction,
    pub(super) reason: DropReason,
    /// Wire packets.
    pub(super) packets: usize,
    /// A hash of who sent them: the peer, or the pod.
    pub(super) sender: u32,
}

#[derive(Default)]
struct StageWords {
    offered: AtomicU64,
    lost: AtomicU64,
    left_out: AtomicU64,
}

impl Ring {
    /// # Errors
    /// When the kernel gives no memory.
    pub(super) fn new(filter: Arc<CaptureFilter>) -> io::Result<Ring> {
        let bytes = match filter.snap_length <= CAPTURE_SMALL {
            true => CAPTURE_RING,
            false => CAPTURE_RING_LARGE,
        };
        let size = bytes / size_of::<u64>();
        Ok(Ring {
            filter,
            page: Page::create("tartan-capture", size)?,
            size: size as u64,
            head: CachePadded::default(),
            tail: CachePadded::default(),
            stages: Default::default(),
            drops: [const { AtomicU64::new(0) }; DROPS],
            samples: [const { AtomicU64::new(0) }; DROPS],
            senders: [const { AtomicU64::new(0) }; DROPS],
        })
    }

    /// Counts a record that passed the filter, and returns whether it is to be written.
    pub(super) fn offer(&self, stage: Stage, now: Now, dropped: Option<Dropped>) -> bool {
        let Some(counts) = self.stages.get(stage as usize) else {
            return false;
        };
        add(&counts.offered, 1);
        if let Some(dropped) = dropped {
            let place = dropped.direction as usize * DropReason::COUNT + dropped.reason as usize;
            if let Some(count) = self.drops.get(place) {
                add(count, dropped.packets as u64);
            }
            if self.filter.sampled && !self.is_sampled(place, dropped.sender, now) {
                add(&counts.left_out, 1);
                return false;
            }
        }
        true
    }

    /// Whether the next drop of that place is within the sample of its time slice: one of the first ones, or the first of its
    /// sender, so that one sender's flood hides no other's drop.
    fn is_sampled(&self, place: usize, sender: u32, now: Now) -> bool {
        let Some((sample, senders)) = self.samples.get(place).zip(self.senders.get(place)) else {
            return false;
        };
        let slice = (now.0 / CAPTURE_SAMPLE_TIME.as_nanos() as u64) & u64::from(u32::MAX);
        let held = |word: &AtomicU64| {
            let word = word.load(Relaxed);
            if word >> 32 == slice { word as u32 } else { 0 }
        };
        let (count, known) = (held(sample), held(senders));
        let its = 1u32 << (sender % u32::BITS);
        if count >= CAPTURE_SAMPLES && known & its != 0 {
            return false;
        }
        sample.store(slice << 32 | u64::from(count.saturating_add(1)), Relaxed);
        senders.store(slice << 32 | u64::from(known | its), Relaxed);
        true
    }

    /// Writes a record of `header` and the first `captured` bytes of `parts`, or counts it as lost.
    pub(super) fn write<'a>(
        &self,
        stage: Stage,
        header: &[u64; HEADER_WORDS],
        captured: usize,
        parts: impl Iterator<Item = &'a [u8]>,
    ) {
        let head = self.head.load(Relaxed);
        let words = (HEADER_WORDS + captured.div_ceil(8)) as u64;
        if head + words - self.tail.load(Acquire) > self.size {
            if let Some(counts) = self.stages.get(stage as usize) {
                add(&counts.lost, 1);
            }
            return;
        }
        let mut writer = Writer {
            ring: self,
            at: head,
            pending: 0,
            filled: 0,
        };
        header.iter().for_each(|word| writer.word(*word));
        let mut left = captured;
        for part in parts {
            let part = part.get(..left).unwrap_or(part);
            writer.bytes(part);
            left -= part.len();
            if left == 0 {
                break;
            }
        }
        writer.finish();
        self.head.store(head + words, Release);
    }

    /// Appends whole records to `into`, until they have about `most` bytes.
    pub(super) fn drain(&self, into: &mut Vec<u8>, most: usize) {
        let (mut tail, head) = (self.tail.load(Relaxed), self.head.load(Acquire));
        let full = into.len().saturating_add(most);
        while tail < head && into.len() < full {
            let captured = self.word(tail) as u32 as usize;
            let end = tail + (HEADER_WORDS + captured.div_ceil(8)) as u64;
            for at in tail..end {
                into.extend_from_slice(&self.word(at).to_le_bytes());
            }
            tail = end;
        }
        self.tail.store(tail, Release);
    }

    pub(super) fn count_into(&self, counts: &mut CaptureCounts) {
        for (sum, words) in counts.stages.iter_mut().zip(&self.stages) {
            let StageCounts {
                offered,
                lost,
                left_out,
            } = sum;
            *offered += words.offered.load(Relaxed);
            *lost += words.lost.load(Relaxed);
            *left_out += words.left_out.load(Relaxed);
        }
        for (place, count) in self.drops.iter().enumerate() {
            let count = count.load(Relaxed);
            if count > 0 {
                let (direction, reason) = (place / DropReason::COUNT, place % DropReason::COUNT);
                *counts
                    .drops
                    .entry((direction as u8, reason as u8))
                    .or_default() += count;
            }
        }
    }

    fn word(&self, at: u64) -> u64 {
        self.place(at).map_or(0, |word| word.load(Relaxed))
    }

    fn place(&self, at: u64) -> Option<&AtomicU64> {
        self.page.words().get((at & (self.size - 1)) as usize)
    }
}

/// Lays bytes into words, wherever parts begin and end.
struct Writer<'a> {
    ring: &'a Ring,
    at: u64,
    /// Bytes that fill no word yet, and how many bits they are.
    pending: u64,
    filled: u32,
}

impl Writer<'_> {
    fn word(&mut self, word: u64) {
        if let Some(place) = self.ring.place(self.at) {
            place.store(word, Relaxed);
        }
        self.at += 1;
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            let word = u64::from_le_bytes(*word);
            if self.filled == 0 {
                self.word(word);
            } else {
                self.word(self.pending | word << self.filled);
                self.pending = word >> (u64::BITS - self.filled);
            }
        }
        for byte in rest {
            self.pending |= u64::from(*byte) << self.filled;
            self.filled += 8;
            if self.filled == u64::BITS {
                self.word(self.pending);
                (self.pending, self.filled) = (0, 0);
            }
        }
    }

    fn finish(&mut self) {
        if self.filled > 0 {
            self.word(self.pending);
        }
    }
}

/// Single writer: a load and a store, no locked instruction.
fn add(word: &AtomicU64, amount: u64) {
    word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// Pairs of direction and reason.
const DROPS: usize = 2 * DropReason::COUNT;
