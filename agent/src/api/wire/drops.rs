//! What is said of packets that were counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::kernel_path::Passed;

/// Every packet's fate. Inner wire packets since the keeper started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drops {
    /// Every reason and direction, those that count nothing included.
    pub reasons: Vec<Reason>,
    /// Law 1 per worker and direction: received + originated = sent + delivered + probes + dropped + held.
    pub workers: Vec<Worker>,
    /// What the kernel path passed on, by reason; empty while it is not in use. None of these packets is lost.
    #[serde(default)]
    pub passed: Vec<Passed>,
    /// Packets on the way from the worker that read them to the one that receives them; in no worker's counts yet.
    #[serde(default)]
    pub in_rings: u64,
    /// What the kernel dropped before we could read it or after we wrote it.
    pub kernel: Vec<KernelCounter>,
}

/// A reason and its count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The reason's name.
    pub reason: String,
    /// `outbound` (pod to peer) or `inbound`.
    pub direction: String,
    /// Packets.
    pub count: u64,
    /// What happened, in a sentence.
    pub gloss: String,
}

/// A worker's two flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Which, from 0; the kernel path comes last.
    pub worker: usize,
    /// The number as text, or `kernel-path`.
    #[serde(default)]
    pub name: String,
    /// Pod to peer.
    pub outbound: Flow,
    /// Peer to pod.
    pub inbound: Flow,
    /// ICMP errors that were not made because their receiver had drawn too many.
    pub unanswered: u64,
}

/// One direction of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Packets read.
    pub received: u64,
    /// Packets that Tartan made.
    pub originated: u64,
    /// Packets sent to a peer.
    pub sent: u64,
    /// Packets written to the tunnel device.
    pub delivered: u64,
    /// Probes of peer health, which are no packets, that were answered or heard.
    #[serde(default)]
    pub probes: u64,
    /// Packets dropped, by reason; reasons that count nothing are left out.
    pub dropped: BTreeMap<String, u64>,
    /// Packets in hand at the moment of the count.
    pub held: u64,
    /// What is missing from the law: 0, but for packets in flight between two reads of the counters.
    pub balance: i64,
}

/// Packets of a peer or pod that the workers dropped, by reason; reasons that count nothing are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Pod to peer.
    pub outbound: BTreeMap<String, u64>,
    /// Peer to pod.
    pub inbound: BTreeMap<String, u64>,
}

/// A counter of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelCounter {
    /// Which socket or device.
    pub place: String,
    /// Which counter.
    pub counter: String,
    /// Packets.
    pub count: u64,
    /// What it means, in a sentence.
    pub gloss: String,
}
