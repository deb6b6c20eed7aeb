//! The published view of the node, and the answers made from it.
//!
//! Theory of operation. After each turn the control loop publishes one immutable [`View`]. Every query of the API is a pure
//! function of the latest view, the workers' counters, and the kernel's counters, computed on a thread of its own
//! ([`queries`]). No query waits for the loop, and the loop waits for no query. Whatever a view holds in quantity is shared
//! with the loop, so that publishing one costs the same with two nodes and with five thousand.

pub mod drops;
mod kernel_path;
pub mod offloads;
mod peers;
mod pods;
pub mod queries;
mod reports;
mod routes;
mod status;
pub mod top;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_shim::Attachment;
use dataplane::counters::Counters;
use dataplane::engine::Clock;
use dataplane::families::PublicAddresses;
use dataplane::snapshot::Snapshot;
use dataplane::spec::Spec;
use ipnet::IpNet;

use crate::api::wire::{RefusedRecord, RefusedSource};
use crate::config::NodeConfig;
use crate::control::records::RecordKey;
use crate::control::registry_state::InTouch;
use crate::control::underlay::sockets::ReceivingSockets;
use crate::control::workers::WorkerPlacement;
use crate::gathering::GatheringFacts;
use crate::host::{Bypass, Underlay};
use crate::keeper::channel::Upgraded;
use crate::kernel_path::KernelPathView;
use crate::lease::Lease;
use crate::peer_health::PeerHealthView;
use crate::problems::Posted;
use crate::registry;

/// What the control loop knows, at one moment.
#[derive(Clone)]
pub struct View {
    /// What stays the same for the life of the service.
    pub service: Arc<ServiceFacts>,
    /// What is wrong.
    pub problems: Arc<[Posted]>,
    /// This node's lease as peers can use it.
    pub own: Arc<Lease>,
    /// The interface that carries the overlay.
    pub underlay: Underlay,
    /// Routes of other programs that take packets past the overlay.
    pub bypassing: Arc<[Bypass]>,
    /// The tables published last.
    pub spec: Spec,
    /// The same as the workers have them, with what was counted and learned.
    pub snapshot: Arc<Snapshot>,
    /// What the workers count.
    pub counters: Counters,
    /// The workers' clock.
    pub clock: Clock,
    /// MTU of the tunnel device, bytes.
    pub device_mtu: u16,
    /// For each worker the core that it is pinned to.
    pub cores: Vec<Option<usize>>,
    /// Adopted attachments.
    pub attachments: Vec<Arc<Attachment>>,
    /// How many of them have an address outside the node's subnets.
    pub stranded: usize,
    /// Those of them whose interface is gone.
    pub leaving: Arc<HashSet<RecordKey>>,
    /// Those of them whose link is not as it should be, and why.
    pub faulty: Arc<HashMap<RecordKey, String>>,
    /// Records that were not adopted.
    pub refused_records: Arc<[RefusedRecord]>,
    /// Outer sources that were refused and could be accepted.
    pub refused_sources: Vec<RefusedSource>,
    /// When the registry gave the leases in force.
    pub leases_read: Instant,
    /// Their age at that time, where they come from the last good state.
    pub leases_cached: Option<Duration>,
    /// They do, because the registry gives no list that can be used.
    pub is_registry_cached: bool,
    /// Whether the registry answers.
    pub in_touch: InTouch,
    /// Records of the registry that are passed over.
    pub refused_leases: Arc<[registry::RefusedRecord]>,
    /// Repairs of the kernel's state since the start.
    pub repairs: u64,
    /// The latest of them.
    pub last_repair: Option<Arc<str>>,
    /// Attachments removed since the start.
    pub reclaimed: u64,
    /// The latest of them.
    pub last_reclaimed: Option<Arc<str>>,
    /// The underlay sockets that receive, for the kernel's counters of them.
    pub sockets: ReceivingSockets,
    /// The programs in the kernel.
    pub kernel_path: KernelPathView,
    /// What gathers at the ends of pods.
    pub gathering: GatheringFacts,
    /// The paths to peers.
    pub peer_health: PeerHealthView,
}

/// What stays the same for the life of the service.
#[derive(Debug)]
pub struct ServiceFacts {
    /// This node's configuration.
    pub config: Arc<NodeConfig>,
    /// The cluster networks.
    pub cluster: Vec<IpNet>,
    /// The workers as they were placed.
    pub workers: WorkerPlacement,
    /// What the tunnel device is to the kernel's stack: `tun` or `tap`.
    pub device_type: &'static str,
    /// The registry: its kind and what it reads.
    pub registry: String,
    /// When the service began to forward.
    pub started: Instant,
    /// How often the keeper has started a service again.
    pub restarts: u64,
    /// How the service before this one ended.
    pub last_end: Option<String>,
    /// The latest upgrade since the agent was started.
    pub upgraded: Option<Upgraded>,
}

/// The IPv6 address beside an IPv4 one.
pub(crate) fn second(public: PublicAddresses) -> Option<IpAddr> {
    match public {
        PublicAddresses::Dual(_, v6) => Some(v6.into()),
        PublicAddresses::V4(_) | PublicAddresses::V6(_) => None,
    }
}
