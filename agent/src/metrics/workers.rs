//! Every packet's fate, by worker and direction, and how the workers are.

use std::fmt;

use dataplane::counters::Flow;
use dataplane::drops::DropReason;

use super::facts::{Facts, word};
use super::metric::Metric;
use super::page::Page;

/// A term of the conservation law.
type Fate = fn(&Flow) -> u64;

pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let fates: [(&Metric, Fate); 5] = [
        (&RECEIVED, |flow| flow.received),
        (&ORIGINATED, |flow| flow.originated),
        (&SENT, |flow| flow.sent),
        (&DELIVERED, |flow| flow.delivered),
        (&PROBES, |flow| flow.probes),
    ];
    for (metric, count) in fates {
        let samples = facts.of_workers().map(|(worker, direction, flow)| {
            let labels = [
                ("worker", worker),
                ("direction", word(direction).to_owned()),
            ];
            (labels, count(&flow))
        });
        page.family(metric, samples)?;
    }
    page.family(&DROPPED, dropped(facts))?;
    let held = facts.of_workers().map(|(worker, direction, flow)| {
        let labels = [
            ("worker", worker),
            ("direction", word(direction).to_owned()),
        ];
        (labels, flow.held)
    });
    page.family(&HELD, held)?;
    page.one(&IN_RINGS, facts.totals.in_rings)?;
    of_each(page, facts)
}

/// Every reason, those that count nothing included: a counter that appears with its first drop would hide that drop from
/// `rate()`.
fn dropped(facts: &Facts) -> impl Iterator<Item = ([(&'static str, String); 3], u64)> {
    facts.of_workers().flat_map(|(worker, direction, flow)| {
        DropReason::ALL.into_iter().map(move |reason| {
            let labels = [
                ("worker", worker.clone()),
                ("direction", word(direction).to_owned()),
                ("reason", reason.name().to_owned()),
            ];
            (labels, flow.drops_of(reason))
        })
    })
}

/// What a worker counts beside its flows.
fn of_each(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let totals = &facts.totals;
    page.one(&WORKERS, totals.running as u64)?;
    let ever = || totals.workers.iter().enumerate();
    let running = || totals.of_running().enumerate();
    let name = |worker: usize| [("worker", worker.to_string())];
    page.family(&STEPS, ever().map(|(worker, all)| (name(worker), all.tick)))?;
    let versions = running().map(|(worker, all)| (name(worker), all.snapshot));
    page.family(&VERSION, versions)?;
    let suppressed = ever().map(|(worker, all)| (name(worker), all.unanswered));
    page.family(&SUPPRESSED, suppressed)?;
    let offloads = running().flat_map(|(worker, all)| {
        let device = all.offloads.device;
        let used = [
            ("checksum", device.checksum),
            ("tcp", device.tcp),
            ("udp", device.udp),
            ("send", all.offloads.gso_sends),
        ];
        used.map(|(offload, is_used)| {
            let labels = [
                ("worker", worker.to_string()),
                ("offload", offload.to_owned()),
            ];
            (labels, u64::from(is_used))
        })
    });
    page.family(&OFFLOADS, offloads)?;
    let given_up = ever().map(|(worker, all)| (name(worker), all.given_up));
    page.family(&GIVEN_UP, given_up)
}

pub(super) const RECEIVED: Metric = Metric::counter(
    "tartan_received_packets_total",
    "Inner packets that a worker read: outbound from pods, inbound from peers. Since the keeper started. received + originated = sent + delivered + probes + dropped + held, for each worker and direction.",
);
pub(super) const ORIGINATED: Metric = Metric::counter(
    "tartan_originated_packets_total",
    "Inner packets that Tartan made itself: ICMP errors, and fragments beyond the first. Since the keeper started.",
);
pub(super) const SENT: Metric = Metric::counter(
    "tartan_sent_packets_total",
    "Inner packets sent to peers over the underlay. Since the keeper started.",
);
pub(super) const DELIVERED: Metric = Metric::counter(
    "tartan_delivered_packets_total",
    "Inner packets written to the tunnel device, from where the kernel routes them to pods. Since the keeper started.",
);
pub(super) const PROBES: Metric = Metric::counter(
    "tartan_probe_packets_total",
    "Probes of peers that were answered, and answers that were heard: no packet of a pod. Since the keeper started.",
);
pub(super) const DROPPED: Metric = Metric::counter(
    "tartan_dropped_packets_total",
    "Inner packets dropped, by reason. Since the keeper started. docs/drops.md says for each reason what to do.",
);
pub(super) const HELD: Metric = Metric::gauge(
    "tartan_held_packets",
    "Inner packets that a worker has in hand: read, and neither sent nor delivered nor dropped yet. At rest 0.",
);
pub(super) const IN_RINGS: Metric = Metric::gauge(
    "tartan_ring_packets",
    "Inner packets on the way from the worker that read them to the one that their flow belongs to: the depth of the rings between workers. At rest 0.",
);
pub(super) const WORKERS: Metric = Metric::gauge(
    "tartan_workers",
    "Packet workers that run. tartan status says why there are fewer than were asked for.",
);
pub(super) const STEPS: Metric = Metric::counter(
    "tartan_worker_steps_total",
    "Steps of a worker's loop. Without packets a worker sleeps and takes none; with packets waiting, a count that stands still is a worker that hangs.",
);
pub(super) const VERSION: Metric = Metric::gauge(
    "tartan_worker_tables_version",
    "Version of the tables that a worker forwards by. Below tartan_tables_version for longer than a moment, the worker hangs.",
);
pub(super) const SUPPRESSED: Metric = Metric::counter(
    "tartan_icmp_errors_suppressed_total",
    "ICMP errors not sent because their receiver had drawn too many. They never were packets, and are in no other count. Since the keeper started.",
);
pub(super) const OFFLOADS: Metric = Metric::gauge(
    "tartan_offload_in_use",
    "Whether a worker uses an offload now (1) or works packet by packet (0): checksum, tcp and udp of what is written to the device, send of what is sent to peers.",
);
pub(super) const GIVEN_UP: Metric = Metric::counter(
    "tartan_offloads_given_up_total",
    "How often a worker gave an offload up for a minute because the kernel refused it. Since the keeper started.",
);
