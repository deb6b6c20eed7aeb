//! Flows that control has installed: `pod_out` and `underlay_in` past the host's stack, and how they are proposed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use testbed::Namespace;

use crate::outbound::check_encapsulated;
use crate::packets::*;
use crate::rig::*;

/// With flows.
pub fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.settings(Settings {
        flags: ON | FLOWS,
        ..Settings::default()
    });
    rig
}

/// A namespace whose stack routes to node 2 by a tunnel device, and a rig with settings that know it as that.
fn routed(flags: u32) -> (Namespace, Rig) {
    let host = Namespace::new("routed");
    host.ip("tuntap add tunnel mode tun");
    host.ip("link set lo up");
    host.ip("link set tunnel up");
    host.ip("route add 10.244.2.0/24 dev tunnel");
    host.set("net/ipv4/conf/lo/forwarding", "1");
    let index = host.shell("cat /sys/class/net/tunnel/ifindex");
    let mut rig = Rig::new();
    rig.settings(Settings {
        flags,
        devices: [70, index.trim().parse().unwrap()],
        ..Settings::default()
    });
    (host, rig)
}

fn from_pod(inner: &Inner) -> Vec<u8> {
    ether(HOST_MAC, POD_MAC, &inner.bytes())
}

/// Behind the host's stack, on its way to the pod.
fn to_pod(inner: &Inner) -> Vec<u8> {
    ether(POD_MAC, HOST_MAC, &inner.bytes())
}

/// What control makes for a flow to node 2, written down by hand.
pub fn out_flow() -> Flow {
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
    ip.extend(OURS);
    ip.extend(PEER);
    let words = ip
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut header = ether(NEXT_HOP, UNDERLAY_MAC, &ip);
    header.extend(40_000u16.to_be_bytes());
    header.extend(VXLAN_PORT.to_be_bytes());
    header.extend([0, 0, 0, 0, 8, 0, 0, 0, 0, 0, VNI as u8, 0]);
    header.extend(ether(PEER_VTEP, OUR_VTEP, &[]));
    Flow {
        header: header.try_into().unwrap(),
        ..Flow::default()
    }
}

fn in_flow() -> Flow {
    let mut flow = Flow::default();
    flow.header[..6].copy_from_slice(&POD_MAC);
    flow.header[6..12].copy_from_slice(&HOST_MAC);
    flow
}

/// An entry that does not hold any more.
fn stale(flow: Flow) -> [Flow; 6] {
    [
        Flow { until: -1, ..flow },
        Flow {
            epoch: EPOCH + 1,
            ..flow
        },
        Flow {
            peer_generation: PEER_GENERATION - 1,
            ..flow
        },
        Flow {
            pod_generation: POD_GENERATION - 1,
            ..flow
        },
        Flow {
            ifindex: DEVICE + 1,
            ..flow
        },
        Flow {
            peer: 100_000,
            ..flow
        },
    ]
}

#[test]
fn a_flow_leaves_at_the_pod_as_the_stack_would_have_routed_it() {
    let mut rig = rig();
    for inner in [
        Inner::out(),
        Inner::out().tcp(0),
        Inner {
            tos: 0xb9,
            ttl: 2,
            ..Inner::out()
        },
    ] {
        rig.flow("flows_out", key(&inner), out_flow());
        let outcome = rig.run("pod_out", &from_pod(&inner), Context::default());
        assert_eq!(
            (outcome.action, &outcome.passes[..], outcome.counted),
            (REDIRECTED, &[][..], sent())
        );
        let routed = Inner {
            ttl: inner.ttl - 1,
            ..inner.clone()
        };
        assert_eq!(check_encapsulated(&outcome.packet, &routed.bytes()), 40_000);
        let bytes = inner.bytes().len() as u64;
        assert_eq!(rig.flow_counts("flows_out", key(&inner)), Some((1, bytes)));
    }
    let bytes =
        [Inner::out(), Inner::out().tcp(0), Inner::out()].map(|inner| inner.bytes().len() as u64);
    let counted = [3, bytes.iter().sum(), 0, 0];
    assert_eq!(rig.traffic("peer_counts", PEER_NUMBER), counted);
    assert_eq!(rig.traffic("pod_counts", 1), counted);
}

#[test]
fn everything_else_of_a_pod_is_the_stacks() {
    type Change = Box<dyn Fn(&mut Vec<u8>)>;
    let changes: Vec<(&str, Change)> = vec![
        ("NotIpv4", Box::new(put(12, &[8, 6]))),
        ("NotIpv4", Box::new(put(14, &[0x65]))),
        ("Options", Box::new(put(14, &[0x46]))),
        ("Malformed", Box::new(|packet| packet.push(0))),
        ("Malformed", Box::new(|packet| packet.truncate(34))),
        ("Fragment", Box::new(put(20, &[0x20]))),
        ("Checksum", Box::new(put(24, &[0x12, 0x34]))),
        ("Ttl", Box::new(put(22, &[1]))),
        ("Ttl", Box::new(put(22, &[0]))),
        ("NotUnicast", Box::new(put(30, &[224]))),
        ("NoFlow", Box::new(put(34, &[1]))),
        ("NoFlow", Box::new(put(33, &[9]))),
        ("NoFlow", Box::new(put(23, &[47]))),
        ("WrongPod", Box::new(put(26, &[10, 244, 1, 2]))),
        ("Mac", Box::new(put(0, &[2, 9]))),
        ("Mac", Box::new(put(6, &[2, 9]))),
    ];
    let mut rig = rig();
    rig.flow("flows_out", key(&Inner::out()), out_flow());
    for (number, (reason, change)) in changes.iter().enumerate() {
        let mut packet = from_pod(&Inner::out());
        change(&mut packet);
        if *reason != "Checksum" {
            right_checksum(&mut packet, OUTER_IP);
        }
        let outcome = rig.run("pod_out", &packet, Context::default());
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

/// Another pod's device, and a super-packet that the kernel does not take.
#[test]
fn a_pod_sends_only_from_its_own_device_and_what_fits() {
    let mut rig = rig();
    rig.flow("flows_out", key(&Inner::out()), out_flow());
    let passes = |rig: &mut Rig, inner: &Inner, gso_size| {
        let packet = from_pod(inner);
        let context = Context {
            gso_size,
            ..Context::default()
        };
        let outcome = rig.run("pod_out", &packet, context);
        assert_eq!((outcome.action, outcome.packet), (PASSED, packet));
        outcome.passes
    };
    let sized = |size: usize| Inner {
        payload: vec![0; size - 28],
        ..Inner::out()
    };
    assert_eq!(
        passes(&mut rig, &sized(usize::from(MTU) + 1), 0),
        ["TooBig"]
    );
    assert_eq!(
        passes(&mut rig, &sized(3_000), u32::from(MTU) - 27),
        ["TooBig"]
    );
    assert_eq!(
        passes(&mut rig, &sized(3_000), u32::from(MTU) - 28),
        ["Refused"]
    );
    rig.peer(PEER_NUMBER, PEER, 2, PEER_VTEP);
    assert_eq!(passes(&mut rig, &Inner::out(), 0), ["Peer"]);
    rig.pod(POD, DEVICE + 1);
    assert_eq!(passes(&mut rig, &Inner::out(), 0), ["WrongPod"]);
    rig.settings(Settings::default());
    assert_eq!(passes(&mut rig, &Inner::out(), 0), ["Off"]);
}

#[test]
fn an_entry_that_does_not_hold_is_not_followed() {
    let mut rig = rig();
    let (out, back) = (Inner::out(), Inner::back());
    for flow in stale(out_flow()) {
        rig.flow("flows_out", key(&out), flow);
        let outcome = rig.run("pod_out", &from_pod(&out), Context::default());
        assert_eq!(
            (outcome.action, outcome.passes),
            (PASSED, vec!["StaleFlow"])
        );
    }
    for flow in stale(in_flow()) {
        rig.flow("flows_in", key(&back), flow);
        let outcome = rig.run("underlay_in", &from_peer(&back), Context::default());
        // By the tunnel device, through the host's stack, its TTL untouched.
        assert_eq!(outcome.packet, ether([0; 6], PEER_VTEP, &back.bytes()));
    }
}

#[test]
fn one_write_revokes() {
    let (out, back) = (Inner::out(), Inner::back());
    type Revoke = fn(&mut Rig);
    let revocations: [(&str, Revoke); 3] = [
        ("epoch", |rig| {
            rig.settings(Settings {
                flags: ON | FLOWS,
                epoch: EPOCH + 1,
                oldest_epoch: EPOCH + 1,
                ..Settings::default()
            });
        }),
        ("peer", |rig| {
            rig.peer_of(PEER_NUMBER, PEER, 3, PEER_VTEP, PEER_GENERATION + 1)
        }),
        ("pod", |rig| rig.pod(POD, DEVICE + 1)),
    ];
    for (what, revoke) in revocations {
        let mut rig = rig();
        rig.flow("flows_out", key(&out), out_flow());
        rig.flow("flows_in", key(&back), in_flow());
        let fast = |rig: &mut Rig| {
            let out = rig.run("pod_out", &from_pod(&out), Context::default());
            let back = rig.run("underlay_in", &from_peer(&back), Context::default());
            (out.action == REDIRECTED, back.packet[..6] == POD_MAC)
        };
        assert_eq!(fast(&mut rig), (true, true), "{what}");
        revoke(&mut rig);
        assert_eq!(fast(&mut rig), (false, false), "{what}");
    }
}

#[test]
fn a_flow_arrives_at_its_pod_as_the_stack_would_have_routed_it() {
    let mut rig = rig();
    for inner in [Inner::back(), Inner::back().tcp(0)] {
        rig.flow("flows_in", key(&inner), in_flow());
        let outcome = rig.run("underlay_in", &from_peer(&inner), Context::default());
        let routed = Inner {
            ttl: inner.ttl - 1,
            ..inner.clone()
        };
        let expected = Outcome {
            action: REDIRECTED,
            packet: ether(POD_MAC, HOST_MAC, &routed.bytes()),
            mark: 0,
            passes: vec![],
            counted: delivered(),
        };
        assert_eq!(outcome, expected);
        let bytes = inner.bytes().len() as u64;
        assert_eq!(rig.flow_counts("flows_in", key(&inner)), Some((1, bytes)));
    }
    // The last hop's TTL is the stack's to judge, and so is what another node, or another VTEP, sends of the flow.
    rig.flow("flows_in", key(&Inner::back()), in_flow());
    let last = Inner {
        ttl: 1,
        ..Inner::back()
    };
    let outcome = rig.run("underlay_in", &from_peer(&last), Context::default());
    assert_eq!(outcome.packet, ether([0; 6], PEER_VTEP, &last.bytes()));
    let packet = Inner::back().bytes();
    for (peer, mac, reason) in [
        (PEER_OF_USER_SPACE, PEER_VTEP, "NotPeersSource"),
        (PEER, [2, 0, 0, 0, 0, 0x77], "Mac"),
    ] {
        let outcome = rig.run(
            "underlay_in",
            &datagram(peer, mac, 0, &packet),
            Context::default(),
        );
        assert_eq!((outcome.action, outcome.passes), (PASSED, vec![reason]));
    }
}

/// As without the flow: the host's stack would refuse it at the tunnel device.
#[test]
fn a_flows_packet_that_the_tunnel_device_does_not_take_is_user_spaces() {
    let mut rig = rig();
    rig.flow("flows_in", key(&Inner::back()), in_flow());
    for (more, expected) in [(0, (REDIRECTED, vec![])), (1, (PASSED, vec!["TooBig"]))] {
        let inner = Inner {
            payload: vec![3; usize::from(INNER_MTU) - 28 + more],
            ..Inner::back()
        };
        let outcome = rig.run("underlay_in", &from_peer(&inner), Context::default());
        assert_eq!((outcome.action, outcome.passes), expected);
    }
}

/// A pod that does not forward may get TCP super-packets from the program itself; of others the VXLAN device takes the
/// tunnel's bits off.
#[test]
fn tcp_super_packets_go_directly_only_where_control_says_so() {
    let mut rig = rig();
    let inner = Inner {
        payload: vec![1; 2_000],
        ..Inner::back().tcp(0)
    };
    let gso = Context {
        gso_size: 1_000,
        ..Context::default()
    };
    rig.flow("flows_in", key(&inner), in_flow());
    let outcome = rig.run("underlay_in", &from_peer(&inner), gso);
    assert_eq!((outcome.action, outcome.mark), (PASSED, MARK));
    let direct = Flow {
        flags: 1,
        ..in_flow()
    };
    rig.flow("flows_in", key(&inner), direct);
    // A run's super-packet has no type, so the kernel refuses to take headers from it: user space's, but not marked.
    let outcome = rig.run("underlay_in", &from_peer(&inner), gso);
    assert_eq!(
        (outcome.action, outcome.mark, outcome.passes),
        (PASSED, 0, vec!["Refused"])
    );
}

#[test]
fn a_begin_or_end_removes_both_directions() {
    for flags in [SYN, FIN, RST] {
        let (out, back) = (Inner::out().tcp(flags), Inner::back().tcp(flags));
        for inbound in [false, true] {
            let mut rig = rig();
            rig.flow("flows_out", key(&out), out_flow());
            rig.flow("flows_in", key(&back), in_flow());
            if inbound {
                let outcome = rig.run("underlay_in", &from_peer(&back), Context::default());
                assert_eq!(outcome.packet, ether([0; 6], PEER_VTEP, &back.bytes()));
            } else {
                let outcome = rig.run("pod_out", &from_pod(&out), Context::default());
                assert_eq!((outcome.action, outcome.passes), (PASSED, vec!["FlowEnds"]));
            }
            assert_eq!(rig.flow_counts("flows_out", key(&out)), None);
            assert_eq!(rig.flow_counts("flows_in", key(&back)), None);
        }
    }
}

/// What an entry that does not hold says of its socket is nothing: with the tunnel's bits in it, a super-packet must not
/// reach the host's stack.
#[test]
fn only_a_flow_that_holds_skips_the_vxlan_device() {
    let mut rig = rig();
    let gso = Context {
        gso_size: 1_000,
        ..Context::default()
    };
    let direct = Flow {
        flags: 1,
        ..in_flow()
    };
    let of = |flags| Inner {
        payload: vec![1; 2_000],
        ..Inner::back().tcp(flags)
    };
    for entry in stale(direct) {
        rig.flow("flows_in", key(&of(0)), entry);
        let outcome = rig.run("underlay_in", &from_peer(&of(0)), gso);
        assert_eq!((outcome.action, outcome.mark), (PASSED, MARK));
    }
    for flags in [SYN, FIN, RST] {
        rig.flow("flows_in", key(&of(flags)), direct);
        let outcome = rig.run("underlay_in", &from_peer(&of(flags)), gso);
        assert_eq!((outcome.action, outcome.mark), (PASSED, MARK));
    }
}

/// The packet by which a flow is judged anew takes the device's way, and the stack's behind it.
#[test]
fn a_probe_of_a_direct_flow_reaches_the_stack() {
    let (host, mut rig) = routed(ON | FLOWS);
    host.inside(|| probe_of_direct_flow(&mut rig));
}

fn probe_of_direct_flow(rig: &mut Rig) {
    let inner = Inner {
        payload: vec![1; 2_000],
        ..Inner::back().tcp(0)
    };
    let soon = Flow {
        flags: 1,
        until: 29_000_000_000,
        ..in_flow()
    };
    rig.flow("flows_in", key(&inner), soon);
    let gso = Context {
        gso_size: 1_000,
        ..Context::default()
    };
    let outcome = rig.run("underlay_in", &from_peer(&inner), gso);
    assert_eq!((outcome.action, outcome.mark), (PASSED, MARK));
    let small = Inner {
        payload: vec![1; 100],
        ..inner.clone()
    };
    let frame = ether(OUR_VTEP, PEER_VTEP, &small.bytes());
    let outcome = rig.run_behind_device(Remote::Peer, &frame);
    assert_eq!(outcome.packet, ether([0; 6], PEER_VTEP, &small.bytes()));
    rig.run("pod_in", &to_pod(&small), Context::default());
    assert_eq!(rig.posted(), [(2, PEER_NUMBER, EPOCH, 0, key(&inner))]);
    let outcome = rig.run_behind_device(Remote::Peer, &frame);
    assert_eq!(outcome.packet[..6], POD_MAC, "it was judged");
}

/// For a tenth of a second no packet of the flow overtakes one that user space has.
#[test]
fn bulk_tcp_is_left_to_user_space_where_control_says_so() {
    let mut without = rig();
    let (host, mut rig) = routed(ON | FLOWS | BULK_TCP_PASSES);
    let mut passes = |is_told: bool, inner: &Inner, gso_size| {
        let rig = if is_told { &mut rig } else { &mut without };
        rig.flow("flows_out", key(inner), out_flow());
        let context = Context {
            gso_size,
            ..Context::default()
        };
        let of_pod = host.inside(|| rig.run("pod_out", &from_pod(inner), context));
        let of_host = rig.run("tunnel_out", &inner.bytes(), context);
        [of_pod, of_host].map(|outcome| outcome.passes.contains(&"BulkTcp"))
    };
    let small = Inner::out().tcp(0);
    let large = Inner {
        payload: vec![1; 2_000],
        ..small.clone()
    };
    let datagrams = Inner {
        payload: vec![1; 2_000],
        ..Inner::out()
    };
    let of_another_flow = Inner {
        transport: Transport::Tcp(4001, 5001, 0),
        ..small.clone()
    };
    assert_eq!(passes(false, &large, 1_000), [false; 2]);
    assert_eq!(passes(true, &small, 0), [false; 2]);
    assert_eq!(passes(true, &datagrams, 1_000), [false; 2]);
    assert_eq!(passes(true, &large, 1_000), [true; 2]);
    assert_eq!(passes(true, &small, 0), [true; 2], "it must not overtake");
    assert_eq!(passes(true, &of_another_flow, 0), [false; 2]);
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert_eq!(passes(true, &small, 0), [false; 2], "user space has none");
}

/// Connection tracking calls such a packet invalid, so the rules must see it: it follows no flow and proposes none.
#[test]
fn tcp_without_acknowledgment_is_the_stacks() {
    const FLAGS: usize = 20 + 13;
    let mut rig = rig();
    let (out, back) = (Inner::out().tcp(0), Inner::back().tcp(0));
    rig.flow("flows_out", key(&out), out_flow());
    rig.flow("flows_in", key(&back), in_flow());
    // None, PSH, URG, and the bits of ECN.
    for flags in [0, 0x08, 0x20, 0xc0] {
        let bytes = |inner: &Inner| {
            let mut bytes = inner.bytes();
            bytes[FLAGS] = flags;
            bytes
        };
        let packet = ether(HOST_MAC, POD_MAC, &bytes(&out));
        let outcome = rig.run("pod_out", &packet, Context::default());
        assert_eq!((outcome.action, outcome.passes), (PASSED, vec!["NoFlow"]));
        let packet = datagram(PEER, PEER_VTEP, 0, &bytes(&back));
        let outcome = rig.run("underlay_in", &packet, Context::default());
        assert_eq!(outcome.packet, ether([0; 6], PEER_VTEP, &bytes(&back)));
        let packet = ether(OUR_VTEP, PEER_VTEP, &bytes(&back));
        let outcome = rig.run_behind_device(Remote::Peer, &packet);
        assert_eq!(outcome.packet, ether([0; 6], PEER_VTEP, &bytes(&back)));
        let mut other = self::rig();
        for _ in 0..=FLOW_AFTER {
            other.run("tunnel_out", &bytes(&out), Context::default());
            let packet = ether(POD_MAC, HOST_MAC, &bytes(&back));
            other.run("pod_in", &packet, Context::default());
        }
        assert_eq!(other.posted(), [], "flags {flags:#x}");
    }
    assert_eq!(rig.flow_counts("flows_out", key(&out)), Some((0, 0)));
    assert_eq!(rig.flow_counts("flows_in", key(&back)), Some((0, 0)));
}

/// Neither another pod nor another node ends it.
#[test]
fn a_forged_end_removes_nothing() {
    let mut rig = rig();
    let (out, back) = (Inner::out().tcp(RST), Inner::back().tcp(RST));
    rig.flow("flows_out", key(&out), out_flow());
    rig.flow("flows_in", key(&back), in_flow());
    let forged = datagram(PEER_OF_USER_SPACE, PEER_VTEP, 0, &back.bytes());
    rig.run("underlay_in", &forged, Context::default());
    rig.pod(POD, DEVICE + 1);
    rig.run("pod_out", &from_pod(&out), Context::default());
    assert!(rig.flow_counts("flows_out", key(&out)).is_some());
    assert!(rig.flow_counts("flows_in", key(&back)).is_some());
}

#[test]
fn a_flow_is_proposed_after_some_packets_and_then_ever_less_often() {
    for (program, packet, kind, flow) in [
        ("tunnel_out", Inner::out().bytes(), 1, key(&Inner::out())),
        ("pod_in", to_pod(&Inner::back()), 2, key(&Inner::back())),
    ] {
        let mut rig = rig();
        let mut proposed = vec![];
        for number in 1..=u32::from(FLOW_AFTER) * 16 {
            rig.run(program, &packet, Context::default());
            for event in rig.posted() {
                assert_eq!(event, (kind, PEER_NUMBER, EPOCH, 0, flow));
                proposed.push(number / u32::from(FLOW_AFTER));
            }
        }
        assert_eq!(proposed, [1, 2, 4, 8, 16], "{program}");
        // Another epoch counts anew.
        rig.settings(Settings {
            flags: ON | FLOWS,
            epoch: EPOCH + 1,
            oldest_epoch: EPOCH + 1,
            ..Settings::default()
        });
        for number in 1..=FLOW_AFTER {
            rig.run(program, &packet, Context::default());
            assert_eq!(rig.posted().len(), usize::from(number == FLOW_AFTER));
        }
    }
}

/// Where each has a place: no set has five of them.
#[test]
fn flows_by_rotation_are_counted_each_by_itself() {
    let mut rig = rig();
    let mut taken: HashMap<u32, usize> = HashMap::new();
    let has_place = |flow: &Inner| {
        let set = taken.entry(set_of(&key(flow))).or_default();
        *set += 1;
        *set <= 4
    };
    let flows: Vec<Inner> = (0..4_000).map(numbered).filter(has_place).collect();
    // As many at a time as a slow machine sends in rotation within a second, a flow's longest pause.
    for flows in flows.chunks(500) {
        for number in 1..=FLOW_AFTER {
            let proposed = proposals(&mut rig, flows);
            let expected: Vec<_> = flows.iter().map(key).collect();
            match number == FLOW_AFTER {
                true => assert!(proposed == expected, "only {}", proposed.len()),
                false => assert!(proposed.is_empty(), "at packet {number}"),
            }
        }
    }
}

/// Five flows share a set of four places. By rotation four keep theirs; a second later the fifth gets that of the first.
#[test]
fn flows_that_have_a_place_keep_it_until_they_pause() {
    let mut rig = rig();
    let mut sets: HashMap<u32, Vec<Inner>> = HashMap::new();
    for flow in (0..20_000).map(numbered) {
        sets.entry(set_of(&key(&flow))).or_default().push(flow);
    }
    let crowded = sets.into_values().filter(|flows| flows.len() >= 5);
    let crowded: Vec<_> = crowded.take(60).collect();
    assert_eq!(crowded.len(), 60);
    let mut settled = vec![];
    for flows in &crowded {
        for number in 1..FLOW_AFTER {
            let proposed = proposals(&mut rig, &flows[..5]);
            assert!(proposed.is_empty(), "at packet {number}");
        }
        let first: Vec<_> = flows[..4].iter().map(key).collect();
        // Else the fifth has had a place by chance.
        if proposals(&mut rig, &flows[..4]) == first {
            settled.push(flows);
        }
    }
    // The chance is 1 in 64 at each of its packets.
    assert!(settled.len() >= 40, "{}", settled.len());

    std::thread::sleep(Duration::from_millis(1_100));
    for flows in settled {
        // The fifth from its first packet on, the others where they were.
        for flow in [4, 1, 2, 3] {
            for number in 1..=FLOW_AFTER {
                let is_due = number == FLOW_AFTER;
                let proposed = proposals(&mut rig, &flows[flow..=flow]).len();
                assert_eq!(
                    proposed,
                    usize::from(is_due),
                    "flow {flow}, packet {number}"
                );
            }
        }
    }
}

fn numbered(number: u16) -> Inner {
    Inner {
        transport: Transport::Udp(1_024 + number % 40, 10_000 + number / 40),
        ..Inner::out()
    }
}

/// What a packet of each flow proposes.
fn proposals(rig: &mut Rig, flows: &[Inner]) -> Vec<[u8; 16]> {
    let mut proposed = vec![];
    for flow in flows {
        rig.run("tunnel_out", &flow.bytes(), Context::default());
        proposed.extend(rig.posted().into_iter().map(|(.., key)| key));
    }
    proposed
}

/// The twin of `seen_place` in dataplane/bpf/tables.h.
fn set_of(key: &[u8; 16]) -> u32 {
    let word = |at: usize| u32::from_ne_bytes(key[at..at + 4].try_into().unwrap());
    let port = |at: usize| u32::from(u16::from_ne_bytes([key[at], key[at + 1]]));
    let mut hash = (word(0) ^ u32::from(key[12]) ^ MARK).wrapping_mul(0x27d4_eb2f);
    hash = (hash ^ hash >> 15 ^ word(4)).wrapping_mul(0x2c1b_3c6d);
    let ports = port(8) << 16 | port(10);
    hash = (hash ^ hash >> 12 ^ ports).wrapping_mul(0x297a_2d39);
    hash = (hash ^ hash >> 15).wrapping_mul(0x85eb_ca6b);
    (hash ^ hash >> 16) % 16_384
}

/// Clients use ports one after the other, or so many apart; the test above shows that the twin is one.
#[test]
fn ports_of_a_client_are_spread_over_the_sets() {
    for step in [1, 8, 32, 40, 256] {
        let flows = (0..200).map(|number| Inner {
            transport: Transport::Udp(1_024 + number * step, 80),
            ..Inner::out()
        });
        let sets: HashSet<u32> = flows.map(|flow| set_of(&key(&flow))).collect();
        assert!(sets.len() > 180, "{} of 200, {step} apart", sets.len());
    }
}

/// Each direction by its own SYN. Otherwise one short connection after the other would make a flow.
#[test]
fn connections_one_after_the_other_with_the_same_ports_are_not_counted_as_one() {
    let mut rig = rig();
    let (out, back) = (Inner::out().tcp(0), Inner::back().tcp(0));
    for _ in 0..2 {
        for _ in 1..FLOW_AFTER {
            rig.run("tunnel_out", &out.bytes(), Context::default());
            rig.run("pod_in", &to_pod(&back), Context::default());
        }
        let syn = from_pod(&Inner::out().tcp(SYN));
        rig.run("pod_out", &syn, Context::default());
        let syn = from_peer(&Inner::back().tcp(SYN));
        rig.run("underlay_in", &syn, Context::default());
        assert_eq!(rig.posted(), []);
    }
    for number in 1..=FLOW_AFTER {
        assert_eq!(rig.posted(), []);
        // What ends it does not count it anew.
        let fin = from_pod(&Inner::out().tcp(FIN));
        rig.run("pod_out", &fin, Context::default());
        rig.run("tunnel_out", &out.bytes(), Context::default());
        assert_eq!(rig.posted().len(), usize::from(number == FLOW_AFTER));
    }
}

#[test]
fn what_can_be_no_flow_is_not_proposed() {
    let mut rig = rig();
    let host = Inner {
        source: [10, 244, 1, 2],
        ..Inner::out()
    };
    let icmp = Inner {
        transport: Transport::Icmp,
        ..Inner::out()
    };
    for inner in [host, icmp, Inner::out().tcp(SYN), Inner::out().tcp(RST)] {
        for _ in 0..=FLOW_AFTER {
            let frame = ether([8; 6], [8; 6], &inner.bytes());
            let outcome = rig.run("tunnel_out_ether", &frame, Context::default());
            assert_eq!(outcome.action, REDIRECTED);
        }
    }
    // Nor what has an entry that holds.
    rig.flow("flows_out", key(&Inner::out()), out_flow());
    for _ in 0..=FLOW_AFTER {
        rig.run("tunnel_out", &Inner::out().bytes(), Context::default());
    }
    assert_eq!(rig.posted(), []);
    rig.settings(Settings::default());
    let other = Inner {
        transport: Transport::Udp(1, 2),
        ..Inner::out()
    };
    for _ in 0..=FLOW_AFTER {
        rig.run("tunnel_out", &other.bytes(), Context::default());
    }
    assert_eq!(rig.posted(), []);
}

/// Half a minute before its end an entry lets one packet a second through the stack, and that one proposes it.
#[test]
fn a_flow_that_ends_soon_is_judged_anew() {
    let (host, mut rig) = routed(ON | FLOWS);
    let soon = |flow| Flow {
        until: 29_000_000_000,
        ..flow
    };
    host.inside(|| judged_anew(&mut rig, soon, EPOCH));
}

/// A service that has started takes over the flows of the one before it so, and ends those of which no packet passes the
/// stack.
#[test]
fn a_flow_of_an_earlier_epoch_that_is_left_is_judged_anew() {
    // Epochs wrap.
    for (epoch, oldest_epoch, of_flow) in [
        (EPOCH + 1, EPOCH, EPOCH),
        (EPOCH + 5, EPOCH, EPOCH + 3),
        (1, u32::MAX - 1, u32::MAX),
        (0, u32::MAX, u32::MAX),
    ] {
        let (host, mut rig) = routed(ON | FLOWS);
        let entry = |flow| Flow {
            epoch: of_flow,
            ..flow
        };
        let settings = |rig: &mut Rig, oldest_epoch| {
            let index = host.shell("cat /sys/class/net/tunnel/ifindex");
            rig.settings(Settings {
                flags: ON | FLOWS,
                epoch,
                oldest_epoch,
                devices: [70, index.trim().parse().unwrap()],
                ..Settings::default()
            });
        };
        settings(&mut rig, oldest_epoch);
        host.inside(|| judged_anew(&mut rig, entry, epoch));
        settings(&mut rig, epoch);
        let outcome = rig.run("pod_out", &from_pod(&Inner::out()), Context::default());
        assert_eq!(outcome.passes, ["StaleFlow"]);
    }
}

#[test]
fn a_flow_of_no_epoch_that_is_left_is_stale() {
    for (epoch, oldest_epoch, of_flow) in [
        (EPOCH + 1, EPOCH, EPOCH - 1),
        (EPOCH + 1, EPOCH, EPOCH + 2),
        // As control writes them: the new oldest one beside the present one of before.
        (EPOCH, EPOCH + 1, EPOCH - 1),
        (1, u32::MAX, u32::MAX - 1),
        (1, u32::MAX, 2),
    ] {
        let mut rig = rig();
        rig.settings(Settings {
            flags: ON | FLOWS,
            epoch,
            oldest_epoch,
            ..Settings::default()
        });
        let flow = Flow {
            epoch: of_flow,
            ..out_flow()
        };
        rig.flow("flows_out", key(&Inner::out()), flow);
        let outcome = rig.run("pod_out", &from_pod(&Inner::out()), Context::default());
        assert_eq!(
            outcome.passes,
            ["StaleFlow"],
            "{epoch} {oldest_epoch} {of_flow}"
        );
    }
}

fn judged_anew(rig: &mut Rig, entry: impl Fn(Flow) -> Flow, epoch: u32) {
    let (out, back) = (Inner::out(), Inner::back());
    rig.flow("flows_out", key(&out), entry(out_flow()));
    rig.flow("flows_in", key(&back), entry(in_flow()));
    let outcome = rig.run("pod_out", &from_pod(&out), Context::default());
    assert_eq!((outcome.action, outcome.passes), (PASSED, vec!["Probe"]));
    rig.run("tunnel_out", &out.bytes(), Context::default());
    assert_eq!(rig.posted(), [(1, PEER_NUMBER, epoch, 0, key(&out))]);
    let outcome = rig.run("underlay_in", &from_peer(&back), Context::default());
    assert_eq!(outcome.packet, ether([0; 6], PEER_VTEP, &back.bytes()));
    rig.run("pod_in", &to_pod(&back), Context::default());
    assert_eq!(rig.posted(), [(2, PEER_NUMBER, epoch, 0, key(&back))]);
    for _ in 0..3 {
        let outcome = rig.run("pod_out", &from_pod(&out), Context::default());
        assert_eq!(outcome.action, REDIRECTED);
        let outcome = rig.run("underlay_in", &from_peer(&back), Context::default());
        assert_eq!(outcome.packet[..6], POD_MAC);
        // What else of it comes through the stack proposes nothing.
        rig.run("tunnel_out", &out.bytes(), Context::default());
        rig.run("pod_in", &to_pod(&back), Context::default());
    }
    assert_eq!(rig.posted(), []);
    std::thread::sleep(std::time::Duration::from_millis(1_010));
    let outcome = rig.run("pod_out", &from_pod(&out), Context::default());
    assert_eq!(outcome.passes, ["Probe"]);
}

/// A judgement would cost more than its packets save: the stack sees one a second, and the entry ends.
#[test]
fn a_flow_with_few_packets_is_not_judged_anew() {
    let (host, mut rig) = routed(ON | FLOWS);
    let (out, back) = (Inner::out(), Inner::back());
    host.inside(|| {
        for (last_seen, is_judged) in [(-2_000_000_000, false), (-1_500_000_000, true)] {
            let seldom = |flow| Flow {
                until: 29_000_000_000,
                last_seen,
                ..flow
            };
            rig.flow("flows_out", key(&out), seldom(out_flow()));
            rig.flow("flows_in", key(&back), seldom(in_flow()));
            let outcome = rig.run("pod_out", &from_pod(&out), Context::default());
            assert_eq!((outcome.action, outcome.passes), (PASSED, vec!["Probe"]));
            rig.run("tunnel_out", &out.bytes(), Context::default());
            let outcome = rig.run("underlay_in", &from_peer(&back), Context::default());
            assert_eq!(outcome.packet, ether([0; 6], PEER_VTEP, &back.bytes()));
            rig.run("pod_in", &to_pod(&back), Context::default());
            assert_eq!(rig.posted().len(), if is_judged { 2 } else { 0 });
            let outcome = rig.run("pod_out", &from_pod(&out), Context::default());
            assert_eq!(outcome.action, REDIRECTED, "one a second");
        }
    });
}

/// Ways that take the packets of a pod to node 2 elsewhere than to the tunnel device, and whether what arrives from there
/// is refused for it too. The first is what a service leaves that was killed with its keeper.
const NO_TUNNEL: [(&str, bool); 4] = [
    ("route add unreachable 10.244.0.0/16", true),
    ("route replace unreachable 10.244.2.0/24", true),
    ("route del 10.244.2.0/24", true),
    ("route replace 10.244.2.0/24 dev lo", false),
];

/// With a device that loses its routes while no process holds it, as the service sets it.
fn without_tunnel(flags: u32, way: &str) -> (Namespace, Rig) {
    let (host, rig) = routed(flags);
    host.set("net/ipv4/conf/tunnel/ignore_routes_with_linkdown", "1");
    host.ip(way);
    (host, rig)
}

/// What the host's stack would refuse is not given to it: nothing of the flow is lost while no process holds the tunnel
/// device, and the entry ends when it would have ended.
#[test]
fn what_the_stack_would_refuse_is_not_judged_anew() {
    for (way, refuses_back) in NO_TUNNEL {
        let (host, mut rig) = without_tunnel(ON | FLOWS, way);
        let (out, back) = (Inner::out(), Inner::back());
        host.inside(|| {
            for (until, holds) in [(29_000_000_000, true), (1_000_000_000, true), (-1, false)] {
                let ends = |flow| Flow { until, ..flow };
                rig.flow("flows_out", key(&out), ends(out_flow()));
                rig.flow("flows_in", key(&back), ends(in_flow()));
                let outcome = rig.run("pod_out", &from_pod(&out), Context::default());
                assert_eq!(outcome.action == REDIRECTED, holds, "{way}: {until}");
                let outcome = rig.run("underlay_in", &from_peer(&back), Context::default());
                let is_short = outcome.packet[..6] == POD_MAC;
                assert_eq!(is_short, holds && refuses_back, "{way}: {until}");
            }
        });
    }
}

/// Nor is bulk that is user space's otherwise.
#[test]
fn bulk_tcp_stays_where_user_space_is_not_reached() {
    let large = Inner {
        payload: vec![1; 2_000],
        ..Inner::out().tcp(0)
    };
    let gso = Context {
        gso_size: 1_000,
        ..Context::default()
    };
    for (way, _) in NO_TUNNEL {
        let (host, mut rig) = without_tunnel(ON | FLOWS | BULK_TCP_PASSES, way);
        rig.flow("flows_out", key(&large), out_flow());
        let outcome = host.inside(|| rig.run("pod_out", &from_pod(&large), gso));
        assert!(!outcome.passes.contains(&"BulkTcp"), "{way}");
    }
}

/// A flow whose entry came to its end is not one that is refused: it is proposed after as few packets as a new one.
#[test]
fn a_flow_whose_entry_has_ended_is_counted_from_the_start() {
    let mut rig = rig();
    let out = Inner::out();
    let packets_until_proposed = |rig: &mut Rig| {
        (1..=u32::from(FLOW_AFTER) * 64)
            .find(|_| {
                rig.run("tunnel_out", &out.bytes(), Context::default());
                !rig.posted().is_empty()
            })
            .unwrap()
    };
    for _ in 0..5 {
        let ended = Flow {
            until: -1,
            ..out_flow()
        };
        assert_eq!(packets_until_proposed(&mut rig), u32::from(FLOW_AFTER));
        rig.flow("flows_out", key(&out), ended);
    }
    // From here on it is refused.
    assert_eq!(packets_until_proposed(&mut rig), u32::from(FLOW_AFTER));
    assert_eq!(packets_until_proposed(&mut rig), u32::from(FLOW_AFTER));
    assert_eq!(packets_until_proposed(&mut rig), 2 * u32::from(FLOW_AFTER));
}

/// Only what comes from a peer to the pod of this device; and nothing is touched or counted, whatever it is.
#[test]
fn a_flow_to_a_pod_is_proposed_behind_the_stack_and_only_of_peers() {
    let mut rig = rig();
    let from = |source| Inner {
        source,
        ..Inner::back()
    };
    let run = |rig: &mut Rig, inner: &Inner| {
        let packet = to_pod(inner);
        for _ in 0..=FLOW_AFTER {
            let outcome = rig.run("pod_in", &packet, Context::default());
            let expected = Outcome {
                action: PASSED,
                packet: packet.clone(),
                mark: 0,
                passes: vec![],
                counted: Default::default(),
            };
            assert_eq!(outcome, expected);
        }
        rig.posted().len()
    };
    let known = Inner::back();
    for inner in [
        from([10, 244, 9, 9]),
        from([10, 244, 3, 2]),
        from([10, 244, 1, 2]),
        from([224, 0, 0, 1]),
        known.clone().tcp(SYN),
        Inner {
            destination: [10, 244, 1, 2],
            ..known.clone()
        },
        Inner {
            transport: Transport::Icmp,
            ..known.clone()
        },
    ] {
        assert_eq!(run(&mut rig, &inner), 0, "{inner:?}");
    }
    rig.pod(POD, DEVICE + 1);
    assert_eq!(run(&mut rig, &known), 0);
    rig.pod(POD, DEVICE);
    for settings in [
        Settings::default(),
        Settings {
            flags: FLOWS,
            ..Settings::default()
        },
        Settings {
            flags: ON | FLOWS,
            lease: -1,
            ..Settings::default()
        },
    ] {
        rig.settings(settings);
        assert_eq!(run(&mut rig, &known), 0);
    }
    rig.settings(Settings {
        flags: ON | FLOWS,
        ..Settings::default()
    });
    assert_eq!(run(&mut rig, &known), 1);
}

/// Entries outlive the switch, and no epoch ends with it.
#[test]
fn no_entry_is_followed_where_flows_are_off() {
    let mut rig = Rig::new();
    let back = Inner::back();
    rig.flow("flows_in", key(&back), in_flow());
    let by_the_stack = ether([0; 6], PEER_VTEP, &back.bytes());
    let outcome = rig.run("underlay_in", &from_peer(&back), Context::default());
    assert_eq!(
        (outcome.action, &outcome.packet),
        (REDIRECTED, &by_the_stack)
    );
    let frame = ether(OUR_VTEP, PEER_VTEP, &back.bytes());
    let outcome = rig.run_behind_device(Remote::Peer, &frame);
    assert_eq!(
        (outcome.action, &outcome.packet),
        (REDIRECTED, &by_the_stack)
    );
}

#[test]
fn an_entry_that_does_not_hold_is_not_followed_behind_the_device() {
    let mut rig = rig();
    let mut goes_by_the_stack = |inner: &Inner, flow: Flow| {
        rig.flow("flows_in", key(inner), flow);
        let frame = ether(OUR_VTEP, PEER_VTEP, &inner.bytes());
        let outcome = rig.run_behind_device(Remote::Peer, &frame);
        let expected = ether([0; 6], PEER_VTEP, &inner.bytes());
        assert_eq!(
            (outcome.action, outcome.packet),
            (REDIRECTED, expected),
            "{inner:?}"
        );
    };
    // The last is another peer's, which has the same generation.
    let other = Flow {
        peer: 2,
        ..in_flow()
    };
    for flow in stale(in_flow()).into_iter().chain([other]) {
        goes_by_the_stack(&Inner::back(), flow);
    }
    let ends = [SYN, FIN, RST].map(|flags| Inner::back().tcp(flags));
    let last = [0, 1].map(|ttl| Inner {
        ttl,
        ..Inner::back()
    });
    for inner in ends.into_iter().chain(last) {
        goes_by_the_stack(&inner, in_flow());
    }
}

#[test]
fn no_flow_arrives_of_a_peer_that_is_not_received_from() {
    let mut rig = rig();
    let back = Inner::back();
    rig.flow("flows_in", key(&back), in_flow());
    rig.peer(PEER_NUMBER, PEER, 1, PEER_VTEP);
    let outcome = rig.run("underlay_in", &from_peer(&back), Context::default());
    assert_eq!((outcome.action, outcome.passes), (PASSED, vec!["Peer"]));
}

#[test]
fn only_verified_tcp_skips_the_vxlan_device() {
    let mut rig = rig();
    let direct = Flow {
        flags: 1,
        ..in_flow()
    };
    let tcp = Inner::back().tcp(0);
    let udp = Inner {
        payload: vec![1; 2_000],
        ..Inner::back()
    };
    rig.flow("flows_in", key(&tcp), direct);
    rig.flow("flows_in", key(&udp), direct);
    let mut unverified = from_peer(&tcp);
    unverified[UDP_CHECKSUM] = 1;
    let gso = Context {
        gso_size: 1_000,
        ..Context::default()
    };
    for (packet, context) in [(unverified, Context::default()), (from_peer(&udp), gso)] {
        let outcome = rig.run("underlay_in", &packet, context);
        assert_eq!((outcome.action, outcome.mark), (PASSED, MARK));
        assert_eq!((outcome.packet, outcome.passes.len()), (packet, 0));
    }
}

/// A lease may say that a peer has one of our addresses; and another protocol's frame may look like IPv4.
#[test]
fn what_is_no_peers_is_not_proposed() {
    let mut rig = rig();
    rig.prefix("fib", [10, 244, 1, 0], 24, PEER_NUMBER);
    let ours = to_pod(&Inner {
        source: [10, 244, 1, 2],
        ..Inner::back()
    });
    let mut arp = to_pod(&Inner::back());
    put(12, &[8, 6])(&mut arp);
    for packet in [ours, arp] {
        for _ in 0..=FLOW_AFTER {
            rig.run("pod_in", &packet, Context::default());
        }
        assert_eq!(rig.posted(), []);
    }
}

#[test]
fn a_flow_that_does_not_end_soon_is_not_judged_anew() {
    let (host, mut rig) = routed(ON | FLOWS);
    let (out, back) = (Inner::out(), Inner::back());
    let ends = |flow| Flow {
        until: 31_000_000_000,
        ..flow
    };
    host.inside(|| {
        rig.flow("flows_out", key(&out), ends(out_flow()));
        rig.flow("flows_in", key(&back), ends(in_flow()));
        let outcome = rig.run("pod_out", &from_pod(&out), Context::default());
        assert_eq!(outcome.action, REDIRECTED);
        let outcome = rig.run("underlay_in", &from_peer(&back), Context::default());
        assert_eq!(outcome.packet[..6], POD_MAC);
    });
}
