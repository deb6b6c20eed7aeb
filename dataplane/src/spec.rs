//! What control asks of the dataplane, in full: one `Spec` makes one [`Snapshot`](crate::snapshot::Snapshot).
//!
//! A spec is plain data, already typed and range-checked by the code that read it from a store. It is two shared parts,
//! as the snapshot is: a part that is the same allocation as in the spec before is not looked into, and its tables
//! stay.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use encap::{Format, Mac, Vni};
use ipnet::IpNet;

use crate::families::{PerFamily, PublicAddresses};

/// Everything that workers need to know, as values.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Counts published specs; shown beside the tables so that people can tell two states apart.
    pub version: u64,
    /// What changes with the cluster's nodes.
    pub cluster: Arc<ClusterSpec>,
    /// What changes with the pods of this node.
    pub local: Arc<LocalSpec>,
}

/// The other nodes, and what reaching them depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// This node as the others reach it.
    pub node: NodeSpec,
    /// The other nodes; no public address in two entries. One that is the same allocation as in the spec before is not
    /// looked into.
    pub peers: Vec<Arc<PeerSpec>>,
}

/// The addresses of this node and of its pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalSpec {
    /// Subnets leased to this node.
    pub subnets: Vec<IpNet>,
    /// Addresses of our tunnel device: the base address of each subnet.
    pub tunnel: Vec<IpAddr>,
    /// Every address the host holds on other devices. A host process may speak from one of them.
    pub addresses: Vec<IpAddr>,
    /// Addresses of adopted attachments on this node.
    pub attachments: Vec<IpAddr>,
    /// The pod that has each of them; one that is missing is of a pod of its own.
    pub pods: BTreeMap<IpAddr, PodId>,
    /// Prefixes inside our own subnets that the kernel routes to, or holds on, a device other than ours
    /// (design: the local set, part b), but for the attachments' own addresses. Empty with `strict-pods`.
    pub kernel_prefixes: Vec<IpNet>,
    /// What pods may send from beside their own addresses (virtual addresses): the kernel has seen at the pod's
    /// interface that it is the right one. Nothing is delivered to them.
    pub allowed_sources: Vec<IpNet>,
}

/// A pod: a number that no other pod of this node has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId(pub u64);

/// This node as other nodes reach it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSpec {
    /// The cluster networks, one per family in use.
    pub networks: Vec<IpNet>,
    /// Our public addresses: we have an underlay port of each format at each of them.
    pub public: PublicAddresses,
    /// Our VTEP MACs: the only inner destination MAC accepted of the packets of each family, and the inner source MAC of
    /// those that we send. One that took over flannel's two devices has two.
    pub vtep_mac: PerFamily<Mac>,
    /// VXLAN network identifier sent and accepted.
    pub vni: Vni,
    /// Tolerate group-policy bits in received VXLAN headers (`GBP` in net-conf).
    pub gbp: bool,
    /// Carry inner IPv6 in the `udp` format between Tartan nodes. Off by default: stock peers parse only IPv4.
    pub ipv6_over_udp: bool,
    /// The largest packet of each family that the cluster sends, bytes of inner packet: our tunnel device's MTU for the
    /// one, that of our route through it for the other where it is smaller.
    pub inner_mtu: PerFamily<u16>,
    /// MTU of the underlay interface, bytes of outer packet.
    pub underlay_mtu: u16,
    /// UDP port of the `udp` format, of every node (flannel: 8285).
    pub udp_port: u16,
    /// UDP port of the `vxlan` format, of every node (flannel: 8472).
    pub vxlan_port: u16,
}

/// Another node.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerSpec {
    /// The node's name, for people.
    pub name: String,
    /// The addresses we send to, and the first that we accept from. Inner IPv4 goes to the IPv4 one and inner IPv6 to
    /// the IPv6 one, as with flannel; where we have no port of that family in common, both go by the other.
    pub public: PublicAddresses,
    /// Further underlay addresses accepted as outer source.
    pub underlay_sources: Vec<IpAddr>,
    /// Subnets leased to the node; several leases with one public address are merged here.
    pub subnets: Vec<IpNet>,
    /// Further inner sources accepted from it.
    pub accept_sources: Vec<IpNet>,
    /// How we send to it. Both formats are received at all times.
    pub format: Format,
    /// Its VTEP MACs: inner destination MAC of the packets of each family that we send in the `vxlan` format. A flannel
    /// node has a device, and so a MAC, per family.
    pub vtep_mac: PerFamily<Mac>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Node 1 of a two-node cluster, one pod, node 2 as peer.
    pub(crate) fn spec() -> Spec {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        Spec {
            version: 1,
            cluster: Arc::new(ClusterSpec {
                node: NodeSpec {
                    networks: vec![net("10.244.0.0/16")],
                    public: ip("192.0.2.1").into(),
                    vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 1])),
                    vni: Vni::new(1).unwrap(),
                    gbp: false,
                    ipv6_over_udp: false,
                    inner_mtu: PerFamily::each(|_| 1450),
                    underlay_mtu: 1500,
                    udp_port: 8285,
                    vxlan_port: 8472,
                },
                peers: vec![Arc::new(PeerSpec {
                    name: "node2".into(),
                    public: ip("192.0.2.2").into(),
                    underlay_sources: vec![],
                    subnets: vec![net("10.244.2.0/24")],
                    accept_sources: vec![],
                    format: Format::Vxlan,
                    vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 2])),
                })],
            }),
            local: Arc::new(LocalSpec {
                subnets: vec![net("10.244.1.0/24")],
                tunnel: vec![ip("10.244.1.0")],
                addresses: vec![ip("192.0.2.1")],
                attachments: vec![ip("10.244.1.2")],
                pods: [].into(),
                kernel_prefixes: vec![],
                allowed_sources: vec![],
            }),
        }
    }
}
