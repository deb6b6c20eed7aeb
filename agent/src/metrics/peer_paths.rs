//! What the probes of the paths to other nodes say.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::peers::Peer;
use encap::Family;

use super::facts::Facts;
use super::metric::Metric;
use super::page::Page;
use crate::peer_health::PeerHealthView;
use crate::peer_health::report::PathReport;

/// The paths to each peer, by its name.
pub(super) type Paths = HashMap<Arc<str>, Vec<PathReport>>;

pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let peers = &facts.view.snapshot.cluster.peers;
    let mut by_state: BTreeMap<&str, u64> = BTreeMap::new();
    for peer in peers.iter() {
        *by_state.entry(state(&facts.paths, peer)).or_default() += 1;
    }
    let by_state = by_state.into_iter();
    page.family(
        &IN_STATE,
        by_state.map(|(state, count)| ([("state", state)], count)),
    )?;
    let own: Vec<&Peer> = peers
        .iter()
        .zip(&facts.shown_peers.own)
        .filter_map(|(peer, counts)| counts.is_some().then_some(peer))
        .collect();
    let states = own.iter().map(|peer| {
        let labels = [
            ("peer", peer.name.as_str()),
            ("state", state(&facts.paths, peer)),
        ];
        (labels, 1_u64)
    });
    page.family(&STATE, states)?;
    let round_trip = |path: &PathReport| Some(path.round_trips?.0.as_secs_f64());
    page.family(&ROUND_TRIP, each(&own, &facts.paths, round_trip))?;
    let families = [(Family::V4, "ipv4"), (Family::V6, "ipv6")];
    let round_trips =
        families.map(|(family, word)| ([("family", word)], *facts.round_trips.of(family)));
    page.histograms(&PROBE_ROUND_TRIP, round_trips)?;
    let outcomes = families.map(|(family, word)| ([("family", word)], facts.outcomes.of(family)));
    page.family(&SENT, outcomes.map(|(labels, of)| (labels, of.sent())))?;
    page.family(&LOST, outcomes.map(|(labels, of)| (labels, of.lost)))?;
    page.family(&LOSS, each(&own, &facts.paths, |path| path.loss.0))?;
    let measured = |path: &PathReport| path.measured.map(u64::from);
    page.family(&MEASURED_MTU, each(&own, &facts.paths, measured))
}

/// The state of a peer, that of its worst path, as `tartan peers` has it.
fn state(paths: &Paths, peer: &Peer) -> &'static str {
    let of_peer = paths.get(peer.name.as_str()).map(Vec::as_slice);
    match PeerHealthView::worst(of_peer.unwrap_or_default()) {
        Some(path) => path.state.name(),
        None if peer.underlays().next().is_none() => "unreachable",
        None => "new",
    }
}

/// A value of each path that has one, with the path's labels.
fn each<'a, V>(
    own: &'a [&'a Peer],
    paths: &'a Paths,
    value: impl Fn(&PathReport) -> Option<V> + Copy + 'a,
) -> impl Iterator<Item = ([(&'static str, &'a str); 2], V)> + 'a {
    own.iter().flat_map(move |peer| {
        let of_peer = paths.get(peer.name.as_str()).into_iter().flatten();
        of_peer.filter_map(move |path| {
            let family = match path.address {
                IpAddr::V4(_) => "ipv4",
                IpAddr::V6(_) => "ipv6",
            };
            let labels = [("peer", peer.name.as_str()), ("family", family)];
            Some((labels, value(path)?))
        })
    })
}

pub(super) const IN_STATE: Metric = Metric::gauge(
    "tartan_peers_in_state",
    "Peers by the state that probes find, all of them, those without series of their own included. A state that no peer has has no sample.",
);
pub(super) const STATE: Metric = Metric::gauge(
    "tartan_peer_state",
    "1 for the state that a peer is in, that of its worst path: the STATE of tartan peers. Other states have no sample. Only of peers with series of their own.",
);
pub(super) const ROUND_TRIP: Metric = Metric::gauge(
    "tartan_peer_round_trip_seconds",
    "Median of the last round trips of probes to a peer's address of a family. No sample where none is answered. Only of peers with series of their own.",
);
pub(super) const PROBE_ROUND_TRIP: Metric = Metric::histogram(
    "tartan_probe_round_trip_seconds",
    "Round trips of all answered probes to all peers, by the family of the peer's address, those without series of their own included. What tartan trace asks is not in. Since the service started.",
);
pub(super) const SENT: Metric = Metric::counter(
    "tartan_probes_sent_total",
    "Probes to all peers whose outcome is known, by the family of the peer's address: answered in time, or lost. Those that try a size that may be too large are not in, nor those to peers that have never answered nor sent one. Since the service started.",
);
pub(super) const LOST: Metric = Metric::counter(
    "tartan_probes_lost_total",
    "Of tartan_probes_sent_total those that were not answered in time: the LOSS of tartan peers, of all peers together, those without series of their own included.",
);
pub(super) const LOSS: Metric = Metric::gauge(
    "tartan_peer_loss_ratio",
    "Share of the probes to a peer's address of a family that were lost within the last minute, 0 to 1. No sample where none was counted. Only of peers with series of their own.",
);
pub(super) const MEASURED_MTU: Metric = Metric::gauge(
    "tartan_peer_measured_mtu_bytes",
    "The largest outer packet that a probe proved to pass to a peer's address of a family. No sample before the first. Only of peers with series of their own.",
);
