//! What is said of a capture, around its packets.
//!
//! Behind the line of the answer, a [`CaptureStart`], come messages: the kind and the length of what follows, four bytes
//! each, little-endian; then that. The packets are [`Record`](dataplane::capture::Record)s, one behind the other. This is
//! said between an agent and a `tartan` of its version.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// What a message holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Packets.
    Records,
    /// [`CaptureCounts`] as JSON.
    Counts,
    /// [`CaptureNames`] as JSON, because some name is another now.
    Names,
}

impl MessageKind {
    /// The number of the kind.
    pub const fn number(self) -> u32 {
        match self {
            MessageKind::Records => 1,
            MessageKind::Counts => 2,
            MessageKind::Names => 3,
        }
    }

    /// The kind of that number.
    pub const fn numbered(number: u32) -> Option<MessageKind> {
        match number {
            1 => Some(MessageKind::Records),
            2 => Some(MessageKind::Counts),
            3 => Some(MessageKind::Names),
            _ => None,
        }
    }
}

/// The begin of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStart {
    /// The node.
    pub node: String,
    /// Tartan's version.
    pub version: String,
    /// Nanoseconds from the Unix epoch to the zero of the packets' times.
    pub epoch: u64,
    /// The node's underlay addresses.
    pub public: Vec<IpAddr>,
    /// UDP port of the `udp` format.
    pub udp_port: u16,
    /// UDP port of the `vxlan` format.
    pub vxlan_port: u16,
    /// Programs in the kernel carry packets past the workers.
    pub is_kernel_path_in_use: bool,
    /// Who has which address.
    pub names: CaptureNames,
}

/// Who has which address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureNames {
    /// The other nodes.
    pub peers: Vec<NamedPeer>,
    /// The pods of this node.
    pub pods: Vec<NamedPod>,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedPeer {
    /// Its name.
    pub name: String,
    /// Its underlay addresses.
    pub addresses: Vec<IpAddr>,
    /// Its subnets.
    pub subnets: Vec<IpNet>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedPod {
    /// Its name, or the id of its container.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// What a capture has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureCounts {
    /// The capture is over: nothing comes behind this.
    pub is_final: bool,
    /// The stages asked for.
    pub stages: Vec<CaptureStage>,
    /// Packets dropped that passed the filter, exact.
    pub drops: Vec<CapturedDrop>,
    /// Packets that programs in the kernel carried meanwhile, of all pods and peers.
    pub in_kernel: u64,
}

/// Records of one stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStage {
    /// Its name.
    pub stage: String,
    /// That passed the filter.
    pub offered: u64,
    /// For which there was no room.
    pub lost: u64,
    /// Left out of a sample.
    pub left_out: u64,
}

/// Drops for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedDrop {
    /// The reason.
    pub reason: String,
    /// `outbound` or `inbound`.
    pub direction: String,
    /// Wire packets.
    pub count: u64,
}
