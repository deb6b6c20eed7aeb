//! How large the tables are, and what memory they take.

use super::layout::{Counts, DIRECTION_WORDS, Flow, FlowKey, Peer, Pod};
use super::object::{
    EVENTS, FIB, FLOWS_IN, FLOWS_OUT, LOCAL, PEER_COUNTS, PEERS, POD_COUNTS, PODS, REPORTS,
};

/// How many entries the tables are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Peers: at least [`Sizes::MIN_PEERS`].
    pub peers: u32,
    /// Pods of this node: at least [`Sizes::MIN_PODS`].
    pub pods: u32,
    /// Flows of each direction.
    pub flows: u32,
}

impl Sizes {
    /// The smallest table of peers.
    pub const MIN_PEERS: u32 = 1_024;
    /// The smallest table of pods.
    pub const MIN_PODS: u32 = 1_024;

    /// For a cluster with that many peers: twice as many, so that it may grow.
    pub fn for_cluster(peers: usize) -> Sizes {
        let peers = u32::try_from(peers).unwrap_or(u32::MAX);
        Sizes {
            peers: peers.saturating_mul(2).max(Sizes::MIN_PEERS),
            pods: 4_096,
            flows: 262_144,
        }
    }

    /// Bytes that the tables take in the kernel on a machine with that many possible CPUs, with `prefixes` entries in the
    /// two tries together: entries, keys and the kernel's own part of each. Tries grow with their entries; all other
    /// tables have their full size from the start.
    pub fn memory(self, cpus: usize, prefixes: usize) -> usize {
        let Sizes { peers, pods, flows } = self.at_least();
        let (peers, pods, flows) = (peers as usize, pods as usize, flows as usize);
        let counts = size_of::<Counts>() * cpus;
        let arrays = peers * (size_of::<Peer>().next_multiple_of(8) + counts + POINTER)
            + pods * (counts + POINTER)
            + (2 * DIRECTION_WORDS as usize) * 8 * cpus;
        let hash = |entries: usize, key: usize, value: usize| {
            let element = HASH_ELEMENT + key.next_multiple_of(8) + value.next_multiple_of(8);
            entries * element + entries.next_power_of_two() * HASH_BUCKET
        };
        let flow_key = size_of::<FlowKey>();
        arrays
            + hash(pods, size_of::<u32>(), size_of::<Pod>())
            + 2 * hash(flows, flow_key, size_of::<Flow>())
            + hash(
                REPORTS_KEPT as usize,
                size_of::<u32>(),
                2 * size_of::<u32>(),
            )
            + SEEN_BYTES
            + RING as usize
            + prefixes * TRIE_NODE
    }

    /// What each table is made with.
    pub(super) fn of_tables(self) -> [(&'static str, u32); 10] {
        let Sizes { peers, pods, flows } = self.at_least();
        let prefixes = peers.saturating_mul(PREFIXES_PER_PEER);
        [
            (PEERS, peers),
            (PEER_COUNTS, peers),
            (FIB, prefixes),
            (LOCAL, LOCAL_PREFIXES),
            (PODS, pods),
            (POD_COUNTS, pods),
            (FLOWS_OUT, flows),
            (FLOWS_IN, flows),
            (REPORTS, REPORTS_KEPT),
            (EVENTS, RING),
        ]
    }

    fn at_least(self) -> Sizes {
        Sizes {
            peers: self.peers.max(Sizes::MIN_PEERS),
            pods: self.pods.max(Sizes::MIN_PODS),
            flows: self.flows.max(MIN_FLOWS),
        }
    }
}

/// A trie takes memory only for what it holds.
const PREFIXES_PER_PEER: u32 = 16;
/// As [`PREFIXES_PER_PEER`].
const LOCAL_PREFIXES: u32 = 65_536;
const MIN_FLOWS: u32 = 1_024;
/// Destinations of path reports that are counted.
const REPORTS_KEPT: u32 = 1_024;
/// `seen`: SEEN_SETS of `struct seen_set` (dataplane/bpf/tables.h).
const SEEN_BYTES: usize = 16_384 * 64;
/// Bytes of the ring of events.
const RING: u32 = 256 * 1024;

/// `struct htab_elem` without key and value, `struct bucket` (linux/kernel/bpf/hashtab.c).
const HASH_ELEMENT: usize = 48;
const HASH_BUCKET: usize = 16;
/// `struct lpm_trie_node` with a key of 4 bytes and a value of 4 in its slab, and a node between two branches for each.
const TRIE_NODE: usize = 2 * 64;
/// Of an array of per-CPU values.
const POINTER: usize = 8;
