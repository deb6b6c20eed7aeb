//! A cluster as its first node sees it.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::families::PerFamily;
use dataplane::spec::{ClusterSpec, LocalSpec, NodeSpec, PeerSpec, Spec};
use encap::{Format, Mac, Vni};
use ipnet::{IpNet, Ipv4Net};

/// Node 1 of a cluster with `peers` other nodes, each with a /24 of 10.0.0.0/8; its only pod is 10.0.1.2.
pub fn spec(peers: u32, format: Format) -> Spec {
    let subnet = |node: u32| Ipv4Net::new_assert((0x0a00_0000 + (node << 8)).into(), 24);
    Spec {
        version: 1,
        cluster: Arc::new(ClusterSpec {
            node: NodeSpec {
                networks: vec![IpNet::V4(Ipv4Net::new_assert([10, 0, 0, 0].into(), 8))],

                public: public(1).into(),

                vtep_mac: MAC,
                vni: vni(),
                gbp: false,
                ipv6_over_udp: false,
                device_mtu: 1450,
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
            kernel_prefixes: vec![],
            allowed_sources: vec![],
        }),
    }
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
