//! Reports of a path MTU, from a router or from our own kernel: what a worker believes of them.

use encap::{Family, Format, pull};

use crate::mtu::min_inner;
use crate::now::Now;
use crate::peers::Way;
use crate::sent::{Route, SentDatagrams};
use crate::snapshot::Snapshot;
use crate::underlay::{ErrorReport, Port};

/// Takes in a report of a path MTU about a datagram to a peer's address and port. Our own kernel's word counts. A
/// router's is considered only if it quotes an inner packet that was sent there lately through the socket that the
/// report came to, larger than what it says the path carries. Anything else changes nothing.
pub(crate) fn learn(
    failure: &ErrorReport,
    port: Port,
    snapshot: &Snapshot,
    sent: &SentDatagrams,
    now: Now,
) {
    let Some((_, peer)) = snapshot.cluster.peers.by_source(failure.to.ip()) else {
        return;
    };
    let mtu = u16::try_from(failure.info)
        .ok()
        .filter(|mtu| *mtu >= least_mtu(port.family));
    let (libc::EMSGSIZE, Some(mtu)) = (failure.errno, mtu) else {
        return;
    };
    let ways = [Family::V4, Family::V6].into_iter();
    let mut ways = ways
        .filter_map(|inner| peer.way(inner))
        .filter(|way| is_towards(way, failure, port));
    if failure.local {
        if let Some(way) = ways.next() {
            way.path.learn(mtu, now);
        }
        return;
    }
    let quoted = ways.find_map(|way| {
        let packet = failure.quoted().strip_prefix(way.header.as_slice())?;
        Some((way, packet))
    });
    let Some((way, packet)) = quoted else { return };
    let route = Route {
        to: failure.to.ip(),
        port,
        socket: failure.socket,
    };
    let Some(fingerprint) = sent.find(packet, route, now) else {
        return;
    };
    let overhead = port.format.overhead(port.family);
    // A path that carries less than the least that every path is taken to carry is not learned for what it is.
    let mtu = mtu.max(min_inner(port.family) + overhead);
    let length = pull::inner_span(packet, Format::Udp).unwrap_or_default();
    if length + usize::from(overhead) > usize::from(mtu) {
        way.path.report(mtu, fingerprint, now);
    }
}

fn is_towards(way: &Way, failure: &ErrorReport, port: Port) -> bool {
    // For its own refusals an IPv4 kernel names the port of a connected socket, and ours are not: 0 (ip_local_error in
    // __ip_append_data, net/ipv4/ip_output.c).
    let udp_port = failure.local || way.to.port() == failure.to.port();
    way.port == port && way.to.ip() == failure.to.ip() && udp_port
}

/// What a report says at least. No IPv4 link carries less (RFC 791), and no IPv6 link: a report below it is to be
/// discarded (RFC 8201 section 4).
const fn least_mtu(family: Family) -> u16 {
    match family {
        Family::V4 => 68,
        Family::V6 => 1280,
    }
}
