//! For every reason to drop a packet, and each direction in which it can happen, how to make it happen.
//!
//! The node under test is node 1 of three; it sends to node 2 in VXLAN and to node 3 in the `udp` format.

use std::time::Duration;

use dataplane::drops::{Direction, DropReason};
use dataplane::limits::{FRAME, HOLD};
use dataplane::now::Now;
use encap::{Ecn, Format};
use libc::EPERM;

use crate::world::node::Node;
use crate::world::packets::{datagram, dont_fragment, pattern, plain, tcp, udp, vxlan, with_ecn};
use crate::world::plan::{MTU, Plan, ip, pod, pod6};

/// A reason, in one direction.
pub struct Case {
    /// The reason.
    pub reason: DropReason,
    /// The direction.
    pub direction: Direction,
    /// Sends packets that must all be dropped for the reason, and returns how many (of inner wire packets).
    pub run: fn(&mut Node) -> u64,
    /// A reason for which the same packets are counted once more, because they were answered.
    pub beside: Option<DropReason>,
}

/// Every reason, in each direction in which a packet can meet it.
pub const CASES: [Case; 28] = [
    outbound(DropReason::Malformed, out_malformed),
    outbound(DropReason::NotUnicast, out_not_unicast),
    outbound(DropReason::SpoofedSource, out_spoofed_source),
    outbound(DropReason::OwnSubnet, out_own_subnet),
    outbound(DropReason::NoRoute, out_no_route),
    outbound(DropReason::Ipv6InUdp, out_ipv6_in_udp),
    outbound(DropReason::TooBig, out_too_big),
    outbound(DropReason::UnderlayFull, out_underlay_full),
    outbound(DropReason::UnderlayFull, out_too_many_fragments),
    outbound(DropReason::UnderlayRefused, out_underlay_refused),
    Case {
        beside: Some(DropReason::NoRoute),
        ..outbound(DropReason::DeviceRefused, out_device_refused)
    },
    outbound(DropReason::LostInCrash, out_lost_in_crash),
    inbound(DropReason::Malformed, in_malformed),
    inbound(DropReason::Ipv6InUdp, in_ipv6_in_udp),
    inbound(DropReason::Truncated, in_truncated),
    inbound(DropReason::TooShort, in_too_short),
    inbound(DropReason::VxlanFlags, in_vxlan_flags),
    inbound(DropReason::WrongVni, in_wrong_vni),
    inbound(DropReason::NotOurMac, in_not_our_mac),
    inbound(DropReason::BadSourceMac, in_bad_source_mac),
    inbound(DropReason::NotIp, in_not_ip),
    inbound(DropReason::UnknownPeer, in_unknown_peer),
    inbound(DropReason::NotPeersSource, in_not_peers_source),
    inbound(DropReason::NotOurs, in_not_ours),
    inbound(DropReason::EcnMismatch, in_ecn_mismatch),
    inbound(DropReason::BadSuperPacket, in_bad_super_packet),
    inbound(DropReason::DeviceRefused, in_device_refused),
    inbound(DropReason::LostInCrash, in_lost_in_crash),
];

/// Node 1 of the three.
pub fn node() -> Node {
    let mut plan = Plan::new(3, Format::Vxlan);
    plan.formats[0][2] = Format::Udp;
    Node::new(plan.spec(1))
}

const fn outbound(reason: DropReason, run: fn(&mut Node) -> u64) -> Case {
    Case {
        reason,
        direction: Direction::Outbound,
        run,
        beside: None,
    }
}

const fn inbound(reason: DropReason, run: fn(&mut Node) -> u64) -> Case {
    Case {
        reason,
        direction: Direction::Inbound,
        run,
        beside: None,
    }
}

fn push(node: &mut Node, packets: impl IntoIterator<Item = Vec<u8>>) -> u64 {
    let mut count = 0;
    for packet in packets {
        node.push(packet);
        count += 1;
    }
    node.turn(START);
    count
}

fn hand(node: &mut Node, format: Format, payloads: impl IntoIterator<Item = Vec<u8>>) -> u64 {
    let mut count = 0;
    for payload in payloads {
        node.hand(datagram(2, 1, format, payload), 1);
        count += 1;
    }
    node.turn(START);
    count
}

/// What pod 0 of node 1 sends to `destinations`.
fn push_to(node: &mut Node, destinations: &[&str]) -> u64 {
    push(
        node,
        destinations.iter().map(|to| udp(pod(1, 0), ip(to), b"out")),
    )
}

/// What node 2 sends from `source` to `destination`, for each pair.
fn hand_between(node: &mut Node, pairs: &[(&str, &str)]) -> u64 {
    for (source, destination) in pairs {
        let packet = udp(ip(source), ip(destination), b"in");
        node.hand(vxlan(2, 1, &packet), 1);
        node.hand(plain(2, 1, &packet), 1);
    }
    node.turn(START);
    2 * pairs.len() as u64
}

/// A good VXLAN datagram with byte `place` set to each of `values` in turn.
fn hand_altered(node: &mut Node, place: usize, values: &[u8]) -> u64 {
    let good = vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in")).payload;
    let altered = values.iter().map(|value| {
        let mut payload = good.clone();
        payload[place] = *value;
        payload
    });
    hand(node, Format::Vxlan, altered)
}

/// Packets that are none.
fn malformed() -> Vec<Vec<u8>> {
    let good = udp(pod(2, 0), pod(1, 0), b"x");
    let with = |place: usize, value: u8| {
        let mut packet = good.clone();
        packet[place] = value;
        packet
    };
    let v6 = udp(pod6(2, 0), pod6(1, 0), b"x");
    vec![
        good[..19].to_vec(),
        with(0, 0x44),
        with(0, 0x4f),
        with(2, 9),
        with(3, 19),
        v6[..39].to_vec(),
        v6[..48].to_vec(),
    ]
}

fn out_malformed(node: &mut Node) -> u64 {
    push(
        node,
        malformed().into_iter().chain([vec![], vec![0x55; 60]]),
    )
}

fn out_not_unicast(node: &mut Node) -> u64 {
    push_to(
        node,
        &["224.0.0.251", "239.1.2.3", "255.255.255.255", "0.0.0.0"],
    ) + push(
        node,
        ["ff02::1", "::"].map(|to| udp(pod6(1, 0), ip(to), b"out")),
    )
}

fn out_spoofed_source(node: &mut Node) -> u64 {
    let sources = [
        "10.244.1.77",
        "10.244.2.2",
        "192.0.2.2",
        "203.0.113.9",
        "127.0.0.1",
    ];
    push(node, sources.map(|from| udp(ip(from), pod(2, 0), b"out")))
}

fn out_own_subnet(node: &mut Node) -> u64 {
    push_to(node, &["10.244.1.77", "10.244.1.255", "10.244.1.3"])
}

fn out_no_route(node: &mut Node) -> u64 {
    push_to(node, &["10.244.77.1", "203.0.113.9", "10.245.0.1"])
        + push(node, [udp(pod6(1, 0), ip("fd00:10:244:77::1"), b"out")])
}

fn out_ipv6_in_udp(node: &mut Node) -> u64 {
    push(node, (0..5).map(|_| udp(pod6(1, 0), pod6(3, 0), b"out")))
}

fn out_too_big(node: &mut Node) -> u64 {
    let most = usize::from(MTU) - 28;
    let vxlan = (1..4).map(|n| dont_fragment(udp(pod(1, 0), pod(2, 0), &pattern(most + n))));
    // The `udp` format leaves 22 bytes more.
    let plain = [dont_fragment(udp(
        pod(1, 0),
        pod(3, 0),
        &pattern(most + 23),
    ))];
    let v6 = [udp(pod6(1, 0), pod6(2, 0), &pattern(most - 19))];
    push(node, vxlan.chain(plain).chain(v6))
}

fn out_underlay_full(node: &mut Node) -> u64 {
    node.give_room(Some(0));
    let count = push(node, (0..5).map(|_| udp(pod(1, 0), pod(2, 0), b"out")));
    node.turn(START.after(HOLD));
    node.give_room(None);
    count
}

/// A batch has room for so many datagrams; what would be cut into more is dropped whole, before any of it is sent.
fn out_too_many_fragments(node: &mut Node) -> u64 {
    let large = |destination| udp(pod(1, 0), destination, &pattern(60_000));
    let before = node.totals().outbound;
    node.give_room(Some(0));
    push(node, (0..8).map(|_| large(pod(2, 0))));
    let after = node.totals().outbound;
    let dropped =
        after.received - before.received - (after.held - (after.originated - before.originated));
    // What did fit is kept until it is too old.
    node.turn(START.after(HOLD));
    node.give_room(None);
    let fragments = after.held - before.held;
    assert!(dropped > 0 && fragments > 0);
    dropped + fragments
}

fn out_underlay_refused(node: &mut Node) -> u64 {
    // Each send is repeated once, because the first error may be an earlier datagram's.
    node.worker.underlay_mut().errors.extend([EPERM; 10]);
    push(
        node,
        (0..5).map(|n| udp(pod(1, 0), pod(2 + n % 2, 0), b"out")),
    )
}

fn out_device_refused(node: &mut Node) -> u64 {
    node.worker.device_mut().down = true;
    let count = push_to(node, &["10.244.77.1", "203.0.113.9"]);
    node.worker.device_mut().down = false;
    count
}

fn out_lost_in_crash(node: &mut Node) -> u64 {
    node.give_room(Some(0));
    let count = push(node, (0..5).map(|_| udp(pod(1, 0), pod(2, 0), b"out")));
    assert_eq!(node.restart(), count);
    count
}

fn in_malformed(node: &mut Node) -> u64 {
    let inner = malformed();
    let framed = inner.iter().map(|packet| vxlan(2, 1, packet).payload);
    hand(node, Format::Vxlan, framed.collect::<Vec<_>>())
        + hand(
            node,
            Format::Udp,
            inner.into_iter().chain([vec![], vec![0xff; 99]]),
        )
}

fn in_ipv6_in_udp(node: &mut Node) -> u64 {
    hand(
        node,
        Format::Udp,
        (0..4).map(|_| udp(pod6(2, 0), pod6(1, 0), b"in")),
    )
}

fn in_truncated(node: &mut Node) -> u64 {
    hand(node, Format::Udp, [vec![0x45; FRAME + 1]])
        + hand(node, Format::Vxlan, [vec![8; FRAME + 1000]])
}

fn in_too_short(node: &mut Node) -> u64 {
    let good = vxlan(2, 1, &[]).payload;
    hand(
        node,
        Format::Vxlan,
        (0..22).map(|length| good[..length].to_vec()),
    )
}

fn in_vxlan_flags(node: &mut Node) -> u64 {
    hand_altered(node, 0, &[0x00, 0x88, 0x0c, 0x09, 0xf7])
        + hand_altered(node, 1, &[0x80, 1])
        + hand_altered(node, 3, &[9])
        + hand_altered(node, 7, &[1, 255])
}

fn in_wrong_vni(node: &mut Node) -> u64 {
    hand_altered(node, 6, &[0, 2, 255]) + hand_altered(node, 4, &[1])
}

fn in_not_our_mac(node: &mut Node) -> u64 {
    hand_altered(node, 13, &[0, 2, 255]) + hand_altered(node, 8, &[0xff, 3])
}

fn in_bad_source_mac(node: &mut Node) -> u64 {
    // Ours, and a group.
    let altered = hand_altered(node, 19, &[1]) + hand_altered(node, 14, &[1, 0x33, 0xff]);
    let mut nobody = vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in"));
    nobody.payload[14..20].fill(0);
    altered + hand(node, Format::Vxlan, [nobody.payload])
}

fn in_not_ip(node: &mut Node) -> u64 {
    // ARP, and IPv6 announced over IPv4.
    let altered = hand_altered(node, 21, &[6, 0xff]);
    let mut other = vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in"));
    other.payload[20..22].copy_from_slice(&[0x86, 0xdd]);
    altered + hand(node, Format::Vxlan, [other.payload])
}

fn in_unknown_peer(node: &mut Node) -> u64 {
    let packet = udp(pod(2, 0), pod(1, 0), b"in");
    for (from, payload) in [
        (9, packet),
        (99, b"noise".to_vec()),
        (1, udp(pod(1, 1), pod(1, 0), b"in")),
    ] {
        node.hand(plain(from, 1, &payload), 1);
        let mut framed = vxlan(2, 1, &payload);
        framed.from = plain(from, 1, &[]).from;
        node.hand(framed, 1);
    }
    node.turn(START);
    6
}

fn in_not_peers_source(node: &mut Node) -> u64 {
    // Another node's pod, our pods, our tunnel, our node address, another node's, and the world's.
    let sources = [
        "10.244.3.2",
        "10.244.1.3",
        "10.244.1.0",
        "192.0.2.1",
        "192.0.2.3",
        "203.0.113.9",
        "10.244.1.77",
    ];
    hand_between(node, &sources.map(|source| (source, "10.244.1.2")))
}

fn in_not_ours(node: &mut Node) -> u64 {
    let destinations = [
        "10.244.1.77",
        "10.244.3.2",
        "192.0.2.1",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "255.255.255.255",
        "10.244.1.255",
    ];
    hand_between(
        node,
        &destinations.map(|destination| ("10.244.2.2", destination)),
    )
}

fn in_ecn_mismatch(node: &mut Node) -> u64 {
    let packet = with_ecn(udp(pod(2, 0), pod(1, 0), b"in"), Ecn::NotEct);
    for _ in 0..3 {
        let mut marked = vxlan(2, 1, &packet);
        marked.ecn = Ecn::Ce;
        node.hand(marked, 1);
    }
    node.turn(START);
    3
}

fn in_bad_super_packet(node: &mut Node) -> u64 {
    // Four segments beside 52 bytes of headers, and a checksum that is neither right nor unfinished.
    let mut wrong = tcp(pod(2, 0), pod(1, 0), &pattern(5_000));
    wrong[36] ^= 0x40;
    node.hand(vxlan(2, 1, &wrong), 4);
    // More segments than any sender makes: not cut, one packet.
    let mut dust = vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), &pattern(5_000)));
    dust.segment = Some(1);
    node.hand(dust, 1);
    node.turn(START);
    5
}

fn in_device_refused(node: &mut Node) -> u64 {
    node.worker.device_mut().down = true;
    node.hand(vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in")), 1);
    node.hand(vxlan(2, 1, &tcp(pod(2, 0), pod(1, 0), &pattern(5_000))), 4);
    node.turn(START);
    node.worker.device_mut().down = false;
    5
}

fn in_lost_in_crash(node: &mut Node) -> u64 {
    node.die_delivering(vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in")));
    assert_eq!(node.restart(), 1);
    1
}

/// When things happen: late enough that everything before it has passed.
const START: Now = Now(0).after(Duration::from_secs(1));
