//! The other nodes, as far as this one knows: stale MACs, other networks, unknown senders, and what the service finds out
//! about the way to them.

use std::time::SystemTime;

use dataplane::drops::DropReason;

use crate::api::wire::{GOOD_STATES, Peer};

use super::examination::Examination;
use super::finding::Check;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("peers");
    match &e.peers {
        Some(peers) => {
            check.fact(format!(
                "{} peers, {} refused sources, {} refused records",
                peers.peers.len(),
                peers.refused_sources.len(),
                peers.refused_leases.len()
            ));
            let bad = peers.peers.iter().filter(|peer| is_bad(peer));
            for peer in bad.take(MOST_SHOWN) {
                check.fact(seen_of(peer));
            }
            for peer in peers.peers.iter() {
                for (lease, seen) in [
                    (&peer.vtep_mac, &peer.seen_vtep_mac),
                    (&peer.vtep_mac_v6, &peer.seen_vtep_mac_v6),
                ] {
                    if let Some(seen) = seen {
                        check.fact(format!(
                            "frames of {} come from {seen}; its lease has {lease}",
                            peer.name
                        ));
                    }
                }
            }
        }
        None => check.unknown("the way to other nodes: only a running agent sees it"),
    }
    if let Some(drops) = &e.drops {
        for reason in &drops.reasons {
            if reason.count > 0
                && OF_PEERS
                    .iter()
                    .any(|of_peers| of_peers.name() == reason.reason)
            {
                check.fact(format!(
                    "{} packets dropped as {} ({})",
                    reason.count, reason.reason, reason.direction
                ));
            }
        }
    }
    e.board.deal(&mut check);
    check.done()
}

fn is_bad(peer: &Peer) -> bool {
    !GOOD_STATES.contains(&&*peer.state)
}

/// What probes and packets have shown of a peer.
fn seen_of(peer: &Peer) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let for_so_long = |at: u64| format!("for {} s", now.saturating_sub(at));
    let since = peer.since.map(for_so_long).unwrap_or_default();
    let heard = match peer.heard {
        Some(at) => format!("nothing of it was accepted {}", for_so_long(at)),
        None => "nothing of it was accepted since the service started".to_owned(),
    };
    let paths = peer.paths.iter().map(|path| {
        let loss = path
            .loss_1m
            .map(|loss| format!(", {loss} % of its probes lost in a minute"));
        let size = path.mtu_measured.map(|measured| {
            format!(
                ", {measured} of {} bytes proved to arrive",
                path.mtu_configured
            )
        });
        format!(
            "{}: {}{}{}",
            path.address,
            path.state,
            loss.unwrap_or_default(),
            size.unwrap_or_default()
        )
    });
    let paths: Vec<String> = paths.collect();
    format!(
        "{} is {} {since}; {}; {heard}",
        peer.name,
        peer.state,
        paths.join("; ")
    )
}

/// Peers of which the evidence is shown.
const MOST_SHOWN: usize = 10;

/// Why what peers send is dropped when the lists of two nodes do not agree.
const OF_PEERS: [DropReason; 6] = [
    DropReason::UnknownPeer,
    DropReason::WrongVni,
    DropReason::NotOurMac,
    DropReason::BadSourceMac,
    DropReason::NotPeersSource,
    DropReason::NotOurs,
];
