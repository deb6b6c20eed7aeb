//! `tartan peers`: the other nodes.

use std::time::{Duration, SystemTime};

use dataplane::now::Now;
use dataplane::peers::Peer;
use encap::Family;

use super::drops::dropped;
use super::{View, second};
use crate::api::wire;
use crate::peer_health::PeerHealthView;
use crate::peer_health::report::PathReport;
use crate::peer_health::state::State;
use crate::registry::RefusedRecord;

impl View {
    /// The other nodes, with the path MTUs as of `now`, the engine's time.
    pub fn peers(&self, now: Now) -> wire::Peers {
        let programs = self.kernel_path.peer_traffic();
        let mut paths = self.peer_health.paths();
        let mut line = |peer: &Peer| {
            let paths = paths.remove(&*peer.name).unwrap_or_default();
            let (state, since, reason) = health(&paths, peer.underlays().next().is_some());
            let traffic = peer.traffic();
            let mut in_kernel = peer
                .public
                .iter()
                .filter_map(|address| programs.get(&address));
            let in_kernel = in_kernel.next().copied().unwrap_or_default();
            wire::Peer {
                name: peer.name.clone(),
                public_ip: peer.public.first(),
                public_ipv6: second(peer.public),
                format: peer.format.to_string(),
                subnets: peer.subnets.clone(),
                vtep_mac: peer.vtep_mac.v4.to_string(),
                vtep_mac_v6: peer.vtep_mac.v6.to_string(),
                seen_vtep_mac: peer.other_mac(Family::V4).map(|mac| mac.to_string()),
                seen_vtep_mac_v6: peer.other_mac(Family::V6).map(|mac| mac.to_string()),
                path_mtu: peer.path_mtu(Family::of(peer.public.first()), now),
                path_mtu_v6: second(peer.public).and_then(|_| peer.path_mtu(Family::V6, now)),
                sent_packets: traffic.sent_packets + in_kernel.sent_packets,
                sent_bytes: traffic.sent_bytes + in_kernel.sent_bytes,
                received_packets: traffic.received_packets + in_kernel.received_packets,
                received_bytes: traffic.received_bytes + in_kernel.received_bytes,
                refused: peer.refused(),
                dropped: dropped(Some(peer.drops())),
                state,
                since,
                reason,
                heard: (peer.last_heard()).map(|at| unix(self.peer_health.time_of(at))),
                user_space: self
                    .kernel_path
                    .user_space(peer.public)
                    .map(|reason| reason.to_string()),
                paths: paths.iter().map(path).collect(),
            }
        };
        let mut peers: Vec<_> = self.snapshot.cluster.peers.iter().map(&mut line).collect();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        wire::Peers {
            peers,
            refused_sources: self.refused_sources.clone(),
            refused_leases: self.refused_leases.iter().map(refused_lease).collect(),
        }
    }
}

/// The state of a peer: that of its worst path, since when, and the reason. One that can be reached and has no paths yet is
/// new: they follow the tables within a second.
fn health(paths: &[PathReport], has_underlay: bool) -> (String, Option<u64>, String) {
    let worst = PeerHealthView::worst(paths);
    let name = state_name(worst.map(|path| path.state.name()), has_underlay);
    let Some(worst) = worst else {
        let reason = match has_underlay {
            true => "",
            false => "it has no address of a family that this node has",
        };
        return (name.to_owned(), None, reason.to_owned());
    };
    let reason = worst.reason();
    let reason = match paths.len() > 1 && !reason.is_empty() {
        true => format!("{}: {reason}", worst.address),
        false => reason,
    };
    (name.to_owned(), Some(unix(worst.since)), reason)
}

/// The word for a peer whose worst path is in the state `worst`.
pub(super) fn state_name(worst: Option<&'static str>, has_underlay: bool) -> &'static str {
    match (worst, has_underlay) {
        (Some(worst), _) => worst,
        (None, true) => State::New.name(),
        (None, false) => "unreachable",
    }
}

fn path(report: &PathReport) -> wire::PeerPath {
    let micros = |time: Duration| time.as_micros() as u64;
    let percent = |share: f64| (share * 1000.0).round() / 10.0;
    let (loss_1m, loss_10m) = report.loss;
    wire::PeerPath {
        address: report.address,
        state: report.state.name().to_owned(),
        since: unix(report.since),
        reason: report.reason(),
        answers_probes: report.is_probed,
        rtt_p50: report.round_trips.map(|(p50, _)| micros(p50)),
        rtt_p99: report.round_trips.map(|(_, p99)| micros(p99)),
        loss_1m: loss_1m.map(percent),
        loss_10m: loss_10m.map(percent),
        mtu_measured: report.measured,
        mtu_configured: report.configured,
        hears_us: report.state.hears_us(),
        next_probe: report
            .next
            .map(|next| (next.as_secs_f64() * 10.0).ceil() / 10.0),
    }
}

fn unix(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn refused_lease(record: &RefusedRecord) -> wire::RefusedLease {
    wire::RefusedLease {
        name: record.name.clone(),
        place: record.place.to_string(),
        public_ip: record.public,
        subnets: record.subnets.clone(),
        reason: record.reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_whose_paths_are_not_known_yet_is_new() {
        assert_eq!(health(&[], true), ("new".to_owned(), None, String::new()));
        assert_eq!(health(&[], false).0, "unreachable");
    }
}
