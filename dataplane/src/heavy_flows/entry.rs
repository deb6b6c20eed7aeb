//! One place of the table: written by its worker, read by any thread at any time.
//!
//! Theory of operation. A sequence lock of atomic words (Boehm, "Can seqlocks get along with programming language memory
//! models?", MSPC 2012). The version is odd while a flow gives its place to another; a reader that sees it odd, or not
//! the same before and after, has read parts of two flows, and forgets them. Counts of one flow change without it: a
//! reader may find a batch in the bytes and not yet in the packets.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use super::FlowCount;
use super::flow_key::{FlowKey, WORDS};
use super::recorder::decayed;
use crate::now::Now;

/// A place. What each packet changes lies on one cache line.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(super) struct Entry {
    last: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    weight: AtomicU64,
    /// 0: no flow was ever here.
    version: AtomicU64,
    key: [AtomicU64; WORDS],
    first: AtomicU64,
}

impl Entry {
    /// Gives the place to another flow, without counts.
    pub(super) fn begin(&self, flow: &FlowKey, now: Now) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        fence(Release);
        for (word, value) in self.key.iter().zip(flow.words()) {
            word.store(value, Relaxed);
        }
        self.first.store(now.0, Relaxed);
        self.packets.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
    }

    /// Adds to the counts. `weight` replaces the one before.
    pub(super) fn add(&self, packets: u64, bytes: u64, weight: u32, now: Now) {
        let plus = |word: &AtomicU64, more| {
            word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
        };
        plus(&self.packets, packets);
        plus(&self.bytes, bytes);
        self.weight.store(weight.into(), Relaxed);
        self.last.store(now.0, Relaxed);
    }

    /// What is counted here; `None` without a flow, or while it changes.
    pub(super) fn read(&self, now: Now) -> Option<FlowCount> {
        (0..TRIES).find_map(|_| {
            let version = self.version.load(Acquire);
            if version == 0 || !version.is_multiple_of(2) {
                return None;
            }
            let key =
                std::array::from_fn(|at| self.key.get(at).map_or(0, |word| word.load(Relaxed)));
            let last = Now(self.last.load(Relaxed));
            let count = FlowCount {
                flow: FlowKey::of_words(key),
                packets: self.packets.load(Relaxed),
                bytes: self.bytes.load(Relaxed),
                first: Now(self.first.load(Relaxed)),
                last,
                weight: decayed(self.weight.load(Relaxed), last, now),
            };
            fence(Acquire);
            (self.version.load(Relaxed) == version).then_some(count)
        })
    }
}

/// How often an entry is read that changes meanwhile. One that changes all the time holds no heavy flow.
const TRIES: usize = 4;
