//! `tunnel_out` and `tunnel_out_ether`: what the host's stack has routed to the tunnel device.

use encap::pull::{self, Vtep};
use encap::transport::ChecksumState;
use encap::{Mac, Vni};

use crate::packets::*;
use crate::rig::*;

/// A frame of a TAP around the packet. Its addresses decide nothing.
fn frame(packet: &[u8]) -> Vec<u8> {
    ether([9; 6], [8; 6], packet)
}

/// Proves that `sent` is `packet` in a datagram to node 2 as user space would send it, and returns its source port.
pub fn check_encapsulated(sent: &[u8], packet: &[u8]) -> u16 {
    assert_eq!(sent[..6], NEXT_HOP);
    assert_eq!(sent[6..12], UNDERLAY_MAC);
    assert_eq!(sent[12..14], [8, 0]);
    let ip = &sent[OUTER_IP..];
    assert_eq!(ip[0..2], [0x45, packet[1] & 3], "ECN copied, DSCP none");
    assert_eq!(ip[4..9], [0, 0, 0x40, 0, 64], "identification, DF, TTL");
    let checksum = encap::checksum::ipv4_header(&ip[..20]);
    assert_eq!(ip[10..12], checksum.to_be_bytes());
    let outer = pull::outer(ip).unwrap();
    assert_eq!(outer.destination, (PEER, VXLAN_PORT).into());
    assert_eq!(outer.source.ip(), std::net::IpAddr::from(OURS));
    assert_eq!(outer.checksum, ChecksumState::Absent);
    let header = encap::push::vxlan(
        Vni::new(VNI).unwrap(),
        Mac(OUR_VTEP),
        Mac(PEER_VTEP),
        encap::Family::V4,
    );
    assert_eq!(outer.payload, [header.as_slice(), packet].concat());
    assert_eq!(ip.len(), outer.payload.len() + 28);
    assert!((32_768..60_768).contains(&outer.source.port()));
    // The peer takes it.
    let vtep = Vtep {
        mac: Mac(PEER_VTEP),
        mac_v6: Mac(PEER_VTEP),
        vni: Vni::new(VNI).unwrap(),
        gbp: false,
    };
    assert_eq!(
        pull::vxlan(outer.payload, &vtep).unwrap().inner.len,
        packet.len()
    );
    outer.source.port()
}

#[test]
fn a_packet_to_a_peer_is_encapsulated_as_by_user_space() {
    let mut rig = Rig::new();
    for tos in [0, 1, 2, 3, 0xb8, 0xff] {
        for inner in [
            Inner::out(),
            Inner::out().tcp(SYN),
            Inner::out().tcp(0),
            Inner {
                transport: Transport::Icmp,
                ttl: 1,
                ..Inner::out()
            },
            Inner {
                payload: vec![7; 1_372],
                ..Inner::out()
            },
            Inner {
                payload: vec![],
                ..Inner::out()
            },
        ] {
            let packet = Inner { tos, ..inner }.bytes();
            let outcome = rig.run("tunnel_out_ether", &frame(&packet), Context::default());
            assert_eq!(
                (outcome.action, &outcome.passes[..], outcome.counted),
                (REDIRECTED, &[][..], sent())
            );
            check_encapsulated(&outcome.packet, &packet);
            if packet.len() < SHORTEST {
                continue;
            }
            // Without an Ethernet header the same; where the headers lie a run does not show, for it adds one.
            let outcome = rig.run("tunnel_out", &packet, Context::default());
            assert_eq!((outcome.action, outcome.counted), (REDIRECTED, sent()));
            assert_eq!(outcome.packet.len(), packet.len() + OUTER);
        }
    }
}

#[test]
fn traffic_is_counted_by_peer_and_pod() {
    let mut rig = Rig::new();
    let packet = Inner::out().bytes();
    rig.run("tunnel_out_ether", &frame(&packet), Context::default());
    rig.run("tunnel_out", &packet, Context::default());
    let counted = [2, 2 * packet.len() as u64, 0, 0];
    assert_eq!(rig.traffic("peer_counts", PEER_NUMBER), counted);
    assert_eq!(rig.traffic("pod_counts", 1), counted);
}

#[test]
fn a_flow_has_one_outer_port_and_flows_are_spread() {
    let mut rig = Rig::new();
    let mut ports = std::collections::HashSet::new();
    for port in 0..64 {
        let inner = Inner {
            transport: Transport::Udp(4_000 + port, 5_000),
            ..Inner::out()
        };
        let [one, other] = [&b"one"[..], b"another"].map(|payload| {
            let packet = Inner {
                payload: payload.to_vec(),
                ..inner.clone()
            }
            .bytes();
            let (_, sent) = rig.quick("tunnel_out_ether", &frame(&packet));
            check_encapsulated(&sent, &packet)
        });
        assert_eq!(one, other);
        ports.insert(one);
    }
    assert!(ports.len() > 60, "{} ports of 64 flows", ports.len());
}

type Change = Box<dyn Fn(&mut Vec<u8>)>;

/// What a program leaves to user space, by the reason.
#[test]
fn every_packet_that_is_not_known_exactly_is_passed_on() {
    let mut rig = Rig::new();
    let good = Inner::out().bytes();
    let changes: Vec<(&str, Change)> = vec![
        ("NotIpv4", Box::new(put(0, &[0x65]))),
        ("Malformed", Box::new(put(0, &[0x44]))),
        ("Options", Box::new(put(0, &[0x46]))),
        ("Malformed", Box::new(put(3, &[99]))),
        ("Malformed", Box::new(put(2, &[0, 19]))),
        ("Malformed", Box::new(|packet| packet.push(0))),
        ("Malformed", Box::new(|packet| packet.truncate(39))),
        ("Malformed", Box::new(|packet| packet.truncate(20))),
        // A UDP header that is cut off, and one with another length than the packet's.
        (
            "Malformed",
            Box::new(|packet| {
                packet.truncate(27);
                packet[3] = 27;
            }),
        ),
        ("Malformed", Box::new(put(25, &[8]))),
        ("Fragment", Box::new(put(6, &[0x20]))),
        ("Fragment", Box::new(put(7, &[1]))),
        ("NotUnicast", Box::new(put(16, &[224]))),
        ("NotUnicast", Box::new(put(16, &[255; 4]))),
        ("NotUnicast", Box::new(put(16, &[0; 4]))),
        ("NotUnicast", Box::new(put(16, &[127]))),
        ("NotUnicast", Box::new(put(16, &[169, 254]))),
        ("Source", Box::new(put(15, &[9]))),
        ("Local", Box::new(put(16, &[10, 244, 1, 9]))),
        ("Local", Box::new(put(16, &OURS))),
        ("NoPeer", Box::new(put(16, &[10, 244, 9, 9]))),
        ("NoPeer", Box::new(put(16, &[10, 244, 5, 9]))),
        ("Peer", Box::new(put(16, &[10, 244, 3, 2]))),
    ];
    for (number, (reason, change)) in changes.iter().enumerate() {
        let mut packet = good.clone();
        change(&mut packet);
        for (name, bytes) in [
            ("tunnel_out", packet.clone()),
            ("tunnel_out_ether", frame(&packet)),
        ] {
            if bytes.len() < SHORTEST {
                continue;
            }
            let outcome = rig.run(name, &bytes, Context::default());
            let expected = Outcome {
                action: PASSED,
                packet: bytes,
                mark: 0,
                passes: vec![*reason],
                counted: Default::default(),
            };
            assert_eq!(outcome, expected, "change {number} through {name}");
        }
    }
    let mut tcp = Inner::out().tcp(0).bytes();
    tcp[32] = 0x40;
    let mut long = tcp.clone();
    long[32] = 0xf0;
    for packet in [tcp, long, Inner::out().tcp(0).bytes()[..39].to_vec()] {
        let outcome = rig.run("tunnel_out", &packet, Context::default());
        assert_eq!(
            (outcome.action, &outcome.passes[..]),
            (PASSED, &["Malformed"][..])
        );
    }
}

#[test]
fn other_ether_types_are_passed_on() {
    let mut rig = Rig::new();
    for ether_type in [[8, 6], [0x86, 0xdd], [0x81, 0]] {
        let mut frame = frame(&Inner::out().bytes());
        frame[12..14].copy_from_slice(&ether_type);
        let outcome = rig.run("tunnel_out_ether", &frame, Context::default());
        assert_eq!(
            (outcome.action, &outcome.passes[..]),
            (PASSED, &["NotIpv4"][..])
        );
        assert_eq!(outcome.packet, frame);
    }
}

#[test]
fn the_largest_packet_is_that_of_the_path() {
    let mut rig = Rig::new();
    for (payload, action, passes) in [
        (usize::from(MTU) - 28, REDIRECTED, vec![]),
        (usize::from(MTU) - 27, PASSED, vec!["TooBig"]),
    ] {
        let packet = Inner {
            payload: vec![1; payload],
            ..Inner::out()
        }
        .bytes();
        let outcome = rig.run("tunnel_out_ether", &frame(&packet), Context::default());
        assert_eq!((outcome.action, outcome.passes), (action, passes));
    }
}

/// A super-packet is measured by its wire packets. The one of a run has no type, so the kernel adds no headers to it, and
/// it is passed on untouched.
#[test]
fn super_packets_are_measured_by_their_wire_packets() {
    let mut rig = Rig::new();
    let packet = |transport| Inner {
        transport,
        payload: vec![1; 2_000],
        ..Inner::out()
    };
    let tcp = packet(Transport::Tcp(1, 2, 0));
    let udp = packet(Transport::Udp(1, 2));
    for (inner, gso_size, reason) in [
        (&tcp, u32::from(MTU) - 44, "Refused"),
        (&tcp, u32::from(MTU) - 43, "TooBig"),
        (&udp, u32::from(MTU) - 28, "Refused"),
        (&udp, u32::from(MTU) - 27, "TooBig"),
        (&packet(Transport::Icmp), 1_000, "SuperPacket"),
    ] {
        let frame = frame(&inner.bytes());
        let context = Context {
            gso_size,
            ..Context::default()
        };
        let outcome = rig.run("tunnel_out_ether", &frame, context);
        assert_eq!((outcome.action, outcome.passes), (PASSED, vec![reason]));
        assert_eq!((outcome.packet, outcome.counted.len()), (frame, 0));
    }
}

#[test]
fn without_switch_or_lease_every_program_passes_everything_on() {
    let mut rig = Rig::new();
    let lease = Settings {
        lease: -1,
        flags: ON | FLOWS,
        ..Settings::default()
    };
    let off = Settings {
        flags: FLOWS | TO_PRIVATE_PORT,
        ..Settings::default()
    };
    let (out, back) = (Inner::out().bytes(), from_peer(&Inner::back()));
    for (settings, reason) in [(off, "Off"), (lease, "Lease")] {
        rig.settings(settings);
        for (name, packet) in [
            ("pod_out", ether(HOST_MAC, POD_MAC, &out)),
            ("tunnel_out", out.clone()),
            ("tunnel_out_ether", frame(&out)),
            ("underlay_in", back.clone()),
        ] {
            let outcome = rig.run(name, &packet, Context::default());
            assert_eq!(
                (outcome.action, outcome.passes),
                (PASSED, vec![reason]),
                "{name}"
            );
            assert!(outcome.counted.is_empty());
        }
    }
}

#[test]
fn a_super_packet_without_payload_is_passed_on() {
    let mut rig = Rig::new();
    let context = Context {
        gso_size: 1_000,
        ..Context::default()
    };
    for inner in [Inner::out(), Inner::out().tcp(0)] {
        let empty = Inner {
            payload: vec![],
            ..inner
        };
        let outcome = rig.run("tunnel_out_ether", &frame(&empty.bytes()), context);
        assert_eq!(
            (outcome.action, outcome.passes),
            (PASSED, vec!["SuperPacket"])
        );
    }
}
