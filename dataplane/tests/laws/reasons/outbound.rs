//! What a pod can send, and a kernel refuse, so that it is dropped.

use dataplane::device::{Cut, GsoType, Offload};
use dataplane::limits::{ALONE_QUANTA, HOLD, QUANTUM_PACKETS};
use etherparse::{ArpOperation, EtherType, IpNumber};
use libc::EPERM;

use super::{START, not_packets};
use crate::world::node::Node;
use crate::world::packets::{arp, dont_fragment, edit_v4, ethernet_frame, pattern, udp};
use crate::world::plan;
use crate::world::plan::{MTU, ip, pod, pod6, v4, v6};

pub fn malformed(node: &mut Node) -> u64 {
    push(
        node,
        not_packets().into_iter().chain([vec![], vec![0x55; 60]]),
    )
}

pub fn not_unicast(node: &mut Node) -> u64 {
    push_to(
        node,
        &["224.0.0.251", "239.1.2.3", "255.255.255.255", "0.0.0.0"],
    ) + push(
        node,
        ["ff02::1", "::"].map(|to| udp(pod6(1, 0), ip(to), b"out")),
    )
}

/// What a TAP reads beside IP packets and requests for its own answers: LLDP, a VLAN tag, IPv6 that says it is IPv4, an
/// ARP answer, an announcement, a runt.
pub fn not_ip(node: &mut Node) -> u64 {
    let answer = arp([10, 244, 2, 2], [10, 244, 1, 2], ArpOperation::REPLY);
    let announced = arp([10, 244, 1, 2], [10, 244, 1, 2], ArpOperation::REQUEST);
    let frames = [
        ethernet_frame(EtherType(0x88cc), &[2, 7, 4]),
        ethernet_frame(EtherType::VLAN_TAGGED_FRAME, &[0; 40]),
        ethernet_frame(EtherType::IPV4, &udp(pod6(1, 0), pod6(2, 0), b"out")),
        ethernet_frame(EtherType::ARP, &answer),
        ethernet_frame(EtherType::ARP, &announced),
        ethernet_frame(EtherType::ARP, &announced[..20]),
        ethernet_frame(EtherType::IPV6, &[]),
    ];
    let count = frames.len() as u64;
    frames.into_iter().for_each(|frame| node.push_frame(frame));
    node.turn(START);
    count
}

pub fn spoofed_source(node: &mut Node) -> u64 {
    let sources = [
        "10.244.1.77",
        "10.244.2.2",
        "192.0.2.2",
        "203.0.113.9",
        "127.0.0.1",
    ];
    push(node, sources.map(|from| udp(ip(from), pod(2, 0), b"out")))
}

pub fn own_subnet(node: &mut Node) -> u64 {
    push_to(node, &["10.244.1.77", "10.244.1.255", "10.244.1.3"])
}

pub fn no_route(node: &mut Node) -> u64 {
    push_to(node, &["10.244.77.1", "203.0.113.9", "10.245.0.1"])
        + push(node, [udp(pod6(1, 0), ip("fd00:10:244:77::1"), b"out")])
}

pub fn no_underlay(node: &mut Node) -> u64 {
    node.configure(|spec| plan::peer(spec, 0).public = v6(2));
    let count = push(
        node,
        [
            udp(pod(1, 0), pod(2, 0), b"out"),
            udp(pod6(1, 0), pod6(2, 0), b"out"),
        ],
    );
    node.configure(|spec| plan::peer(spec, 0).public = v4(2));
    count
}

pub fn ipv6_in_udp(node: &mut Node) -> u64 {
    push(node, (0..5).map(|_| udp(pod6(1, 0), pod6(3, 0), b"out")))
}

pub fn too_big(node: &mut Node) -> u64 {
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

pub fn underlay_full(node: &mut Node) -> u64 {
    node.give_room(Some(0));
    let count = push(node, (0..5).map(|_| udp(pod(1, 0), pod(2, 0), b"out")));
    node.turn(START.after(HOLD));
    node.give_room(None);
    count
}

pub fn underlay_refused(node: &mut Node) -> u64 {
    // Each send is repeated once, because the first error may be an earlier datagram's.
    node.worker.underlay_mut().errors.extend([EPERM; 10]);
    push(
        node,
        (0..5).map(|n| udp(pod(1, 0), pod(2 + n % 2, 0), b"out")),
    )
}

/// Neither cut nor sent as it is: a protocol that is not known to be cut, a fragment, more wire packets than a sender
/// sends.
pub fn bad_super_packet(node: &mut Node) -> u64 {
    let large = udp(pod(1, 0), pod(2, 0), &pattern(4_000));
    let mut other = large.clone();
    edit_v4(&mut other, |ip| ip.protocol = IpNumber::SCTP);
    let mut fragment = large.clone();
    edit_v4(&mut fragment, |ip| ip.more_fragments = true);
    for (packet, size) in [(other, 1_400), (fragment, 1_400), (large, 1)] {
        let cut = Cut {
            kind: GsoType::Udp,
            size,
            header: 28,
        };
        let offload = Offload {
            checksum: None,
            cut: Some(cut),
        };
        node.push_as(offload, packet, 1);
    }
    node.turn(START);
    3
}

pub fn device_refused(node: &mut Node) -> u64 {
    node.worker.device_mut().down = true;
    let count = push_to(node, &["10.244.77.1", "203.0.113.9"]);
    node.worker.device_mut().down = false;
    count
}

/// Beyond all that a pod may have waiting that no other waits beside.
pub fn over_share(node: &mut Node) -> u64 {
    let share = QUANTUM_PACKETS * ALONE_QUANTA as usize;
    let packet = udp(pod(1, 0), pod(2, 0), b"out");
    push(node, std::iter::repeat_n(packet, share + 5));
    assert_eq!(node.take_sent().len(), share);
    5
}

pub fn lost_in_crash(node: &mut Node) -> u64 {
    node.give_room(Some(0));
    let count = push(node, (0..5).map(|_| udp(pod(1, 0), pod(2, 0), b"out")));
    assert_eq!(node.restart(), count);
    count
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

/// What pod 0 of node 1 sends to `destinations`.
fn push_to(node: &mut Node, destinations: &[&str]) -> u64 {
    push(
        node,
        destinations.iter().map(|to| udp(pod(1, 0), ip(to), b"out")),
    )
}
