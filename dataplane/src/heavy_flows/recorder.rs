//! The worker's side of the table: finds a packet's flow, counts it, and decides who has a place.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use encap::inner::Inner;

use super::entry::Entry;
use super::{FlowKey, FlowTable, SETS, WAYS};
use crate::drops::Direction;
use crate::limits::HEAVY_FLOWS_HALF_LIFE;
use crate::now::Now;
use crate::sent::mix;

/// Counts a worker's packets by flow while something watches.
pub(crate) struct FlowRecorder {
    table: Arc<FlowTable>,
    /// As it was at the begin of the batch.
    is_on: bool,
    now: Now,
    /// Packets in a row of one flow, which are not in the table yet.
    run: Option<Run>,
    /// Of each set the tags of its flows, part of their hashes; 0 is a free place.
    tags: Box<[[u32; WAYS]]>,
    /// ... how heavy they were lately ...
    weights: Box<[[u32; WAYS]]>,
    /// ... and in which half-life that was.
    half_lives: Box<[u32]>,
    key: [u64; 2],
    /// State of the random numbers; never 0.
    random: u64,
}

struct Run {
    flow: FlowKey,
    packets: u64,
    bytes: u64,
}

impl FlowRecorder {
    /// `key` is random.
    pub(crate) fn new(key: u64) -> FlowRecorder {
        let second = mix(key ^ ANY, !key);
        FlowRecorder {
            table: Arc::default(),
            is_on: false,
            now: Now(0),
            run: None,
            // The kernel provides these pages when they are first written.
            tags: vec![[0; WAYS]; SETS].into(),
            weights: vec![[0; WAYS]; SETS].into(),
            half_lives: vec![0; SETS].into(),
            key: [key, second],
            random: mix(!second, key ^ ANY.rotate_left(1)) | 1,
        }
    }

    pub(crate) fn table(&self) -> Arc<FlowTable> {
        Arc::clone(&self.table)
    }

    /// Begins a batch: asks whether something watches.
    pub(crate) fn begin(&mut self, now: Now) {
        let is_on = now.0 < self.table.until.load(Acquire);
        if is_on && !self.is_on {
            // A new count: the flows of the one before are forgotten.
            self.tags.fill([0; WAYS]);
            self.weights.fill([0; WAYS]);
            self.table.began.store(now.0, Relaxed);
        }
        self.is_on = is_on;
        self.now = now;
    }

    /// Counts a packet that is `packets` on the wire, each with `header` bytes that the packet has once.
    #[inline]
    pub(crate) fn count(
        &mut self,
        direction: Direction,
        inner: &Inner,
        packets: usize,
        header: usize,
    ) {
        if self.is_on {
            let bytes = inner.len + packets.saturating_sub(1) * header;
            self.add(FlowKey::of(direction, inner), packets as u64, bytes as u64);
        }
    }

    #[cfg(test)]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Ends a batch.
    pub(crate) fn end(&mut self) {
        if let Some(run) = self.run.take() {
            self.put(&run);
        }
    }

    pub(super) fn add(&mut self, flow: FlowKey, packets: u64, bytes: u64) {
        if let Some(run) = &mut self.run
            && run.flow == flow
        {
            run.packets += packets;
            run.bytes += bytes;
            return;
        }
        let run = Run {
            flow,
            packets,
            bytes,
        };
        if let Some(before) = self.run.replace(run) {
            self.put(&before);
        }
    }

    /// Adds a run to its flow's place, if it has one or gets one.
    fn put(&mut self, run: &Run) {
        let hash = run.flow.hash(self.key);
        let set = hash as usize % SETS;
        let tag = ((hash >> 32) as u32).max(1);
        let heavier = weight(run);
        self.decay(set);
        let random = self.random();
        let (Some(tags), Some(weights)) = (self.tags.get_mut(set), self.weights.get_mut(set))
        else {
            return;
        };
        let known = tags.iter().position(|known| *known == tag);
        let way = match known {
            Some(way) => way,
            None => {
                let lightest = weights.iter().zip(0..).min();
                let Some((lightest, way)) = lightest.map(|(weight, way)| (*weight, way)) else {
                    return;
                };
                if !is_admitted(heavier, lightest, random) {
                    return;
                }
                if let Some(place) = tags.get_mut(way) {
                    *place = tag;
                }
                way
            }
        };
        let Some(weight) = weights.get_mut(way) else {
            return;
        };
        *weight = weight.saturating_add(heavier);
        let Some(entry) = entry(&self.table, set, way) else {
            return;
        };
        if known.is_none() {
            entry.begin(&run.flow, self.now);
        }
        entry.add(run.packets, run.bytes, *weight, self.now);
    }

    /// Halves the weights of a set for each half-life since it was last used.
    fn decay(&mut self, set: usize) {
        let now = half_life(self.now);
        let Some(then) = self.half_lives.get_mut(set) else {
            return;
        };
        let passed = now.wrapping_sub(*then);
        *then = now;
        if passed > 0
            && let Some(weights) = self.weights.get_mut(set)
        {
            for weight in weights {
                *weight = weight.checked_shr(passed).unwrap_or(0);
            }
        }
    }

    /// xorshift64 (Marsaglia, 2003), its better half.
    fn random(&mut self) -> u32 {
        let mut x = self.random;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        (x >> 32) as u32
    }
}

/// Whether a flow of weight `weight` takes the place of one of weight `lightest`.
fn is_admitted(weight: u32, lightest: u32, random: u32) -> bool {
    let both = u64::from(weight) + u64::from(lightest);
    // A random part of the sum, which is below 2^33: no overflow.
    (u64::from(random) * both) >> 32 < u64::from(weight)
}

fn entry(table: &FlowTable, set: usize, way: usize) -> Option<&Entry> {
    table.entries.get()?.get(set * WAYS + way)
}

/// Bytes, and as much again for a packet as a small one costs: the top by bytes and the top by packets both have places.
fn weight(run: &Run) -> u32 {
    let weight = run
        .bytes
        .saturating_add(run.packets.saturating_mul(PACKET_WEIGHT));
    u32::try_from(weight).unwrap_or(u32::MAX)
}

/// The weight that is left `now` of what it was at `last`.
pub(super) fn decayed(weight: u64, last: Now, now: Now) -> u64 {
    let passed = half_life(now).saturating_sub(half_life(last));
    weight.checked_shr(passed).unwrap_or(0)
}

fn half_life(now: Now) -> u32 {
    (now.0 / HEAVY_FLOWS_HALF_LIFE.as_nanos() as u64) as u32
}

/// Bytes that a packet counts beside its own.
const PACKET_WEIGHT: u64 = 512;
/// Any number with as many ones as zeros: digits of pi.
const ANY: u64 = 0x4528_21e6_38d0_1377;
