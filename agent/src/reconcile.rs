//! From what is known to what should be: a pure function, the same result for the same facts in any order.
//!
//! Theory of operation: what should be is decided in two parts, as the spec has two. The cluster's depends on the leases
//! and on this node's place among them, the local one on pods and on the kernel. The decision before this one is looked
//! at to save work, and changes no result: while the leases are the same allocation their peers stand, changed leases
//! cost what they share addresses with ([`lease_change`]), and a part that comes out equal is the same allocation as before,
//! so that the dataplane keeps its tables without a look.

mod lease_change;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use cni_shim::Attachment;
use dataplane::families::{PerFamily, PublicAddresses};
use dataplane::spec::{ClusterSpec, LocalSpec, NodeSpec, PeerSpec, PodId, Spec};
use encap::{Family, Mac};
use ipnet::IpNet;

use crate::config::{KernelPathMode, NetConf, NodeConfig};
use crate::host::{Encapsulation, HostState, SubnetEnv};
use crate::lease::Lease;
use lease_change::{Near, Others};

/// Everything that decides what this node does.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The cluster's configuration.
    pub net_conf: &'a NetConf,
    /// This node's configuration.
    pub config: &'a NodeConfig,
    /// Every lease known, our own among them or not.
    pub leases: &'a Arc<[Lease]>,
    /// Our own lease.
    pub own: &'a Lease,
    /// The addresses that our sockets have.
    pub bound: PublicAddresses,
    /// Attachments adopted; addresses outside our subnets are left out of the spec.
    pub attachments: &'a [Arc<Attachment>],
    /// What the kernel routes to, or holds on, devices other than ours.
    pub kernel_prefixes: &'a [IpNet],
    /// Interfaces that lead there.
    pub pod_links: &'a [String],
    /// Addresses of attachments that are gone, as long as the kernel may still route to them. The record decides what is
    /// delivered to a pod, so these are no kernel prefixes.
    pub released: &'a [IpAddr],
    /// Every address the host holds on devices other than ours.
    pub host_addresses: &'a [IpAddr],
    /// MTU of the interface that carries the overlay, bytes of outer packet.
    pub underlay_mtu: u16,
    /// The Ethernet address of the tunnel device, if it is a TAP.
    pub device_mac: Option<Mac>,
    /// Number of the spec to make.
    pub version: u64,
}

/// What should be.
#[derive(Clone, Debug)]
pub struct Desired {
    /// For the workers.
    pub spec: Spec,
    /// For the kernel.
    pub host: HostState,
    /// What the largest packets of the tunnel device come to on the underlay, bytes. More than the underlay's MTU where
    /// that leaves less than the least MTU there may be: then they are lost.
    pub largest_datagram: u16,
    /// What the peers were merged from, for the next decision.
    others: Arc<Others>,
}

impl PartialEq for Desired {
    fn eq(&self, other: &Desired) -> bool {
        (&self.spec, &self.host, self.largest_datagram)
            == (&other.spec, &other.host, other.largest_datagram)
    }
}

/// Decides what workers and kernel should hold. Order and repetition of the inputs do not matter, nor does `previous`,
/// the decision before this one: it saves work. A part of the spec that comes out as it was is the same allocation.
pub fn reconcile(inputs: &Inputs<'_>, previous: Option<&Desired>) -> Desired {
    let subnets = sorted(inputs.own.subnets.iter().copied());
    let (cluster, others) = reconcile_cluster(inputs, previous);
    let local = reconcile_local(inputs, &subnets, previous);
    let (networks, inner_mtu) = (&cluster.node.networks, cluster.node.inner_mtu);
    let device_mtu = inner_mtu.v4.max(inner_mtu.v6);
    let host = HostState {
        device: inputs.config.device_name.clone(),
        mac: inputs.device_mac,
        addresses: local.tunnel.iter().copied().map(IpNet::from).collect(),
        mtu: device_mtu,
        inner_mtu,
        cluster_routes: networks
            .iter()
            .copied()
            .filter(|net| has_family(&subnets, *net))
            .collect(),
        masquerade: inputs.config.masquerade,
        encapsulation: encapsulation(inputs, &cluster, previous),
        subnet_file: inputs.config.subnet_file.clone(),
        subnet_env: subnet_env(inputs.config, networks, &subnets, device_mtu),
        unreachable: subnets,
    };
    Desired {
        largest_datagram: largest_datagram(inner_mtu, others.overhead()),
        spec: Spec {
            version: inputs.version,
            cluster,
            local,
        },
        host,
        others,
    }
}

/// The other nodes, and what reaching them depends on.
fn reconcile_cluster(
    inputs: &Inputs<'_>,
    previous: Option<&Desired>,
) -> (Arc<ClusterSpec>, Arc<Others>) {
    let near = Near::of(inputs.config, inputs.own);
    let before = previous.map(|previous| (&previous.others, &previous.spec.cluster));
    let (others, peers) = match before {
        Some((others, _)) if others.are_of(&near, inputs.leases) => (Arc::clone(others), None),
        Some((others, cluster)) => {
            let (others, peers) = others.follow(near, inputs.leases, &cluster.peers);
            (Arc::new(others), Some(peers))
        }
        None => {
            let (others, peers) = Others::new(near, inputs.leases);
            (Arc::new(others), Some(peers))
        }
    };
    let backend = &inputs.net_conf.backend;
    let networks = inputs.net_conf.cluster();
    let underlay_mtu = backend.cap_underlay_mtu(inputs.underlay_mtu);
    let node = NodeSpec {
        inner_mtu: inner_mtu(underlay_mtu, others.overhead(), &networks),
        networks,
        public: inputs.bound,
        vtep_mac: inputs.own.vtep_mac,
        vni: backend.vni(),
        gbp: backend.gbp(),
        ipv6_over_udp: inputs.config.ipv6_over_udp,
        underlay_mtu,
        udp_port: backend.udp_port(),
        vxlan_port: backend.vxlan_port(),
    };
    let same_peers = |before: &ClusterSpec| {
        peers.as_ref().is_none_or(|peers| {
            let mut pairs = peers.iter().zip(&before.peers);
            peers.len() == before.peers.len() && pairs.all(|(a, b)| Arc::ptr_eq(a, b))
        })
    };
    let cluster = match before.map(|(_, cluster)| cluster) {
        Some(same) if same.node == node && same_peers(same) => Arc::clone(same),
        before => {
            let kept = || before.map_or_else(Vec::new, |before| before.peers.clone());
            let peers = peers.unwrap_or_else(kept);
            Arc::new(ClusterSpec { node, peers })
        }
    };
    (cluster, others)
}

/// What the guard of the encapsulation ports goes by.
fn encapsulation(
    inputs: &Inputs<'_>,
    cluster: &Arc<ClusterSpec>,
    previous: Option<&Desired>,
) -> Encapsulation {
    let own: Vec<IpAddr> = cluster.node.public.iter().collect();
    let same = previous.filter(|previous| Arc::ptr_eq(&previous.spec.cluster, cluster));
    let nodes = match same {
        Some(same) => Arc::clone(&same.host.encapsulation.nodes),
        None => {
            let addresses = cluster.peers.iter().flat_map(|peer| heard_at(peer));
            sorted(addresses.filter(|address| !own.contains(address))).into()
        }
    };
    let ports = [cluster.node.udp_port, cluster.node.vxlan_port];
    let private_port = inputs.config.kernel_path_port;
    Encapsulation {
        ports,
        // Whether or not this node has the kernel path: a pod of it must not speak as this node to one that has.
        private_port: Some(private_port).filter(|port| !ports.contains(port)),
        is_private_port_ours: inputs.config.kernel_path != KernelPathMode::Off,
        own,
        nodes,
        pod_links: inputs.pod_links.to_vec(),
    }
}

/// The addresses at which a node may receive encapsulated packets, or from which it sends them. A kernel VXLAN device
/// receives at every address: its own, which is the first of a subnet, and the next, its bridge's, are reached through
/// the overlay.
fn heard_at(peer: &PeerSpec) -> impl Iterator<Item = IpAddr> {
    let networks = peer.subnets.iter().map(IpNet::network);
    let bridges = networks.clone().map(next_address);
    let outside = peer
        .public
        .iter()
        .chain(peer.underlay_sources.iter().copied());
    outside.chain(networks).chain(bridges)
}

fn next_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().saturating_add(1)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().saturating_add(1)).into(),
    }
}

/// The addresses of this node and of its pods.
fn reconcile_local(
    inputs: &Inputs<'_>,
    subnets: &[IpNet],
    previous: Option<&Desired>,
) -> Arc<LocalSpec> {
    let tunnel: Vec<IpAddr> = sorted(subnets.iter().map(IpNet::network));
    let held = inputs.host_addresses.iter().copied();
    let mut local = LocalSpec {
        subnets: subnets.to_vec(),
        addresses: sorted(held.filter(|address| !tunnel.contains(address))),
        tunnel,
        ..LocalSpec::default()
    };
    local.attachments = sorted(inputs.attachments.iter().flat_map(|a| served(a, &local)));
    local.pods = pods(inputs.attachments, &local);
    local.kernel_prefixes = kernel_prefixes(inputs, &local);
    local.allowed_sources = allowed_sources(inputs.attachments, &local);
    match previous.map(|previous| &previous.spec.local) {
        Some(same) if **same == local => Arc::clone(same),
        _ => Arc::new(local),
    }
}

/// The largest inner packet of each family that every peer can send us and we can send every peer without a cut. A family
/// that the cluster does not have has the other's.
fn inner_mtu(underlay_mtu: u16, overhead: PerFamily<u16>, cluster: &[IpNet]) -> PerFamily<u16> {
    let of = |inner| {
        let is_in_use = cluster.iter().any(|net| Family::of(net.addr()) == inner);
        let least = match inner {
            Family::V4 => LEAST_MTU_V4,
            Family::V6 => LEAST_MTU_V6,
        };
        let left = underlay_mtu.saturating_sub(*overhead.of(inner));
        is_in_use.then_some(left.max(least))
    };
    let (v4, v6) = (of(Family::V4), of(Family::V6));
    // A net-conf names one network at least.
    PerFamily {
        v4: v4.or(v6).unwrap_or(LEAST_MTU_V4),
        v6: v6.or(v4).unwrap_or(LEAST_MTU_V6),
    }
}

/// What the largest inner packets come to on the underlay, bytes.
fn largest_datagram(inner_mtu: PerFamily<u16>, overhead: PerFamily<u16>) -> u16 {
    let v4 = inner_mtu.v4.saturating_add(overhead.v4);
    v4.max(inner_mtu.v6.saturating_add(overhead.v6))
}

/// One subnet of each family, the lowest: flannel's file has room for one.
fn subnet_env(config: &NodeConfig, cluster: &[IpNet], subnets: &[IpNet], mtu: u16) -> SubnetEnv {
    let pair = |v6: bool| {
        let of_family = |net: &&IpNet| net.addr().is_ipv6() == v6;
        let network = cluster.iter().find(of_family)?;
        let subnet = subnets.iter().find(of_family)?;
        Some((*network, *subnet))
    };
    SubnetEnv {
        v4: pair(false),
        v6: pair(true),
        mtu,
        masquerade: config.masquerade,
    }
}

/// The underlay MTU behind a device MTU that was decided from these leases.
pub fn underlay_mtu(
    device_mtu: u16,
    config: &NodeConfig,
    own: &Lease,
    leases: &Arc<[Lease]>,
) -> u16 {
    let (others, _) = Others::new(Near::of(config, own), leases);
    let overhead = others.overhead();
    device_mtu.saturating_add(overhead.v4.min(overhead.v6))
}

/// Addresses of an attachment that lie in our subnets.
fn served(attachment: &Attachment, local: &LocalSpec) -> impl Iterator<Item = IpAddr> {
    let ours = |address: &IpAddr| local.subnets.iter().any(|net| net.contains(address));
    let addresses = attachment.addresses.iter().map(IpNet::addr);
    addresses.filter(move |address| ours(address) && !local.tunnel.contains(address))
}

/// The pod that has each served address. Of two that claim one, as while one goes and the other comes, it is always the same.
fn pods(attachments: &[Arc<Attachment>], local: &LocalSpec) -> BTreeMap<IpAddr, PodId> {
    let mut pods = BTreeMap::new();
    for attachment in attachments {
        let id = pod_id(&attachment.container, &attachment.ifname);
        for address in served(attachment, local) {
            let pod = pods.entry(address).or_insert(id);
            *pod = id.min(*pod);
        }
    }
    pods
}

/// A runtime gives no two containers one id, at whatever time they run.
pub fn pod_id(container: &str, ifname: &str) -> PodId {
    let name = (container, ifname);
    PodId(BuildHasherDefault::<DefaultHasher>::default().hash_one(name))
}

/// Those of attachments that are served: a stranded pod is not heard, whatever it speaks as.
fn allowed_sources(attachments: &[Arc<Attachment>], local: &LocalSpec) -> Vec<IpNet> {
    let served =
        |a: &&Arc<Attachment>| !a.allowed_sources.is_empty() && served(a, local).count() > 0;
    let served = attachments.iter().filter(served);
    sorted(served.flat_map(|attachment| attachment.allowed_sources.iter().copied()))
}

/// Only what lies inside a subnet of ours can be local: a wider prefix would claim other nodes' pods. The host route of
/// an attachment is none, before and after its record goes: it adds nothing to the record, and would outlive it.
fn kernel_prefixes(inputs: &Inputs<'_>, local: &LocalSpec) -> Vec<IpNet> {
    if inputs.config.strict_pods {
        return Vec::new();
    }
    let inside = |prefix: &IpNet| local.subnets.iter().any(|net| net.contains(prefix));
    let is_attachments = |prefix: &IpNet| {
        let address = prefix.addr();
        prefix.prefix_len() == prefix.max_prefix_len()
            && (local.attachments.binary_search(&address).is_ok()
                || inputs.released.contains(&address))
    };
    let prefixes = inputs.kernel_prefixes.iter().map(IpNet::trunc);
    sorted(prefixes.filter(|prefix| inside(prefix) && !is_attachments(prefix)))
}

fn has_family(subnets: &[IpNet], network: IpNet) -> bool {
    subnets
        .iter()
        .any(|subnet| subnet.max_prefix_len() == network.max_prefix_len())
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort_unstable();
    items.dedup();
    items
}

/// Every IPv4 host takes 576 bytes (RFC 791 section 3.1); below this the device is of no use.
const LEAST_MTU_V4: u16 = 576;
/// The kernel switches IPv6 off on a device below this (RFC 8200 section 5).
const LEAST_MTU_V6: u16 = 1280;

#[cfg(test)]
mod tests;
