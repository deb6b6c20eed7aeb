//! The other nodes, as far as this one knows: stale MACs, other networks, unknown senders, and what the service finds out
//! about the way to them.

use dataplane::drops::DropReason;

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

/// Why what peers send is dropped when the lists of two nodes do not agree.
const OF_PEERS: [DropReason; 6] = [
    DropReason::UnknownPeer,
    DropReason::WrongVni,
    DropReason::NotOurMac,
    DropReason::BadSourceMac,
    DropReason::NotPeersSource,
    DropReason::NotOurs,
];
