//! The tables that change with the cluster's nodes: the peers and the routes to them.
//!
//! Theory of operation: the tables are made from those before them. A peer whose spec is the same keeps its number, and
//! with it every entry that names it; only peers that came, went or changed are taken out and put in. What does not
//! depend on the change is copied as plain memory. Where that cannot be done exactly (two peers claim one prefix or
//! address, so that it is not known what stands behind an entry that goes) the table is made anew from the whole spec:
//! the answers are the same in both ways.

use std::sync::Arc;

use encap::pull::Vtep;
use ipnet::IpNet;

use crate::families::PerFamily;
use crate::fib::Fib;
use crate::peer_id::PeerId;
use crate::peers::{Peers, Placed};
use crate::spec::ClusterSpec;

/// The other nodes and the routes to them.
pub struct Cluster {
    /// Inner destination → peer.
    pub fib: Fib,
    /// The other nodes.
    pub peers: Peers,
    /// What a VXLAN datagram must be addressed to.
    pub(crate) vtep: Vtep,
    /// Carry inner IPv6 in the `udp` format.
    pub(crate) ipv6_over_udp: bool,
    /// The largest packet of each family that the cluster sends, bytes.
    pub(crate) inner_mtu: PerFamily<u16>,
    /// What the tables were made of.
    spec: Arc<ClusterSpec>,
}

impl Cluster {
    /// The tables that `spec` describes, made from the `previous` ones.
    pub(crate) fn new(spec: &Arc<ClusterSpec>, previous: Option<&Cluster>) -> Cluster {
        let before = previous.map(|previous| (&*previous.spec, &previous.peers));
        let (peers, change) = Peers::new(spec, before);
        let fib = previous
            .filter(|previous| previous.spec.node.networks == spec.node.networks)
            .and_then(|previous| {
                let removed: Vec<_> = routes(&change.removed).collect();
                let added: Vec<_> = routes(&change.added).collect();
                previous.fib.changed(&removed, &added)
            });
        let all = || {
            let all: Vec<Placed<'_>> = peers.ids().zip(&spec.peers).collect();
            let all: Vec<_> = routes(&all).collect();
            Fib::new(&spec.node.networks, &all)
        };
        Cluster {
            fib: fib.unwrap_or_else(all),
            vtep: Vtep {
                mac: spec.node.vtep_mac.v4,
                mac_v6: spec.node.vtep_mac.v6,
                vni: spec.node.vni,
                gbp: spec.node.gbp,
            },
            ipv6_over_udp: spec.node.ipv6_over_udp,
            inner_mtu: spec.node.inner_mtu,
            peers,
            spec: Arc::clone(spec),
        }
    }

    /// Whether the tables were made of this very spec.
    pub(crate) fn is_of(&self, spec: &Arc<ClusterSpec>) -> bool {
        Arc::ptr_eq(&self.spec, spec)
    }
}

fn routes<'a>(peers: &'a [Placed<'a>]) -> impl Iterator<Item = (IpNet, PeerId)> + 'a {
    peers
        .iter()
        .flat_map(|(id, peer)| peer.subnets.iter().map(|subnet| (*subnet, *id)))
}

#[cfg(test)]
pub(crate) mod tests;
