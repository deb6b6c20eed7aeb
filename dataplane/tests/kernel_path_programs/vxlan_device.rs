//! `gro_in`: what the VXLAN device has decapsulated, marked or not. A test's own program attaches what the device would.

use std::collections::BTreeMap;

use crate::packets::*;
use crate::rig::*;

fn dropped(reason: u32) -> BTreeMap<u32, u64> {
    BTreeMap::from([(INBOUND + RECEIVED, 1), (INBOUND + DROPS + reason, 1)])
}

fn frame(inner: &Inner) -> Vec<u8> {
    ether(OUR_VTEP, PEER_VTEP, &inner.bytes())
}

const MALFORMED: u32 = 0;
const WRONG_VNI: u32 = 12;
const NOT_OUR_MAC: u32 = 13;
const BAD_SOURCE_MAC: u32 = 14;
const NOT_IP: u32 = 15;
const UNKNOWN_PEER: u32 = 16;
const NOT_PEERS_SOURCE: u32 = 17;
const NOT_OURS: u32 = 18;
const BAD_SUPER_PACKET: u32 = 20;
const NOT_MARKED: u32 = 26;

#[test]
fn what_is_not_marked_is_dropped() {
    let mut rig = Rig::new();
    let others = [0, MARK ^ 1, 0xffff_ffff, 0x8000_4080].map(|mark| (MARK, mark));
    // Settings that no service has written yet have no mark.
    for (ours, mark) in others.into_iter().chain([(0, 0), (0, MARK)]) {
        rig.settings(Settings {
            mark: ours,
            ..Settings::default()
        });
        let context = Context {
            mark,
            ..Context::default()
        };
        let outcome = rig.run("gro_in", &frame(&Inner::back()), context);
        assert_eq!(
            (outcome.action, outcome.counted),
            (DROPPED, dropped(NOT_MARKED))
        );
    }
}

/// Law 1 counts wire packets, also of a super-packet that is dropped before, or because, its headers are not understood.
#[test]
fn a_dropped_super_packet_counts_its_wire_packets() {
    let mut rig = Rig::new();
    let long = frame(&Inner {
        payload: vec![1; 2_000],
        ..Inner::back()
    });
    let counted = |reason, packets| {
        BTreeMap::from([
            (INBOUND + RECEIVED, packets),
            (INBOUND + DROPS + reason, packets),
        ])
    };
    let mut options = long.clone();
    put(14, &[0x46])(&mut options);
    let mut ipv6 = long.clone();
    put(12, &[0x86, 0xdd])(&mut ipv6);
    // What the kernel says it is cut into; without that, and with the headers understood, what its length says.
    for (packet, mark, gso_segs, reason, packets) in [
        (&long, 0, 0, NOT_MARKED, 2),
        (&long, 0, 2, NOT_MARKED, 2),
        (&options, 0, 2, NOT_MARKED, 2),
        (&ipv6, MARK, 2, NOT_IP, 2),
        (&options, MARK, 2, MALFORMED, 2),
        (&options, MARK, 0, MALFORMED, 3),
    ] {
        let context = Context {
            mark,
            gso_size: 1_000,
            gso_segs,
        };
        let outcome = rig.run("gro_in", packet, context);
        let expected = (DROPPED, counted(reason, packets));
        assert_eq!((outcome.action, outcome.counted), expected);
    }
}

#[test]
fn what_no_tunnel_device_has_decapsulated_is_dropped() {
    let mut rig = Rig::new();
    let context = Context {
        mark: MARK,
        ..Context::default()
    };
    let outcome = rig.run("gro_in", &frame(&Inner::back()), context);
    assert_eq!(
        (outcome.action, outcome.counted),
        (DROPPED, dropped(UNKNOWN_PEER))
    );
}

#[test]
fn what_is_marked_goes_to_the_tunnel_device() {
    let mut rig = Rig::new();
    for inner in [Inner::back(), Inner::back().tcp(SYN)] {
        let outcome = rig.run_behind_device(Remote::Peer, &frame(&inner));
        let expected = Outcome {
            action: REDIRECTED,
            packet: ether([0; 6], PEER_VTEP, &inner.bytes()),
            mark: 0,
            passes: vec![],
            counted: delivered(),
        };
        assert_eq!(outcome, expected);
    }
}

/// The mark alone admits nothing: the kernel may have cut an outer super-packet at bytes that a pod chose.
#[test]
fn every_check_is_made_again() {
    type Change = Box<dyn Fn(&mut Vec<u8>)>;
    let changes: Vec<(u32, Change)> = vec![
        (NOT_IP, Box::new(put(12, &[8, 6]))),
        (NOT_IP, Box::new(put(12, &[0x86, 0xdd]))),
        (MALFORMED, Box::new(put(14, &[0x65]))),
        (MALFORMED, Box::new(put(14, &[0x46]))),
        (MALFORMED, Box::new(put(20, &[0x20]))),
        (MALFORMED, Box::new(|packet| packet.push(0))),
        (MALFORMED, Box::new(put(30, &[127]))),
        (NOT_OUR_MAC, Box::new(put(5, &[9]))),
        (NOT_OUR_MAC, Box::new(put(0, &[0xff; 6]))),
        (BAD_SOURCE_MAC, Box::new(put(11, &[9]))),
        (BAD_SOURCE_MAC, Box::new(put(6, &[0; 6]))),
        (BAD_SOURCE_MAC, Box::new(put(6, &OUR_VTEP))),
        (NOT_PEERS_SOURCE, Box::new(put(26, &[10, 244, 9, 9]))),
        (
            NOT_PEERS_SOURCE,
            Box::new(|packet| {
                put(26, &[10, 244, 3, 9])(packet);
                put(11, &[0x0c])(packet);
            }),
        ),
        (NOT_OURS, Box::new(put(30, &[8, 0, 1, 9]))),
        (NOT_OURS, Box::new(put(30, &OURS))),
    ];
    let mut rig = Rig::new();
    for (number, (reason, change)) in changes.iter().enumerate() {
        let mut packet = frame(&Inner::back());
        change(&mut packet);
        let outcome = rig.run_behind_device(Remote::Peer, &packet);
        assert_eq!(
            (outcome.action, outcome.counted),
            (DROPPED, dropped(*reason)),
            "change {number}"
        );
    }
    for (remote, reason) in [
        (Remote::Other, NOT_PEERS_SOURCE),
        (Remote::OtherVni, WRONG_VNI),
    ] {
        let outcome = rig.run_behind_device(remote, &frame(&Inner::back()));
        assert_eq!(
            (outcome.action, outcome.counted),
            (DROPPED, dropped(reason))
        );
    }
    let long = Inner {
        payload: vec![3; usize::from(INNER_MTU) - 27],
        ..Inner::back()
    };
    let outcome = rig.run_behind_device(Remote::Peer, &frame(&long));
    assert_eq!(
        (outcome.action, outcome.counted),
        (DROPPED, dropped(BAD_SUPER_PACKET))
    );
}

/// Marked before the switch was turned: accepted then, delivered now, by the way through the host's stack.
#[test]
fn what_was_marked_is_delivered_after_switching_off() {
    let mut rig = Rig::new();
    rig.flow("flows_in", key(&Inner::back()), Flow::default());
    rig.settings(Settings {
        flags: FLOWS,
        ..Settings::default()
    });
    let outcome = rig.run_behind_device(Remote::Peer, &frame(&Inner::back()));
    assert_eq!((outcome.action, outcome.counted), (REDIRECTED, delivered()));
    assert_eq!(
        outcome.packet,
        ether([0; 6], PEER_VTEP, &Inner::back().bytes())
    );
}

#[test]
fn a_flow_of_the_device_goes_to_its_pod() {
    let mut rig = Rig::new();
    rig.settings(Settings {
        flags: ON | FLOWS,
        ..Settings::default()
    });
    let inner = Inner::back();
    let mut flow = Flow::default();
    flow.header[..6].copy_from_slice(&POD_MAC);
    flow.header[6..12].copy_from_slice(&HOST_MAC);
    rig.flow("flows_in", key(&inner), flow);
    let outcome = rig.run_behind_device(Remote::Peer, &frame(&inner));
    let routed = Inner {
        ttl: 62,
        ..inner.clone()
    };
    assert_eq!((outcome.action, outcome.counted), (REDIRECTED, delivered()));
    assert_eq!(outcome.packet, ether(POD_MAC, HOST_MAC, &routed.bytes()));
    let bytes = inner.bytes().len() as u64;
    assert_eq!(rig.flow_counts("flows_in", key(&inner)), Some((1, bytes)));
}
