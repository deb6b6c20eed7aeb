//! What one scrape shows, read at one moment.

use std::sync::Arc;
use std::time::Duration;

use dataplane::counters::{Flow, Totals};
use dataplane::drops::Direction;
use dataplane::families::PerFamily;
use dataplane::kernel_path::{KernelPathTotals, PassReason};
use dataplane::now::Now;
use dataplane::underlay::socket::ReceiveQueue;

use super::own_series::Shown;
use super::peer_paths::Paths;
use super::peers::PEER_COUNTERS;
use super::pods::{KERNEL_COUNTERS, POD_COUNTERS};
use crate::api::wire;
use crate::control::view::View;
use crate::control::view::drops::KernelCounts;
use crate::host::PodLinks;
use crate::kernel_path::flows::FlowTotals;
use crate::peer_health::histogram::Histogram;
use crate::peer_health::loss::Outcomes;

/// What the kernel was asked for, on a netlink socket of the scrapes' own.
#[derive(Debug, Default)]
pub(super) struct KernelFacts {
    /// Counters beside the sockets.
    pub(super) counts: KernelCounts,
    /// The host's ends of pods.
    pub(super) links: PodLinks,
}

/// Everything that a page is written from. Nothing changes while it is written.
pub(super) struct Facts {
    pub(super) view: Arc<View>,
    pub(super) totals: Totals,
    pub(super) kernel: KernelFacts,
    /// The engine's time.
    pub(super) now: Now,
    /// When the service began to forward, since the epoch.
    pub(super) started: Duration,
    pub(super) is_ready: bool,
    /// What the programs of the kernel path have counted.
    pub(super) programs: Option<KernelPathTotals>,
    pub(super) passes: Vec<(PassReason, u64)>,
    pub(super) flows: Option<FlowTotals>,
    pub(super) sockets: Vec<(String, ReceiveQueue)>,
    pub(super) pods: wire::Pods,
    /// What probes say of the paths to peers.
    pub(super) paths: Paths,
    /// How long probes took, by the family of the peer's address.
    pub(super) round_trips: PerFamily<Histogram>,
    /// How many probes were answered or lost, by the same.
    pub(super) outcomes: PerFamily<Outcomes>,
    /// The counters of peers and pods, and which of them have series of their own.
    pub(super) shown_peers: Shown<PEER_COUNTERS>,
    pub(super) shown_pods: Shown<POD_COUNTERS>,
    pub(super) shown_pods_in_kernel: Shown<KERNEL_COUNTERS>,
    pub(super) scrapes: Scrapes,
}

/// What scrapes have cost so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scrapes {
    pub(super) count: u64,
    /// CPU time of all before this one.
    pub(super) cpu: Duration,
}

impl Facts {
    /// The flows of every worker that there ever was, with its name; the programs of the kernel path are one of them.
    pub(super) fn of_workers(&self) -> impl Iterator<Item = (String, Direction, Flow)> {
        let workers = self.totals.workers.iter().enumerate();
        let workers =
            workers.map(|(worker, totals)| (worker.to_string(), totals.outbound, totals.inbound));
        let programs = self.programs.iter();
        let programs =
            programs.map(|totals| (KERNEL_PATH.to_owned(), totals.outbound, totals.inbound));
        workers
            .chain(programs)
            .flat_map(|(name, outbound, inbound)| {
                [
                    (name.clone(), Direction::Outbound, outbound),
                    (name, Direction::Inbound, inbound),
                ]
            })
    }
}

/// The name of a direction in labels.
pub(super) fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Outbound => "outbound",
        Direction::Inbound => "inbound",
    }
}

/// The programs in the kernel, as one more worker.
const KERNEL_PATH: &str = "kernel-path";
