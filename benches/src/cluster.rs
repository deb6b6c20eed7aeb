//! A cluster as its first node sees it.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dataplane::families::{PerFamily, PublicAddresses};
use dataplane::spec::{ClusterSpec, LocalSpec, NodeSpec, PeerSpec, Spec};
use encap::{Format, Mac, Vni};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Node 1 of a cluster with `peers` other nodes, each with a /24 of 10.0.0.0/8; its only pod is 10.0.1.2.
pub fn spec(peers: u32, format: Format) -> Spec {
    let subnet = |node: u32| Ipv4Net::new_assert((0x0a00_0000 + (node << 8)).into(), 24);
    Spec {
        version: 1,
        cluster: Arc::new(ClusterSpec {
            node: NodeSpec {
                networks: vec![IpNet::V4(Ipv4Net::new_assert([10, 0, 0, 0].into(), 8))],

                public: public(1).into(),

                vtep_mac: PerFamily::each(|_| MAC),
                vni: vni(),
                gbp: false,
                ipv6_over_udp: false,
                inner_mtu: PerFamily::each(|_| 1450),
                underlay_mtu: 1500,
                udp_port: port(Format::Udp),
                vxlan_port: port(Format::Vxlan),
            },
            peers: (2..peers + 2)
                .map(|node| {
                    Arc::new(PeerSpec {
                        name: format!("node{node}"),
                        public: public(node).into(),
                        underlay_sources: vec![],
                        subnets: vec![IpNet::V4(subnet(node))],
                        accept_sources: vec![],
                        format,
                        vtep_mac: PerFamily::each(|_| PEERS_MAC),
                    })
                })
                .collect(),
        }),
        local: Arc::new(LocalSpec {
            subnets: vec![IpNet::V4(subnet(1))],
            tunnel: vec![IpAddr::V4(subnet(1).network())],
            addresses: vec![public(1)],
            attachments: vec![IpAddr::from([10, 0, 1, 2])],
            pods: [].into(),
            kernel_prefixes: vec![],
            allowed_sources: vec![],
        }),
    }
}

/// The same of both families, inside and outside: each node has a /64 of fd00:10::/48 too. 110 pods are on node 1.
pub fn dual_stack(peers: u32) -> Spec {
    let v6 = |node: u32| Ipv6Addr::from([0xfd00, 0x10, 0, node as u16, 0, 0, 0, 0]);
    let outside = |node: u32| Ipv6Addr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, node as u16]);
    let subnet = |node| IpNet::V6(Ipv6Net::new_assert(v6(node), 64));
    let both = |public: PublicAddresses, node| match public {
        PublicAddresses::V4(v4) => PublicAddresses::Dual(v4, outside(node)),
        other => other,
    };
    let mut spec = spec(peers, Format::Vxlan);
    let cluster = Arc::make_mut(&mut spec.cluster);
    cluster
        .node
        .networks
        .push(IpNet::V6(Ipv6Net::new_assert(v6(0), 48)));
    cluster.node.public = both(cluster.node.public, 1);
    for (peer, node) in cluster.peers.iter_mut().zip(2..) {
        let peer = Arc::make_mut(peer);
        peer.public = both(peer.public, node);
        peer.subnets.push(subnet(node));
    }
    let local = Arc::make_mut(&mut spec.local);
    local.subnets.push(subnet(1));
    local.tunnel.push(v6(1).into());
    local.addresses.push(outside(1).into());
    let pods = (2..112u8).map(|pod| IpAddr::from([10, 0, 1, pod]));
    local.attachments = pods.collect();
    spec
}

/// The address of a node in the underlay.
pub fn public(node: u32) -> IpAddr {
    IpAddr::from((0xc000_0000 + node).to_be_bytes())
}

/// The port of each format.
pub fn port(format: Format) -> u16 {
    match format {
        Format::Udp => 8285,
        Format::Vxlan => 8472,
    }
}

/// The node's own VTEP.
pub const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Everybody else's.
pub const PEERS_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// The network.
pub fn vni() -> Vni {
    Vni::new(1).unwrap()
}
