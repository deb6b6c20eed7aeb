//! The pods of this node.

use std::fmt;

use dataplane::drop_counts::{DropCounts, Dropped};

use super::facts::Facts;
use super::metric::Metric;
use super::own_series::{OTHER, OwnSeries, Shown};
use super::page::Page;
use super::party_drops::{DROP_COUNTERS, drops, with_drops};
use crate::api::wire::{self, Pod, PodState, PodTraffic};
use crate::control::view::View;

/// Counters of each: the [`COUNTERS`], then its drops.
pub(super) const POD_COUNTERS: usize = COUNTERS.len() + DROP_COUNTERS;

/// Which pods have series of their own, among those whose end on the host is there.
pub(super) fn choose(
    series: &mut OwnSeries<POD_COUNTERS>,
    pods: &wire::Pods,
    view: &View,
) -> Shown<POD_COUNTERS> {
    let counted: Vec<(String, [u64; POD_COUNTERS])> = counted(pods)
        .map(|(pod, traffic)| {
            let [namespace, name, interface] = labels(pod).map(|(_, value)| value);
            let name = format!("{namespace}/{name}/{interface}");
            (name, counters(pod, traffic, view))
        })
        .collect();
    let counted: Vec<_> = counted
        .iter()
        .map(|(name, counts)| (name.as_str(), *counts))
        .collect();
    series.choose(&counted)
}

pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let pods = &facts.pods;
    let states = STATES.map(|(word, state)| {
        let in_state = pods.pods.iter().filter(|pod| pod.state == state);
        ([("state", word)], in_state.count() as u64)
    });
    page.family(&PODS, states)?;
    page.one(&REFUSED_RECORDS, pods.refused.len() as u64)?;
    page.one(&RECLAIMED, facts.view.reclaimed)?;
    page.one(&WITHOUT_SERIES, facts.shown_pods.others as u64)?;
    let own: Vec<(&Pod, &[u64; POD_COUNTERS])> = counted(pods)
        .zip(&facts.shown_pods.own)
        .filter_map(|((pod, _), counts)| Some((pod, counts.as_ref()?)))
        .collect();
    let other = LABELS.map(|label| (label, OTHER));
    for (place, metric) in COUNTERS.into_iter().enumerate() {
        let of_own = own.iter().map(|(pod, counts)| (labels(pod), *counts));
        let all = of_own.chain([(other, &facts.shown_pods.other)]);
        let samples =
            all.map(|(labels, counts)| (labels, counts.get(place).copied().unwrap_or_default()));
        page.family(metric, samples)?;
    }
    let of_own = own.iter().map(|(pod, counts)| (labels(pod), *counts));
    let all = of_own.chain([(other, &facts.shown_pods.other)]);
    let dropped = all.flat_map(|([namespace, name, interface], counts)| {
        drops(counts).map(move |(direction, reason, count)| {
            let labels = [
                namespace,
                name,
                interface,
                ("direction", direction),
                ("reason", reason),
            ];
            (labels, count)
        })
    });
    page.family(&DROPPED, dropped)
}

/// The pods of which the kernel counts traffic.
fn counted(pods: &wire::Pods) -> impl Iterator<Item = (&Pod, PodTraffic)> {
    let pods = pods.pods.iter();
    pods.filter_map(|pod| Some((pod, pod.traffic?)))
}

/// In the order of [`COUNTERS`], then drops.
fn counters(pod: &Pod, traffic: PodTraffic, view: &View) -> [u64; POD_COUNTERS] {
    let counts: [u64; COUNTERS.len()] = [
        traffic.sent_packets,
        traffic.sent_bytes,
        traffic.received_packets,
        traffic.received_bytes,
    ];
    let dropped = view.drops_at(&pod.addresses);
    with_drops(&counts, &dropped.map_or(Dropped::NONE, DropCounts::read))
}

/// Where no runtime named the pod, its container's id is the name. No label is one that Prometheus' discovery sets.
fn labels(pod: &Pod) -> [(&'static str, &str); 3] {
    let (namespace, name) = match &pod.pod {
        Some(full) => full.split_once('/').unwrap_or(("", full)),
        None => ("", pod.container.as_str()),
    };
    let [first, second, third] = LABELS;
    [(first, namespace), (second, name), (third, &pod.ifname)]
}

const LABELS: [&str; 3] = ["pod_namespace", "pod_name", "interface"];

const STATES: [(&str, PodState); 5] = [
    ("reserved", PodState::Reserved),
    ("attached", PodState::Attached),
    ("stranded", PodState::Stranded),
    ("faulty", PodState::Faulty),
    ("leaving", PodState::Leaving),
];

const COUNTERS: [&Metric; 4] = [
    &SENT_PACKETS,
    &SENT_BYTES,
    &RECEIVED_PACKETS,
    &RECEIVED_BYTES,
];

pub(super) const PODS: Metric = Metric::gauge(
    "tartan_pods",
    "Pods attached through tartan-cni, by state. stranded: an address lies in no subnet of this node; faulty: the host's side of the link cannot be put right; leaving: the interface is gone. docs/operate.md explains them.",
);
pub(super) const REFUSED_RECORDS: Metric = Metric::gauge(
    "tartan_pod_records_refused",
    "Attachment records that cannot be used: nothing is delivered to their pods. tartan pods names the files and reasons.",
);
pub(super) const RECLAIMED: Metric = Metric::counter(
    "tartan_pods_reclaimed_total",
    "Attachments that no container runtime deleted and the agent took away, so that their addresses are free. Since the service started.",
);
pub(super) const WITHOUT_SERIES: Metric = Metric::gauge(
    "tartan_pods_without_series",
    "Pods beyond metrics-limit, which share the series pod_name=\"other\". The sum over all series is exact all the same.",
);
pub(super) const SENT_PACKETS: Metric = Metric::counter(
    "tartan_pod_sent_packets_total",
    "Packets from a pod as the kernel counts them at the pod's end on the host, wherever they go; a super-packet is one. Since the pod's interface was made.",
);
pub(super) const SENT_BYTES: Metric = Metric::counter(
    "tartan_pod_sent_bytes_total",
    "Bytes of a pod's packets, Ethernet headers included. Since the pod's interface was made.",
);
pub(super) const RECEIVED_PACKETS: Metric = Metric::counter(
    "tartan_pod_received_packets_total",
    "Packets to a pod as the kernel counts them at the pod's end on the host, wherever they come from; a super-packet is one. Since the pod's interface was made.",
);
pub(super) const RECEIVED_BYTES: Metric = Metric::counter(
    "tartan_pod_received_bytes_total",
    "Bytes of the packets to a pod, Ethernet headers included. Since the pod's interface was made.",
);
pub(super) const DROPPED: Metric = Metric::counter(
    "tartan_pod_dropped_packets_total",
    "Inner packets of a pod that workers dropped, by direction and reason: outbound those that it sent, inbound those that were for it. A count of 0 has no sample. Since the service started, or the pod was attached. docs/drops.md says for each reason what to do.",
);
