//! The flows that carry most, found with bounded memory, and only while something watches.
//!
//! Theory of operation. Each worker has a table of [`WAYS`] × [`SETS`] flows that it alone writes. A flow has one set by a
//! keyed hash, so no sender can choose flows that share one. A flow in the table is counted exactly. One that is not, and
//! whose set is full, takes the place of the lightest flow there with a probability of its own weight by the sum of both
//! weights: randomised admission (Ben Basat, Einziger, Friedman, Kassner, INFOCOM 2017), in sets, which they find as
//! good as a single table from sixteen ways on. So a flood of flows that come once does not wash out those that stay,
//! where Space-Saving (Metwally, Agrawal, El Abbadi, 2005) gives each of them the place and the count of another. HashPipe
//! (Sivaraman et al., SOSR 2017) always inserts at its first stage, and needs several accesses for a packet. Weights, of
//! bytes and of packets, halve once a second ([`HEAVY_FLOWS_HALF_LIFE`](crate::limits)): what was heavy an hour ago keeps no place from what is
//! heavy now.
//!
//! *What the counts are:* packets and bytes since the flow has its place, never more than it carried. A flow that keeps its
//! place from its first packet on is exact; the property tests hold the top 100 to 1 %. Where all flows are equally light and
//! there are more than places, any 100 of them are the top 100: then a count says what was seen, and no more.
//!
//! *Cost:* [`FlowWatch::watch`] switches the count on for [`HEAVY_FLOWS_WATCH`] by one store for each worker, and it goes off
//! by itself. A worker asks once in a batch, with one load. While it is on, packets of one flow in a row are added up
//! first, and cost one comparison each. The places of a worker, 0.8 MiB, are made by the first watcher, before the
//! worker is told; nothing is allocated or locked on the packet path. Readers copy one entry at a time, and try again or
//! pass over those that change meanwhile ([`entry`]).

mod entry;
mod flow_key;
mod recorder;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, OnceLock};

use crate::engine::Clock;
use crate::limits::HEAVY_FLOWS_WATCH;
use crate::now::Now;
use entry::Entry;
pub use flow_key::FlowKey;
pub(crate) use recorder::FlowRecorder;

/// What one worker counts of flows, readable from outside.
#[derive(Debug, Default)]
pub struct FlowTable {
    /// The worker's time until which it counts; 0: never.
    until: AtomicU64,
    /// When the count that runs, or the latest one, began.
    began: AtomicU64,
    /// Made by the first watcher.
    entries: OnceLock<Box<[Entry]>>,
}

/// What a flow has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCount {
    /// The flow.
    pub flow: FlowKey,
    /// Inner wire packets since `first`.
    pub packets: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Since when it is counted.
    pub first: Now,
    /// When it carried something last.
    pub last: Now,
    /// How heavy it was lately: bytes and 512 for each packet; halves about once a second without packets.
    pub weight: u64,
}

/// The switch of all workers' tables, and their reader.
#[derive(Clone, Debug)]
pub struct FlowWatch {
    tables: Arc<[Arc<FlowTable>]>,
    clock: Clock,
}

impl FlowTable {
    /// Has the worker count until `until`.
    pub fn watch(&self, until: Now) {
        self.entries
            .get_or_init(|| (0..SETS * WAYS).map(|_| Entry::default()).collect());
        // The worker that sees it finds the entries.
        self.until.store(until.0, Release);
    }

    /// The flows in the table, in no order.
    pub fn read(&self, now: Now) -> Vec<FlowCount> {
        let began = Now(self.began.load(Relaxed));
        let entries = self.entries.get().into_iter().flatten();
        let counts = entries.filter_map(|entry| entry.read(now));
        counts.filter(|count| count.first >= began).collect()
    }
}

impl FlowWatch {
    pub(crate) fn new(tables: impl IntoIterator<Item = Arc<FlowTable>>, clock: Clock) -> FlowWatch {
        FlowWatch {
            tables: tables.into_iter().collect(),
            clock,
        }
    }

    /// Has the workers count for some seconds from now on; a watcher calls it again before they are over.
    pub fn watch(&self) {
        let until = self.clock.now().after(HEAVY_FLOWS_WATCH);
        for table in self.tables.iter() {
            table.watch(until);
        }
    }

    /// The flows of all workers, the heaviest of late first, at most `limit`.
    pub fn read(&self, limit: usize) -> Vec<FlowCount> {
        let now = self.clock.now();
        let counts = self.tables.iter().flat_map(|table| table.read(now));
        heaviest(counts, limit)
    }
}

/// Adds up what several workers counted of one flow, and sorts.
fn heaviest(counts: impl IntoIterator<Item = FlowCount>, limit: usize) -> Vec<FlowCount> {
    let mut merged: HashMap<FlowKey, FlowCount> = HashMap::new();
    for count in counts {
        merged
            .entry(count.flow)
            .and_modify(|all| {
                all.packets = all.packets.saturating_add(count.packets);
                all.bytes = all.bytes.saturating_add(count.bytes);
                all.weight = all.weight.saturating_add(count.weight);
                all.first = all.first.min(count.first);
                all.last = all.last.max(count.last);
            })
            .or_insert(count);
    }
    let mut sorted: Vec<FlowCount> = merged.into_values().collect();
    sorted.sort_by_key(|count| std::cmp::Reverse((count.weight, count.bytes, count.flow)));
    sorted.truncate(limit);
    sorted
}

/// Flows of a set: their tags fill one cache line.
const WAYS: usize = 16;
/// Sets of a worker; a power of two.
const SETS: usize = 512;
