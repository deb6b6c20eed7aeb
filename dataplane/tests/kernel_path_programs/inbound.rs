//! `underlay_in` without flows: datagrams of peers to the tunnel device, to the VXLAN device or to user space's socket.

use crate::packets::*;
use crate::rig::*;

/// The frame that goes to the tunnel device.
fn taken_out(datagram: &[u8]) -> Vec<u8> {
    let mut frame = ether([0; 6], PEER_VTEP, &datagram[OUTER..]);
    frame[..6].fill(0);
    frame
}

#[test]
fn a_datagram_of_a_peer_is_decapsulated() {
    let mut rig = Rig::new();
    for inner in [
        Inner::back(),
        Inner::back().tcp(SYN),
        Inner::back().tcp(0),
        Inner {
            transport: Transport::Icmp,
            ttl: 1,
            ..Inner::back()
        },
        Inner {
            payload: vec![],
            tos: 0xfe,
            ..Inner::back()
        },
        Inner {
            payload: vec![3; usize::from(INNER_MTU) - 28],
            ..Inner::back()
        },
    ] {
        let packet = from_peer(&inner);
        let outcome = rig.run("underlay_in", &packet, Context::default());
        let expected = Outcome {
            action: REDIRECTED,
            packet: taken_out(&packet),
            mark: 0,
            passes: vec![],
            counted: delivered(),
        };
        assert_eq!(outcome, expected);
    }
}

#[test]
fn a_tap_gets_a_frame_to_its_own_mac() {
    let mut rig = Rig::new();
    let tunnel_mac = [2, 0, 0, 0, 3, 3];
    rig.settings(Settings {
        tunnel_mac,
        ..Settings::default()
    });
    let packet = from_peer(&Inner::back());
    let outcome = rig.run("underlay_in", &packet, Context::default());
    let frame = ether(tunnel_mac, PEER_VTEP, &packet[OUTER..]);
    assert_eq!((outcome.action, outcome.packet), (REDIRECTED, frame));
}

#[test]
fn traffic_is_counted_by_peer_and_pod() {
    let mut rig = Rig::new();
    let packet = from_peer(&Inner::back());
    rig.run("underlay_in", &packet, Context::default());
    let counted = [0, 0, 1, (packet.len() - OUTER) as u64];
    assert_eq!(rig.traffic("peer_counts", PEER_NUMBER), counted);
    assert_eq!(rig.traffic("pod_counts", 1), counted);
}

/// The codepoints at which the inner one stays are delivered, the others are user space's (RFC 6040 figure 4).
#[test]
fn marked_congestion_is_user_spaces() {
    let mut rig = Rig::new();
    for outer in 0..4u8 {
        for tos in 0..4u8 {
            let inner = Inner {
                tos,
                ..Inner::back()
            };
            let packet = datagram(PEER, PEER_VTEP, outer, &inner.bytes());
            let outcome = rig.run("underlay_in", &packet, Context::default());
            let same = encap::ecn::decapsulate(encap::Ecn::of(outer), encap::Ecn::of(tos));
            let expected = if same == Ok(None) && outer != 3 {
                (REDIRECTED, vec![])
            } else {
                (PASSED, vec!["Congestion"])
            };
            assert_eq!(
                (outcome.action, outcome.passes),
                expected,
                "{outer} over {tos}"
            );
        }
    }
}

type Change = Box<dyn Fn(&mut Vec<u8>)>;

/// The same refusals as of `encap::pull` and of user space's inbound stages, and what those understand and the program
/// does not. User space gets the datagram as it was, on its private port where it has one.
#[test]
fn every_datagram_that_is_not_known_exactly_is_user_spaces() {
    let changes: Vec<(&str, Change)> = vec![
        ("Vxlan", Box::new(put(VXLAN, &[0]))),
        ("Vxlan", Box::new(put(VXLAN, &[0x0c]))),
        ("Vxlan", Box::new(put(VXLAN, &[0x88, 0x48, 0x12, 0x34]))),
        ("Vxlan", Box::new(put(VXLAN + 1, &[1]))),
        ("Vxlan", Box::new(put(VXLAN + 6, &[2]))),
        ("Vxlan", Box::new(put(VXLAN + 7, &[1]))),
        ("Mac", Box::new(put(FRAME + 5, &[9]))),
        ("Mac", Box::new(put(FRAME, &[0xff; 6]))),
        ("Mac", Box::new(put(FRAME + 6, &OUR_VTEP))),
        ("Mac", Box::new(put(FRAME + 6, &[0; 6]))),
        ("Mac", Box::new(put(FRAME + 6, &[3]))),
        ("Mac", Box::new(put(FRAME + 11, &[0x77]))),
        ("NotIpv4", Box::new(put(FRAME + 12, &[8, 6]))),
        ("NotIpv4", Box::new(put(FRAME + 12, &[0x81, 0]))),
        ("NotIpv4", Box::new(put(FRAME + 12, &[0x86, 0xdd]))),
        ("NotIpv4", Box::new(put(OUTER, &[0x65]))),
        ("Malformed", Box::new(put(OUTER, &[0x44]))),
        ("Options", Box::new(put(OUTER, &[0x46]))),
        ("Malformed", Box::new(put(OUTER + 3, &[99]))),
        ("Malformed", Box::new(|packet| packet.push(0))),
        ("Malformed", Box::new(|packet| packet.truncate(OUTER + 30))),
        ("Malformed", Box::new(put(UDP + 5, &[9]))),
        ("Fragment", Box::new(put(OUTER + 6, &[0x20]))),
        ("Fragment", Box::new(put(OUTER + 7, &[2]))),
        // The first of an outer packet's fragments: the rest follows it to the port that it names.
        ("Fragment", Box::new(put(OUTER_IP + 6, &[0x20]))),
        ("Checksum", Box::new(put(OUTER_IP + 10, &[0x12, 0x34]))),
        ("NotUnicast", Box::new(put(OUTER + 12, &[224]))),
        ("NotUnicast", Box::new(put(OUTER + 16, &[255; 4]))),
        ("NotUnicast", Box::new(put(OUTER + 16, &[127, 0, 0, 1]))),
        (
            "NotUnicast",
            Box::new(put(OUTER + 16, &[169, 254, 169, 254])),
        ),
        ("NoPeer", Box::new(put(OUTER + 12, &[10, 244, 9, 9]))),
        ("NoPeer", Box::new(put(OUTER + 12, &[10, 244, 5, 9]))),
        (
            "NotPeersSource",
            Box::new(put(OUTER_IP + 12, &PEER_OF_USER_SPACE)),
        ),
        (
            "NotPeersSource",
            Box::new(put(OUTER_IP + 12, &[192, 0, 2, 99])),
        ),
        ("Peer", Box::new(put(OUTER + 12, &[10, 244, 3, 2]))),
        // Node 4 claims our own VTEP MAC in its lease.
        (
            "NotPeersSource",
            Box::new(put(OUTER + 12, &[10, 244, 4, 2])),
        ),
        (
            "Mac",
            Box::new(|packet| {
                put(OUTER + 12, &[10, 244, 4, 2])(packet);
                put(OUTER_IP + 12, &PEER_WITH_OUR_MAC)(packet);
                put(FRAME + 6, &OUR_VTEP)(packet);
            }),
        ),
        ("NotOurs", Box::new(put(OUTER + 16, &[8, 0, 1, 9]))),
        ("NotOurs", Box::new(put(OUTER + 16, &OURS))),
        ("NotOurs", Box::new(put(OUTER + 16, &[203, 0, 113, 7]))),
        ("NotOurs", Box::new(put(OUTER + 16, &[10, 244, 2, 9]))),
    ];
    let mut rig = Rig::new();
    for private in [false, true] {
        let flags = if private { ON | TO_PRIVATE_PORT } else { ON };
        rig.settings(Settings {
            flags,
            ..Settings::default()
        });
        for (number, (reason, change)) in changes.iter().enumerate() {
            let mut packet = from_peer(&Inner::back());
            change(&mut packet);
            if *reason != "Checksum" {
                right_checksum(&mut packet, OUTER_IP);
            }
            let outcome = rig.run("underlay_in", &packet, Context::default());
            if private {
                packet[UDP + 2..UDP + 4].copy_from_slice(&PRIVATE_PORT.to_be_bytes());
            }
            let expected = Outcome {
                action: PASSED,
                packet,
                mark: 0,
                passes: vec![*reason],
                counted: Default::default(),
            };
            assert_eq!(outcome, expected, "change {number}");
        }
    }
}

/// A probe of peer health goes to user space's socket as it came, of any size, answer and request.
#[test]
fn a_probe_is_user_spaces() {
    let mut rig = Rig::new();
    for private in [false, true] {
        let flags = if private { ON | TO_PRIVATE_PORT } else { ON };
        rig.settings(Settings {
            flags,
            ..Settings::default()
        });
        let request = encap::probe::Message {
            kind: encap::probe::Kind::Request,
            nonce: 7,
            clock: 8,
            length: 0,
            heard: None,
            inner_mtu: 1450,
            flags: 0,
            verdict: None,
        };
        let answer = request.answer(1500, Some(1), 1450);
        for (message, size) in [(request, 70), (request, 1_400), (answer, 48)] {
            let mut bytes = message.emit().to_vec();
            bytes.resize(size, 0);
            let mut packet = datagram(PEER, PEER_VTEP, 0, &bytes);
            packet[FRAME + 12..FRAME + 14].copy_from_slice(&[0x88, 0xb5]);
            let outcome = rig.run("underlay_in", &packet, Context::default());
            if private {
                packet[UDP + 2..UDP + 4].copy_from_slice(&PRIVATE_PORT.to_be_bytes());
            }
            let expected = Outcome {
                action: PASSED,
                packet,
                mark: 0,
                passes: vec!["NotIpv4"],
                counted: Default::default(),
            };
            assert_eq!(outcome, expected, "{size} {private}");
        }
    }
}

/// A lease may say that a peer has one of our addresses.
#[test]
fn an_address_of_ours_is_no_peers_source() {
    let mut rig = Rig::new();
    rig.prefix("fib", [10, 244, 1, 0], 24, PEER_NUMBER);
    rig.prefix("fib", OURS, 32, PEER_NUMBER);
    for source in [[10, 244, 1, 2], [10, 244, 1, 77], OURS] {
        let inner = Inner {
            source,
            ..Inner::back()
        };
        let outcome = rig.run("underlay_in", &from_peer(&inner), Context::default());
        assert_eq!(
            (outcome.action, outcome.passes),
            (PASSED, vec!["NotPeersSource"])
        );
    }
}

/// Outer options move the UDP header.
#[test]
fn outer_options_are_user_spaces() {
    let mut rig = Rig::new();
    rig.settings(Settings {
        flags: ON | TO_PRIVATE_PORT,
        ..Settings::default()
    });
    let mut packet = from_peer(&Inner::back());
    packet[OUTER_IP] = 0x46;
    packet.splice(UDP..UDP, [1, 1, 1, 1]);
    let outcome = rig.run("underlay_in", &packet, Context::default());
    packet[UDP + 6..UDP + 8].copy_from_slice(&PRIVATE_PORT.to_be_bytes());
    assert_eq!((outcome.action, outcome.passes), (PASSED, vec!["Options"]));
    assert_eq!(outcome.packet, packet);
}

#[test]
fn an_outer_checksum_follows_the_port() {
    let mut rig = Rig::new();
    rig.settings(Settings {
        flags: ON | TO_PRIVATE_PORT,
        ..Settings::default()
    });
    let mut packet = from_peer(&Inner::back());
    packet[VXLAN] = 0;
    let udp = |packet: &[u8]| {
        let header = etherparse::UdpHeader::from_slice(&packet[UDP..]).unwrap().0;
        let (header, payload) = (header, &packet[UDP + 8..]);
        header.calc_checksum_ipv4_raw(PEER, OURS, payload).unwrap()
    };
    let sum = udp(&packet);
    packet[UDP_CHECKSUM..UDP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    let outcome = rig.run("underlay_in", &packet, Context::default());
    assert_eq!(outcome.passes, vec!["Vxlan"]);
    assert_eq!(outcome.packet[UDP + 2..UDP + 4], PRIVATE_PORT.to_be_bytes());
    let sum = udp(&outcome.packet);
    assert_eq!(
        outcome.packet[UDP_CHECKSUM..UDP_CHECKSUM + 2],
        sum.to_be_bytes()
    );
}

/// None of it is the format's, or it is not to us. It is left as it is, and not counted.
#[test]
fn other_packets_of_the_underlay_are_not_touched() {
    let mut rig = Rig::new();
    let changes: Vec<Change> = vec![
        Box::new(put(0, &[2])),
        Box::new(put(12, &[8, 6])),
        Box::new(put(12, &[0x86, 0xdd])),
        Box::new(put(OUTER_IP + 16, &[192, 0, 2, 9])),
        Box::new(put(OUTER_IP + 9, &[6])),
        Box::new(put(OUTER_IP + 7, &[1])),
        Box::new(put(UDP + 3, &[0])),
        Box::new(|packet| packet.truncate(UDP + 3)),
        Box::new(|packet| packet.truncate(UDP)),
    ];
    for flags in [0, ON, ON | TO_PRIVATE_PORT] {
        rig.settings(Settings {
            flags,
            ..Settings::default()
        });
        for (number, change) in changes.iter().enumerate() {
            let mut packet = from_peer(&Inner::back());
            change(&mut packet);
            let outcome = rig.run("underlay_in", &packet, Context::default());
            let expected = Outcome {
                action: PASSED,
                packet,
                mark: 0,
                passes: vec![],
                counted: Default::default(),
            };
            assert_eq!(outcome, expected, "change {number}");
        }
    }
}

/// The port is user space's for as long as the VXLAN device has the other one, switched on or not.
#[test]
fn the_private_port_needs_neither_switch_nor_lease() {
    let mut rig = Rig::new();
    for (flags, lease, reason) in [
        (TO_PRIVATE_PORT, 1_000_000_000, "Off"),
        (ON | TO_PRIVATE_PORT, -1, "Lease"),
    ] {
        rig.settings(Settings {
            flags,
            lease,
            ..Settings::default()
        });
        let outcome = rig.run(
            "underlay_in",
            &from_peer(&Inner::back()),
            Context::default(),
        );
        assert_eq!((outcome.action, outcome.passes), (PASSED, vec![reason]));
        assert_eq!(outcome.packet[UDP + 2..UDP + 4], PRIVATE_PORT.to_be_bytes());
    }
}

#[test]
fn what_the_tunnel_device_does_not_take_in_one_piece_is_user_spaces() {
    let mut rig = Rig::new();
    let inner = Inner {
        payload: vec![3; usize::from(INNER_MTU) - 27],
        ..Inner::back()
    };
    let outcome = rig.run("underlay_in", &from_peer(&inner), Context::default());
    assert_eq!((outcome.action, outcome.passes), (PASSED, vec!["TooBig"]));
}

/// Whether the run left the packet to the VXLAN device, untouched but for the mark.
fn is_marked(rig: &mut Rig, packet: &[u8], gso_size: u32) -> bool {
    let foreign = 0x8000_4080;
    let context = Context {
        mark: foreign,
        gso_size,
        ..Context::default()
    };
    let outcome = rig.run("underlay_in", packet, context);
    if outcome.action == REDIRECTED {
        assert_eq!(outcome.mark, foreign);
        return false;
    }
    let expected = Outcome {
        action: PASSED,
        packet: packet.to_vec(),
        mark: foreign | MARK,
        passes: vec![],
        counted: Default::default(),
    };
    assert_eq!(outcome, expected);
    true
}

/// The device is slower than the program: what follows a super-packet within a tenth of a second follows it there.
#[test]
fn super_packets_go_to_the_vxlan_device_and_their_flow_follows() {
    let mut rig = Rig::new();
    let packet = from_peer(&Inner::back());
    assert!(!is_marked(&mut rig, &packet, 0));
    let long = from_peer(&Inner {
        payload: vec![1; 2_000],
        ..Inner::back()
    });
    assert!(is_marked(&mut rig, &long, 1_000));
    assert!(is_marked(&mut rig, &packet, 0));
    let other = Inner {
        transport: Transport::Udp(5_000, 4_001),
        ..Inner::back()
    };
    assert!(!is_marked(&mut rig, &from_peer(&other), 0));
    std::thread::sleep(std::time::Duration::from_millis(110));
    assert!(!is_marked(&mut rig, &packet, 0));
}

/// A run's packet is one that no device has verified.
#[test]
fn a_checksum_that_no_device_has_verified_goes_to_the_vxlan_device() {
    let mut rig = Rig::new();
    let mut packet = from_peer(&Inner::back());
    packet[UDP_CHECKSUM] = 1;
    assert!(is_marked(&mut rig, &packet, 0));
}

/// A forged super-packet is user space's before it is marked.
#[test]
fn what_is_refused_is_not_marked() {
    let mut rig = Rig::new();
    let inner = Inner {
        payload: vec![1; 2_000],
        ..Inner::back()
    };
    let gso = Context {
        gso_size: 1_000,
        ..Context::default()
    };
    let packet = datagram(PEER_OF_USER_SPACE, PEER_VTEP, 0, &inner.bytes());
    let outcome = rig.run("underlay_in", &packet, gso);
    assert_eq!((outcome.mark, outcome.passes), (0, vec!["NotPeersSource"]));
    let icmp = from_peer(&Inner {
        transport: Transport::Icmp,
        ..inner
    });
    let outcome = rig.run("underlay_in", &icmp, gso);
    assert_eq!((outcome.mark, outcome.passes), (0, vec!["SuperPacket"]));
}

/// Headers of a datagram of ours, as a router quotes them.
fn quoted(destination: u16, source: u16, address: [u8; 4], peer: [u8; 4]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, 17, 0, 0];
    ip.extend(address);
    ip.extend(peer);
    ip.extend(source.to_be_bytes());
    ip.extend(destination.to_be_bytes());
    ip.extend([5, 200, 0, 0]);
    ip
}

/// A router's ICMP message with these type and code.
fn report_of(type_code: [u8; 2], mtu: u16, quoted: &[u8]) -> Vec<u8> {
    let [high, low] = mtu.to_be_bytes();
    let mut icmp = vec![type_code[0], type_code[1], 0, 0, 0, 0, high, low];
    icmp.extend(quoted);
    let length = 20 + icmp.len() as u8;
    let mut ip = vec![0x45, 0, 0, length, 0, 0, 0, 0, 60, 1, 0, 0, 198, 51, 100, 1];
    ip.extend(OURS);
    ip.extend(&icmp);
    ether(LOOPBACK_MAC, NEXT_HOP, &ip)
}

/// A datagram to this peer with an inner packet to there, as far as the inner header.
fn quoted_inner(peer: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    let mut quote = quoted(VXLAN_PORT, 40_000, OURS, peer);
    quote.extend([8, 0, 0, 0, 0, 0, VNI as u8, 0]);
    let inner = Inner {
        destination,
        ..Inner::out()
    };
    quote.extend(ether(PEER_VTEP, OUR_VTEP, &inner.bytes()[..20]));
    quote
}

/// Runs underlay_in on a report, and says how many events it posted.
fn told(rig: &mut Rig, packet: &[u8]) -> usize {
    let outcome = rig.run("underlay_in", packet, Context::default());
    assert_eq!((outcome.action, &outcome.packet[..]), (PASSED, packet));
    rig.posted().len()
}

/// The one that reports are counted in.
fn second() -> u64 {
    monotonic() / 1_000_000_000
}

/// A second has ended that reports were counted in.
fn next_second() {
    let left = 1_000_000_000 - monotonic() % 1_000_000_000;
    std::thread::sleep(std::time::Duration::from_nanos(left + 1_000_000));
}

/// Any host can forge a report: few are told, so that the ring of events has room for flows.
#[test]
fn path_reports_are_few() {
    let mut rig = Rig::new();
    next_second();
    let good = report_of([3, 4], 1_400, &quoted(VXLAN_PORT, 40_000, OURS, PEER));
    assert_eq!([told(&mut rig, &good), told(&mut rig, &good)], [1, 0]);
    next_second();
    assert_eq!([told(&mut rig, &good), told(&mut rig, &good)], [1, 0]);
    next_second();
    let began = second();
    let flood = (0..=255u8).map(|host| {
        let quote = quoted(VXLAN_PORT, 40_000, OURS, [198, 18, 0, host]);
        told(&mut rig, &report_of([3, 4], 1_400, &quote))
    });
    let told_of_flood = flood.sum::<usize>();
    // In one, but where this thread had to wait.
    let seconds = (second() - began + 1) as usize;
    assert!((64..=64 * seconds).contains(&told_of_flood));
    assert!(told_of_flood < 256, "{seconds} s");
    next_second();
    assert_eq!(told(&mut rig, &good), 1);
}

/// A report of a path that takes all that we send says nothing.
#[test]
fn a_path_report_is_of_less_than_we_send() {
    let short = quoted(VXLAN_PORT, 40_000, OURS, PEER);
    let long = quoted_inner(PEER, REMOTE);
    let inner_mtu = INNER_MTU + 50;
    for (quote, mtu, expected) in [
        (&short, inner_mtu, 0),
        (&short, inner_mtu - 1, 1),
        (&long, MTU + 50, 0),
        (&long, MTU + 49, 1),
        // A router that does not say.
        (&long, 0, 1),
    ] {
        let mut rig = Rig::new();
        let count = told(&mut rig, &report_of([3, 4], mtu, quote));
        assert_eq!(count, expected, "MTU {mtu}");
    }
}

/// Where enough is quoted, it must be what the programs send: to a peer, of an inner packet to one of its addresses.
#[test]
fn a_path_report_quotes_what_the_programs_send() {
    let mut rig = Rig::new();
    for (peer, destination) in [
        (PEER, [10, 244, 9, 9]),
        (PEER, [10, 244, 3, 2]),
        (PEER_OF_USER_SPACE, [10, 244, 3, 2]),
        ([198, 18, 0, 1], REMOTE),
    ] {
        let packet = report_of([3, 4], 1_400, &quoted_inner(peer, destination));
        assert_eq!(told(&mut rig, &packet), 0);
    }
    let packet = report_of([3, 4], 1_400, &quoted_inner(PEER, REMOTE));
    assert_eq!(told(&mut rig, &packet), 1);
}

/// An ICMP frag-needed that quotes one of our datagrams is told; it stays the host's.
#[test]
fn a_path_report_is_told() {
    let mut rig = Rig::new();
    let quoted = |destination, source, address| quoted(destination, source, address, PEER);
    let report = |type_code, quoted: &[u8]| report_of(type_code, 1_400, quoted);
    let good = quoted(VXLAN_PORT, 40_000, OURS);
    for (number, packet) in [
        report([3, 1], &good),
        report([11, 4], &good),
        report([3, 4], &quoted(53, 40_000, OURS)),
        report([3, 4], &quoted(VXLAN_PORT, 32_767, OURS)),
        report([3, 4], &quoted(VXLAN_PORT, 60_768, OURS)),
        report([3, 4], &quoted(VXLAN_PORT, 40_000, [192, 0, 2, 7])),
        report([3, 4], &good[..27]),
    ]
    .iter()
    .enumerate()
    {
        let outcome = rig.run("underlay_in", packet, Context::default());
        assert_eq!((outcome.action, &outcome.packet), (PASSED, packet));
        assert_eq!(rig.posted(), [], "report {number}");
    }
    let packet = report([3, 4], &good);
    let outcome = rig.run("underlay_in", &packet, Context::default());
    assert_eq!((outcome.action, outcome.packet), (PASSED, packet.clone()));
    let flow = key(&Inner {
        source: OURS,
        destination: PEER,
        transport: Transport::Udp(40_000, VXLAN_PORT),
        ..Inner::out()
    });
    assert_eq!(rig.posted(), [(3, 0, EPOCH, 1_400, flow)]);
    rig.settings(Settings {
        flags: 0,
        ..Settings::default()
    });
    rig.run("underlay_in", &packet, Context::default());
    assert_eq!(rig.posted(), []);
}

/// Nor does a lease make a group's MAC, or none, a source.
#[test]
fn a_mac_that_no_station_has_is_no_vtep() {
    let mut rig = Rig::new();
    for vtep in [[3, 0, 0, 0, 0, 0x0b], [0xff; 6], [0; 6]] {
        rig.peer(PEER_NUMBER, PEER, 3, vtep);
        let inner = Inner::back().bytes();
        let packet = datagram(PEER, vtep, 0, &inner);
        let outcome = rig.run("underlay_in", &packet, Context::default());
        assert_eq!((outcome.action, outcome.passes), (PASSED, vec!["Mac"]));
        let outcome = rig.run_behind_device(Remote::Peer, &ether(OUR_VTEP, vtep, &inner));
        assert_eq!(outcome.action, DROPPED);
    }
}

#[test]
fn the_outer_header_is_checked_by_itself() {
    let changes: [Change; 4] = [
        Box::new(put(OUTER_IP, &[0x65])),
        // Where this says that UDP begins, the source address is the port.
        Box::new(|packet: &mut Vec<u8>| {
            put(OUTER_IP, &[0x43])(packet);
            put(OUTER_IP + 12, &[192, 0, 0x21, 0x18])(packet);
        }),
        // Both lengths agree with each other, and not with the packet.
        Box::new(|packet: &mut Vec<u8>| {
            packet[OUTER_IP + 3] -= 2;
            packet[UDP + 5] -= 2;
        }),
        Box::new(|packet: &mut Vec<u8>| {
            packet[OUTER_IP + 3] += 2;
            packet[UDP + 5] += 2;
        }),
    ];
    let mut rig = Rig::new();
    for (number, change) in changes.iter().enumerate() {
        let mut packet = from_peer(&Inner::back());
        change(&mut packet);
        right_checksum(&mut packet, OUTER_IP);
        let outcome = rig.run("underlay_in", &packet, Context::default());
        let expected = (PASSED, vec!["Malformed"], packet);
        let found = (outcome.action, outcome.passes, outcome.packet);
        assert_eq!(found, expected, "change {number}");
    }
}

/// `Refusal::Short` and `Malformed::Short` of `encap`: datagrams that end within their headers or within their packet.
#[test]
fn a_datagram_that_is_cut_off_is_user_spaces() {
    let mut rig = Rig::new();
    let whole = from_peer(&Inner::back());
    for length in VXLAN..whole.len() {
        let mut packet = whole[..length].to_vec();
        let total = (length - OUTER_IP) as u16;
        packet[OUTER_IP + 2..OUTER_IP + 4].copy_from_slice(&total.to_be_bytes());
        packet[UDP + 4..UDP + 6].copy_from_slice(&(total - 20).to_be_bytes());
        right_checksum(&mut packet, OUTER_IP);
        let outcome = rig.run("underlay_in", &packet, Context::default());
        let expected = (PASSED, vec!["Malformed"], packet);
        let found = (outcome.action, outcome.passes, outcome.packet);
        assert_eq!(found, expected, "{length} bytes");
    }
}

#[test]
fn a_path_report_quotes_a_datagram() {
    let mut rig = Rig::new();
    for (at, value) in [(0, 0x65), (0, 0x46), (9, 6)] {
        let mut quote = quoted(VXLAN_PORT, 40_000, OURS, PEER);
        quote[at] = value;
        let count = told(&mut rig, &report_of([3, 4], 1_400, &quote));
        assert_eq!(count, 0, "{value:#x} at {at}");
    }
}
