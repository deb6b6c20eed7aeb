//! `tartan drops`: every packet's fate, ours and the kernel's.

use std::collections::BTreeMap;

use dataplane::counters::{Flow, Totals};
use dataplane::drop_counts::{DropCounts, Dropped};
use dataplane::drops::{Direction, DropReason};

use super::View;
use crate::api::wire;
use crate::host::{LinkStats, PodDrops};

/// What the kernel counts beside its sockets, as far as it reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelCounts {
    /// The tunnel device.
    pub device: Option<LinkStats>,
    /// Packets dropped where they leave the pod.
    pub pods: Option<PodDrops>,
    /// Packets dropped where they leave the pod: another program has removed the pod's route.
    pub lost_routes: Option<u64>,
}

impl View {
    /// Every drop reason with its count, and every worker's balance.
    pub fn drops(&self, totals: &Totals, kernel: KernelCounts) -> wire::Drops {
        let directions = [Direction::Outbound, Direction::Inbound];
        let programs = self.kernel_path.totals();
        let reasons = DropReason::ALL.into_iter().flat_map(|reason| {
            directions.map(|direction| wire::Reason {
                reason: reason.name().to_owned(),
                direction: name(direction).to_owned(),
                count: totals
                    .workers
                    .iter()
                    .map(|worker| (&worker.outbound, &worker.inbound))
                    .chain(programs.iter().map(|all| (&all.outbound, &all.inbound)))
                    .map(|(outbound, inbound)| match direction {
                        Direction::Outbound => outbound.drops_of(reason),
                        Direction::Inbound => inbound.drops_of(reason),
                    })
                    .sum(),
                gloss: reason.gloss().to_owned(),
            })
        });
        let workers = totals
            .workers
            .iter()
            .enumerate()
            .map(|(worker, totals)| wire::Worker {
                worker,
                name: worker.to_string(),
                outbound: flow(&totals.outbound),
                inbound: flow(&totals.inbound),
                unanswered: totals.unanswered,
            });
        let in_kernel = programs.iter().map(|all| wire::Worker {
            worker: totals.workers.len(),
            name: KERNEL_PATH.to_owned(),
            outbound: flow(&all.outbound),
            inbound: flow(&all.inbound),
            unanswered: 0,
        });
        let passed = self.kernel_path.passes().into_iter();
        let passed = passed.map(|(reason, count)| wire::Passed {
            reason: reason.name().to_owned(),
            count,
            gloss: reason.gloss().to_owned(),
        });
        wire::Drops {
            reasons: reasons.collect(),
            workers: workers.chain(in_kernel).collect(),
            passed: passed.collect(),
            in_rings: totals.in_rings,
            kernel: self.kernel_counters(kernel),
        }
    }

    fn kernel_counters(&self, kernel: KernelCounts) -> Vec<wire::KernelCounter> {
        let mut counters = Vec::new();
        for (name, queue) in self.sockets.queues() {
            match queue {
                Ok(queue) => counters.push(wire::KernelCounter {
                    place: name,
                    counter: "drops".to_owned(),
                    count: queue.drops,
                    gloss: SOCKET_DROPS.to_owned(),
                }),
                Err(error) => tracing::debug!(%error, "no drop counter of {name}"),
            }
        }
        let device = kernel.device.into_iter().flat_map(device_counters);
        counters.extend(device.map(|(counter, count, gloss)| wire::KernelCounter {
            place: self.service.config.device_name.clone(),
            counter: counter.to_owned(),
            count,
            gloss: gloss.to_owned(),
        }));
        let pods = kernel.pods.into_iter().flat_map(pod_counters);
        counters.extend(pods.map(|(counter, count, gloss)| wire::KernelCounter {
            place: "pods".to_owned(),
            counter: counter.to_owned(),
            count,
            gloss: gloss.to_owned(),
        }));
        counters.extend(kernel.lost_routes.map(|count| wire::KernelCounter {
            place: "pods".to_owned(),
            counter: "lost_routes".to_owned(),
            count,
            gloss: LOST_ROUTES.to_owned(),
        }));
        counters
    }
}

fn device_counters(stats: LinkStats) -> [(&'static str, u64, &'static str); 4] {
    [
        (
            "tx_packets",
            stats.tx_packets,
            "packets the kernel gave to the device",
        ),
        (
            "tx_dropped",
            stats.tx_dropped,
            "packets lost before we read them: the queue was full",
        ),
        (
            "rx_packets",
            stats.rx_packets,
            "packets we wrote that the kernel took",
        ),
        (
            "rx_dropped",
            stats.rx_dropped,
            "packets we wrote that the kernel dropped",
        ),
    ]
}

fn pod_counters(drops: PodDrops) -> [(&'static str, u64, &'static str); 2] {
    [
        ("forged_sources", drops.forged_sources, FORGED_SOURCES),
        (
            "forged_encapsulation",
            drops.forged_encapsulation,
            FORGED_ENCAPSULATION,
        ),
    ]
}

/// What the workers dropped of a peer or pod; nothing where that is not counted.
pub(super) fn dropped(counts: Option<&DropCounts>) -> wire::Dropped {
    let counts = counts.map_or(Dropped::NONE, DropCounts::read);
    wire::Dropped {
        outbound: by_reason(&counts.outbound),
        inbound: by_reason(&counts.inbound),
    }
}

/// Counts by the reason's name, without those that are 0.
fn by_reason(counts: &[u64; DropReason::COUNT]) -> BTreeMap<String, u64> {
    let counts = DropReason::ALL.into_iter().zip(counts.iter().copied());
    counts
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.name().to_owned(), count))
        .collect()
}

fn flow(flow: &Flow) -> wire::Flow {
    let balance = flow.balance();
    wire::Flow {
        received: flow.received,
        originated: flow.originated,
        sent: flow.sent,
        delivered: flow.delivered,
        probes: flow.probes,
        dropped: by_reason(&flow.drops),
        held: flow.held,
        balance: i64::try_from(balance).unwrap_or(if balance < 0 { i64::MIN } else { i64::MAX }),
    }
}

fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Outbound => "outbound",
        Direction::Inbound => "inbound",
    }
}

/// The programs in the kernel, as one more worker.
pub(super) const KERNEL_PATH: &str = "kernel-path";
const SOCKET_DROPS: &str =
    "datagrams, or GRO buffers of them, lost before we read them: the socket's buffer was full";
const LOST_ROUTES: &str = "sent by pods that run here, as themselves, while another program had removed the pod's route; since the rule for the pod was written";
const FORGED_SOURCES: &str =
    "packets dropped where they leave the pod: their source is not the pod's address";
const FORGED_ENCAPSULATION: &str =
    "packets dropped where they leave the pod: they go to a port of the overlay at a node";
