//! The specs of the nodes of a test cluster: node `i` (from 1) is 192.0.2.i, 2001:db8::i or both outside, owns
//! 10.244.i.0/24 and fd00:10:244:i::/64, and has two pods, `.2` and `.3`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dataplane::families::{PerFamily, PublicAddresses};
use dataplane::spec::{ClusterSpec, LocalSpec, NodeSpec, PeerSpec, PodId, Spec};
use encap::{Format, Mac, Vni};
use ipnet::IpNet;

/// MTU of every tunnel device and pod: what VXLAN leaves of a 1500-byte underlay over IPv4.
pub const MTU: u16 = 1450;

/// Pods of every node.
pub const PODS: u8 = 2;

/// A cluster in which every node is a peer of every other.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// How many nodes.
    pub nodes: u8,
    /// `public[i - 1]`: node i's addresses on the underlay.
    pub public: Vec<PublicAddresses>,
    /// `formats[i - 1][j - 1]`: how node i sends to node j.
    pub formats: Vec<Vec<Format>>,
}

impl ClusterPlan {
    /// `nodes` nodes over IPv4 that all send in `format`.
    pub fn new(nodes: u8, format: Format) -> ClusterPlan {
        ClusterPlan {
            nodes,
            public: (1..=nodes).map(v4).collect(),
            formats: vec![vec![format; usize::from(nodes)]; usize::from(nodes)],
        }
    }

    /// The same cluster over another underlay.
    pub fn over(mut self, public: impl Fn(u8) -> PublicAddresses) -> ClusterPlan {
        self.public = (1..=self.nodes).map(public).collect();
        self
    }

    /// The spec of node `i`.
    pub fn spec(&self, i: u8) -> Spec {
        let node = self.node(i);
        Spec {
            version: 1,
            local: Arc::new(LocalSpec {
                subnets: subnets(i),
                tunnel: subnets(i).iter().map(IpNet::network).collect(),
                addresses: node.public.iter().collect(),
                attachments: (0..PODS).flat_map(|n| [pod(i, n), pod6(i, n)]).collect(),
                pods: (0..PODS).flat_map(|n| pod_of(i, n)).collect(),
                kernel_prefixes: vec![],
                allowed_sources: vec![],
            }),
            cluster: Arc::new(ClusterSpec {
                node,
                peers: (1..=self.nodes)
                    .filter(|j| *j != i)
                    .map(|j| Arc::new(self.peer(i, j)))
                    .collect(),
            }),
        }
    }

    fn node(&self, i: u8) -> NodeSpec {
        NodeSpec {
            networks: vec![net("10.244.0.0/16"), net("fd00:10:244::/56")],
            public: self.public(i),
            vtep_mac: PerFamily::each(|_| mac(i)),
            vni: Vni::new(1).unwrap(),
            gbp: false,
            ipv6_over_udp: false,
            inner_mtu: PerFamily::each(|_| MTU),
            underlay_mtu: if self.public.iter().all(|p| p.iter().all(|a| a.is_ipv4())) {
                1500
            } else {
                1520
            },
            udp_port: 8285,
            vxlan_port: 8472,
        }
    }

    fn peer(&self, i: u8, j: u8) -> PeerSpec {
        PeerSpec {
            name: format!("node{j}"),
            public: self.public(j),
            underlay_sources: vec![],
            subnets: subnets(j),
            accept_sources: vec![],
            format: self.formats[usize::from(i - 1)][usize::from(j - 1)],
            vtep_mac: PerFamily::each(|_| mac(j)),
        }
    }

    fn public(&self, i: u8) -> PublicAddresses {
        self.public[usize::from(i - 1)]
    }
}

/// The cluster's part of `spec`, to change it.
pub fn cluster(spec: &mut Spec) -> &mut ClusterSpec {
    Arc::make_mut(&mut spec.cluster)
}

/// This node's part of `spec`, to change it.
pub fn local(spec: &mut Spec) -> &mut LocalSpec {
    Arc::make_mut(&mut spec.local)
}

/// The peer at `index` in `spec`, to change it.
pub fn peer(spec: &mut Spec, index: usize) -> &mut PeerSpec {
    Arc::make_mut(&mut cluster(spec).peers[index])
}

/// Node `i` with an IPv4 address outside.
pub fn v4(i: u8) -> PublicAddresses {
    PublicAddresses::V4(Ipv4Addr::new(192, 0, 2, i))
}

/// Node `i` with an IPv6 address outside.
pub fn v6(i: u8) -> PublicAddresses {
    PublicAddresses::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, i.into()))
}

/// Node `i` with both.
pub fn dual(i: u8) -> PublicAddresses {
    match (v4(i), v6(i)) {
        (PublicAddresses::V4(v4), PublicAddresses::V6(v6)) => PublicAddresses::Dual(v4, v6),
        other => panic!("{other:?}"),
    }
}

/// The IPv4 address of pod `n` (from 0) of node `i`.
pub fn pod(i: u8, n: u8) -> IpAddr {
    Ipv4Addr::new(10, 244, i, 2 + n).into()
}

/// The IPv6 address of pod `n` (from 0) of node `i`.
pub fn pod6(i: u8, n: u8) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0x10, 0x244, i.into(), 0, 0, 0, 2 + u16::from(n)).into()
}

/// The addresses of pod `n` of node `i`, which are of one pod.
fn pod_of(i: u8, n: u8) -> [(IpAddr, PodId); 2] {
    [pod(i, n), pod6(i, n)].map(|address| (address, PodId(n.into())))
}

/// Node `i`'s VTEP MAC.
pub fn mac(i: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, i])
}

/// An address.
pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A prefix.
pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn subnets(i: u8) -> Vec<IpNet> {
    vec![
        net(&format!("10.244.{i}.0/24")),
        net(&format!("fd00:10:244:{i:x}::/64")),
    ]
}
