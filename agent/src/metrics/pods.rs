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
use crate::reconcile::pod_id;

/// Counters of each: the [`COUNTERS`], then its drops.
pub(super) const POD_COUNTERS: usize = COUNTERS.len() + DROP_COUNTERS;
/// Those of the kernel path, of each: as many.
pub(super) const KERNEL_COUNTERS: usize = COUNTERS.len();

/// Which pods have series of their own, among those whose end on the host is there: with what the kernel counts at that end,
/// and with what the programs of the kernel path carried, whose counters begin anew at other times.
pub(super) fn choose(
    series: &mut OwnPods,
    pods: &wire::Pods,
    view: &View,
) -> (Shown<POD_COUNTERS>, Shown<KERNEL_COUNTERS>) {
    let names: Vec<String> = counted(pods).map(|(pod, _)| name(pod)).collect();
    let names = || names.iter().map(String::as_str);
    let at_host: Vec<_> = names()
        .zip(counted(pods).map(|(pod, traffic)| counters(pod, traffic, view)))
        .collect();
    let in_kernel: Vec<_> = names()
        .zip(counted(pods).map(|(pod, _)| in_kernel(pod)))
        // What the programs do not say now they may say again at the next scrape.
        .map(|(name, counts)| (name, counts.unwrap_or_else(|| series.in_kernel.last(name))))
        .collect();
    (
        series.at_host.choose(&at_host),
        series.in_kernel.choose(&in_kernel),
    )
}

/// The series of pods: the same pods have them of both kinds.
#[derive(Debug)]
pub(super) struct OwnPods {
    at_host: OwnSeries<POD_COUNTERS>,
    in_kernel: OwnSeries<KERNEL_COUNTERS>,
}

impl OwnPods {
    pub(super) fn new(limit: usize) -> OwnPods {
        OwnPods {
            at_host: OwnSeries::new(limit, SOURCES),
            in_kernel: OwnSeries::new(limit, &[]),
        }
    }
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
    write_counters(page, facts, &facts.shown_pods, COUNTERS)?;
    let dropped = series(facts, &facts.shown_pods).flat_map(|(labels, counts)| {
        let [namespace, name, interface] = labels;
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
    page.family(&DROPPED, dropped)?;
    write_counters(page, facts, &facts.shown_pods_in_kernel, IN_KERNEL)
}

/// The counters that come first in each series of `shown`.
fn write_counters<const N: usize>(
    page: &mut Page<'_>,
    facts: &Facts,
    shown: &Shown<N>,
    metrics: [&Metric; COUNTERS.len()],
) -> fmt::Result {
    for (place, metric) in metrics.into_iter().enumerate() {
        let samples = series(facts, shown)
            .map(|(labels, counts)| (labels, counts.get(place).copied().unwrap_or_default()));
        page.family(metric, samples)?;
    }
    Ok(())
}

/// Labels and counters of the pods that have series of their own, and of the others together.
fn series<'a, const N: usize>(
    facts: &'a Facts,
    shown: &'a Shown<N>,
) -> impl Iterator<Item = ([(&'static str, &'a str); 3], &'a [u64; N])> {
    let pods = counted(&facts.pods).zip(&shown.own);
    let own = pods.filter_map(|((pod, _), counts)| Some((labels(pod), counts.as_ref()?)));
    own.chain([(LABELS.map(|label| (label, OTHER)), &shown.other)])
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
    let dropped = view.drops_of(pod_id(&pod.container, &pod.ifname), &pod.addresses);
    with_drops(&counts, &dropped.map_or(Dropped::NONE, DropCounts::read))
}

fn name(pod: &Pod) -> String {
    let values = labels(pod).map(|(_, value)| value);
    match values.iter().all(|value| *value == OTHER) {
        // It would have the labels of the rest.
        true => OTHER.to_owned(),
        false => values.join("/"),
    }
}

/// What the programs of the kernel path carried for it, in the order of [`IN_KERNEL`].
fn in_kernel(pod: &Pod) -> Option<[u64; KERNEL_COUNTERS]> {
    let carried = pod.in_kernel?;
    Some([
        carried.sent_packets,
        carried.sent_bytes,
        carried.received_packets,
        carried.received_bytes,
    ])
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

/// The drops do not begin anew with the host's end of the pod's interface.
const SOURCES: &[usize] = &[COUNTERS.len()];

const COUNTERS: [&Metric; 4] = [
    &SENT_PACKETS,
    &SENT_BYTES,
    &RECEIVED_PACKETS,
    &RECEIVED_BYTES,
];

const IN_KERNEL: [&Metric; KERNEL_COUNTERS] = [
    &KERNEL_PATH_SENT_PACKETS,
    &KERNEL_PATH_SENT_BYTES,
    &KERNEL_PATH_RECEIVED_PACKETS,
    &KERNEL_PATH_RECEIVED_BYTES,
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
pub(super) const KERNEL_PATH_SENT_PACKETS: Metric = Metric::counter(
    "tartan_pod_kernel_path_sent_packets_total",
    "Inner wire packets of a pod that the programs of the kernel path sent to peers. Since the programs know the pod.",
);
pub(super) const KERNEL_PATH_SENT_BYTES: Metric = Metric::counter(
    "tartan_pod_kernel_path_sent_bytes_total",
    "Inner bytes of a pod's packets that the programs of the kernel path sent to peers. Since the programs know the pod.",
);
pub(super) const KERNEL_PATH_RECEIVED_PACKETS: Metric = Metric::counter(
    "tartan_pod_kernel_path_received_packets_total",
    "Inner wire packets from peers that the programs of the kernel path delivered to a pod. Since the programs know the pod.",
);
pub(super) const KERNEL_PATH_RECEIVED_BYTES: Metric = Metric::counter(
    "tartan_pod_kernel_path_received_bytes_total",
    "Inner bytes of the packets from peers that the programs of the kernel path delivered to a pod. Since the programs know the pod.",
);
