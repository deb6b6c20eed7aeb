//! What is said on the socket. Field names are an interface: scripts read them through `-o json`.

mod capture;
mod drops;
mod kernel_path;
mod pods;
mod reports;
mod top;
mod trace;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use capture::{
    CaptureCounts, CaptureNames, CaptureStage, CaptureStart, CapturedDrop, MessageKind, NamedPeer,
    NamedPod,
};
pub use cni_shim::api::{Reply, Request};
pub use drops::{Dropped, Drops, Flow, KernelCounter, Reason, Worker};
pub use kernel_path::{
    AttachedProgram, Flows, KernelPath, Passed, RefusedFlows, RevokedFlows, UserSpacePeers,
};
pub use pods::{Pod, PodState, PodTraffic, Pods, Readiness, RefusedRecord};
pub use reports::{PeerProblem, PeerReport};
pub use top::{Batches, Carried, Top, TopFlow, TopPeer, TopPod, TopSocket, TopWorker};
pub use trace::{StageResult, Trace, TraceStage};

/// Something that is wrong: a row of `docs/problems.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The stable name of this kind of problem.
    pub code: String,
    /// What it concerns: a path, an interface, an address, a node. Empty where the code says all.
    pub subject: String,
    /// When it appeared, in Unix seconds.
    pub since: u64,
    /// `error` or `warning`.
    pub severity: String,
    /// What is wrong and what it causes.
    pub sentence: String,
    /// What to do.
    pub remedy: String,
}

/// The node at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What is wrong; empty when all is well.
    pub problems: Vec<Problem>,
    /// Tartan's version.
    pub version: String,
    /// The node's name.
    pub node: String,
    /// The node's underlay address.
    pub public_ip: IpAddr,
    /// Its IPv6 one beside an IPv4 one.
    pub public_ipv6: Option<IpAddr>,
    /// The underlay interface that holds the address, or both that do.
    pub underlay: String,
    /// MTU of the underlay interface, bytes.
    pub underlay_mtu: u16,
    /// Subnets leased to the node.
    pub subnets: Vec<IpNet>,
    /// The cluster networks.
    pub cluster: Vec<IpNet>,
    /// How peers send to this node: `udp` or `vxlan`.
    pub format: String,
    /// The tunnel device.
    pub device: String,
    /// What it is: `offload`, which takes super-packets, or `plain`.
    pub device_kind: String,
    /// What it is to the kernel's stack: `tun` or `tap`.
    pub device_type: String,
    /// MTU of the tunnel device, bytes of inner packet.
    pub device_mtu: u16,
    /// Packets that the tunnel device keeps for each worker at most; absent when the kernel does not tell.
    pub device_queue: Option<u32>,
    /// Offloads that every worker uses now: `checksum`, `tcp` and `udp` of what is written to the device, `send` of what
    /// is sent to peers.
    pub offloads: Vec<String>,
    /// How often an offload was given up for a minute, because the kernel refused it, since the keeper started.
    pub offloads_given_up: u64,
    /// Packet workers.
    pub workers: usize,
    /// Why there are fewer than was asked for, in words.
    pub fewer_workers: Option<String>,
    /// The core that each worker is pinned to, by the kernel's number; none for a worker that is not.
    pub cores: Vec<Option<usize>>,
    /// The programs in the kernel that repeat what user space decided.
    #[serde(default)]
    pub kernel_path: KernelPath,
    /// Other nodes known.
    pub peers: usize,
    /// Attachments adopted.
    pub attachments: usize,
    /// Those of them with an address that lies in no subnet of this node.
    pub stranded: usize,
    /// Where the leases come from.
    pub registry: String,
    /// Seconds since the registry last gave a list that was adopted.
    pub registry_age: u64,
    /// The leases are those of the last good state, because the registry gives no list that can be used.
    pub registry_cached: bool,
    /// The registry answers; a file always does.
    #[serde(default)]
    pub registry_answers: bool,
    /// Seconds since when it answers or does not; absent before its first word.
    #[serde(default)]
    pub registry_since: Option<u64>,
    /// What was refused last of what it said, since the service started.
    #[serde(default)]
    pub registry_last_refused: Option<LastRefused>,
    /// Version of the tables last published.
    pub snapshot: u64,
    /// Every worker forwards by those tables.
    pub snapshot_adopted: bool,
    /// Process id of this service; the keeper's is in `<root>/run/tartan/lock`.
    pub service_pid: u32,
    /// Seconds since this service started.
    pub uptime: u64,
    /// How often the keeper has started the service anew.
    pub restarts: u64,
    /// How the service before this one ended.
    pub last_end: Option<String>,
    /// The latest upgrade since the agent was started; absent without one.
    #[serde(default)]
    pub upgraded: Option<Upgraded>,
    /// Kernel state that another program changed and the agent put back.
    pub repairs: u64,
    /// The latest of them, in words.
    pub last_repair: Option<String>,
    /// Attachments that no runtime deleted and the agent took away, since the service started.
    pub reclaimed: u64,
    /// The latest of them, in words.
    pub last_reclaimed: Option<String>,
    /// The gathering of small packets at the ends of pods.
    #[serde(default)]
    pub gathering: Gathering,
    /// Inner packets since the keeper started: from pods to peers.
    pub sent: u64,
    /// Inner packets since the keeper started: from peers to pods.
    pub delivered: u64,
    /// Inner packets since the keeper started: dropped, for whatever reason.
    pub dropped: u64,
}

/// That another program's service has taken the place of one while packets passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// The version before.
    pub from: String,
    /// When, in Unix seconds.
    pub at: u64,
}

/// The gathering of small packets at the ends of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathering {
    /// It is configured (`gather`).
    pub on: bool,
    /// Ends of pods, on the host, that join UDP datagrams.
    pub interfaces: usize,
    /// Why some end of a pod does not, in words; absent where all do.
    pub refused: Option<String>,
    /// New pods get a queue, in which they wait where they send faster than the host takes.
    pub queues: bool,
    /// Why they get none, in words; absent where they do, or gathering is off.
    pub no_queues: Option<String>,
    /// Pods that flood now, whose ends have a NAPI thread meanwhile.
    pub flooding: usize,
    /// Floods of pods since the service started.
    pub floods: u64,
    /// Why some pod had no NAPI thread while it flooded, or could have none, in words; absent where each could.
    pub no_threads: Option<String>,
}

/// Something of a registry that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRefused {
    /// Where it is and why.
    pub reason: String,
    /// Seconds since then.
    pub age: u64,
}

/// The answer to `adopt`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// A list was held back, and is in force now.
    pub adopted: bool,
    /// Nodes in the list in force, this one among them.
    pub nodes: usize,
    /// Names of the nodes that were in the list before and are not in this one.
    pub lost: Vec<String>,
}

/// The other nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peers {
    /// No public address is in two of them.
    pub peers: Vec<Peer>,
    /// Sources that were refused and could be accepted.
    pub refused_sources: Vec<RefusedSource>,
    /// Records of the registry that are passed over: their nodes are not reached.
    #[serde(default)]
    pub refused_leases: Vec<RefusedLease>,
}

/// A record of the registry that is passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedLease {
    /// The name that its node would have.
    pub name: String,
    /// Where the record is.
    pub place: String,
    /// The address that it gives, if one can be read.
    pub public_ip: Option<IpAddr>,
    /// The subnets that it claims, as far as they can be read.
    pub subnets: Vec<IpNet>,
    /// What is wrong with it, and how to correct it.
    pub reason: String,
}

/// Another node. Traffic is counted in inner packets and bytes since the service started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its underlay address.
    pub public_ip: IpAddr,
    /// Its IPv6 one beside an IPv4 one.
    pub public_ipv6: Option<IpAddr>,
    /// How we send to it: `udp` or `vxlan`.
    pub format: String,
    /// Its subnets.
    pub subnets: Vec<IpNet>,
    /// Its VTEP MAC, of inner IPv4.
    pub vtep_mac: String,
    /// Its VTEP MAC of inner IPv6.
    pub vtep_mac_v6: String,
    /// The MAC that its frames with inner IPv4 come from, if it is another.
    #[serde(default)]
    pub seen_vtep_mac: Option<String>,
    /// The MAC that its frames with inner IPv6 come from, if it is another.
    #[serde(default)]
    pub seen_vtep_mac_v6: Option<String>,
    /// The largest outer packet we send to `public_ip`, bytes; none where we send nothing there.
    pub path_mtu: Option<u16>,
    /// The largest outer packet we send to `public_ipv6`, bytes; none where we send nothing there.
    pub path_mtu_v6: Option<u16>,
    /// Packets sent to it.
    pub sent_packets: u64,
    /// Bytes sent to it.
    pub sent_bytes: u64,
    /// Packets from it that were delivered.
    pub received_packets: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Packets from it that were dropped for what they are.
    pub refused: u64,
    /// Packets from it, and routed to it, that were dropped.
    #[serde(default)]
    pub dropped: Dropped,
    /// How it is reached, the worst of its paths: `new`, `up`, `narrow`, `silent`, `one-way`, `wrong-vni`, `wrong-mac`,
    /// `refused`, `unreachable`; of a peer that answers no probes `heard` or `quiet`.
    #[serde(default)]
    pub state: String,
    /// Since when, in Unix seconds; absent where no path leads there.
    #[serde(default)]
    pub since: Option<u64>,
    /// Why, in words; empty where it is up.
    #[serde(default)]
    pub reason: String,
    /// When a packet or a probe of it was accepted last, in Unix seconds; absent where none was since the service started. What
    /// the kernel path carried does not count.
    #[serde(default)]
    pub heard: Option<u64>,
    /// Why user space sends to it and not the programs of the kernel path; absent where these do, or are not in use.
    #[serde(default)]
    pub user_space: Option<String>,
    /// The ways to its addresses, as probes show them.
    #[serde(default)]
    pub paths: Vec<PeerPath>,
}

/// States of peers that are no problem; an agent of an earlier version says none.
pub const GOOD_STATES: [&str; 5] = ["", "new", "up", "heard", "quiet"];

/// The way to one address of a peer, as probes show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerPath {
    /// The address.
    pub address: IpAddr,
    /// As of the peer.
    pub state: String,
    /// Since when, in Unix seconds.
    pub since: u64,
    /// Why, in words; empty where it is up.
    pub reason: String,
    /// The peer is known to answer probes or to send them; a node that runs flannel does neither.
    pub answers_probes: bool,
    /// The median of the last round trips, at most 128, microseconds.
    pub rtt_p50: Option<u64>,
    /// What 99 of 100 of them do not exceed, microseconds.
    pub rtt_p99: Option<u64>,
    /// Probes lost within the last minute, percent.
    pub loss_1m: Option<f64>,
    /// Probes lost within the last ten minutes, percent.
    pub loss_10m: Option<f64>,
    /// The largest outer packet that was proved to arrive, bytes.
    pub mtu_measured: Option<u16>,
    /// The largest outer packet that pods' packets make, bytes.
    pub mtu_configured: u16,
    /// Whether the peer hears this node, as its answers show; absent where that is not known.
    #[serde(default)]
    pub hears_us: Option<bool>,
    /// Seconds until the next probe at the latest, but for the budget of all paths; absent where none is sent.
    #[serde(default)]
    pub next_probe: Option<f64>,
}

/// A pair of outer and inner source that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedSource {
    /// The sender on the underlay.
    pub outer: IpAddr,
    /// The source of the inner packet.
    pub inner: IpAddr,
    /// How often it was noticed; the counters of `drops` are exact, this is a sample.
    pub seen: u64,
    /// What it looks like, and the setting that would accept it.
    pub remedy: String,
}

/// Where packets go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Routes {
    /// Prefixes, the dataplane's and those beside it.
    pub routes: Vec<Route>,
}

/// A prefix inside the cluster network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// The destinations.
    pub prefix: IpNet,
    /// Who answers for it.
    pub kind: RouteKind,
    /// The peer's underlay address, or the device.
    pub via: String,
    /// How we send: `udp` or `vxlan`; empty where we do not.
    pub format: String,
    /// The node that owns the prefix.
    pub node: String,
}

/// Who answers for a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteKind {
    /// Another node, through the overlay.
    Peer,
    /// Another node that has no underlay address of a family that this one has: its packets are dropped.
    NoWay,
    /// This node.
    Own,
    /// The kernel, on another device than ours: such packets do not cross the overlay.
    Bypass,
}
