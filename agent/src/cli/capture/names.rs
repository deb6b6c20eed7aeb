//! Which peer and which pod a captured packet is of, by its addresses.

use std::collections::HashMap;
use std::net::IpAddr;

use dataplane::capture::Record;
use dataplane::drops::Direction;
use ipnet::IpNet;

use super::packet::Packet;
use crate::api::wire::CaptureNames;

/// Names by address.
pub(super) struct Names {
    pods: HashMap<IpAddr, String>,
    /// By underlay address.
    nodes: HashMap<IpAddr, String>,
    /// By subnet.
    subnets: HashMap<IpNet, String>,
    /// The lengths of these subnets, the longest first, of IPv4 and IPv6.
    lengths: [Vec<u8>; 2],
}

impl Names {
    pub(super) fn new(names: &CaptureNames) -> Names {
        let of = |name: &String| name.clone();
        let pods = names.pods.iter().flat_map(|pod| {
            let addresses = pod.addresses.iter();
            addresses.map(move |address| (*address, of(&pod.name)))
        });
        let nodes = names.peers.iter().flat_map(|peer| {
            let addresses = peer.addresses.iter();
            addresses.map(move |address| (*address, of(&peer.name)))
        });
        let subnets = names.peers.iter().flat_map(|peer| {
            let subnets = peer.subnets.iter();
            subnets.map(move |subnet| (subnet.trunc(), of(&peer.name)))
        });
        let subnets: HashMap<IpNet, String> = subnets.collect();
        let lengths = [true, false].map(|is_v4| {
            let of_family = subnets.keys().filter(|net| net.addr().is_ipv4() == is_v4);
            let mut lengths: Vec<u8> = of_family.map(IpNet::prefix_len).collect();
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
            lengths
        });
        Names {
            pods: pods.collect(),
            nodes: nodes.collect(),
            subnets,
            lengths,
        }
    }

    /// The peer that a packet came from or goes to: by the outer address, or by who owns the inner one.
    pub(super) fn peer(&self, record: &Record<'_>, packet: Option<&Packet>) -> Option<&str> {
        if let Some(remote) = record.remote {
            return self.nodes.get(&remote.ip()).map(String::as_str);
        }
        let packet = packet?;
        self.owner(match record.direction {
            Direction::Outbound => packet.destination,
            Direction::Inbound => packet.source,
        })
    }

    /// The pod of this node that sent or gets it.
    pub(super) fn pod(&self, record: &Record<'_>, packet: Option<&Packet>) -> Option<&str> {
        let packet = packet?;
        let (ours, theirs) = match record.direction {
            Direction::Outbound => (packet.source, packet.destination),
            Direction::Inbound => (packet.destination, packet.source),
        };
        // An ICMP error of Tartan's own is for the sender.
        let pod = self.pods.get(&ours);
        let pod = pod.or_else(|| self.pods.get(&theirs).filter(|_| record.is_own));
        pod.map(String::as_str)
    }

    fn owner(&self, address: IpAddr) -> Option<&str> {
        let [v4, v6] = &self.lengths;
        let lengths = if address.is_ipv4() { v4 } else { v6 };
        lengths.iter().find_map(|length| {
            let net = IpNet::new(address, *length).ok()?.trunc();
            self.subnets.get(&net).map(String::as_str)
        })
    }
}
