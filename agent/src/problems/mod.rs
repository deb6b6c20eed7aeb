//! What is wrong with the node, as data.
//!
//! Theory of operation. A [`Problem`] is one thing that is wrong: a stable code, what it concerns, how bad it is, a
//! sentence and a remedy. Code and subject together are its identity. Every part of the control loop returns its problems
//! as values; the loop posts them on the [`Board`], the only source for `tartan status`, the log, and exit codes.
//!
//! The same values decide a start. What [ends a first start](Problem::ends_first_start) is only posted when a service
//! takes over from another one: packets depend on it by then.
//!
//! `code` stands in this file, the sentence in [`sentence`], the remedy in [`remedy`]. `docs/problems.md` has a row for
//! each code; `docs/check` compares the two.

mod board;
mod host;
mod remedy;
mod sentence;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::SystemTime;

use dataplane::families::PublicAddresses;
use dataplane::underlay::socket::SocketSpec;
use encap::{Family, Mac};
use ipnet::IpNet;

use crate::control::direct_routing::DirectSenders;
use crate::control::families::LostFamily;
use crate::host::{Bypass, Flanneld, ForeignBridge, OutOfService, PortHolder};

pub use board::{Board, Origin, Posted};
pub use host::HostProblem;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The net-conf cannot be used.
    NetConfRefused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// Whether the net-conf of the last good state is in force in its place.
        cached: bool,
    },
    /// The net-conf cannot be read.
    NetConfMissing {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        reason: String,
        /// Whether the net-conf of the last good state is in force in its place.
        cached: bool,
    },
    /// This node's configuration file cannot be used; the one by which a service forwarded last is in force.
    ConfigurationRefused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What the registry holds cannot be used.
    LeasesRefused {
        /// Where in the registry's content the fault is.
        place: String,
        /// What is wrong there, and what would correct it.
        reason: String,
        /// What is in force in its place.
        in_force: LeasesInForce,
    },
    /// The registry does not answer, or refuses this node.
    RegistryLost {
        /// Its kind and what it reads.
        registry: String,
        /// Why, and what would correct it.
        reason: String,
    },
    /// The record of one node cannot be used.
    LeaseRefused {
        /// Where it is.
        place: String,
        /// What is wrong with it, and what would correct it.
        reason: String,
    },
    /// The interface that is to carry the overlay cannot be told, so that this node cannot announce itself.
    NoExternalInterface {
        /// Why not, and what would correct it.
        reason: String,
    },
    /// The list of nodes is held back, because it loses most of them at once.
    ListShrinks {
        /// Where the list is.
        place: String,
        /// Names of the nodes in force that it lacks.
        lost: Vec<String>,
        /// How many are in force.
        in_force: usize,
        /// When it is adopted.
        due: SystemTime,
    },
    /// A worker does not forward by the latest tables.
    WorkersBehind {
        /// Version of those tables.
        version: u64,
    },
    /// New callers cannot connect to the API.
    ApiSocket {
        /// The socket's path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The health endpoints are not answered.
    HealthPort {
        /// Where they are to be answered.
        address: SocketAddr,
        /// Which process has the port, where that is known.
        holder: Option<PortHolder>,
        /// What the kernel said.
        reason: String,
    },
    /// The metrics are not answered.
    MetricsPort {
        /// Where they are to be answered.
        address: SocketAddr,
        /// Which process has the port, where that is known.
        holder: Option<PortHolder>,
        /// What the kernel said.
        reason: String,
    },
    /// The files of the locks are gone.
    LocksRemoved {
        /// The directory that they were in.
        run_dir: PathBuf,
    },
    /// The last good state is not on disk.
    StateNotSaved {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        reason: String,
    },
    /// An underlay socket cannot be where the configuration wants it.
    UnderlaySocket {
        /// What it was to be bound to.
        wanted: SocketSpec,
        /// Why it cannot be.
        fault: UnderlayFault,
        /// The address that the sockets of that family have meanwhile.
        kept: Option<IpAddr>,
        /// The node that `kept` belongs to now: it is not reached until the sockets move.
        kept_is_of: Option<String>,
    },
    /// The workers cannot get the sockets of a new underlay address.
    UnderlayMove {
        /// What was refused.
        reason: String,
    },
    /// `cores` names processors that the service cannot use.
    CoresUnusable {
        /// Their numbers.
        cores: Vec<usize>,
    },
    /// The kernel refuses to pin workers.
    WorkersNotPinned {
        /// For each its number and the core.
        workers: Vec<(usize, Option<usize>)>,
    },
    /// A worker may ask the kernel for more than it needs.
    WorkersNotConfined {
        /// Why.
        reason: String,
    },
    /// An underlay interface carries nothing.
    UnderlayDown(OutOfService),
    /// The kernel cannot be read or brought to the state that the node needs.
    Host(HostProblem),
    /// The node file for the CNI plugin is not as it should be.
    NodeFile {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        reason: String,
    },
    /// The attachments of pods that are gone cannot be cleaned up.
    PodUpkeep {
        /// What was refused.
        reason: String,
    },
    /// The host's side of a pod's link is not as it should be, and cannot be put right.
    PodLink {
        /// The pod, or its container.
        pod: String,
        /// The host's end.
        host_ifname: String,
        /// Why not.
        reason: String,
    },
    /// Pods of another plugin share the node with Tartan's.
    MixedPods {
        /// The bridges that they are on.
        bridges: Vec<String>,
    },
    /// The configuration names an underlay address of a family that the node's lease has not.
    UnusedAddress {
        /// The address.
        address: IpAddr,
    },
    /// The underlay's MTU is too small for the tunnel device's least MTU.
    UnderlayNarrow {
        /// The interface.
        interface: String,
        /// What it carries, bytes.
        carries: u16,
        /// What must cross it, bytes.
        needs: u16,
        /// MTU of the tunnel device, bytes.
        device_mtu: u16,
    },
    /// The net-conf names a larger MTU than the underlay of this node has.
    UnderlayBelowMtu {
        /// The interface.
        interface: String,
        /// What it carries, bytes.
        carries: u16,
        /// `Backend.MTU`, bytes.
        configured: u16,
    },
    /// A VXLAN device of flannel's is there, with an address inside the cluster network.
    FlannelLeftOver {
        /// Its name.
        device: String,
        /// The address.
        address: IpNet,
    },
    /// A bridge of pods has an address of another node's subnet, or of none.
    BridgeOtherSubnet {
        /// The bridge, and the address.
        bridge: ForeignBridge,
        /// This node's subnets.
        subnets: Vec<IpNet>,
    },
    /// Peers have no underlay address of a family that this node has.
    PeersUnreachable {
        /// One of them.
        first: String,
        /// Its addresses.
        address: PublicAddresses,
        /// How many others there are.
        more: usize,
        /// This node's addresses.
        ours: PublicAddresses,
    },
    /// A strict reverse-path filter drops what peers send.
    ReversePathFilter {
        /// The interface that has it.
        interface: String,
        /// Peers to which the way leads elsewhere, with the interface; none for the tunnel device, which drops in any case.
        astray: Vec<String>,
    },
    /// Packets between pods on one bridge do not meet kube-proxy's rules.
    BridgeNetfilterOff {
        /// The setting below `net.bridge`.
        key: &'static str,
        /// The bridges.
        bridges: Vec<String>,
        /// The kernel's module is there, and the setting is off.
        is_loaded: bool,
    },
    /// flannel's rules are in the packet filter, and no flanneld runs.
    FlannelRulesLeft {
        /// Its chains and tables, as nft names them.
        rules: Vec<String>,
    },
    /// Datagrams arrive with a wrong checksum.
    ChecksumErrors,
    /// The clock was set back.
    ClockSetBack {
        /// The file of this node that was written in the future.
        path: PathBuf,
    },
    /// A peer sends datagrams of another VXLAN network.
    PeerOtherVni {
        /// Its name.
        node: String,
        /// The network that they are of.
        vni: u32,
        /// This node's.
        ours: u32,
    },
    /// A peer answered probes, and nothing of it arrives any more.
    PeerSilent {
        /// Its name.
        peer: String,
        /// The address that is probed.
        address: IpAddr,
        /// When it was heard last.
        since: SystemTime,
    },
    /// A peer's packets arrive, and it does not hear this node's.
    PeerOneWay {
        /// Its name.
        peer: String,
        /// The address that is probed.
        address: IpAddr,
    },
    /// The path to a peer carries less than pods' packets need; pods are told to send smaller ones.
    PeerNarrow {
        /// Its name.
        peer: String,
        /// The address that is probed.
        address: IpAddr,
        /// The largest outer packet that arrives, bytes.
        measured: u16,
        /// The largest outer packet that pods' packets make, bytes.
        configured: u16,
    },
    /// A peer's host answers that no process has the overlay's port.
    PeerRefused {
        /// Its name.
        peer: String,
        /// The address that is probed.
        address: IpAddr,
    },
    /// What is sent to a peer does not get there.
    PeerUnreachable {
        /// Its name.
        peer: String,
        /// The address that is probed.
        address: IpAddr,
        /// An ICMP error, or what this node's kernel says.
        reason: String,
    },
    /// A peer addresses its frames to a VTEP MAC that is not this node's.
    PeerWrongMac {
        /// Its name.
        peer: String,
        /// That MAC.
        seen: Mac,
    },
    /// This node cannot send probes.
    PeerProbes {
        /// The address that they were to be sent from, and what the kernel said.
        reason: String,
    },
    /// Packets of a peer's pods arrive from an address that is none of its own.
    PeerUnknownAddress {
        /// The name of the node that the inner source belongs to.
        node: String,
        /// The outer source.
        outer: IpAddr,
        /// The addresses that its entry names.
        listed: String,
    },
    /// Nodes have no subnet of a family that the cluster has a network of.
    FamilyWithoutSubnets {
        /// The family.
        family: Family,
        /// One of them.
        first: String,
        /// How many others there are.
        more: usize,
    },
    /// A peer had both families and has one.
    PeerLostFamily {
        /// What it has lost.
        lost: LostFamily,
        /// How many other losses there are.
        more: usize,
    },
    /// The frames of a peer come from another VTEP MAC than its lease has.
    VtepMacChanged {
        /// The peer's name.
        peer: String,
        /// Its MAC of each family of inner packets that is another one.
        changed: Vec<ChangedMac>,
    },
    /// Peers send unencapsulated: their packets are not checked here.
    DirectRouting(DirectSenders),
    /// Peers send unencapsulated, and a strict reverse-path filter drops it.
    DirectRoutingFiltered(DirectSenders),
    /// flannel's daemon runs on this node too.
    FlanneldRunning(Flanneld),
    /// Attachments have addresses in no subnet of this node.
    PodsStranded {
        /// Their names.
        pods: Vec<String>,
    },
    /// A route of another program takes packets past the overlay.
    RouteBypasses(Bypass),
    /// There are more problems of a kind than are shown one by one.
    MoreOfAKind {
        /// How many more.
        more: usize,
        /// What they are, as the rest of a sentence.
        what: &'static str,
        /// The command that shows all of them.
        command: &'static str,
    },
    /// The thread that answers the API cannot run.
    ApiThread {
        /// Why not.
        reason: String,
    },
    /// The kernel path is configured and not in use: user space carries every packet.
    KernelPathOff {
        /// Why.
        reason: String,
        /// What brings it into use.
        remedy: String,
    },
    /// An attachment record cannot be used.
    RecordRefused {
        /// The record's file.
        file: String,
        /// Why not, and what would correct it.
        reason: String,
    },
}

/// A VTEP MAC that is not the lease's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedMac {
    /// The family of the inner packets.
    pub inner: Family,
    /// The MAC of the lease.
    pub lease: Mac,
    /// The MAC that the frames come from.
    pub seen: Mac,
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Packets are lost, or will be at the next restart of something.
    Error,
    /// Forwarding goes on, with less than was asked for.
    Warning,
}

/// What serves in the place of leases that were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasesInForce {
    /// Those of the last good state on disk.
    Cache,
    /// Those that the registry gave before.
    Earlier,
    /// None: the service cannot start.
    Nothing,
}

/// Why an underlay socket cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnderlayFault {
    /// No interface of the host has the address.
    NotOnHost,
    /// Another process or device has the port: which one, where that is known.
    PortTaken(Option<PortHolder>),
    /// The kernel refused for another reason.
    Refused(String),
}

impl Problem {
    /// The stable name of this kind of problem, for scripts. Never changed, never used for another kind.
    pub fn code(&self) -> &'static str {
        match self {
            Problem::NetConfRefused { .. } => "net-conf-refused",
            Problem::NetConfMissing { .. } => "net-conf-missing",
            Problem::ConfigurationRefused { .. } => "configuration-refused",
            Problem::LeasesRefused { .. } => "leases-refused",
            Problem::RegistryLost { .. } => "registry-lost",
            Problem::LeaseRefused { .. } => "lease-refused",
            Problem::NoExternalInterface { .. } => "interface-not-found",
            Problem::ListShrinks { .. } => "list-shrinks",
            Problem::WorkersBehind { .. } => "workers-behind",
            Problem::ApiSocket { .. } => "api-socket",
            Problem::HealthPort { .. } => "health-port",
            Problem::MetricsPort { .. } => "metrics-port",
            Problem::LocksRemoved { .. } => "locks-removed",
            Problem::StateNotSaved { .. } => "state-not-saved",
            Problem::UnderlaySocket { fault, .. } => match fault {
                UnderlayFault::NotOnHost => "underlay-address-missing",
                UnderlayFault::PortTaken(_) => "underlay-port-taken",
                UnderlayFault::Refused(_) => "underlay-socket-refused",
            },
            Problem::UnderlayMove { .. } => "underlay-move-refused",
            Problem::CoresUnusable { .. } => "cores-unusable",
            Problem::WorkersNotPinned { .. } => "workers-not-pinned",
            Problem::WorkersNotConfined { .. } => "workers-not-confined",
            Problem::UnderlayDown(_) => "underlay-down",
            Problem::Host(problem) => problem.code,
            Problem::NodeFile { .. } => "node-file",
            Problem::PodUpkeep { .. } => "pod-upkeep",
            Problem::PodLink { .. } => "pod-link",
            Problem::MixedPods { .. } => "mixed-pods",
            Problem::UnusedAddress { .. } => "unused-address",
            Problem::UnderlayNarrow { .. } => "underlay-narrow",
            Problem::UnderlayBelowMtu { .. } => "underlay-below-mtu",
            Problem::FlannelLeftOver { .. } => "flannel-left-over",
            Problem::BridgeOtherSubnet { .. } => "bridge-other-subnet",
            Problem::ReversePathFilter { .. } => "reverse-path-filter",
            Problem::BridgeNetfilterOff { .. } => "bridge-netfilter-off",
            Problem::FlannelRulesLeft { .. } => "flannel-rules-left",
            Problem::ChecksumErrors => "checksum-errors",
            Problem::ClockSetBack { .. } => "clock-set-back",
            Problem::PeersUnreachable { .. } => "peers-unreachable",
            Problem::PeerOtherVni { .. } => "peer-other-vni",
            Problem::PeerSilent { .. } => "peer-silent",
            Problem::PeerOneWay { .. } => "peer-one-way",
            Problem::PeerNarrow { .. } => "peer-narrow",
            Problem::PeerRefused { .. } => "peer-refused",
            Problem::PeerUnreachable { .. } => "peer-unreachable",
            Problem::PeerWrongMac { .. } => "peer-wrong-mac",
            Problem::PeerProbes { .. } => "peer-probes",
            Problem::PeerUnknownAddress { .. } => "peer-unknown-address",
            Problem::FamilyWithoutSubnets { .. } => "family-without-subnets",
            Problem::PeerLostFamily { .. } => "peer-lost-family",
            Problem::VtepMacChanged { .. } => "vtep-mac-changed",
            Problem::DirectRouting(_) => "direct-routing",
            Problem::DirectRoutingFiltered(_) => "direct-routing-filtered",
            Problem::FlanneldRunning(_) => "flanneld-running",
            Problem::PodsStranded { .. } => "pods-stranded",
            Problem::RouteBypasses(_) => "route-bypasses",
            Problem::MoreOfAKind { .. } => "more-of-a-kind",
            Problem::ApiThread { .. } => "api-thread",
            Problem::KernelPathOff { .. } => "kernel-path-off",
            Problem::RecordRefused { .. } => "record-refused",
        }
    }

    /// What it concerns, in few words: a path, an interface, an address, a node. Empty where the code says all.
    pub fn subject(&self) -> String {
        match self {
            Problem::NetConfRefused { path, .. }
            | Problem::NetConfMissing { path, .. }
            | Problem::ConfigurationRefused { path, .. }
            | Problem::ApiSocket { path, .. }
            | Problem::StateNotSaved { path, .. }
            | Problem::NodeFile { path, .. } => path.display().to_string(),
            Problem::LocksRemoved { run_dir } => run_dir.display().to_string(),
            Problem::HealthPort { address, .. } | Problem::MetricsPort { address, .. } => {
                address.to_string()
            }
            Problem::LeasesRefused { place, .. }
            | Problem::LeaseRefused { place, .. }
            | Problem::ListShrinks { place, .. } => place.clone(),
            Problem::RegistryLost { registry, .. } => registry.clone(),
            Problem::UnderlaySocket { wanted, .. } => wanted.address.to_string(),
            Problem::UnderlayDown(interface) => interface.name.clone(),
            Problem::UnderlayNarrow { interface, .. }
            | Problem::UnderlayBelowMtu { interface, .. } => interface.clone(),
            Problem::FlannelLeftOver { device, .. } => device.clone(),
            Problem::ReversePathFilter { interface, .. } => interface.clone(),
            Problem::BridgeNetfilterOff { key, .. } => (*key).to_owned(),
            Problem::BridgeOtherSubnet { bridge, .. } => bridge.name.clone(),
            Problem::Host(problem) => problem.subject.clone(),
            Problem::MixedPods { bridges } => bridges.join(", "),
            Problem::UnusedAddress { address } => address.to_string(),
            Problem::PeersUnreachable { first, .. } => first.clone(),
            Problem::PeerOtherVni { node, .. } | Problem::PeerUnknownAddress { node, .. } => {
                node.clone()
            }
            Problem::PeerSilent { peer, .. }
            | Problem::PeerOneWay { peer, .. }
            | Problem::PeerNarrow { peer, .. }
            | Problem::PeerRefused { peer, .. }
            | Problem::PeerUnreachable { peer, .. }
            | Problem::PeerWrongMac { peer, .. } => peer.clone(),
            Problem::FamilyWithoutSubnets { family, .. } => family_name(*family).to_owned(),
            Problem::PeerLostFamily { lost, .. } => lost.node.clone(),
            Problem::VtepMacChanged { peer, .. } => peer.clone(),
            Problem::DirectRouting(senders) | Problem::DirectRoutingFiltered(senders) => {
                senders.interface.clone()
            }
            Problem::FlanneldRunning(flanneld) => flanneld.pid.to_string(),
            Problem::RouteBypasses(bypass) => bypass.prefix.to_string(),
            Problem::MoreOfAKind { what, .. } => (*what).to_owned(),
            Problem::RecordRefused { file, .. } => file.clone(),
            Problem::PodLink { pod, .. } => pod.clone(),
            Problem::NoExternalInterface { .. }
            | Problem::FlannelRulesLeft { .. }
            | Problem::ChecksumErrors
            | Problem::ClockSetBack { .. }
            | Problem::WorkersBehind { .. }
            | Problem::UnderlayMove { .. }
            | Problem::CoresUnusable { .. }
            | Problem::WorkersNotPinned { .. }
            | Problem::WorkersNotConfined { .. }
            | Problem::PodUpkeep { .. }
            | Problem::PodsStranded { .. }
            | Problem::KernelPathOff { .. }
            | Problem::PeerProbes { .. }
            | Problem::ApiThread { .. } => String::new(),
        }
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        match self {
            Problem::NetConfRefused { .. }
            | Problem::NetConfMissing { .. }
            | Problem::ConfigurationRefused { .. }
            | Problem::LeasesRefused { .. }
            | Problem::LeaseRefused { .. }
            | Problem::NoExternalInterface { .. }
            | Problem::ListShrinks { .. }
            | Problem::WorkersBehind { .. }
            | Problem::ApiSocket { .. }
            | Problem::HealthPort { .. }
            | Problem::LocksRemoved { .. }
            | Problem::UnderlaySocket { .. }
            | Problem::UnderlayMove { .. }
            | Problem::UnderlayDown(_)
            | Problem::NodeFile { .. }
            | Problem::UnderlayNarrow { .. }
            | Problem::BridgeOtherSubnet { .. }
            | Problem::ReversePathFilter { .. }
            | Problem::BridgeNetfilterOff { .. }
            | Problem::PeersUnreachable { .. }
            | Problem::PeerOtherVni { .. }
            | Problem::PeerSilent { .. }
            | Problem::PeerOneWay { .. }
            | Problem::PeerRefused { .. }
            | Problem::PeerUnreachable { .. }
            | Problem::PeerWrongMac { .. }
            | Problem::VtepMacChanged { .. }
            | Problem::FlanneldRunning(_)
            | Problem::PodsStranded { .. }
            | Problem::PodLink { .. }
            | Problem::DirectRoutingFiltered(_)
            | Problem::RouteBypasses(_)
            | Problem::MoreOfAKind { .. }
            | Problem::ApiThread { .. }
            | Problem::RecordRefused { .. } => Severity::Error,
            Problem::Host(problem) => problem.severity,
            Problem::MetricsPort { .. }
            | Problem::RegistryLost { .. }
            | Problem::StateNotSaved { .. }
            | Problem::CoresUnusable { .. }
            | Problem::WorkersNotPinned { .. }
            | Problem::WorkersNotConfined { .. }
            | Problem::PodUpkeep { .. }
            | Problem::MixedPods { .. }
            | Problem::UnderlayBelowMtu { .. }
            | Problem::FlannelLeftOver { .. }
            | Problem::FlannelRulesLeft { .. }
            | Problem::ChecksumErrors
            | Problem::ClockSetBack { .. }
            | Problem::PeerUnknownAddress { .. }
            | Problem::PeerNarrow { .. }
            | Problem::PeerProbes { .. }
            | Problem::FamilyWithoutSubnets { .. }
            | Problem::PeerLostFamily { .. }
            | Problem::DirectRouting(_)
            | Problem::KernelPathOff { .. }
            | Problem::UnusedAddress { .. } => Severity::Warning,
        }
    }

    /// Whether it keeps a service from starting that takes over from no other: no packet depends on it yet, and an
    /// operator is there to read the reason.
    pub fn ends_first_start(&self) -> bool {
        match self {
            Problem::NetConfRefused { cached, .. } | Problem::NetConfMissing { cached, .. } => {
                !cached
            }
            Problem::LeasesRefused { in_force, .. } => *in_force == LeasesInForce::Nothing,
            Problem::UnderlaySocket { .. }
            | Problem::NodeFile { .. }
            | Problem::FlanneldRunning(_)
            | Problem::ApiThread { .. } => true,
            Problem::Host(problem) => problem.ends_first_start,
            _ => false,
        }
    }

    /// Whether only an edit of this node's configuration corrects it, so that a further start is of no use.
    pub fn is_misconfiguration(&self) -> bool {
        matches!(self, Problem::NetConfRefused { cached: false, .. })
    }

    /// Whether the control loop tries again by itself what was refused.
    pub fn is_retried(&self) -> bool {
        matches!(
            self,
            Problem::Host(_)
                | Problem::UnderlaySocket { .. }
                | Problem::UnderlayMove { .. }
                | Problem::NodeFile { .. }
                | Problem::ApiSocket { .. }
                | Problem::ApiThread { .. }
                | Problem::StateNotSaved { .. }
                | Problem::PodUpkeep { .. }
                | Problem::PodLink { .. }
        )
    }
}

/// As operators write it.
const fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// The sentence and the remedy, as they stand in a log.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.sentence(), self.remedy())
    }
}

impl std::error::Error for Problem {}

impl Severity {
    /// As `-o json` and `docs/problems.md` write it.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}
