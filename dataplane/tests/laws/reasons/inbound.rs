//! What a peer or a stranger can send so that it is dropped.

use std::net::IpAddr;

use dataplane::limits::{
    ALONE_QUANTA, FRAME, FULL_INBOX_WAIT, INBOX, PROBE_BURST, QUANTUM_PACKETS,
};
use dataplane::probe::REQUEST;
use dataplane::underlay::memory::member;
use encap::{Ecn, Format};

use super::{START, not_packets};
use crate::steered::owner;
use crate::world::node::Node;
use crate::world::packets::{answer, datagram, pattern, plain, request, tcp, udp, vxlan, with_ecn};
use crate::world::plan::{self, ip, pod, pod6};

pub fn malformed(node: &mut Node) -> u64 {
    let inner = not_packets();
    let framed = inner.iter().map(|packet| vxlan(2, 1, packet).payload);
    hand(node, Format::Vxlan, framed.collect::<Vec<_>>())
        + hand(
            node,
            Format::Udp,
            inner.into_iter().chain([vec![], vec![0xff; 99]]),
        )
}

pub fn ipv6_in_udp(node: &mut Node) -> u64 {
    hand(
        node,
        Format::Udp,
        (0..4).map(|_| udp(pod6(2, 0), pod6(1, 0), b"in")),
    )
}

pub fn truncated(node: &mut Node) -> u64 {
    hand(node, Format::Udp, [vec![0x45; FRAME + 1]])
        + hand(node, Format::Vxlan, [vec![8; FRAME + 1000]])
}

pub fn too_short(node: &mut Node) -> u64 {
    let good = vxlan(2, 1, &[]).payload;
    hand(
        node,
        Format::Vxlan,
        (0..22).map(|length| good[..length].to_vec()),
    )
}

pub fn vxlan_flags(node: &mut Node) -> u64 {
    hand_altered(node, 0, &[0x00, 0x88, 0x0c, 0x09, 0xf7])
        + hand_altered(node, 1, &[0x80, 1])
        + hand_altered(node, 3, &[9])
        + hand_altered(node, 7, &[1, 255])
}

pub fn wrong_vni(node: &mut Node) -> u64 {
    hand_altered(node, 6, &[0, 2, 255]) + hand_altered(node, 4, &[1])
}

pub fn not_our_mac(node: &mut Node) -> u64 {
    hand_altered(node, 13, &[0, 2, 255]) + hand_altered(node, 8, &[0xff, 3])
}

pub fn bad_source_mac(node: &mut Node) -> u64 {
    // Ours, and a group.
    let altered = hand_altered(node, 19, &[1]) + hand_altered(node, 14, &[1, 0x33, 0xff]);
    let mut zero_mac = vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in"));
    zero_mac.payload[14..20].fill(0);
    altered + hand(node, Format::Vxlan, [zero_mac.payload])
}

pub fn not_ip(node: &mut Node) -> u64 {
    // ARP, and IPv6 announced over IPv4.
    let altered = hand_altered(node, 21, &[6, 0xff]);
    let mut other = vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in"));
    other.payload[20..22].copy_from_slice(&[0x86, 0xdd]);
    altered + hand(node, Format::Vxlan, [other.payload])
}

pub fn unknown_peer(node: &mut Node) -> u64 {
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

pub fn not_peers_source(node: &mut Node) -> u64 {
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

pub fn not_ours(node: &mut Node) -> u64 {
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

pub fn ecn_mismatch(node: &mut Node) -> u64 {
    let packet = with_ecn(udp(pod(2, 0), pod(1, 0), b"in"), Ecn::NotEct);
    for _ in 0..3 {
        let mut marked = vxlan(2, 1, &packet);
        marked.ecn = Ecn::Ce;
        node.hand(marked, 1);
    }
    node.turn(START);
    3
}

pub fn bad_super_packet(node: &mut Node) -> u64 {
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

pub fn device_refused(node: &mut Node) -> u64 {
    node.worker.device_mut().down = true;
    node.hand(vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in")), 1);
    node.hand(vxlan(2, 1, &tcp(pod(2, 0), pod(1, 0), &pattern(5_000))), 4);
    node.turn(START);
    node.worker.device_mut().down = false;
    5
}

/// Of two workers, one receives and the other, which owns the flow, stalls until its ring is full, and for long.
pub fn ring_full(node: &mut Node) -> u64 {
    node.regroup(2);
    let (unused, pod) = (ip("10.244.1.99"), pod(1, 0));
    let receiver = member(&plain(2, 1, b""), 2);
    let foreign = |to, make: fn(IpAddr, IpAddr) -> Vec<u8>| {
        let flows = (2..).map(|host| make(ip(&format!("10.244.2.{host}")), to));
        let mut packets = flows.filter(|packet| owner(packet, 2) != receiver);
        packets.next().unwrap()
    };
    let small = |from, to| udp(from, to, b"in");
    // Many wire packets, and counted so.
    let large = |from, to| tcp(from, to, &pattern(4_000));
    let taken = std::iter::repeat_n((foreign(unused, small), 1), INBOX);
    let refused = [(foreign(pod, small), 1), (foreign(pod, large), 3)];
    let late = START.after(FULL_INBOX_WAIT);
    for (packet, weight) in taken.chain(refused) {
        node.hand(plain(2, 1, &packet), weight);
        node.step(receiver, START);
        node.step(receiver, late);
    }
    node.turn(late);
    node.regroup(1);
    INBOX as u64
}

/// Twice what a pod may have waiting that no other waits beside. Nothing is wrong with the peer.
pub fn over_share(node: &mut Node) -> u64 {
    let share = QUANTUM_PACKETS * ALONE_QUANTA as usize;
    let packet = with_ecn(udp(pod(2, 0), pod(1, 0), b"in"), Ecn::NotEct);
    let mut marked = vxlan(2, 1, &packet);
    marked.ecn = Ecn::Ce;
    let refused = |node: &Node| node.refused().sum::<u64>();
    let before = refused(node);
    for _ in 0..2 * share {
        node.hand(marked.clone(), 1);
    }
    node.turn(START);
    // What is within the share has a congestion mark that it must not have.
    assert_eq!(refused(node) - before, share as u64);
    share as u64
}

pub fn lost_in_crash(node: &mut Node) -> u64 {
    node.die_delivering(vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in")));
    assert_eq!(node.restart(), 1);
    1
}

/// Another version, another kind, too short, a frame of a probe with something else in it.
pub fn bad_probe(node: &mut Node) -> u64 {
    let mut count = 0;
    for (format, at) in [(Format::Udp, 0), (Format::Vxlan, 22)] {
        let good = request(2, 1, format, 1, at + REQUEST).payload;
        let with = |place: usize, value| {
            let mut payload = good.clone();
            payload[at + place] = value;
            payload
        };
        let payloads = [with(4, 2), with(5, 0), with(5, 4)];
        let short = [4, 47, 48, REQUEST - 1].map(|length| good[..at + length].to_vec());
        count += hand(node, format, payloads.into_iter().chain(short));
    }
    let mut frame = request(2, 1, Format::Vxlan, 1, 100).payload;
    frame[22] = 0x45;
    count + hand(node, Format::Vxlan, [frame])
}

/// More answers than a peer can have to give.
pub fn probe_limit(node: &mut Node) -> u64 {
    let burst = PROBE_BURST as usize;
    for nonce in 0..2 * burst as u64 {
        node.hand(answer(2, 1, Format::Vxlan, nonce), 1);
    }
    node.turn(START);
    burst as u64
}

/// A peer asks over a family by which nothing goes back to it.
pub fn no_underlay(node: &mut Node) -> u64 {
    let v6 = |i| plan::v6(i).first();
    node.configure(|spec| plan::peer(spec, 0).underlay_sources.push(v6(2)));
    let mut asks = request(2, 1, Format::Vxlan, 1, 100);
    (asks.from, asks.to) = ((v6(2), 4_000).into(), (v6(1), 8472).into());
    node.hand(asks, 1);
    node.turn(START);
    1
}

/// There is no room for the answers.
pub fn underlay_full(node: &mut Node) -> u64 {
    node.give_room(Some(0));
    let count = hand_requests(node);
    node.give_room(None);
    count
}

/// The kernel refuses to send the answers.
pub fn underlay_refused(node: &mut Node) -> u64 {
    node.worker.underlay_mut().errors.extend([libc::EPERM; 3]);
    hand_requests(node)
}

fn hand_requests(node: &mut Node) -> u64 {
    for nonce in 0..3 {
        let mut asks = request(2, 1, Format::Vxlan, nonce, 100);
        asks.from.set_port(5_000);
        node.hand(asks, 1);
    }
    node.turn(START);
    3
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
