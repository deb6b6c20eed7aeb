//! From what is known to what should be: a pure function, the same result for the same facts in any order.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use cni_shim::Attachment;
use dataplane::families::PublicAddresses;
use dataplane::spec::{NodeSpec, PeerSpec, Spec};
use encap::{Family, Format};
use ipnet::IpNet;

use crate::config::{NetConf, NodeConfig};
use crate::host::{HostState, SubnetEnv};
use crate::lease::Lease;

/// Everything that decides what this node does.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The cluster's configuration.
    pub net_conf: &'a NetConf,
    /// This node's configuration.
    pub config: &'a NodeConfig,
    /// Every lease known, our own among them or not.
    pub leases: &'a [Lease],
    /// Our own lease.
    pub own: &'a Lease,
    /// The addresses that our sockets have.
    pub bound: PublicAddresses,
    /// Attachments adopted; addresses outside our subnets are left out of the spec.
    pub attachments: &'a [Arc<Attachment>],
    /// What the kernel routes to, or holds on, devices other than ours.
    pub kernel_prefixes: &'a [IpNet],
    /// Every address the host holds on devices other than ours.
    pub host_addresses: &'a [IpAddr],
    /// MTU of the interface that carries the overlay, bytes of outer packet.
    pub underlay_mtu: u16,
    /// Number of the spec to make.
    pub version: u64,
}

/// What should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// For the workers.
    pub spec: Spec,
    /// For the kernel.
    pub host: HostState,
    /// What the largest packets of the tunnel device come to on the underlay, bytes. More than the underlay's MTU where
    /// that leaves less than the least MTU there may be: then they are lost.
    pub largest_datagram: u16,
}

/// Decides what workers and kernel should hold. Order and repetition of the inputs do not matter.
pub fn reconcile(inputs: &Inputs<'_>) -> Desired {
    let peers = peers(inputs.leases, inputs.own);
    let public = inputs.bound;
    let subnets = sorted(inputs.own.subnets.iter().copied());
    let underlay_mtu = inputs
        .net_conf
        .backend
        .cap_underlay_mtu(inputs.underlay_mtu);
    let tunnel: Vec<IpAddr> = sorted(subnets.iter().map(IpNet::network));
    let cluster: Vec<IpNet> = inputs.net_conf.cluster();
    let overhead = overhead(inputs.config, inputs.own, &peers);
    let device_mtu = device_mtu(underlay_mtu, overhead, &cluster);
    let host = HostState {
        device: inputs.config.device_name.clone(),
        addresses: tunnel.iter().copied().map(IpNet::from).collect(),
        mtu: device_mtu,
        cluster_routes: cluster
            .iter()
            .copied()
            .filter(|net| has_family(&subnets, *net))
            .collect(),
        unreachable: subnets.clone(),
        masquerade: inputs.config.masquerade,
        subnet_file: inputs.config.subnet_file.clone(),
        subnet_env: subnet_env(inputs.config, &cluster, &subnets, device_mtu),
    };
    let node = NodeSpec {
        cluster,
        subnets: subnets.clone(),
        public,
        addresses: sorted(
            inputs
                .host_addresses
                .iter()
                .copied()
                .filter(|a| !tunnel.contains(a)),
        ),
        tunnel,
        // One for both families: `registry::own` takes no other.
        vtep_mac: inputs.own.vtep_mac.v4,
        vni: inputs.net_conf.backend.vni(),
        gbp: inputs.net_conf.backend.gbp(),
        ipv6_over_udp: inputs.config.ipv6_over_udp,
        device_mtu,
        underlay_mtu,
        udp_port: inputs.net_conf.backend.udp_port(),
        vxlan_port: inputs.net_conf.backend.vxlan_port(),
    };
    let spec = Spec {
        version: inputs.version,
        attachments: attached(inputs.attachments, &node),
        kernel_prefixes: local_prefixes(inputs, &subnets),
        allowed_sources: allowed_sources(inputs.attachments, &node),
        node,
        peers,
    };
    Desired {
        spec,
        host,
        largest_datagram: device_mtu.saturating_add(overhead),
    }
}

/// Leases that share a public address are one peer. Where they differ in what only one can say, the first by name
/// speaks; a further public address is an address that the peer is known by.
fn peers(leases: &[Lease], own: &Lease) -> Vec<PeerSpec> {
    let mut others: Vec<&Lease> = leases
        .iter()
        .filter(|l| l.name != own.name && !l.public.iter().any(|a| own.public.contains(a)))
        .collect();
    others.sort_by(|a, b| a.name.cmp(&b.name));
    let mut merged: BTreeMap<PublicAddresses, PeerSpec> = BTreeMap::new();
    let mut owners: BTreeMap<IpAddr, PublicAddresses> = BTreeMap::new();
    for lease in others {
        let known = lease.public.iter().find_map(|a| owners.get(&a).copied());
        let public = known.unwrap_or(lease.public);
        let peer = merged.entry(public).or_insert_with(|| PeerSpec {
            name: lease.name.clone(),
            public,
            underlay_sources: Vec::new(),
            subnets: Vec::new(),
            accept_sources: Vec::new(),
            format: lease.format,
            vtep_mac: lease.vtep_mac,
        });
        for address in lease.public.iter() {
            if *owners.entry(address).or_insert(public) == public && !public.contains(address) {
                peer.underlay_sources.push(address);
            }
        }
        peer.underlay_sources.extend(&lease.underlay_sources);
        peer.subnets.extend(&lease.subnets);
        peer.accept_sources.extend(&lease.accept_sources);
    }
    for peer in merged.values_mut() {
        peer.underlay_sources = sorted(peer.underlay_sources.drain(..));
        peer.subnets = sorted(peer.subnets.drain(..));
        peer.accept_sources = sorted(peer.accept_sources.drain(..));
    }
    merged.into_values().collect()
}

/// The largest inner packet that every peer can send us and we can send every peer without a cut.
fn device_mtu(underlay_mtu: u16, overhead: u16, cluster: &[IpNet]) -> u16 {
    let carries_v6 = cluster.iter().any(|net| matches!(net, IpNet::V6(_)));
    let least = if carries_v6 {
        LEAST_MTU_V6
    } else {
        LEAST_MTU_V4
    };
    underlay_mtu.saturating_sub(overhead).max(least)
}

/// The widest outer headers in use: in the formats of both ends, for the inner families that both have, over the family
/// that each rides on. Ours counts without any peer, towards a node like us.
fn overhead(config: &NodeConfig, own: &Lease, peers: &[PeerSpec]) -> u16 {
    let public = config.underlay(own.public);
    let carries =
        |format, inner| inner == Family::V4 || format == Format::Vxlan || config.ipv6_over_udp;
    let widest = |to: PublicAddresses, subnets: &[IpNet], format: Format| {
        let inner = [Family::V4, Family::V6].into_iter().filter(|inner| {
            let has = |subnets: &[IpNet]| subnets.iter().any(|net| family(net) == *inner);
            has(&own.subnets) && has(subnets)
        });
        inner
            .filter_map(|inner| Some((inner, Family::of(public.way_to(to, inner)?))))
            .flat_map(|(inner, outer)| {
                let formats = [own.format, format].into_iter();
                formats
                    .filter(move |format| carries(*format, inner))
                    .map(move |format| format.overhead(outer))
            })
            .max()
    };
    let ours = widest(public, &own.subnets, own.format);
    let theirs = peers
        .iter()
        .filter_map(|peer| widest(peer.public, &peer.subnets, peer.format));
    // With nothing to carry yet, as with the first that there could be.
    let least = own.format.overhead(Family::of(public.first()));
    theirs.chain(ours).max().unwrap_or(least)
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
pub fn underlay_mtu(device_mtu: u16, config: &NodeConfig, own: &Lease, leases: &[Lease]) -> u16 {
    device_mtu.saturating_add(overhead(config, own, &peers(leases, own)))
}

const fn family(net: &IpNet) -> Family {
    match net {
        IpNet::V4(_) => Family::V4,
        IpNet::V6(_) => Family::V6,
    }
}

fn attached(attachments: &[Arc<Attachment>], node: &NodeSpec) -> Vec<IpAddr> {
    let ours = |address: &IpAddr| node.subnets.iter().any(|net| net.contains(address));
    let addresses = attachments
        .iter()
        .flat_map(|attachment| &attachment.addresses)
        .map(IpNet::addr);
    sorted(addresses.filter(|address| ours(address) && !node.tunnel.contains(address)))
}

/// Those of attachments that are served: a stranded pod is not heard, whatever it speaks as.
fn allowed_sources(attachments: &[Arc<Attachment>], node: &NodeSpec) -> Vec<IpNet> {
    let served = |a: &&Arc<Attachment>| !attached(std::slice::from_ref(a), node).is_empty();
    let served = attachments.iter().filter(served);
    sorted(served.flat_map(|attachment| attachment.allowed_sources.iter().copied()))
}

/// Only what lies inside a subnet of ours can be local: a wider prefix would claim other nodes' pods.
fn local_prefixes(inputs: &Inputs<'_>, subnets: &[IpNet]) -> Vec<IpNet> {
    if inputs.config.strict_pods {
        return Vec::new();
    }
    let inside = |prefix: &IpNet| subnets.iter().any(|net| net.contains(prefix));
    sorted(
        inputs
            .kernel_prefixes
            .iter()
            .map(IpNet::trunc)
            .filter(inside),
    )
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
