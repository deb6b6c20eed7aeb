//! Dual stack: inner IPv4 rides on IPv4 and inner IPv6 on IPv6, as with flannel, each with its own VTEP MAC; where two
//! nodes have only one family in common, both ride on that one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dataplane::drops::DropReason;
use dataplane::families::{PerFamily, PublicAddresses};
use dataplane::limits::{HOLD, PATH_MTU_LIFE, QUOTE};
use dataplane::now::Now;
use dataplane::spec::PeerSpec;
use dataplane::underlay::memory::Datagram;
use dataplane::underlay::{ErrorReport, Port};
use encap::{Family, Format, Mac};
use libc::{ECONNREFUSED, EMSGSIZE};

use crate::path_mtu::path_mtu_between;
use crate::path_reports::{about, send, tell, with_sockets};
use crate::world::node::{Node, port};
use crate::world::packets::{frame, udp, vxlan};
use crate::world::plan;
use crate::world::plan::{ClusterPlan, dual, ip, mac, net, pod, pod6, v4, v6};

#[test]
fn each_family_rides_on_its_own() {
    for format in [Format::Vxlan, Format::Udp] {
        assert_eq!(ways(format, dual(1), dual(2)), [v4(2), v6(2)]);
    }
}

#[test]
fn what_two_nodes_have_in_common_carries_both() {
    for format in [Format::Vxlan, Format::Udp] {
        for (ours, theirs) in [(v4(1), v4(2)), (v4(1), dual(2)), (dual(1), v4(2))] {
            assert_eq!(ways(format, ours, theirs), [v4(2), v4(2)]);
        }
        for (ours, theirs) in [(v6(1), v6(2)), (v6(1), dual(2)), (dual(1), v6(2))] {
            assert_eq!(ways(format, ours, theirs), [v6(2), v6(2)]);
        }
    }
}

#[test]
fn nodes_with_nothing_in_common_say_so() {
    let mut node = node(Format::Vxlan, v4(1), v6(2));
    node.push(udp(pod(1, 0), pod(2, 0), b"out"));
    node.push(udp(pod6(1, 0), pod6(2, 0), b"out"));
    let (sent, answers) = node.run(Now(0));
    assert_eq!(sent, []);
    // Net-unreachable, and no route to destination.
    assert_eq!(answers[0][20..22], [3, 0]);
    assert_eq!(answers[1][40..42], [1, 0]);
    assert_eq!(node.totals().outbound.drops_of(DropReason::NoUnderlay), 2);
    assert_eq!(node.audit(), [""; 0]);
}

/// A flannel node has a device, and so a MAC, per family.
#[test]
fn each_family_has_its_own_mac() {
    let mut node = node(Format::Vxlan, dual(1), dual(2));
    let their_v6 = Mac([0x0a, 0, 0, 0, 0, 6]);
    node.configure(|spec| plan::peer(spec, 0).vtep_mac.v6 = their_v6);
    for (packet, theirs) in [
        (udp(pod(1, 0), pod(2, 0), b"four"), mac(2)),
        (udp(pod6(1, 0), pod6(2, 0), b"six"), their_v6),
    ] {
        node.push(packet.clone());
        let (sent, _) = node.run(Now(0));
        let head = frame(theirs, mac(1), &packet);
        assert_eq!(sent[0].payload, [&head[..], &packet].concat());
    }
}

/// A node that took over flannel's two devices sends from two MACs, and takes only the packets of its family for each.
#[test]
fn a_node_has_a_mac_for_each_family() {
    let mut node = node(Format::Vxlan, dual(1), dual(2));
    let our_v6 = Mac([0x0a, 0, 0, 0, 0, 0x61]);
    node.configure(|spec| plan::cluster(spec).node.vtep_mac.v6 = our_v6);
    for (ours, from, to) in [
        (mac(1), pod(1, 0), pod(2, 0)),
        (our_v6, pod6(1, 0), pod6(2, 0)),
    ] {
        let packet = udp(from, to, b"out");
        node.push(packet.clone());
        let (sent, _) = node.run(Now(0));
        let head = frame(mac(2), ours, &packet);
        assert_eq!(sent[0].payload, [&head[..], &packet].concat());
    }
    let with_mac = |packet: &[u8], ours| Datagram {
        payload: [&frame(ours, mac(2), packet)[..], packet].concat(),
        ..vxlan(2, 1, packet)
    };
    let four = udp(pod(2, 0), pod(1, 0), b"in");
    let six = udp(pod6(2, 0), pod6(1, 0), b"in");
    for (packet, ours, other) in [(four, mac(1), our_v6), (six, our_v6, mac(1))] {
        node.hand(with_mac(&packet, other), 1);
        assert_eq!(node.run(Now(0)).1, [[0; 0]; 0]);
        node.hand(with_mac(&packet, ours), 1);
        assert_eq!(node.run(Now(0)).1, [packet]);
    }
    let refused = node.totals().inbound.drops_of(DropReason::NotOurMac);
    assert_eq!(refused, 2);
    assert_eq!(node.audit(), [""; 0]);
}

/// Whichever of its public addresses it speaks from, a peer is itself; and it may speak for both of them inside.
#[test]
fn a_peer_is_known_by_both_addresses() {
    let mut node = node(Format::Vxlan, dual(1), dual(2));
    for family in [Family::V4, Family::V6] {
        for (from, to) in [
            (pod(2, 0), pod(1, 0)),
            (pod6(2, 0), pod6(1, 0)),
            (ip("192.0.2.2"), pod(1, 0)),
            (ip("2001:db8::2"), pod6(1, 0)),
        ] {
            let packet = udp(from, to, b"in");
            node.hand(over(family, vxlan(2, 1, &packet)), 1);
            assert_eq!(node.run(Now(0)).1, [packet]);
        }
    }
    let stranger = over(Family::V6, vxlan(3, 1, &udp(pod6(2, 0), pod6(1, 0), b"in")));
    node.hand(stranger, 1);
    let forged = udp(ip("2001:db8::3"), pod6(1, 0), b"in");
    node.hand(over(Family::V6, vxlan(2, 1, &forged)), 1);
    assert_eq!(node.run(Now(0)).1, [[0; 0]; 0]);
    let flow = node.totals().inbound;
    assert_eq!(flow.drops_of(DropReason::UnknownPeer), 1);
    assert_eq!(flow.drops_of(DropReason::NotPeersSource), 1);
    assert_eq!(node.audit(), [""; 0]);
}

/// An address that two nodes claim as further source is its owner's, in both families.
#[test]
fn a_public_address_is_its_owners() {
    let mut node = node(Format::Vxlan, dual(1), dual(2));
    node.configure(|spec| {
        let mut other = PeerSpec::clone(&spec.cluster.peers[0]);
        other.name = "node3".into();
        other.public = v4(3);
        other.subnets = vec![net("10.244.3.0/24")];
        other.underlay_sources = vec![ip("192.0.2.2"), ip("2001:db8::2"), ip("2001:db8::3")];
        plan::cluster(spec).peers.push(Arc::new(other));
    });
    let packet = udp(pod6(2, 0), pod6(1, 0), b"in");
    node.hand(over(Family::V6, vxlan(2, 1, &packet)), 1);
    let further = udp(pod(3, 0), pod(1, 0), b"in");
    node.hand(over(Family::V6, vxlan(3, 1, &further)), 1);
    assert_eq!(node.run(Now(0)).1, [packet, further]);
}

#[test]
fn a_path_is_learned_for_the_address_that_it_leads_to() {
    let mut node = node(Format::Vxlan, dual(1), dual(2));
    learn(&mut node, report("2001:db8::2", 1_400), "2001:db8::2");
    assert_eq!(path_mtus(&mut node, Now(0)), [1_470, 1_330]);
    learn(&mut node, report("192.0.2.2", 1_300), "192.0.2.2");
    assert_eq!(path_mtus(&mut node, Now(0)), [1_250, 1_330]);
    // Another IPv6 address is another path, the other one is what it was.
    node.configure(|spec| {
        plan::peer(spec, 0).public = PublicAddresses::Dual([192, 0, 2, 2].into(), V6_NINE)
    });
    assert_eq!(path_mtus(&mut node, Now(0)), [1_250, 1_450]);
    // Without it, both families go by the one that is left, and both are bound by its path.
    node.configure(|spec| plan::peer(spec, 0).public = v4(2));
    assert_eq!(path_mtus(&mut node, Now(0)), [1_250, 1_280]);
    assert_eq!(
        path_mtus(&mut node, Now(0).after(PATH_MTU_LIFE)),
        [1_470, 1_470]
    );
}

/// No IPv6 link carries less than 1280 bytes; who says so, lies (RFC 8201 section 4).
#[test]
fn a_path_below_ipv6s_least_is_not_believed() {
    let mut node = node(Format::Vxlan, dual(1), dual(2));
    learn(&mut node, report("2001:db8::2", 1_279), "2001:db8::2");
    assert_eq!(path_mtus(&mut node, Now(0)), [1_470, 1_450]);
    learn(&mut node, report("2001:db8::2", 1_280), "2001:db8::2");
    assert_eq!(path_mtus(&mut node, Now(0)), [1_470, 1_280]);
}

/// A router on the IPv6 path quotes what went that way: inner IPv6.
#[test]
fn a_quote_of_the_other_family_is_forged() {
    for (from, to, believed) in [
        (pod6(1, 0), pod6(2, 0), true),
        (pod(1, 0), pod(2, 0), false),
    ] {
        let mut node = with_sockets(node(Format::Vxlan, dual(1), dual(2)));
        let sent = [1, 2].map(|n| send(&mut node, udp(from, to, &[n; 1_370]), Now(0)));
        for datagram in &sent {
            let (format, mut report) = about(datagram, 1_400);
            report.to.set_ip(ip("2001:db8::2"));
            tell(&mut node, (format, report), Now(0));
        }
        let expected = if believed { 1_330 } else { 1_450 };
        assert_eq!(path_mtus(&mut node, Now(0)), [1_470, expected]);
    }
}

/// The socket of one family stays full: what goes through the other's is not its victim.
#[test]
fn a_full_socket_is_its_familys_alone() {
    let mut node = node(Format::Vxlan, dual(1), dual(2));
    node.worker.underlay_mut().full = Some(Port::new(Format::Vxlan, Family::V6));
    node.push(udp(pod6(1, 0), pod6(2, 0), b"six"));
    for _ in 0..20 {
        node.push(udp(pod(1, 0), pod(2, 0), b"four"));
    }
    let first = node.run(Now(0)).0.len();
    let later = node.run(Now(0).after(HOLD)).0.len();
    assert_eq!(first + later, 20);
    assert_eq!(node.totals().outbound.drops_of(DropReason::UnderlayFull), 1);
    assert_eq!(node.audit(), [""; 0]);
}

/// The tables run ahead of the sockets for a moment: what would leave by one that is not there is dropped, not held.
#[test]
fn a_port_that_is_not_there_refuses() {
    let mut node = node(Format::Vxlan, dual(1), dual(2));
    node.worker.underlay_mut().public = v4(1);
    node.push(udp(pod6(1, 0), pod6(2, 0), b"six"));
    node.push(udp(pod(1, 0), pod(2, 0), b"four"));
    assert_eq!(node.run(Now(0)).0.len(), 1);
    let flow = node.totals().outbound;
    assert_eq!(flow.drops_of(DropReason::UnderlayRefused), 1);
    assert_eq!(node.audit(), [""; 0]);
}

/// The counts of a peer go on with either address, and are counted once.
#[test]
fn counts_go_on_with_either_address() {
    let mut node = node(Format::Vxlan, dual(1), dual(2));
    node.push(udp(pod(1, 0), pod(2, 0), b"out"));
    node.run(Now(0));
    let sent = |node: &Node| node.traffic().map(|t| t.sent_packets).collect::<Vec<_>>();
    node.configure(|spec| {
        plan::peer(spec, 0).public = PublicAddresses::Dual([192, 0, 2, 9].into(), V6_TWO)
    });
    assert_eq!(sent(&node), [1]);
    node.configure(|spec| {
        let mut other = PeerSpec::clone(&spec.cluster.peers[0]);
        (other.name, other.subnets) = ("node3".into(), vec![]);
        other.public = PublicAddresses::V6(V6_TWO);
        plan::peer(spec, 0).public = v4(9);
        plan::cluster(spec).peers.push(Arc::new(other));
    });
    assert_eq!(sent(&node), [1, 0]);
}

/// A node that moved is the same node; its name is not enough for another at the address that it left.
#[test]
fn counts_go_on_with_the_name_of_a_node_that_moved() {
    let mut node = node(Format::Vxlan, v4(1), v4(2));
    node.push(udp(pod(1, 0), pod(2, 0), b"out"));
    node.run(Now(0));
    let sent = |node: &Node| node.traffic().map(|t| t.sent_packets).collect::<Vec<_>>();
    node.configure(|spec| plan::peer(spec, 0).public = v4(9));
    assert_eq!(sent(&node), [1]);
    // Another node takes the name, a third the address: the address tells.
    node.configure(|spec| {
        let mut other = PeerSpec::clone(&spec.cluster.peers[0]);
        (other.name, other.subnets) = ("node3".into(), vec![]);
        plan::peer(spec, 0).public = v4(8);
        plan::cluster(spec).peers.push(Arc::new(other));
    });
    assert_eq!(sent(&node), [0, 1]);
}

/// Where inner IPv4 and inner IPv6 go from a node at `ours` to a node at `theirs`.
fn ways(format: Format, ours: PublicAddresses, theirs: PublicAddresses) -> [PublicAddresses; 2] {
    let mut node = node(format, ours, theirs);
    let pairs = [(pod(1, 0), pod(2, 0)), (pod6(1, 0), pod6(2, 0))];
    let ways = pairs.map(|(from, to)| {
        let packet = udp(from, to, b"out");
        node.push(packet.clone());
        let (sent, _) = node.run(Now(0));
        assert_eq!(sent.len(), 1);
        let to = sent[0].to;
        assert_eq!(to.port(), port(format));
        assert_eq!(sent[0].from.ip(), ours.of(Family::of(to.ip())).unwrap());
        assert_eq!(sent[0].payload[format.header_len()..], packet);
        to.ip().into()
    });
    assert_eq!(node.audit(), [""; 0]);
    ways
}

/// Node 1 at `ours`, with node 2 at `theirs`.
fn node(format: Format, ours: PublicAddresses, theirs: PublicAddresses) -> Node {
    let plan = ClusterPlan::new(2, format).over(|i| if i == 1 { ours } else { theirs });
    let mut spec = plan.spec(1);
    plan::cluster(&mut spec).node.ipv6_over_udp = true;
    plan::cluster(&mut spec).node.underlay_mtu = 1_520;
    assert_eq!(spec.cluster.peers[0].vtep_mac, PerFamily::each(|_| mac(2)));
    Node::new(spec)
}

/// The same datagram over another family.
fn over(
    family: Family,
    mut datagram: dataplane::underlay::memory::Datagram,
) -> dataplane::underlay::memory::Datagram {
    for end in [&mut datagram.from, &mut datagram.to] {
        let IpAddr::V4(v4) = end.ip() else {
            panic!("{end}")
        };
        if family == Family::V6 {
            end.set_ip(v6(v4.octets()[3]).first());
        }
    }
    datagram
}

/// A report of our own kernel about the path to `to`.
fn report(to: &str, mtu: u32) -> ErrorReport {
    ErrorReport {
        to: SocketAddr::new(ip(to), 0),
        socket: 0,
        local: true,
        errno: EMSGSIZE,
        info: mtu,
        quote: [0; QUOTE],
        quoted: 0,
    }
}

/// Has the node read a report at the port towards `to` while it sends something else there.
fn learn(node: &mut Node, failure: ErrorReport, to: &str) {
    let underlay = node.worker.underlay_mut();
    underlay.error_reports.push_back((Format::Vxlan, failure));
    underlay.errors.push_back(ECONNREFUSED);
    node.push(match ip(to) {
        IpAddr::V4(_) => udp(pod(1, 0), pod(2, 0), b"carrier"),
        IpAddr::V6(_) => udp(pod6(1, 0), pod6(2, 0), b"carrier"),
    });
    assert_eq!(node.run(Now(0)).0.len(), 1);
    assert!(node.worker.underlay_mut().error_reports.is_empty());
}

/// The largest inner packets of each family that go in one piece.
fn path_mtus(node: &mut Node, now: Now) -> [usize; 2] {
    [(pod(1, 0), pod(2, 0)), (pod6(1, 0), pod6(2, 0))]
        .map(|(from, to)| path_mtu_between(node, from, to, now))
}

const V6_TWO: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const V6_NINE: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
