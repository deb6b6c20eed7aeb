//! All counters of traffic at one moment. `tartan top` asks for them again and again, and shows the differences.
//!
//! This is said between an agent and a `tartan` of its version; `-o json` prints what `tartan top` makes of it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Flow, KernelCounter, Passed, Problem, Reason};

/// Everything that `tartan top` shows, as counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// Nanoseconds of the kernel's monotonic clock when the counters were read.
    pub clock: u64,
    /// The node's name.
    pub node: String,
    /// Tartan's version.
    pub version: String,
    /// How peers send to this node.
    pub format: String,
    /// The tunnel device.
    pub device: String,
    /// Process id of this service. What is counted since the service started begins anew with it.
    pub service_pid: u32,
    /// Seconds since this service started.
    pub uptime: u64,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// The other nodes.
    pub peers: Vec<TopPeer>,
    /// The attachments.
    pub pods: Vec<TopPod>,
    /// The heaviest flows that the workers count, if any were asked for.
    pub flows: Vec<TopFlow>,
    /// The workers, and the kernel path as the last, where it is in use.
    pub workers: Vec<TopWorker>,
    /// The sockets that receive.
    pub sockets: Vec<TopSocket>,
    /// Packets on the way from one worker to another.
    pub in_rings: u64,
    /// Reasons that have dropped something.
    pub drops: Vec<Reason>,
    /// What the kernel path passed on.
    pub passed: Vec<Passed>,
    /// What the kernel counts beside us.
    pub kernel: Vec<KernelCounter>,
}

/// Another node. All is counted since the service started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopPeer {
    /// Its name.
    pub name: String,
    /// Its underlay address.
    pub public_ip: IpAddr,
    /// How we send to it.
    pub format: String,
    /// The state of its worst path, in the words of `tartan peers`; empty where the agent does not say.
    #[serde(default)]
    pub state: String,
    /// What user space carried.
    pub in_user_space: Carried,
    /// What the programs in the kernel carried.
    pub in_kernel: Carried,
    /// Packets from it that were dropped.
    pub refused: u64,
}

/// Traffic with a peer, or of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Packets to the peer, or from the pod.
    pub sent_packets: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Packets from the peer, or to the pod.
    pub received_packets: u64,
    /// Bytes of those.
    pub received_bytes: u64,
}

/// An attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopPod {
    /// `namespace/name`, or the container's id.
    pub pod: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Name of its interface's end on the host.
    pub host_ifname: String,
    /// What the kernel counts at that end; absent where it is gone.
    pub traffic: Option<Carried>,
    /// What the programs in the kernel carried for it; absent where they have no table of it.
    #[serde(default)]
    pub in_kernel: Option<Carried>,
}

/// A flow that a worker has counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopFlow {
    /// It goes to a peer.
    pub is_outbound: bool,
    /// Inner source.
    pub source: IpAddr,
    /// Inner destination.
    pub destination: IpAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// Source port; 0 where there is none.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// The pod of this node, if it is a known one.
    pub pod: Option<String>,
    /// The other node.
    pub peer: Option<String>,
    /// Packets since `age`.
    pub packets: u64,
    /// Bytes since `age`.
    pub bytes: u64,
    /// Nanoseconds since it is counted.
    pub age: u64,
    /// Nanoseconds since it carried something.
    pub quiet: u64,
}

/// A worker, or the programs in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopWorker {
    /// Its number, or `kernel-path`.
    pub name: String,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// Pod to peer.
    pub outbound: Flow,
    /// Peer to pod.
    pub inbound: Flow,
    /// What it read from the device; absent for the kernel path, as all below.
    pub outbound_batches: Option<Batches>,
    /// What it received from the underlay, or from a worker that did.
    pub inbound_batches: Option<Batches>,
    /// Nanoseconds in which it had work.
    pub busy: Option<u64>,
    /// Nanoseconds in which it had none.
    pub idle: Option<u64>,
}

/// Batches of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batches {
    /// How many.
    pub count: u64,
    /// Packets in them, super-packets as one.
    pub packets: u64,
    /// Bytes of those.
    pub bytes: u64,
}

/// A socket that receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopSocket {
    /// Its name.
    pub name: String,
    /// Number of the worker that reads it.
    pub worker: usize,
    /// Bytes of memory that what waits in it takes.
    pub queued: u32,
    /// The most that it may take.
    pub limit: u32,
}
