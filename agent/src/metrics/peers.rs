//! The other nodes.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use dataplane::kernel_path::Traffic;
use dataplane::peers::Peer;
use encap::{Family, Format};

use super::facts::Facts;
use super::metric::Metric;
use super::own_series::{OTHER, OwnSeries, Shown};
use super::page::Page;
use super::party_drops::{DROP_COUNTERS, drops, with_drops};
use crate::control::view::View;

/// Counters of each: what the programs of the kernel path carried, the [`COUNTERS`] of the workers, then its drops.
pub(super) const PEER_COUNTERS: usize = CARRIED + COUNTERS.len() + DROP_COUNTERS;
/// The counters of what is carried, which come first in [`COUNTERS`].
const CARRIED: usize = 4;
/// The programs begin anew where the kernel path is switched on and off, the workers do not.
const SOURCES: &[usize] = &[CARRIED];

/// The series of peers.
#[derive(Debug)]
pub(super) struct OwnPeers {
    series: OwnSeries<PEER_COUNTERS>,
    /// What the programs had carried when the kernel said so last.
    programs: HashMap<IpAddr, Traffic>,
}

impl OwnPeers {
    pub(super) fn new(limit: usize) -> OwnPeers {
        OwnPeers {
            series: OwnSeries::new(limit, SOURCES),
            programs: HashMap::new(),
        }
    }

    /// Reads what was counted for each peer, and chooses which have series of their own.
    pub(super) fn choose(&mut self, view: &View) -> Shown<PEER_COUNTERS> {
        if let Some(programs) = view.kernel_path.counted_peer_traffic() {
            self.programs = programs;
        }
        let peers = view.snapshot.cluster.peers.iter();
        let counted: Vec<_> = peers
            .map(|peer| (peer.name.as_str(), counters(peer, &self.programs)))
            .collect();
        self.series.choose(&counted)
    }
}

pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let peers = &facts.view.snapshot.cluster.peers;
    let formats = [("udp", Format::Udp), ("vxlan", Format::Vxlan)].map(|(word, format)| {
        let of_format = peers.iter().filter(|peer| peer.format == format);
        ([("format", word)], of_format.count() as u64)
    });
    page.family(&PEERS, formats)?;
    page.one(&WITHOUT_SERIES, facts.shown_peers.others as u64)?;
    let own: Vec<(&Peer, &[u64; PEER_COUNTERS])> = peers
        .iter()
        .zip(&facts.shown_peers.own)
        .filter_map(|(peer, counts)| Some((peer, counts.as_ref()?)))
        .collect();
    for (place, metric) in COUNTERS.into_iter().enumerate() {
        let of_own = own
            .iter()
            .map(|(peer, counts)| (peer.name.as_str(), *counts));
        let all = of_own.chain([(OTHER, &facts.shown_peers.other)]);
        let samples = all.map(|(name, counts)| ([("peer", name)], count(counts, place)));
        page.family(metric, samples)?;
    }
    let of_own = own
        .iter()
        .map(|(peer, counts)| (peer.name.as_str(), *counts));
    let all = of_own.chain([(OTHER, &facts.shown_peers.other)]);
    let dropped = all.flat_map(|(name, counts)| {
        drops(counts).map(move |(direction, reason, count)| {
            let labels = [("peer", name), ("direction", direction), ("reason", reason)];
            (labels, count)
        })
    });
    page.family(&DROPPED, dropped)?;
    let paths = own.iter().flat_map(|(peer, _)| {
        let families = [("ipv4", Family::V4), ("ipv6", Family::V6)];
        families.into_iter().filter_map(move |(word, family)| {
            let mtu = peer.path_mtu(family, facts.now)?;
            Some((
                [("peer", peer.name.as_str()), ("family", word)],
                u64::from(mtu),
            ))
        })
    });
    page.family(&PATH_MTU, paths)
}

/// What workers and programs have counted together of the metric at `place` in [`COUNTERS`].
fn count(counters: &[u64; PEER_COUNTERS], place: usize) -> u64 {
    let (programs, workers) = counters.split_at(CARRIED);
    let of = |counters: &[u64]| counters.get(place).copied().unwrap_or_default();
    of(programs).saturating_add(of(workers))
}

/// In the order of [`PEER_COUNTERS`]. `programs` has what the programs of the kernel path carried, by public address.
fn counters(peer: &Peer, programs: &HashMap<IpAddr, Traffic>) -> [u64; PEER_COUNTERS] {
    let mut kernel = peer
        .public
        .iter()
        .filter_map(|address| programs.get(&address));
    let kernel = kernel.next().copied().unwrap_or_default();
    let user = peer.traffic();
    let counts: [u64; CARRIED + COUNTERS.len()] = [
        kernel.sent_packets,
        kernel.sent_bytes,
        kernel.received_packets,
        kernel.received_bytes,
        user.sent_packets,
        user.sent_bytes,
        user.received_packets,
        user.received_bytes,
        peer.refused(),
    ];
    with_drops(&counts, &peer.drops().read())
}

const COUNTERS: [&Metric; 5] = [
    &SENT_PACKETS,
    &SENT_BYTES,
    &RECEIVED_PACKETS,
    &RECEIVED_BYTES,
    &REFUSED,
];

pub(super) const PEERS: Metric = Metric::gauge(
    "tartan_peers",
    "Other nodes that this one knows, by the format in which it sends to them. 0 in both: the list of nodes is empty, or has not come yet.",
);
pub(super) const WITHOUT_SERIES: Metric = Metric::gauge(
    "tartan_peers_without_series",
    "Peers beyond metrics-limit, which share the series peer=\"other\". The sum over all series is exact all the same.",
);
pub(super) const SENT_PACKETS: Metric = Metric::counter(
    "tartan_peer_sent_packets_total",
    "Inner packets sent to a peer. Since the service started.",
);
pub(super) const SENT_BYTES: Metric = Metric::counter(
    "tartan_peer_sent_bytes_total",
    "Bytes of the inner packets sent to a peer, without the headers of the overlay. Since the service started.",
);
pub(super) const RECEIVED_PACKETS: Metric = Metric::counter(
    "tartan_peer_received_packets_total",
    "Inner packets from a peer that were delivered. Since the service started. Growing sent and standing received: the peer is down, or does not hear this node.",
);
pub(super) const RECEIVED_BYTES: Metric = Metric::counter(
    "tartan_peer_received_bytes_total",
    "Bytes of the inner packets from a peer that were delivered. Since the service started.",
);
pub(super) const REFUSED: Metric = Metric::counter(
    "tartan_peer_refused_packets_total",
    "Packets from a peer that were dropped for what they are: not those over a share or a limit of probes, nor answers that found no room. Since the service started. tartan_peer_dropped_packets_total has the reasons.",
);
pub(super) const DROPPED: Metric = Metric::counter(
    "tartan_peer_dropped_packets_total",
    "Inner packets of a peer that workers dropped, by direction and reason: inbound those that it sent, outbound those that were routed to it. A count of 0 has no sample. Since the service started. docs/drops.md says for each reason what to do.",
);
pub(super) const PATH_MTU: Metric = Metric::gauge(
    "tartan_peer_path_mtu_bytes",
    "The largest outer packet that is sent to a peer's address of a family. Below tartan_underlay_mtu_bytes a router on the way has reported a narrower link, or probes have found one. Only of peers with series of their own.",
);
