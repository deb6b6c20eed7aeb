//! Packets of one flow that leave together: super-packets from the device, and messages of several datagrams.

use encap::protocol::TCP;
use std::net::IpAddr;

use dataplane::counters::Flow;
use dataplane::drops::DropReason;
use dataplane::now::Now;
use encap::offload::{Cut, GsoType, Offload, Unfinished};
use encap::{Ecn, Format};
use libc::{EINVAL, EIO, EMSGSIZE, EPERM};

use crate::path_mtu::{inner, learn, reassemble, report};
use crate::reasons::node;
use crate::world::node::Node;
use crate::world::packets::{
    checksums_hold, dont_fragment, edit_v4, pattern, tcp, udp, unfinished, with_ecn,
};
use crate::world::plan::{ip, pod, pod6};

/// `count` packets of one UDP flow, identifications in sequence, as one sender's super-packet is cut.
fn burst(from: IpAddr, to: IpAddr, count: u16, length: usize) -> Vec<Vec<u8>> {
    let packet = |n: u16| {
        let mut payload = pattern(length);
        payload[0] = n as u8;
        let mut packet = udp(from, to, &payload);
        if from.is_ipv4() {
            edit_v4(&mut packet, |ip| ip.identification = 100 + n);
        }
        packet
    };
    (0..count).map(packet).collect()
}

/// `count` segments of one TCP flow in sequence.
fn stream(from: IpAddr, to: IpAddr, count: u16, length: usize) -> Vec<Vec<u8>> {
    let segment = |n: u16| {
        let mut packet = tcp(from, to, &pattern(length));
        let at = if from.is_ipv4() { 20 } else { 40 };
        let sequence = 0x1122_3344 + u32::from(n) * length as u32;
        packet[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
        // Only the last carries PSH.
        if n + 1 < count {
            packet[at + 13] &= !8;
        }
        if from.is_ipv4() {
            edit_v4(&mut packet, |ip| ip.identification = 100 + n);
        }
        finished(packet)
    };
    (0..count).map(segment).collect()
}

fn finished(packet: Vec<u8>) -> Vec<u8> {
    let inner = encap::inner::Inner::parse(&packet).unwrap();
    let mut packet = unfinished(packet);
    let offset = if inner.protocol == TCP { 16 } else { 6 };
    encap::checksum::finish(&mut packet, inner.transport, offset).unwrap();
    assert!(checksums_hold(&packet));
    packet
}

fn with_every_offload() -> Node {
    let mut node = node();
    node.worker.device_mut().offloads = true;
    node
}

fn push(node: &mut Node, packets: &[Vec<u8>]) {
    packets.iter().for_each(|packet| node.push(packet.clone()));
}

/// Whatever comes as one packet leaves as the wire packets that it stands for, bit for bit, in both formats.
#[test]
fn a_super_packet_leaves_as_its_wire_packets() {
    for (count, length) in [(2, 1), (10, 1_300), (44, 1_370), (64, 200)] {
        for peer in [2, 3] {
            let mut flows = vec![
                burst(pod(1, 0), pod(peer, 0), count, length),
                stream(pod(1, 0), pod(peer, 0), count, length),
            ];
            if peer == 2 {
                flows.push(burst(pod6(1, 0), pod6(2, 0), count, length));
                flows.push(stream(pod6(1, 0), pod6(2, 0), count, length));
            }
            for packets in flows {
                let mut node = with_every_offload();
                push(&mut node, &packets);
                let (sent, answers) = node.run(Now(0));
                assert_eq!(answers, [[0; 0]; 0]);
                assert!(inner(&sent) == packets, "{count} of {length} to {peer}");
                assert_eq!(node.audit(), [""; 0]);
                assert_eq!(node.totals().outbound.received, u64::from(count));
            }
        }
    }
}

/// A checksum left unfinished is finished, of whatever protocol and wherever it stands.
#[test]
fn an_unfinished_checksum_is_finished() {
    for packet in [
        udp(pod(1, 0), pod(2, 0), b"odd"),
        tcp(pod(1, 0), pod(3, 0), b""),
        tcp(pod6(1, 0), pod6(2, 0), &pattern(1_300)),
        udp(pod6(1, 0), pod6(2, 0), b"six"),
    ] {
        let mut node = with_every_offload();
        node.push(packet.clone());
        let sent = node.run(Now(0)).0;
        assert_eq!(inner(&sent), [packet]);
    }
}

/// No checksum to finish, wherever a sender puts it, changes a field of the packet that was checked. One in the IP header
/// is refused before an ICMP error is sent.
#[test]
fn no_checksum_to_finish_changes_a_checked_field() {
    for (packet, routed) in [
        (udp(pod6(1, 0), pod6(2, 0), &pattern(20)), true),
        (udp(pod(1, 0), pod(2, 0), &pattern(20)), true),
        (tcp(pod(1, 0), pod(3, 0), &pattern(20)), true),
        (udp(pod6(1, 0), ip("2001:db8:ffff::1"), b"nowhere"), false),
        (udp(pod(1, 0), ip("198.51.100.1"), b"nowhere"), false),
    ] {
        let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
        let places = (0..=90).chain([u16::MAX - 1, u16::MAX]);
        let claims = places
            .clone()
            .flat_map(|start| places.clone().map(move |o| (start, o)));
        let mut node = with_every_offload();
        for (start, offset) in claims.step_by(3) {
            let claim = Offload {
                checksum: Some(Unfinished { start, offset }),
                cut: None,
            };
            let field = usize::from(start) + usize::from(offset);
            let sound = usize::from(start) >= header && field + 2 <= packet.len();
            let before = node.totals().outbound;
            node.push_as(claim, packet.clone(), 1);
            let sent = inner(&node.run(Now(0)).0);
            let after = node.totals().outbound;
            let malformed = |flow: &Flow| flow.drops_of(DropReason::Malformed);
            assert_eq!(malformed(&after) - malformed(&before), u64::from(!sound));
            assert_eq!(sent.len(), usize::from(sound && routed), "{start} {offset}");
            for sent in sent {
                assert_eq!(sent[..header], packet[..header], "{start} {offset}");
            }
            if !sound {
                assert_eq!(after.originated, before.originated, "{start} {offset}");
            }
        }
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// A path too small for the wire packets of a super-packet: one answer, about one of them as others would have seen it.
#[test]
fn a_super_packet_too_large_gets_one_icmp_error() {
    for packets in [
        stream(pod(1, 0), pod(2, 0), 10, 1_398),
        burst(pod(1, 0), pod(2, 0), 10, 1_422)
            .into_iter()
            .map(dont_fragment)
            .collect(),
    ] {
        let mut node = with_every_offload();
        learn(&mut node, report(2, Format::Vxlan, 1_400), Now(0));
        push(&mut node, &packets);
        let (sent, answers) = node.run(Now(0));
        assert_eq!(sent, []);
        let [answer] = &answers[..] else {
            panic!("{} answers", answers.len())
        };
        assert_eq!(
            (&answer[20..22], &answer[26..28]),
            (&[3, 4][..], &1_350u16.to_be_bytes()[..])
        );
        assert_eq!(answer[28..], packets[0][..548]);
        let flow = node.totals().outbound;
        assert_eq!(
            (flow.drops_of(DropReason::TooBig), flow.originated),
            (10, 1)
        );
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// It is the size of one wire packet that must fit, not that of the super-packet.
#[test]
fn sizes_are_checked_by_the_wire_packet() {
    for (length, fits) in [(1_298, true), (1_299, false)] {
        let mut node = with_every_offload();
        learn(&mut node, report(2, Format::Vxlan, 1_400), Now(0));
        push(&mut node, &stream(pod(1, 0), pod(2, 0), 20, length));
        let sent = node.run(Now(0)).0;
        assert_eq!(sent.len(), if fits { 20 } else { 0 }, "{length}");
    }
}

/// UDP without DF: every datagram arrives, in fragments, cut where its sender cut.
#[test]
fn udp_that_may_be_fragmented_is() {
    for count in [2, 10, 40] {
        let packets = burst(pod(1, 0), pod(2, 0), count, 1_400);
        let mut node = with_every_offload();
        learn(&mut node, report(2, Format::Vxlan, 700), Now(0));
        push(&mut node, &packets);
        let (sent, answers) = node.run(Now(0));
        assert_eq!(answers, [[0; 0]; 0]);
        let arrived: Vec<_> = inner(&sent).chunks(3).map(reassemble).collect();
        assert!(arrived == packets);
        let flow = node.totals().outbound;
        let count = u64::from(count);
        // One more was sent to learn the path.
        assert_eq!(
            (flow.received, flow.originated, flow.sent),
            (1 + count, 2 * count, 1 + 3 * count)
        );
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// TCP without DF: cut smaller, nothing in fragments.
#[test]
fn tcp_that_may_be_fragmented_is_cut_smaller() {
    let mut packets = stream(pod(1, 0), pod(2, 0), 10, 1_398);
    for packet in &mut packets {
        edit_v4(packet, |ip| ip.dont_fragment = false);
    }
    let mut node = with_every_offload();
    learn(&mut node, report(2, Format::Vxlan, 1_000), Now(0));
    push(&mut node, &packets);
    let sent = inner(&node.run(Now(0)).0);
    assert_eq!(sent.len(), 13_980usize.div_ceil(950 - 52));
    let stream: Vec<u8> = sent.iter().flat_map(|p| p[52..].to_vec()).collect();
    let expected: Vec<u8> = packets.iter().flat_map(|p| p[52..].to_vec()).collect();
    assert!(stream == expected);
    assert!(sent.iter().all(|p| p.len() <= 950 && checksums_hold(p)));
    let flow = node.totals().outbound;
    // One more was sent to learn the path.
    assert_eq!(
        (flow.received, flow.received + flow.originated),
        (11, flow.sent)
    );
    assert_eq!(node.audit(), [""; 0]);
}

/// The path MTU comes only with the first send: what may be fragmented is, the rest gets ICMP errors, and
/// what fits goes.
#[test]
fn a_super_packet_that_proves_too_large_loses_only_what_must_not_be_fragmented() {
    let refuse = |node: &mut Node| {
        let underlay = node.worker.underlay_mut();
        underlay
            .error_reports
            .push_back(report(2, Format::Vxlan, 700));
        // The GSO batch once, its first datagram twice.
        underlay.errors.extend([EMSGSIZE; 3]);
    };
    let packets = burst(pod(1, 0), pod(2, 0), 5, 1_400);
    let mut node = with_every_offload();
    refuse(&mut node);
    push(&mut node, &packets);
    let sent = inner(&node.run(Now(0)).0);
    // The others are taken by this kernel once it has spoken; the first goes in fragments, and before them.
    assert_eq!(sent.len(), 3 + 4);
    assert_eq!(reassemble(&sent[..3]), packets[0]);
    assert_eq!(sent[3..], packets[1..]);
    assert_eq!(node.audit(), [""; 0]);

    let packets = stream(pod(1, 0), pod(2, 0), 5, 1_398);
    let mut node = with_every_offload();
    refuse(&mut node);
    push(&mut node, &packets);
    let (sent, answers) = node.run(Now(0));
    assert_eq!(inner(&sent), packets[1..]);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][28..], packets[0][..548]);
    assert_eq!(node.totals().outbound.drops_of(DropReason::TooBig), 1);
    assert_eq!(node.audit(), [""; 0]);
}

/// A kernel that refuses GSO batches: everything arrives all the same, in order, and each batch counts as a failure.
#[test]
fn without_gso_everything_arrives() {
    for errno in [EINVAL, EIO] {
        let mut node = node();
        node.worker.underlay_mut().gso_refusal = Some(errno);
        let packets = [
            burst(pod(1, 0), pod(2, 0), 20, 100),
            burst(pod(1, 0), pod(3, 0), 9, 100),
            burst(pod(1, 0), pod(2, 0), 3, 200),
        ]
        .concat();
        push(&mut node, &packets);
        let sent = inner(&node.run(Now(0)).0);
        for peer in [2, 3] {
            let to = |packets: &[Vec<u8>]| -> Vec<Vec<u8>> {
                packets.iter().filter(|p| p[18] == peer).cloned().collect()
            };
            assert!(to(&sent) == to(&packets));
        }
        assert_eq!(node.worker.underlay_mut().offload_failures, 3);
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// Neither a path that became too small nor a datagram that no kernel takes says anything against GSO batches.
#[test]
fn only_a_batch_that_was_sent_one_by_one_is_a_failure() {
    let mut node = node();
    node.worker.underlay_mut().gso_refusal = Some(EMSGSIZE);
    push(&mut node, &burst(pod(1, 0), pod(2, 0), 20, 100));
    assert_eq!(node.run(Now(0)).0.len(), 20);
    assert_eq!(node.worker.underlay_mut().offload_failures, 0);

    // The GSO batch, then its third datagram twice.
    for last in [EINVAL, EPERM] {
        let underlay = node.worker.underlay_mut();
        underlay.gso_refusal = None;
        underlay.errors.extend([EINVAL, last, last]);
        push(&mut node, &burst(pod(1, 0), pod(2, 0), 20, 100));
        assert_eq!(node.run(Now(0)).0.len(), 19);
        assert_eq!(node.worker.underlay_mut().offload_failures, 0);
    }
    assert_eq!(
        node.totals().outbound.drops_of(DropReason::UnderlayRefused),
        2
    );
    assert_eq!(node.audit(), [""; 0]);
}

/// Packets of one flow that cannot leave as one message keep their order: sizes and ECN codepoints change.
#[test]
fn a_flow_keeps_its_order_whatever_its_packets_look_like() {
    let mut node = node();
    let codepoints = [Ecn::NotEct, Ecn::Ect0, Ecn::Ce];
    let packets: Vec<_> = (0..200usize)
        .map(|n| {
            let other = usize::from(n % 7 == 3) * 50;
            let packet = udp(pod(1, 0), pod(2, 0), &[n as u8; 60][..60 - n % 3 - other]);
            with_ecn(packet, codepoints[n / 5 % 3])
        })
        .collect();
    // Another flow in between, to a peer of the other format.
    for packet in &packets {
        node.push(packet.clone());
        node.push(udp(pod(1, 0), pod(3, 0), b"in between"));
    }
    let sent = node.run(Now(0)).0;
    let ours: Vec<_> = sent
        .iter()
        .filter(|d| d.format == Format::Vxlan)
        .cloned()
        .collect();
    assert!(inner(&ours) == packets);
    for (datagram, packet) in ours.iter().zip(&packets) {
        assert_eq!(datagram.ecn as u8, packet[1] & 3);
    }
}

/// Packets as the receiver puts them together, in the order of their first fragments.
fn put_together(sent: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<Vec<u8>>> = Vec::new();
    for fragment in sent {
        let same = |of: &&mut Vec<Vec<u8>>| of[0][4..6] == fragment[4..6];
        match packets.iter_mut().find(same) {
            Some(fragments) => fragments.push(fragment.clone()),
            None => packets.push(vec![fragment.clone()]),
        }
    }
    packets.iter().map(|p| reassemble(p)).collect()
}

/// TCP that was cut smaller, on a path that proves smaller still when some of it went: nothing goes twice or is lost.
#[test]
fn a_retry_keeps_a_smaller_cut() {
    let mut packets = stream(pod(1, 0), pod(2, 0), 10, 1_398);
    for packet in &mut packets {
        edit_v4(packet, |ip| ip.dont_fragment = false);
    }
    let expected: Vec<u8> = packets.iter().flat_map(|p| p[52..].to_vec()).collect();
    for gone in [0, 1, 7, 15] {
        let mut node = with_every_offload();
        learn(&mut node, report(2, Format::Vxlan, 1_000), Now(0));
        push(&mut node, &packets);
        node.worker.underlay_mut().gso_refusal = Some(EMSGSIZE);
        node.give_room(Some(gone));
        let mut sent = inner(&node.run(Now(1)).0);
        assert_eq!(sent.len(), gone);
        let underlay = node.worker.underlay_mut();
        underlay
            .error_reports
            .push_back(report(2, Format::Vxlan, 700));
        underlay.errors.extend([EMSGSIZE; 2]);
        node.give_room(None);
        sent.extend(inner(&node.run(Now(2)).0));
        let packets = put_together(&sent);
        let arrived: Vec<u8> = packets.iter().flat_map(|p| p[52..].to_vec()).collect();
        assert_eq!(packets.len(), 16, "{gone}");
        assert!(arrived == expected, "{gone}");
        assert_eq!(node.totals().outbound.dropped(), 0);
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// A whole batch that proves too large only when the kernel is asked: all of it arrives, in fragments.
#[test]
fn a_batch_that_proves_too_large_arrives() {
    let packets: Vec<_> = (0..9)
        .flat_map(|_| burst(pod(1, 0), pod(2, 0), 40, 1_400))
        .collect();
    let mut node = with_every_offload();
    push(&mut node, &packets);
    let underlay = node.worker.underlay_mut();
    underlay.largest = Some(700 - 28);
    underlay
        .error_reports
        .push_back(report(2, Format::Vxlan, 700));
    let sent = inner(&node.run(Now(0)).0);
    assert_eq!(node.totals().outbound.dropped(), 0);
    let arrived: Vec<_> = sent.chunks(3).map(reassemble).collect();
    assert!(arrived == packets);
    assert_eq!(node.audit(), [""; 0]);
}

/// As many datagrams as a batch can become, each walked again: there is room for whatever becomes of them.
#[test]
fn there_is_room_for_the_most_that_a_batch_can_become() {
    let cut = |size| Offload {
        checksum: None,
        cut: Some(Cut {
            kind: GsoType::Udp,
            size,
            header: 28,
        }),
    };
    let (large, small) = (577 - 28, 1);
    let counts = [(large, 113); 8].into_iter();
    let counts = counts.chain([(small, 1_140), (small, 2_048)]);
    for known in [true, false] {
        let mut node = with_every_offload();
        for (size, count) in counts.clone() {
            let payload = pattern(usize::from(size) * count);
            let packet = udp(pod(1, 0), pod(2, 0), &payload);
            node.push_as(cut(size), packet, count as u64);
        }
        let underlay = node.worker.underlay_mut();
        if known {
            // The large ones go in two fragments each.
            underlay.largest = Some(626 - 28);
            underlay
                .error_reports
                .push_back(report(2, Format::Vxlan, 626));
        } else {
            // The kernel reports no path MTU, so all of them are tried twice.
            underlay.largest = Some(0);
        }
        let sent = node.run(Now(0)).0.len();
        let all = 8 * 113 + 1_140 + 2_048;
        let lost = node.totals().outbound.drops_of(DropReason::TooBig);
        let expected = if known {
            (all + 8 * 113, 0)
        } else {
            (0, all as u64)
        };
        assert_eq!((sent, lost), expected);
        assert_eq!(node.totals().outbound.dropped(), lost);
        assert_eq!(node.audit(), [""; 0]);
    }
}
