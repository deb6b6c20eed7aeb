//! What the programs count.

use std::net::Ipv4Addr;

use super::layout::Counts;
use crate::counters::Flow;

/// Both directions' terms of the conservation law: the programs as one more worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelPathTotals {
    /// Pod → peer.
    pub outbound: Flow,
    /// Peer → pod.
    pub inbound: Flow,
}

impl KernelPathTotals {
    /// Both together.
    pub fn plus(&self, other: &KernelPathTotals) -> KernelPathTotals {
        KernelPathTotals {
            outbound: self.outbound.plus(&other.outbound),
            inbound: self.inbound.plus(&other.inbound),
        }
    }
}

/// Packets that the programs carried for a peer or pod, since the tables were made. Packets are inner wire packets, bytes
/// are inner bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets sent to the peer, or by the pod.
    pub sent_packets: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Packets received from the peer, or by the pod.
    pub received_packets: u64,
    /// Bytes of those.
    pub received_bytes: u64,
}

/// A peer's share of the traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTraffic {
    /// The node's name; empty between an adoption and the first [`follow`](super::KernelPath::follow).
    pub name: String,
    /// Its public address.
    pub address: Ipv4Addr,
    /// The programs may send to it.
    pub sends: bool,
    /// What they carried.
    pub traffic: Traffic,
}

/// A pod's share of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodTraffic {
    /// Its address.
    pub address: Ipv4Addr,
    /// What they carried.
    pub traffic: Traffic,
}

impl Counts {
    /// Both together.
    pub(crate) fn plus(&self, other: &Counts) -> Counts {
        Counts {
            sent_packets: self.sent_packets.wrapping_add(other.sent_packets),
            sent_bytes: self.sent_bytes.wrapping_add(other.sent_bytes),
            received_packets: self.received_packets.wrapping_add(other.received_packets),
            received_bytes: self.received_bytes.wrapping_add(other.received_bytes),
        }
    }
}

impl From<Counts> for Traffic {
    fn from(counts: Counts) -> Traffic {
        Traffic {
            sent_packets: counts.sent_packets,
            sent_bytes: counts.sent_bytes,
            received_packets: counts.received_packets,
            received_bytes: counts.received_bytes,
        }
    }
}
