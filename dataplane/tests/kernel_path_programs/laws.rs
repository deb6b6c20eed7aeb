//! Laws over generated packets: good ones, and good ones damaged at a few places, where damage hurts.
//!
//! The oracle is user space itself: `encap::pull` and `encap::inner`, and the Snapshot of a spec that the tables mirror.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use dataplane::families::PerFamily;
use dataplane::snapshot::Snapshot;
use dataplane::spec::{ClusterSpec, LocalSpec, NodeSpec, PeerSpec, Spec};
use encap::inner::Inner as Parsed;
use encap::pull::{self, Vtep};
use encap::transport::ChecksumState;
use encap::{Ecn, Format, Mac, Vni, ecn};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::outbound::check_encapsulated;
use crate::packets::*;
use crate::rig::*;

const CASES: u32 = 4_000;

/// What the rig's tables mirror.
pub fn snapshot() -> Snapshot {
    let ip = |bytes: [u8; 4]| IpAddr::from(bytes);
    let net = |text: &str| text.parse().unwrap();
    let peer = |name: &str, address: [u8; 4], subnet: &str, vtep: [u8; 6]| {
        Arc::new(PeerSpec {
            name: name.into(),
            public: ip(address).into(),
            underlay_sources: vec![],
            subnets: vec![net(subnet)],
            accept_sources: vec![],
            format: Format::Vxlan,
            vtep_mac: PerFamily::each(|_| Mac(vtep)),
        })
    };
    let spec = Spec {
        version: 1,
        cluster: Arc::new(ClusterSpec {
            node: NodeSpec {
                networks: vec![net("10.244.0.0/16")],
                public: ip(OURS).into(),
                vtep_mac: PerFamily::each(|_| Mac(OUR_VTEP)),
                vni: Vni::new(VNI).unwrap(),
                gbp: false,
                ipv6_over_udp: false,
                inner_mtu: PerFamily::each(|_| INNER_MTU),
                underlay_mtu: MTU + 50,
                udp_port: 8285,
                vxlan_port: VXLAN_PORT,
            },
            peers: vec![
                peer("two", PEER, "10.244.2.0/24", PEER_VTEP),
                peer(
                    "three",
                    PEER_OF_USER_SPACE,
                    "10.244.3.0/24",
                    [2, 0, 0, 0, 0, 0x0c],
                ),
                peer("four", PEER_WITH_OUR_MAC, "10.244.4.0/24", OUR_VTEP),
            ],
        }),
        local: Arc::new(LocalSpec {
            subnets: vec![net("10.244.1.0/24"), net("8.0.1.0/24")],
            tunnel: vec![ip([10, 244, 1, 0])],
            addresses: vec![ip(OURS)],
            attachments: vec![ip([10, 244, 1, 2]), ip(POD)],
            pods: [].into(),
            kernel_prefixes: vec![],
            allowed_sources: vec![net("203.0.113.0/24")],
        }),
    };
    Snapshot::new(&spec, None)
}

fn address() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![
        8 => Just(POD),
        8 => Just(REMOTE),
        1 => Just(OURS),
        1 => Just(PEER),
        1 => Just([10, 244, 1, 2]),
        1 => Just([10, 244, 1, 0]),
        1 => Just([10, 244, 3, 2]),
        1 => Just([10, 244, 4, 2]),
        1 => Just([10, 244, 9, 9]),
        1 => Just([203, 0, 113, 7]),
        1 => Just([255; 4]),
        1 => Just([224, 0, 0, 1]),
        1 => any::<[u8; 4]>(),
    ]
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![
        (any::<(u16, u16)>(), prop_oneof![Just(0u8), 0..8u8])
            .prop_map(|((source, destination), flags)| Transport::Tcp(source, destination, flags)),
        any::<(u16, u16)>().prop_map(|(source, destination)| Transport::Udp(source, destination)),
        Just(Transport::Icmp),
    ]
}

/// An inner packet that mostly goes `from` there `to` there.
fn inner(from: [u8; 4], to: [u8; 4]) -> impl Strategy<Value = Inner> {
    let source = prop_oneof![3 => Just(from), 1 => address()];
    let destination = prop_oneof![3 => Just(to), 1 => address()];
    let payload = prop_oneof![vec(any::<u8>(), 0..80), vec(Just(1), 1_340..1_480)];
    (source, destination, any::<(u8, u8)>(), transport(), payload).prop_map(
        |(source, destination, (ttl, tos), transport, payload)| Inner {
            source,
            destination,
            ttl,
            tos,
            transport,
            payload,
        },
    )
}

/// Bytes to overwrite within the headers, bytes to cut off the end or to add, and whether the outer (first) and the inner
/// IP checksum are made right afterwards.
type Damage = (Vec<(usize, u8)>, i8, bool);

fn damage(headers: usize) -> impl Strategy<Value = Damage> {
    let byte = prop_oneof![
        any::<u8>(),
        Just(0),
        Just(1),
        Just(8),
        Just(0x45),
        Just(0x20)
    ];
    let writes = prop_oneof![
        1 => Just(vec![]),
        3 => vec((0..headers, byte), 1..4),
    ];
    let length = prop_oneof![6 => Just(0i8), 1 => -40..4i8];
    (writes, length, any::<bool>())
}

fn apply(packet: &mut Vec<u8>, (writes, length, right): &Damage, ip: usize) {
    for (at, value) in writes {
        if let Some(byte) = packet.get_mut(*at) {
            *byte = *value;
        }
    }
    let length = packet.len().saturating_add_signed((*length).into());
    packet.resize(length.max(SHORTEST), 0);
    if *right {
        right_checksum(packet, ip);
    }
}

/// Runs `law` on `CASES` values, and proves that it saw both packets that were admitted and such that were not.
fn check<S: Strategy>(strategy: S, mut law: impl FnMut(S::Value) -> bool)
where
    S::Value: Clone + std::fmt::Debug,
{
    let (mut admitted, mut passed) = (0, 0);
    let law = std::cell::RefCell::new(&mut law);
    let counts = std::cell::RefCell::new((&mut admitted, &mut passed));
    TestRunner::new(Config::with_cases(CASES))
        .run(&strategy, |value| {
            let (admitted, passed) = &mut *counts.borrow_mut();
            let count = if (law.borrow_mut())(value) {
                admitted
            } else {
                passed
            };
            **count += 1;
            Ok(())
        })
        .unwrap();
    assert!(
        admitted > CASES / 20 && passed > CASES / 20,
        "{admitted} admitted, {passed} passed on"
    );
}

/// The inner packet that user space delivers of a frame of the underlay, and the codepoint that it gets; `None` where it
/// refuses. The kernel's IP and UDP layers stand in front of its socket.
pub fn user_space_delivers(snapshot: &Snapshot, frame: &[u8]) -> Option<(Vec<u8>, Option<Ecn>)> {
    let packet = frame.get(14..)?;
    if frame[..6] != LOOPBACK_MAC || frame[12..14] != [8, 0] {
        return None;
    }
    let header = usize::from(packet.first()? & 15) * 4;
    let right = encap::checksum::ipv4_header(packet.get(..header)?);
    let outer = pull::outer(packet).ok()?;
    if packet[10..12] != right.to_be_bytes()
        || !matches!(outer.checksum, ChecksumState::Absent | ChecksumState::Valid)
    {
        return None;
    }
    if outer.destination != SocketAddr::from((OURS, VXLAN_PORT)) {
        return None;
    }
    let vtep = Vtep {
        mac: Mac(OUR_VTEP),
        mac_v6: Mac(OUR_VTEP),
        vni: Vni::new(VNI).unwrap(),
        gbp: false,
    };
    let pulled = pull::vxlan(outer.payload, &vtep).ok()?;
    let (id, peer) = snapshot.cluster.peers.by_source(outer.source.ip())?;
    let inner = pulled.inner;
    if !snapshot.belongs(id, peer, inner.source) || !snapshot.pods.is_local(inner.destination) {
        return None;
    }
    let marked = ecn::decapsulate(outer.ecn, inner.ecn).ok()?;
    let bytes = outer
        .payload
        .get(pulled.offset..pulled.offset + inner.len)?;
    Some((bytes.to_vec(), marked))
}

#[test]
fn nothing_arrives_that_user_space_refuses_or_changes() {
    let mut rig = Rig::new();
    let snapshot = snapshot();
    let peer =
        prop_oneof![6 => Just(PEER), 1 => Just(PEER_OF_USER_SPACE), 1 => Just(PEER_WITH_OUR_MAC)];
    let cases = (inner(REMOTE, POD), peer, 0..4u8, damage(100));
    check(cases, |(inner, peer, tos, damage)| {
        let mut frame = datagram(peer, PEER_VTEP, tos, &inner.bytes());
        apply(&mut frame, &damage, OUTER_IP);
        let (action, packet) = rig.quick("underlay_in", &frame);
        if action != REDIRECTED {
            // A checksum that no device has verified goes to the VXLAN device.
            assert_eq!((action, packet), (PASSED, frame));
            return false;
        }
        let delivered = user_space_delivers(&snapshot, &frame);
        assert_eq!(
            delivered,
            Some((packet[14..].to_vec(), None)),
            "{frame:02x?}"
        );
        true
    });
}

/// And it takes all that it knows: only a listed reason sends a packet of the peers that it knows to user space.
#[test]
fn what_user_space_delivers_of_known_peers_arrives() {
    let mut rig = Rig::new();
    let snapshot = snapshot();
    check((inner(REMOTE, POD), 0..4u8), |(inner, tos)| {
        let frame = datagram(PEER, PEER_VTEP, tos, &inner.bytes());
        let delivered = user_space_delivers(&snapshot, &frame);
        let outcome = rig.run("underlay_in", &frame, Context::default());
        // NoPeer: `fib` has a node's subnets, not its own address and not what accept-sources lists.
        let left = ["Congestion", "NotUnicast", "TooBig", "NoPeer"];
        let expected =
            delivered.is_some() && !outcome.passes.iter().any(|reason| left.contains(reason));
        assert_eq!(
            outcome.action == REDIRECTED,
            expected,
            "{inner:?} {:?}",
            outcome.passes
        );
        expected
    });
}

/// Whether user space sends the packet to node 2, in one piece.
pub fn user_space_sends(snapshot: &Snapshot, packet: &[u8]) -> bool {
    let Ok(inner) = Parsed::parse(packet) else {
        return false;
    };
    let IpAddr::V4(destination) = inner.destination else {
        return false;
    };
    let unicast =
        !destination.is_multicast() && !destination.is_broadcast() && !destination.is_unspecified();
    let peer = snapshot.cluster.fib.lookup(inner.destination);
    let peer = peer.and_then(|id| snapshot.cluster.peers.peer(id));
    let known = snapshot
        .cluster
        .peers
        .by_source(Ipv4Addr::from(PEER).into());
    unicast
        && snapshot.pods.may_speak(inner.source)
        && !snapshot.pods.in_own_subnet(inner.destination)
        && peer.is_some_and(|peer| known.is_some_and(|(_, known)| std::ptr::eq(peer, known)))
        && inner.len <= usize::from(MTU)
}

#[test]
fn nothing_leaves_that_user_space_refuses_or_changes() {
    let mut rig = Rig::new();
    let snapshot = snapshot();
    let cases = (inner(POD, REMOTE), damage(60));
    check(cases, |(inner, damage)| {
        let mut frame = ether([2; 6], [2; 6], &inner.bytes());
        apply(&mut frame, &damage, OUTER_IP);
        let (action, sent) = rig.quick("tunnel_out_ether", &frame);
        if action != REDIRECTED {
            assert_eq!((action, sent), (PASSED, frame));
            return false;
        }
        assert!(user_space_sends(&snapshot, &frame[14..]), "{frame:02x?}");
        check_encapsulated(&sent, &frame[14..]);
        true
    });
}

#[test]
fn what_user_space_sends_to_known_peers_leaves() {
    let mut rig = Rig::new();
    let snapshot = snapshot();
    check(inner(POD, REMOTE), |inner| {
        let packet = inner.bytes();
        let expected = user_space_sends(&snapshot, &packet);
        let (action, _) = rig.quick("tunnel_out_ether", &ether([2; 6], [2; 6], &packet));
        assert_eq!(action == REDIRECTED, expected, "{inner:?}");
        expected
    });
}

/// What a flow's program sends is what the stack and the tunnel device's program would have sent, but for the outer port.
#[test]
fn a_flow_leaves_as_by_the_stack() {
    let mut rig = Rig::new();
    rig.settings(Settings {
        flags: ON | FLOWS,
        ..Settings::default()
    });
    let cases = (inner(POD, REMOTE), damage(60));
    check(cases, |(inner, damage)| {
        if !matches!(inner.transport, Transport::Icmp) && inner.destination == REMOTE {
            rig.flow("flows_out", key(&inner), crate::flows::out_flow());
        }
        let mut frame = ether(HOST_MAC, POD_MAC, &inner.bytes());
        apply(&mut frame, &damage, OUTER_IP);
        let (action, sent) = rig.quick("pod_out", &frame);
        if action != REDIRECTED {
            assert_eq!((action, sent), (PASSED, frame));
            return false;
        }
        // The router's part.
        let packet = &mut frame[14..];
        let right = encap::checksum::ipv4_header(&packet[..20]);
        assert_eq!(packet[10..12], right.to_be_bytes());
        assert!(packet[8] > 1);
        packet[8] -= 1;
        right_checksum(packet, 0);
        check_encapsulated(&sent, packet);
        let (action, mut by_stack) = rig.quick("tunnel_out_ether", &ether([2; 6], [2; 6], packet));
        by_stack[UDP..UDP + 2].copy_from_slice(&sent[UDP..UDP + 2]);
        assert_eq!((action, by_stack), (REDIRECTED, sent));
        true
    });
}
