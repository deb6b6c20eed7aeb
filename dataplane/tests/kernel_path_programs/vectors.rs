//! The vectors that `encap` is tested with: its corpus, a capture of flannel's wire, and the refusals of its parser, through
//! every program that may meet them. The oracle is user space, as in [`laws`](crate::laws).

use std::fs::{self, File};
use std::path::PathBuf;

use pcap_file::pcap::PcapReader;

use crate::flows::{self, out_flow};
use crate::laws::{snapshot, user_space_delivers, user_space_sends};
use crate::outbound::check_encapsulated;
use crate::packets::*;
use crate::rig::*;

fn encap_file(name: &str) -> PathBuf {
    format!("{}/../encap/{name}", env!("CARGO_MANIFEST_DIR")).into()
}

/// Files of `encap`'s corpus, whose own tests feed them to user space's functions.
fn corpus(folder: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(encap_file("fuzz/corpus").join(folder)).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// A datagram of node 2 with this payload, whatever it is.
fn carrying(payload: &[u8]) -> Vec<u8> {
    let mut frame = datagram(PEER, PEER_VTEP, 0, &[]);
    frame.truncate(VXLAN);
    frame.extend(payload);
    let length = (frame.len() - OUTER_IP) as u16;
    frame[OUTER_IP + 2..OUTER_IP + 4].copy_from_slice(&length.to_be_bytes());
    frame[UDP + 4..UDP + 6].copy_from_slice(&(length - 20).to_be_bytes());
    right_checksum(&mut frame, OUTER_IP);
    frame
}

fn key_of(packet: &[u8]) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&packet[12..20]);
    if matches!(packet[9], 6 | 17) && packet.len() >= 24 {
        key[8..12].copy_from_slice(&packet[20..24]);
    }
    key[12] = packet[9];
    key
}

#[test]
fn the_corpus_of_packets_leaves_as_by_user_space_or_is_passed_on() {
    let (mut rig, snapshot) = (flows::rig(), snapshot());
    let mut sent = [0; 2];
    for file in corpus("inner") {
        // As it is; and from the pod to node 2.
        for addressed in [false, true] {
            let mut packet = file.clone();
            packet.resize(packet.len().max(SHORTEST - 14), 0);
            if addressed {
                packet[12..16].copy_from_slice(&POD);
                packet[16..20].copy_from_slice(&REMOTE);
                right_checksum(&mut packet, 0);
            }
            rig.flow("flows_out", key_of(&packet), out_flow());
            let of_host = ether([2; 6], [2; 6], &packet);
            let of_pod = ether(HOST_MAC, POD_MAC, &packet);
            let runs = [("tunnel_out_ether", of_host), ("pod_out", of_pod)];
            for (number, (name, frame)) in runs.into_iter().enumerate() {
                let (action, out) = rig.quick(name, &frame);
                if action != REDIRECTED {
                    assert_eq!((action, out), (PASSED, frame), "{name}");
                    continue;
                }
                let mut routed = frame[14..].to_vec();
                assert!(user_space_sends(&snapshot, &routed), "{name}: {frame:02x?}");
                if name == "pod_out" {
                    assert!(routed[8] > 1);
                    routed[8] -= 1;
                    right_checksum(&mut routed, 0);
                }
                check_encapsulated(&out, &routed);
                sent[number] += 1;
            }
        }
    }
    assert!(sent[0] > 80 && sent[1] > 20, "{sent:?}");
}

#[test]
fn the_corpus_of_datagrams_arrives_as_by_user_space_or_is_passed_on() {
    let (mut rig, snapshot) = (Rig::new(), snapshot());
    let mut arrived = [0; 2];
    for file in corpus("pull") {
        for addressed in [false, true] {
            // The first byte is the fuzz target's own.
            let mut payload = file.get(1..).unwrap_or_default().to_vec();
            if addressed && payload.len() >= 42 {
                payload[4..7].copy_from_slice(&VNI.to_be_bytes()[1..]);
                payload[8..20].copy_from_slice(&[OUR_VTEP, PEER_VTEP].concat());
                payload[34..42].copy_from_slice(&[REMOTE, POD].concat());
            }
            let frame = carrying(&payload);
            let (action, out) = rig.quick("underlay_in", &frame);
            if action == REDIRECTED {
                let delivered = user_space_delivers(&snapshot, &frame);
                assert_eq!(delivered, Some((out[14..].to_vec(), None)), "{frame:02x?}");
                arrived[0] += 1;
            } else {
                assert_eq!((action, out), (PASSED, frame));
            }
            // Behind the VXLAN device, which looks at flags and VNI itself.
            if payload.len() < 8 + SHORTEST || payload[20..22] != [8, 0] {
                continue;
            }
            let outcome = rig.run_behind_device(Remote::Peer, &payload[8..]);
            payload[..8].copy_from_slice(&[8, 0, 0, 0, 0, 0, VNI as u8, 0]);
            if outcome.action == REDIRECTED {
                let delivered = user_space_delivers(&snapshot, &carrying(&payload));
                assert_eq!(delivered, Some((outcome.packet[14..].to_vec(), None)));
                arrived[1] += 1;
            } else {
                assert_eq!(outcome.action, DROPPED);
            }
        }
    }
    assert!(arrived.iter().all(|count| *count > 40), "{arrived:?}");
}

/// A real flanneld's wire: this node is its node 1. Its nodes drew their MACs, so the rig's take their place.
#[test]
fn flannels_wire_passes_the_programs() {
    let mut rig = flows::rig();
    // What it marks must not hold up the other.
    let mut marking = Rig::new();
    rig.pod([10, 244, 1, 2], DEVICE);
    let file = File::open(encap_file("tests/fixtures/vxlan-wire.pcap")).unwrap();
    let mut reader = PcapReader::new(file).unwrap();
    let (mut arrived, mut left) = (0, [0; 2]);
    while let Some(packet) = reader.next_packet() {
        let mut wire = packet.unwrap().data.into_owned();
        let inner = wire[OUTER..].to_vec();
        if wire[OUTER_IP + 16..OUTER_IP + 20] == OURS {
            wire[..6].copy_from_slice(&LOOPBACK_MAC);
            wire[FRAME..FRAME + 12].copy_from_slice(&[OUR_VTEP, PEER_VTEP].concat());
            let expected = ether([0; 6], PEER_VTEP, &inner);
            // No device has verified its checksum.
            let outcome = marking.run("underlay_in", &wire, Context::default());
            let marked = (outcome.action, outcome.mark, &outcome.packet);
            assert_eq!(marked, (PASSED, MARK, &wire));
            let outcome = marking.run_behind_device(Remote::Peer, &wire[FRAME..]);
            assert_eq!((outcome.action, &outcome.packet), (REDIRECTED, &expected));
            wire[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0);
            let outcome = rig.run("underlay_in", &wire, Context::default());
            assert_eq!((outcome.action, &outcome.packet), (REDIRECTED, &expected));
            arrived += 1;
            continue;
        }
        let is_fragment = inner[6] & 0x3f != 0 || inner[7] != 0;
        let by_tunnel = if is_fragment {
            Some("Fragment")
        } else {
            (inner.len() > usize::from(MTU)).then_some("TooBig")
        };
        let by_pod = match inner[9] {
            _ if is_fragment => Some("Fragment"),
            1 => Some("NoFlow"),
            6 if inner[33] & (FIN | SYN | RST) != 0 => Some("FlowEnds"),
            _ => by_tunnel,
        };
        // Before the stack has routed it.
        let mut before = inner.clone();
        before[8] += 1;
        right_checksum(&mut before, 0);
        rig.flow("flows_out", key_of(&inner), out_flow());
        let runs = [
            ("tunnel_out_ether", ether([9; 6], [8; 6], &inner), by_tunnel),
            ("pod_out", ether(HOST_MAC, POD_MAC, &before), by_pod),
        ];
        for (number, (name, frame, reason)) in runs.into_iter().enumerate() {
            let outcome = rig.run(name, &frame, Context::default());
            if let Some(reason) = reason {
                let expected = (PASSED, vec![reason], frame);
                assert_eq!((outcome.action, outcome.passes, outcome.packet), expected);
                continue;
            }
            assert_eq!(outcome.action, REDIRECTED, "{name}: {:?}", outcome.passes);
            check_encapsulated(&outcome.packet, &inner);
            left[number] += 1;
        }
    }
    assert_eq!((arrived, left), (20, [13, 8]));
}

type Change = Box<dyn Fn(&mut Vec<u8>)>;

/// Cuts the packet off, and says so in its header.
fn cut(length: u8) -> Change {
    Box::new(move |packet: &mut Vec<u8>| {
        packet.truncate(length.into());
        packet[3] = length;
    })
}

/// What `Inner::parse` refuses of any packet (encap/src/inner/tests.rs), and what user space alone understands: the reason
/// with which a program passes it on.
fn of_every_packet() -> Vec<(&'static str, Change)> {
    vec![
        ("NotIpv4", Box::new(put(0, &[0x05]))),
        ("NotIpv4", Box::new(put(0, &[0x15]))),
        ("NotIpv4", Box::new(put(0, &[0x55]))),
        ("NotIpv4", Box::new(put(0, &[0x75]))),
        ("NotIpv4", Box::new(put(0, &[0xf5]))),
        ("Malformed", Box::new(put(0, &[0x44]))),
        ("Options", Box::new(put(0, &[0x48]))),
        ("Malformed", Box::new(put(2, &[0, 19]))),
        ("Malformed", Box::new(put(2, &[0, 0]))),
        ("Malformed", Box::new(|packet: &mut Vec<u8>| packet[3] += 1)),
        ("Malformed", Box::new(|packet: &mut Vec<u8>| packet.push(0))),
        (
            "Malformed",
            Box::new(|packet: &mut Vec<u8>| packet.truncate(packet.len() - 1)),
        ),
        ("Malformed", cut(20)),
        ("Malformed", cut(27)),
        ("Fragment", Box::new(put(6, &[0x20]))),
        ("Fragment", Box::new(put(6, &[0x20, 1]))),
        ("Fragment", Box::new(put(7, &[1]))),
    ]
}

#[test]
fn no_program_takes_what_the_parser_refuses() {
    let of_udp: Vec<(&str, Change)> = vec![
        ("Malformed", Box::new(put(25, &[7]))),
        ("Malformed", Box::new(put(25, &[8]))),
    ];
    let of_tcp: Vec<(&str, Change)> = vec![
        ("Malformed", Box::new(put(32, &[0x40]))),
        ("Malformed", Box::new(put(32, &[0xf0]))),
        ("Malformed", cut(39)),
    ];
    let mut rig = flows::rig();
    let every = of_every_packet();
    for (tcp, own) in [(false, &of_udp), (true, &of_tcp)] {
        let of = |inner: Inner| if tcp { inner.tcp(0) } else { inner };
        let (out, back) = (of(Inner::out()), of(Inner::back()));
        rig.flow("flows_out", key(&out), out_flow());
        for (number, (reason, change)) in every.iter().chain(own).enumerate() {
            let [out, back] = [&out, &back].map(|inner| {
                let mut bytes = inner.bytes();
                change(&mut bytes);
                bytes
            });
            for (name, bytes) in [
                ("pod_out", ether(HOST_MAC, POD_MAC, &out)),
                ("tunnel_out_ether", ether([9; 6], [8; 6], &out)),
                ("tunnel_out", out.clone()),
                ("underlay_in", datagram(PEER, PEER_VTEP, 0, &back)),
            ] {
                if bytes.len() < SHORTEST {
                    continue;
                }
                let outcome = rig.run(name, &bytes, Context::default());
                let expected = (PASSED, vec![*reason], bytes);
                let found = (outcome.action, outcome.passes, outcome.packet);
                assert_eq!(found, expected, "change {number} through {name}");
            }
            let frame = ether(OUR_VTEP, PEER_VTEP, &back);
            let outcome = rig.run_behind_device(Remote::Peer, &frame);
            // Malformed is drop 0.
            let counted: Vec<u32> = outcome.counted.keys().copied().collect();
            let expected = (DROPPED, vec![INBOUND + RECEIVED, INBOUND + DROPS]);
            assert_eq!((outcome.action, counted), expected, "change {number}");
            let to_pod = ether(POD_MAC, HOST_MAC, &back);
            for _ in 0..=FLOW_AFTER {
                rig.run("pod_in", &to_pod, Context::default());
            }
            assert_eq!(rig.posted(), [], "change {number}");
        }
    }
}
