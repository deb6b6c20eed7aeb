//! Everything a worker knows, immutable: control builds one, publishes it with one pointer swap, and workers adopt it
//! between batches.

use std::net::IpAddr;

use encap::pull::Vtep;
use ipnet::IpNet;

use crate::fib::Fib;
use crate::peers::{Peer, PeerId, Peers};
use crate::pods::Pods;
use crate::spec::Spec;

/// One consistent view of the cluster.
pub struct Snapshot {
    /// The spec's version.
    pub version: u64,
    /// Inner destination → peer.
    pub fib: Fib,
    /// The other nodes.
    pub peers: Peers,
    /// The local set.
    pub pods: Pods,
    /// What a VXLAN datagram must be addressed to.
    pub(crate) vtep: Vtep,
    /// Carry inner IPv6 in the `udp` format.
    pub(crate) ipv6_over_udp: bool,
    /// MTU of the tunnel device, bytes.
    pub(crate) device_mtu: u16,
}

impl Snapshot {
    /// The view that `spec` describes. What was learned and counted about peers of `previous` lives on in it.
    pub fn new(spec: &Spec, previous: Option<&Snapshot>) -> Snapshot {
        let routes: Vec<(IpNet, PeerId)> = (0u32..)
            .zip(&spec.peers)
            .flat_map(|(id, peer)| peer.subnets.iter().map(move |subnet| (*subnet, PeerId(id))))
            .collect();
        Snapshot {
            version: spec.version,
            fib: Fib::new(&spec.node.cluster, &routes),
            peers: Peers::new(&spec.node, &spec.peers, previous.map(|p| &p.peers)),
            pods: Pods::new(spec),
            vtep: Vtep {
                mac: spec.node.vtep_mac,
                vni: spec.node.vni,
                gbp: spec.node.gbp,
            },
            ipv6_over_udp: spec.node.ipv6_over_udp,
            device_mtu: spec.node.device_mtu,
        }
    }

    /// Whether inner `source` belongs to `peer`: its subnets, its own node addresses, what `accept-sources` lists. An
    /// address of ours belongs to no peer, whatever a lease says.
    pub fn belongs(&self, id: PeerId, peer: &Peer, source: IpAddr) -> bool {
        let claimed = self.fib.lookup(source) == Some(id)
            || peer.also.iter().any(|net| net.contains(&source));
        claimed && !self.pods.is_ours(source) && !self.pods.in_own_subnet(source)
    }
}
