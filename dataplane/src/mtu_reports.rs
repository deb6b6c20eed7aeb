//! Reports of a path MTU, from a router or from our own kernel: what a worker believes of them.

use std::net::IpAddr;

use encap::{Family, Format};

use crate::now::Now;
use crate::peer_id::PeerId;
use crate::peers::Way;
use crate::snapshot::Snapshot;
use crate::underlay::{ErrorReport, Port};

/// Believes a report of a path MTU if it speaks of a datagram that we could have sent: to a peer's address and port,
/// and, when a router says it, quoting our own headers towards that peer. Anything else changes nothing.
pub(crate) fn learn(failure: &ErrorReport, port: Port, snapshot: &Snapshot, now: Now) {
    let Some((id, peer)) = snapshot.cluster.peers.by_source(failure.to.ip()) else {
        return;
    };
    let least = match port.family {
        Family::V4 => LEAST_MTU_V4,
        Family::V6 => LEAST_MTU_V6,
    };
    let mtu = u16::try_from(failure.info).ok().filter(|mtu| *mtu >= least);
    let (libc::EMSGSIZE, Some(mtu)) = (failure.errno, mtu) else {
        return;
    };
    let proven = |inner: &Family| {
        peer.way(*inner).is_some_and(|way| {
            is_towards(way, failure, port)
                && (failure.local || quotes(failure, id, way, *inner, snapshot))
        })
    };
    let inner = [Family::V4, Family::V6].into_iter().find(proven);
    if let Some(way) = inner.and_then(|inner| peer.way(inner)) {
        way.path.learn(mtu, now);
    }
}

fn is_towards(way: &Way, failure: &ErrorReport, port: Port) -> bool {
    // For its own refusals an IPv4 kernel names the port of a connected socket, and ours are not: 0 (ip_local_error in
    // __ip_append_data, net/ipv4/ip_output.c).
    let udp_port = failure.local || way.to.port() == failure.to.port();
    way.port == port && way.to.ip() == failure.to.ip() && udp_port
}

/// Whether the quote is of an inner packet of family `inner` on its way to the peer.
fn quotes(
    failure: &ErrorReport,
    id: PeerId,
    way: &Way,
    inner: Family,
    snapshot: &Snapshot,
) -> bool {
    let quote = failure.quoted();
    match way.port.format {
        Format::Vxlan => quote.starts_with(way.header.as_slice()),
        // The inner packet itself: its destination must be the peer's.
        Format::Udp => quoted_destination(quote).is_some_and(|address| {
            Family::of(address) == inner && snapshot.cluster.fib.lookup(address) == Some(id)
        }),
    }
}

fn quoted_destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet
            .get(16..)?
            .first_chunk::<4>()
            .map(|bytes| IpAddr::from(*bytes)),
        6 => packet
            .get(24..)?
            .first_chunk::<16>()
            .map(|bytes| IpAddr::from(*bytes)),
        _ => None,
    }
}

/// No IPv4 link carries less (RFC 791); a report below it is a lie.
const LEAST_MTU_V4: u16 = 68;
/// No IPv6 link carries less; a report below it is to be discarded (RFC 8201 section 4).
const LEAST_MTU_V6: u16 = 1280;
