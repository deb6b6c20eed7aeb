//! Which flows may be installed: pure functions of a proposal, of what the node is, and of what connection tracking knows.
//!
//! Theory of operation. A flow is one direction of a connection, and each direction is judged by itself. The checks are
//! those that the workers would make of each packet of the flow, made once for all of them, and stricter: a flow that
//! any rule, limit, translation or helper of the host may still have a say in keeps the way through the host's stack.
//! First come the checks of addresses ([`ends`]), which cost no question to the kernel; then those of the connection
//! ([`lifetime`]).

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use dataplane::drops::Direction;
use dataplane::kernel_path::FlowKey;
use encap::{Family, Format};
use ipnet::IpNet;

use super::conntrack::{Connection, ips, is_inverse};
use super::facts::FlowFacts;
use super::refusal::Refusal;

/// Whose flow it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// Address of the pod of this node.
    pub(super) pod: Ipv4Addr,
    /// Public address of the peer at the other end.
    pub(super) peer: Ipv4Addr,
}

/// For how long a flow may be installed, and what must be done before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// From now on. Not more than [`LIFETIME`], and not more than connection tracking remembers the connection.
    pub(super) lifetime: Duration,
    /// Connection tracking checks windows of the connection: it must be made liberal before.
    pub(super) is_strict: bool,
}

/// Checks the addresses and ports of a flow.
///
/// # Errors
/// The first reason against it.
pub(super) fn ends(
    direction: Direction,
    key: &FlowKey,
    facts: &FlowFacts,
) -> Result<Ends, Refusal> {
    let is_udp = match i32::from(key.protocol) {
        libc::IPPROTO_TCP => false,
        libc::IPPROTO_UDP => true,
        _ => return Err(Refusal::NotTcpOrUdp),
    };
    if !is_unicast(key.source) || !is_unicast(key.destination) || key.source == key.destination {
        return Err(Refusal::NotUnicast);
    }
    let is_encapsulation = |port| facts.encapsulation_ports.contains(&port);
    if is_udp && (is_encapsulation(key.source_port) || is_encapsulation(key.destination_port)) {
        return Err(Refusal::EncapsulationPort);
    }
    let (here, there) = match direction {
        Direction::Outbound => (key.source, key.destination),
        Direction::Inbound => (key.destination, key.source),
    };
    let snapshot = &facts.snapshot;
    let pods = &snapshot.pods;
    let pod = facts.pods.get(&here).ok_or(Refusal::NotPod)?;
    let is_node = pods.tunnel_address(here.into()) == Some(here.into());
    if !pods.is_local(here.into()) || !pods.in_own_subnet(here.into()) || is_node {
        return Err(Refusal::NotPod);
    }
    if pod.is_limited {
        return Err(Refusal::PodLimited);
    }
    if pods.in_own_subnet(there.into()) {
        return Err(Refusal::OwnSubnet);
    }
    if pods.is_ours(there.into()) {
        return Err(Refusal::NodeAddress);
    }
    let cluster = &snapshot.cluster;
    let peer = cluster.fib.lookup(there.into());
    let peer = peer
        .and_then(|id| cluster.peers.peer(id))
        .ok_or(Refusal::NoPeer)?;
    let of_peer = |subnet: &&IpNet| subnet.contains(&IpAddr::from(there));
    let subnet = peer.subnets.iter().filter(of_peer);
    let Some(IpNet::V4(subnet)) = subnet.max_by_key(|subnet| subnet.prefix_len()) else {
        return Err(Refusal::NoPeer);
    };
    if peer.public.contains(there.into()) || is_node_address(subnet, there) {
        return Err(Refusal::NodeAddress);
    }
    match (peer.format, peer.public.of(Family::V4)) {
        (Format::Vxlan, Some(IpAddr::V4(peer))) => Ok(Ends { pod: here, peer }),
        _ => Err(Refusal::NoPeer),
    }
}

/// Checks what connection tracking knows of the connection that packets of `key` belong to.
///
/// # Errors
/// The first reason against it.
pub(super) fn lifetime(
    key: &FlowKey,
    connection: Option<&Connection>,
) -> Result<Lifetime, Refusal> {
    let connection = connection.ok_or(Refusal::NoConnection)?;
    let has = |bits| connection.status & bits != 0;
    if has(ips::TEMPLATE) {
        return Err(Refusal::NoConnection);
    }
    let belongs = connection.original == *key || connection.reply == *key;
    if has(ips::NAT_MASK) || !belongs || !is_inverse(&connection.original, &connection.reply) {
        return Err(Refusal::Translated);
    }
    if has(ips::HELPER | ips::EXPECTED | ips::SEQ_ADJUST) || connection.is_rewritten {
        return Err(Refusal::Helper);
    }
    if connection.is_marked {
        return Err(Refusal::Marked);
    }
    if has(ips::OFFLOAD) {
        return Err(Refusal::Offloaded);
    }
    if has(ips::DYING) {
        return Err(Refusal::Ending);
    }
    let is_tcp = i32::from(key.protocol) == libc::IPPROTO_TCP;
    let is_established = match connection.tcp {
        Some(tcp) => is_tcp && tcp.is_established,
        None => !is_tcp,
    };
    // A one-way flow of UDP is never assured, and each of its packets is in the state NEW: the rules have let one of the
    // same state pass when the entry was confirmed, and see one a second from then on (`PROBE_EVERY`).
    if !is_established || !has(ips::CONFIRMED) || (is_tcp && !has(ips::ASSURED)) {
        return Err(Refusal::NotEstablished);
    }
    if connection.timeout < SHORTEST {
        return Err(Refusal::Ending);
    }
    Ok(Lifetime {
        lifetime: connection.timeout.min(LIFETIME),
        is_strict: connection.tcp.is_some_and(|tcp| !tcp.is_liberal),
    })
}

/// That the connection still is as when its flow was judged, and made liberal.
///
/// # Errors
/// The first reason against it. A strict one is another connection with the same addresses and ports.
pub(super) fn is_as_judged(key: &FlowKey, connection: Option<&Connection>) -> Result<(), Refusal> {
    match lifetime(key, connection)?.is_strict {
        true => Err(Refusal::NoConnection),
        false => Ok(()),
    }
}

/// Whether it can be the address of one host: not of this network, a loopback, link-local, multicast or reserved one.
fn is_unicast(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    !(first == 0 || first >= 224 || address.is_loopback() || address.is_link_local())
}

/// The addresses of a node in its own subnet: that of its tunnel device, the first one, and of a bridge, the next; and
/// the broadcast address.
fn is_node_address(subnet: &ipnet::Ipv4Net, address: Ipv4Addr) -> bool {
    let base = subnet.network().to_bits();
    let offset = address.to_bits().wrapping_sub(base);
    offset <= 1 || (subnet.prefix_len() < 31 && address == subnet.broadcast())
}

/// Nothing is followed for longer without being judged again: not every change of the host's rules is announced.
pub(super) const LIFETIME: Duration = Duration::from_secs(60);
/// What ends sooner is not worth two changes of the path.
const SHORTEST: Duration = Duration::from_secs(2);

#[cfg(test)]
pub(super) mod tests;
