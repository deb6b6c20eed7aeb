//! What waits in the kernel's queues before and behind the workers, and what was lost there.

use std::fmt;

use super::facts::Facts;
use super::metric::Metric;
use super::page::Page;

pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let sockets = || facts.sockets.iter();
    let name = |name: &str| [("socket", name.to_owned())];
    let waiting = sockets().map(|(socket, queue)| (name(socket), queue.waiting));
    page.family(&SOCKET_QUEUE, waiting)?;
    let limits = sockets().map(|(socket, queue)| (name(socket), queue.limit));
    page.family(&SOCKET_LIMIT, limits)?;
    let drops = sockets().map(|(socket, queue)| (name(socket), queue.drops));
    page.family(&SOCKET_DROPS, drops)?;

    let counts = &facts.kernel.counts;
    let device = counts.device;
    page.known(&DEVICE_QUEUE, device.map(|stats| u64::from(stats.queue)))?;
    let ways = |outbound, inbound| {
        [("outbound", outbound), ("inbound", inbound)]
            .map(|(way, count)| ([("direction", way)], count))
    };
    let packets = device.map(|stats| ways(stats.tx_packets, stats.rx_packets));
    page.family(&DEVICE_PACKETS, packets.into_iter().flatten())?;
    let dropped = device.map(|stats| ways(stats.tx_dropped, stats.rx_dropped));
    page.family(&DEVICE_DROPS, dropped.into_iter().flatten())?;

    let forged = counts.pods.map(|drops| {
        let kinds = [
            ("source", drops.forged_sources),
            ("encapsulation", drops.forged_encapsulation),
        ];
        kinds.map(|(kind, count)| ([("forged", kind)], count))
    });
    page.family(&FORGED, forged.into_iter().flatten())?;
    page.known(&LOST_ROUTES, counts.lost_routes)
}

pub(super) const SOCKET_QUEUE: Metric = Metric::gauge(
    "tartan_socket_queue_bytes",
    "Kernel memory of the datagrams that wait in an underlay socket for its worker. Near tartan_socket_queue_limit_bytes the worker does not keep up.",
);
pub(super) const SOCKET_LIMIT: Metric = Metric::gauge(
    "tartan_socket_queue_limit_bytes",
    "How much may wait in an underlay socket before the kernel drops.",
);
pub(super) const SOCKET_DROPS: Metric = Metric::counter(
    "tartan_socket_dropped_datagrams_total",
    "Datagrams, or GRO buffers of them, that the kernel dropped at an underlay socket because its buffer was full or a checksum bad. Not in tartan_dropped_packets_total: no worker saw them.",
);
pub(super) const DEVICE_QUEUE: Metric = Metric::gauge(
    "tartan_device_queue_limit_packets",
    "Packets that may wait in each queue of the tunnel device for its worker, before the kernel drops.",
);
pub(super) const DEVICE_PACKETS: Metric = Metric::counter(
    "tartan_device_packets_total",
    "Packets that the kernel gave to the tunnel device (outbound) and took from it (inbound); a super-packet is one.",
);
pub(super) const DEVICE_DROPS: Metric = Metric::counter(
    "tartan_device_dropped_packets_total",
    "Packets lost at the tunnel device: outbound its queue was full before a worker read them, inbound the kernel dropped what was written. Not in tartan_dropped_packets_total.",
);
pub(super) const FORGED: Metric = Metric::counter(
    "tartan_pod_forged_packets_total",
    "Packets dropped where they leave a pod: source, from an address that is not the pod's; encapsulation, to a port of the overlay at a node. Since the rules were written.",
);
pub(super) const LOST_ROUTES: Metric = Metric::counter(
    "tartan_pod_lost_route_packets_total",
    "Packets of pods that run here, dropped while another program had removed the pod's route. Since the pod's rule was written.",
);
