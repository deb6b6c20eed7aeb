//! Pod → peer: the pod's packet leaves behind its headers, or its sender gets an ICMP error.

use std::net::SocketAddr;
use std::time::Duration;

use dataplane::drops::DropReason;
use dataplane::limits::{ERROR_REPORTS, HOLD, ICMP_BURST, ICMP_EVERY, QUOTE};
use dataplane::now::Now;
use dataplane::underlay::memory::{Datagram, Memory};
use dataplane::underlay::{ErrorReport, Port};
use encap::{Ecn, Family, Format};
use libc::{ECONNREFUSED, ENETUNREACH, ENOBUFS, EPERM};
use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, Ipv4Packet, Ipv6Packet};

use crate::reasons::node;
use crate::world::node::{Node, port};
use crate::world::packets::{edit_v4, frame, pattern, plain, tcp, udp, vxlan, with_ecn};
use crate::world::plan::{ip, mac, pod, pod6};

#[test]
fn the_peers_format_is_spoken_byte_for_byte() {
    let mut node = node();
    let packets = [
        udp(pod(1, 0), pod(2, 0), &pattern(1_422)),
        tcp(pod6(1, 1), pod6(2, 1), b"six"),
        udp(pod(1, 0), pod(3, 0), b"plain"),
        // A host process speaks from the node's own address, or the tunnel's.
        udp(ip("192.0.2.1"), pod(2, 0), b"host"),
        udp(ip("10.244.1.0"), pod(3, 1), b""),
    ];
    for packet in &packets {
        node.push(packet.clone());
        let [datagram] = &sent(&mut node, Now(0))[..] else {
            panic!("not one datagram")
        };
        let (to, format, head) = match packet[0] >> 4 {
            4 if packet[18] == 3 => ("192.0.2.3", Format::Udp, vec![]),
            _ => (
                "192.0.2.2",
                Format::Vxlan,
                frame(mac(2), mac(1), packet).to_vec(),
            ),
        };
        assert_eq!(
            (datagram.to.ip(), datagram.to.port()),
            (ip(to), port(format))
        );
        assert_eq!(datagram.format, format);
        assert_eq!(datagram.payload, [&head[..], packet].concat());
    }
}

/// Neighbours in a batch differ in one thing each: from which pod, and to which.
#[test]
fn every_packet_of_a_batch_is_checked_by_itself() {
    let (ours, spoofed, nowhere) = (pod(1, 0), ip("10.244.1.77"), ip("10.244.77.1"));
    let rows = [
        (ours, pod(2, 0), Some("192.0.2.2")),
        (spoofed, pod(2, 0), None),
        (ours, pod(2, 0), Some("192.0.2.2")),
        (ours, pod(3, 0), Some("192.0.2.3")),
        (ours, nowhere, None),
        (ours, pod(3, 0), Some("192.0.2.3")),
        (spoofed, pod(3, 0), None),
    ];
    let mut node = node();
    for (source, destination, _) in rows {
        node.push(udp(source, destination, b"one"));
    }
    // ICMP errors to senders are the subject of another test.
    let (sent, _) = node.run(Now(0));
    let mut to: Vec<_> = sent.iter().map(|datagram| datagram.to.ip()).collect();
    to.sort();
    let mut expected: Vec<_> = rows.iter().filter_map(|row| row.2).map(ip).collect();
    expected.sort();
    assert_eq!(to, expected);
}

#[test]
fn what_stands_behind_the_packet_is_not_sent() {
    let mut node = node();
    let packet = udp(pod(1, 0), pod(3, 0), b"short");
    node.push([&packet[..], &[0xaa; 9]].concat());
    assert_eq!(payloads(&sent(&mut node, Now(0))), [packet]);
}

#[test]
fn congestion_capability_shows_outside_in_vxlan_alone() {
    for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
        let mut node = node();
        for to in [2, 3] {
            node.push(with_ecn(udp(pod(1, 0), pod(to, 0), b"ecn"), ecn));
        }
        let outside: Vec<_> = sent(&mut node, Now(0)).iter().map(|d| d.ecn).collect();
        assert_eq!(outside, [ecn, Ecn::NotEct]);
    }
}

#[test]
fn packets_keep_their_order_across_formats_and_batches() {
    let mut node = node();
    let packets: Vec<_> = (0..200u8)
        .map(|n| udp(pod(1, 0), pod(2 + (n / 3) % 2, 0), &[n; 9]))
        .collect();
    packets.iter().for_each(|packet| node.push(packet.clone()));
    let sent = sent(&mut node, Now(0));
    assert_eq!(sent.len(), packets.len());
    for peer in [2, 3] {
        let to = |packet: &[u8]| packet[18] == peer;
        let inner = sent.iter().map(|d| &d.payload[d.format.header_len()..]);
        let arrived: Vec<_> = inner.filter(|packet| to(packet)).collect();
        let expected: Vec<_> = packets.iter().filter(|packet| to(packet)).collect();
        assert!(arrived == expected, "towards peer {peer}");
    }
}

#[test]
fn without_a_route_the_sender_gets_an_icmp_error() {
    let mut node = node();
    let offender = udp(pod(1, 0), pod(77, 0), &pattern(900));
    let offender6 = udp(pod6(1, 0), ip("fd00:10:244:77::2"), &pattern(1_300));
    let unsayable = udp(pod6(1, 0), pod6(3, 0), b"no IPv6 in the udp format");
    for packet in [&offender, &offender6, &unsayable] {
        node.push(packet.clone());
    }
    let (sent, answers) = node.run(Now(0));
    assert_eq!((sent.len(), answers.len()), (0, 3));
    assert_eq!(unreachable(&answers[0]), &offender[..548]);
    assert_eq!(unreachable(&answers[1]), &offender6[..1232]);
    assert_eq!(unreachable(&answers[2]), unsayable);
    assert_eq!(node.audit(), [""; 0]);
    assert_eq!(node.totals().outbound.originated, 3);
}

/// RFC 1122 section 3.2.2: no error about an error, a later fragment, or a packet to many.
#[test]
fn no_icmp_error_where_rfc_1122_forbids_it() {
    let mut node = node();
    let to_nobody = udp(pod(1, 0), pod(77, 0), &pattern(64));
    let mut later = to_nobody.clone();
    edit_v4(&mut later, |ip| ip.fragment_offset = 8.try_into().unwrap());
    let mut error = to_nobody.clone();
    error[20] = 3;
    edit_v4(&mut error, |ip| ip.protocol = etherparse::IpNumber::ICMP);
    let spoofed = udp(pod(2, 0), pod(77, 0), b"");
    let to_many = udp(pod(1, 0), ip("224.0.0.1"), b"");
    for packet in [later, error, spoofed, to_many] {
        node.push(packet);
    }
    let (sent, answers) = node.run(Now(0));
    assert_eq!((sent.len(), answers.len()), (0, 0));
    assert_eq!(node.totals().outbound.drops_of(DropReason::NoRoute), 2);
    assert_eq!(node.audit(), [""; 0]);
}

/// Every packet is dropped and counted; the ICMP errors are limited per source.
#[test]
fn icmp_errors_are_limited_per_source() {
    let mut node = node();
    let burst = ICMP_BURST as usize;
    let late = Now(0).after(Duration::from_secs(1));
    let ask = |node: &mut Node, from, now| {
        (0..1_000).for_each(|_| node.push(udp(from, pod(77, 0), b"")));
        let (_, answers) = node.run(now);
        assert_eq!(node.audit(), [""; 0]);
        answers.len()
    };
    assert_eq!(ask(&mut node, pod(1, 0), late), burst);
    assert_eq!(ask(&mut node, pod(1, 0), late), 0);
    assert_eq!(ask(&mut node, pod(1, 1), late), burst);
    assert_eq!(ask(&mut node, pod(1, 0), late.after(ICMP_EVERY * 5)), 5);
    assert_eq!(
        ask(&mut node, pod(1, 0), late.after(ICMP_EVERY * 500)),
        burst
    );
    let totals = node.totals();
    assert_eq!(totals.outbound.drops_of(DropReason::NoRoute), 5_000);
    assert_eq!(totals.unanswered + totals.outbound.originated, 5_000);
}

#[test]
fn a_full_underlay_loses_nothing_within_the_hold() {
    let mut node = node();
    let packets: Vec<_> = (0..100u8)
        .map(|n| udp(pod(1, 0), pod(3, 0), &[n]))
        .collect();
    node.worker.underlay_mut().takes_gso = false;
    node.give_room(Some(10));
    packets.iter().for_each(|packet| node.push(packet.clone()));
    let mut arrived = sent(&mut node, Now(0));
    assert_eq!(arrived.len(), 10);
    // A batch was read; the rest of it is held, the rest of the queue left where it is.
    let held = node.totals().outbound.held;
    assert!(held > 0 && node.totals().outbound.received == 10 + held);
    let waiting = node.worker.device_mut().waiting();
    let just_in_time = Now(HOLD.as_nanos() as u64 - 1);
    node.turn(just_in_time);
    assert_eq!(node.worker.device_mut().waiting(), waiting);
    node.give_room(None);
    arrived.extend(sent(&mut node, just_in_time));
    assert_eq!(payloads(&arrived), packets);
    assert_eq!(
        (
            node.totals().outbound.held,
            node.totals().outbound.dropped()
        ),
        (0, 0)
    );
    assert_eq!(node.audit(), [""; 0]);
}

#[test]
fn a_full_underlay_drops_what_is_too_old_and_goes_on() {
    let mut node = node();
    node.give_room(Some(0));
    (0..100u8).for_each(|n| node.push(udp(pod(1, 0), pod(3, 0), &[n])));
    node.turn(Now(0));
    let held = node.totals().outbound.held;
    assert_eq!(node.deadline(), Some(Now(0).after(HOLD)));
    node.turn(Now(0).after(HOLD));
    assert_eq!(
        node.totals().outbound.drops_of(DropReason::UnderlayFull),
        held
    );
    // The next batch has its own ten milliseconds.
    assert_eq!(node.deadline(), Some(Now(0).after(HOLD * 2)));
    node.give_room(None);
    let sent = sent(&mut node, Now(0).after(HOLD + HOLD / 2));
    assert_eq!(sent.len() as u64, 100 - held);
    assert_eq!(node.audit(), [""; 0]);
}

/// Before a stop, what is held goes and nothing more is read.
#[test]
fn a_drain_sends_what_is_held_and_reads_nothing() {
    let mut node = node();
    node.worker.underlay_mut().takes_gso = false;
    node.give_room(Some(0));
    (0..3u8).for_each(|n| node.push(udp(pod(1, 0), pod(3, 0), &[n])));
    node.turn(Now(0));
    node.push(udp(pod(1, 0), pod(3, 0), b"for the next service"));
    assert!(node.drain(Now(1)));
    node.give_room(Some(2));
    assert!(node.drain(Now(2)));
    node.give_room(None);
    assert!(!node.drain(Now(3)));
    assert_eq!(node.take_sent().len(), 3);
    assert_eq!(node.worker.device_mut().waiting(), 1);
    assert_eq!(node.audit(), [""; 0]);
}

/// The node's address moves while packets are held: each leaves once, from the new address, in order. What waits at the
/// new one is read without a wake-up.
#[test]
fn what_is_held_leaves_through_the_sockets_of_a_new_address() {
    let mut node = node();
    let packets: Vec<_> = (0..5u8).map(|n| udp(pod(1, 0), pod(3, 0), &[n])).collect();
    node.worker.underlay_mut().takes_gso = false;
    node.give_room(Some(2));
    packets.iter().for_each(|packet| node.push(packet.clone()));
    let mut all = sent(&mut node, Now(0));
    assert_eq!((all.len(), node.totals().outbound.held), (2, 3));
    let new = ip("192.0.2.99");
    let mut moved = Memory::new(new.into());
    let waiting = udp(pod(3, 0), pod(1, 0), b"waits");
    moved.to_worker.push_back(plain(3, 1, &waiting));
    node.outside.handed += 1;
    let old = node.worker.rebind(moved);
    assert_eq!(
        (old.public, old.sent.len()),
        (node.spec.cluster.node.public, 0)
    );
    let (more, delivered) = node.run(Now(1));
    assert_eq!(delivered, [waiting]);
    all.extend(more);
    assert_eq!(payloads(&all), packets);
    assert!(all.iter().skip(2).all(|d| d.from.ip() == new), "{all:?}");
    assert_eq!(node.totals().outbound.held, 0);
    assert_eq!(node.audit(), [""; 0]);
}

/// The kernel's other word for "full".
#[test]
fn no_buffers_is_a_full_underlay() {
    let mut node = node();
    node.worker.underlay_mut().errors.push_back(ENOBUFS);
    node.push(udp(pod(1, 0), pod(3, 0), b"once"));
    node.turn(Now(0));
    assert_eq!(node.totals().outbound.held, 1);
    assert_eq!(sent(&mut node, Now(1)).len(), 1);
    assert_eq!(node.audit(), [""; 0]);
}

#[test]
fn inbound_goes_on_while_outbound_is_held() {
    let mut node = node();
    node.give_room(Some(0));
    node.push(udp(pod(1, 0), pod(2, 0), b"held"));
    for n in 0..50 {
        node.hand(vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), &[n])), 1);
        let (_, delivered) = node.run(Now(n.into()));
        assert_eq!(delivered.len(), 1);
    }
    assert_eq!(node.totals().outbound.held, 1);
}

/// An error of a send belongs to an earlier datagram, perhaps another peer's: the send is repeated once.
#[test]
fn a_pending_error_costs_no_packet() {
    for error in [ECONNREFUSED, EPERM, ENETUNREACH] {
        let mut node = node();
        node.worker.underlay_mut().errors.push_back(error);
        (0..40u8).for_each(|n| node.push(udp(pod(1, 0), pod(2, 0), &[n])));
        assert_eq!(sent(&mut node, Now(0)).len(), 40);
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// One that persists costs one packet, and those behind it go.
#[test]
fn a_refused_packet_does_not_stop_the_next() {
    let mut node = node();
    node.worker.underlay_mut().errors.extend([ENETUNREACH; 2]);
    (0..3u8).for_each(|n| node.push(udp(pod(1, 0), pod(3, 0), &[n])));
    let sent = sent(&mut node, Now(0));
    assert_eq!(
        payloads(&sent),
        [1, 2].map(|n| udp(pod(1, 0), pod(3, 0), &[n]))
    );
    assert_eq!(
        node.totals().outbound.drops_of(DropReason::UnderlayRefused),
        1
    );
    assert_eq!(node.audit(), [""; 0]);
}

/// The quoted bytes of a "net unreachable" or "no route" from our tunnel to the pod.
fn unreachable(answer: &[u8]) -> &[u8] {
    if answer[0] >> 4 == 4 {
        let packet = Ipv4Packet::new_checked(answer).unwrap();
        assert!(packet.verify_checksum());
        assert_eq!(
            (packet.src_addr(), packet.dst_addr()),
            ([10, 244, 1, 0].into(), [10, 244, 1, 2].into())
        );
        let icmp = Icmpv4Packet::new_checked(&answer[20..]).unwrap();
        assert!(icmp.verify_checksum());
        assert_eq!(answer[20..22], [3, 0]);
        &answer[28..]
    } else {
        let packet = Ipv6Packet::new_checked(answer).unwrap();
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        assert_eq!(
            (ip("fd00:10:244:1::"), pod6(1, 0)),
            (source.into(), destination.into())
        );
        let icmp = Icmpv6Packet::new_checked(&answer[40..]).unwrap();
        assert!(icmp.verify_checksum(&source, &destination));
        assert_eq!(answer[40..42], [1, 0]);
        &answer[48..]
    }
}

fn sent(node: &mut Node, now: Now) -> Vec<Datagram> {
    let (sent, delivered) = node.run(now);
    assert_eq!(delivered, [[0; 0]; 0]);
    sent
}

fn payloads(datagrams: &[Datagram]) -> Vec<Vec<u8>> {
    datagrams
        .iter()
        .map(|datagram| datagram.payload.clone())
        .collect()
}

/// However finely a batch of large packets is cut, the batch has room for it: what does not fit is read later.
#[test]
fn a_batch_of_large_packets_on_a_narrow_path_loses_nothing() {
    let mut node = node();
    for _ in 0..8 {
        node.push(udp(pod(1, 0), pod(2, 0), &pattern(60_000)));
    }
    node.run(Now(0));
    let outbound = node.totals().outbound;
    assert_eq!((outbound.received, outbound.dropped()), (8, 0));
    assert_eq!(outbound.sent, 8 + outbound.originated);
    assert_eq!(node.audit(), [""; 0]);
}

/// ICMP errors about datagrams to another peer, real or forged, cost a healthy peer nothing.
#[test]
fn errors_of_other_datagrams_lose_nothing() {
    for foreign in [1, 3, 7, 20] {
        let mut node = node();
        for _ in 0..foreign {
            let underlay = node.worker.underlay_mut();
            underlay.errors.push_back(ECONNREFUSED);
            underlay
                .error_reports
                .extend((0..ERROR_REPORTS).map(|_| cannot_reach("192.0.2.77")));
        }
        for _ in 0..5 {
            node.push(udp(pod(1, 0), pod(2, 0), b"out"));
        }
        // Each round of repeats is bounded; what a storm leaves over is held for a moment.
        let mut sent = 0;
        for millisecond in 0..9 {
            sent += node
                .run(Now(0).after(Duration::from_millis(millisecond)))
                .0
                .len();
        }
        assert_eq!(sent, 5, "{foreign} errors");
        assert_eq!(node.totals().outbound.dropped(), 0);
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// A router's word that `host` cannot be reached.
fn cannot_reach(host: &str) -> (Format, ErrorReport) {
    let failure = ErrorReport {
        to: SocketAddr::new(ip(host), 8472),
        socket: 0,
        local: false,
        errno: ECONNREFUSED,
        info: 0,
        quote: [0; QUOTE],
        quoted: 0,
    };
    (Format::Vxlan, failure)
}

/// The socket of one format stays full: what goes through the other's is not its victim.
#[test]
fn a_full_socket_drops_only_what_goes_through_it() {
    let mut node = node();
    node.worker.underlay_mut().full = Some(Port::new(Format::Udp, Family::V4));
    node.push(udp(pod(1, 0), pod(3, 0), b"plain"));
    for _ in 0..20 {
        node.push(udp(pod(1, 0), pod(2, 0), b"vxlan"));
    }
    let first = node.run(Now(0)).0.len();
    let later = node.run(Now(0).after(HOLD)).0.len();
    assert_eq!(first + later, 20);
    assert_eq!(node.totals().outbound.drops_of(DropReason::UnderlayFull), 1);
    assert_eq!(node.audit(), [""; 0]);
}
