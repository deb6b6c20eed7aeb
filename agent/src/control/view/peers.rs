//! `tartan peers`: the other nodes.

use dataplane::now::Now;
use dataplane::peers::Peer;
use encap::Family;

use super::{View, second};
use crate::api::wire;
use crate::registry::RefusedRecord;

impl View {
    /// The other nodes, with the path MTUs as of `now`, the engine's time.
    pub fn peers(&self, now: Now) -> wire::Peers {
        let line = |peer: &Peer| {
            let traffic = peer.traffic();
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
                sent_packets: traffic.sent_packets,
                sent_bytes: traffic.sent_bytes,
                received_packets: traffic.received_packets,
                received_bytes: traffic.received_bytes,
                refused: traffic.refused,
            }
        };
        let mut peers: Vec<_> = self.snapshot.cluster.peers.iter().map(line).collect();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        wire::Peers {
            peers,
            refused_sources: self.refused_sources.clone(),
            refused_leases: self.refused_leases.iter().map(refused_lease).collect(),
        }
    }
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
