//! The counters as the API tells them: ours and the kernel's.

use std::collections::BTreeMap;
use std::time::Duration;

use dataplane::counters::{Flow, OffloadsInUse, Totals};
use dataplane::drops::{Direction, DropReason};
use dataplane::underlay::socket::kernel_drops;
use tokio::time::sleep;
use tracing::warn;

use super::control::Control;
use crate::api::wire;
use crate::causes::causes;

impl Control {
    pub(super) async fn drops(&self) -> wire::Drops {
        let totals = self.quiet_totals().await;
        let directions = [Direction::Outbound, Direction::Inbound];
        let reasons = DropReason::ALL.into_iter().flat_map(|reason| {
            let totals = &totals;
            directions.map(|direction| wire::Reason {
                reason: reason.name().to_owned(),
                direction: name(direction).to_owned(),
                count: totals
                    .workers
                    .iter()
                    .map(|worker| match direction {
                        Direction::Outbound => worker.outbound.drops_of(reason),
                        Direction::Inbound => worker.inbound.drops_of(reason),
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
                outbound: flow(&totals.outbound),
                inbound: flow(&totals.inbound),
                unanswered: totals.unanswered,
            });
        wire::Drops {
            reasons: reasons.collect(),
            workers: workers.collect(),
            in_rings: totals.in_rings,
            kernel: self.kernel_counters().await,
        }
    }

    pub(super) async fn device_queue(&self) -> Option<u32> {
        let device = &self.node.known.config.device_name;
        let stats = self.host.device_stats(device).await.ok()?;
        Some(stats.queue)
    }

    /// Tells when the kernel refused an offload so that it was given up.
    pub(super) fn note_offloads(&mut self) {
        let totals = self.counters.read();
        let times = given_up(&totals);
        if times > self.offloads_given_up {
            let left = offloads(&totals).join(", ");
            warn!("the kernel refuses an offload; it is tried again in a minute. In use: {left}");
        }
        self.offloads_given_up = times;
    }

    async fn kernel_counters(&self) -> Vec<wire::KernelCounter> {
        let mut counters = Vec::new();
        for (name, socket) in self.ports.each() {
            match kernel_drops(socket) {
                Ok(count) => counters.push(wire::KernelCounter {
                    place: name,
                    counter: "drops".to_owned(),
                    count,
                    gloss: "datagrams, or trains of them, lost before we read them: the socket's buffer was full"
                        .to_owned(),
                }),
                Err(error) => tracing::debug!(%error, "no drop counter of {name}"),
            }
        }
        let device = &self.node.known.config.device_name;
        match self.host.device_stats(device).await {
            Ok(stats) => counters.extend(
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
                .map(|(counter, count, gloss)| wire::KernelCounter {
                    place: device.clone(),
                    counter: counter.to_owned(),
                    count,
                    gloss: gloss.to_owned(),
                }),
            ),
            Err(error) => tracing::debug!("no counters of {device}: {}", causes(&error)),
        }
        match self.host.forged_sources().await {
            Ok(count) => counters.extend(count.map(|count| wire::KernelCounter {
                place: "pods".to_owned(),
                counter: "forged_sources".to_owned(),
                count,
                gloss: "packets dropped where they leave the pod: their source is not the pod's address".to_owned(),
            })),
            Err(error) => tracing::debug!("no counter of forged sources: {}", causes(&error)),
        }
        counters
    }

    /// The counters at a moment when no packet is between two of them, if one comes soon. The words are read
    /// one after the other while a worker writes, so under load the law may seem off by what is in flight.
    pub(super) async fn quiet_totals(&self) -> Totals {
        let mut totals = self.counters.read();
        for _ in 0..QUIET_TRIES {
            let off = |flow: &Flow| flow.balance() != 0;
            let mut workers = totals.workers.iter();
            if totals.in_rings == 0 && !workers.any(|w| off(&w.outbound) || off(&w.inbound)) {
                break;
            }
            sleep(QUIET_STEP).await;
            totals = self.counters.read();
        }
        totals
    }
}

/// Offloads that every worker uses.
pub(super) fn offloads(totals: &Totals) -> Vec<String> {
    let by_name = |in_use: &OffloadsInUse| {
        [
            ("checksum", in_use.device.checksum),
            ("tcp", in_use.device.tcp),
            ("udp", in_use.device.udp),
            ("send", in_use.gso_sends),
        ]
    };
    let of_each = || totals.of_running().map(|w| by_name(&w.offloads));
    let names = by_name(&OffloadsInUse::default()).map(|(name, _)| name);
    let everywhere = |name: &&str| of_each().all(|used| used.contains(&(*name, true)));
    names
        .into_iter()
        .filter(everywhere)
        .map(String::from)
        .collect()
}

/// How often an offload was given up.
pub(super) fn given_up(totals: &Totals) -> u64 {
    totals.workers.iter().map(|worker| worker.given_up).sum()
}

fn flow(flow: &Flow) -> wire::Flow {
    let counted = DropReason::ALL
        .into_iter()
        .map(|reason| (reason.name(), flow.drops_of(reason)));
    let dropped: BTreeMap<String, u64> = counted
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name.to_owned(), count))
        .collect();
    let balance = flow.balance();
    wire::Flow {
        received: flow.received,
        originated: flow.originated,
        sent: flow.sent,
        delivered: flow.delivered,
        dropped,
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

const QUIET_TRIES: usize = 5;
const QUIET_STEP: Duration = Duration::from_millis(1);
