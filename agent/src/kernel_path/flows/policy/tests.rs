use std::collections::HashMap;
use std::sync::Arc;

use dataplane::families::PerFamily;
use dataplane::snapshot::Snapshot;
use dataplane::spec::{ClusterSpec, LocalSpec, NodeSpec, PeerSpec, Spec};
use encap::{Mac, Vni};
use proptest::prelude::*;

use super::super::conntrack::{TcpState, inverse};
use super::super::facts::FlowPod;
use super::*;
use Direction::{Inbound, Outbound};

/// Node 1 with two pods, the second limited; node 2 in `vxlan`, node 3 in `udp`, node 4 of IPv6 alone.
pub(in super::super) fn facts() -> FlowFacts {
    let peer = |number: u8, public: &str, format| {
        Arc::new(PeerSpec {
            name: format!("node{number}"),
            public: public.parse::<IpAddr>().unwrap().into(),
            underlay_sources: vec![],
            subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
            accept_sources: vec!["172.16.0.0/16".parse().unwrap()],
            format,
            vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, number])),
        })
    };
    let spec = Spec {
        version: 1,
        cluster: Arc::new(ClusterSpec {
            node: NodeSpec {
                networks: vec!["10.244.0.0/16".parse().unwrap()],
                public: "192.0.2.1".parse::<IpAddr>().unwrap().into(),
                vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 1])),
                vni: Vni::new(1).unwrap(),
                gbp: false,
                ipv6_over_udp: false,
                inner_mtu: PerFamily::each(|_| 1450),
                underlay_mtu: 1500,
                udp_port: 8285,
                vxlan_port: 8472,
            },
            peers: vec![
                peer(2, "192.0.2.2", Format::Vxlan),
                peer(3, "192.0.2.3", Format::Udp),
                peer(4, "2001:db8::4", Format::Vxlan),
            ],
        }),
        local: Arc::new(LocalSpec {
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            tunnel: vec!["10.244.1.0".parse().unwrap()],
            addresses: vec!["192.0.2.1".parse().unwrap(), "10.244.2.77".parse().unwrap()],
            attachments: vec![
                "10.244.1.2".parse().unwrap(),
                "10.244.1.3".parse().unwrap(),
                "10.244.9.9".parse().unwrap(),
            ],
            pods: [].into(),
            kernel_prefixes: vec!["10.244.1.64/26".parse().unwrap()],
            allowed_sources: vec!["203.0.113.0/24".parse().unwrap()],
        }),
    };
    let pod = |ifindex, is_limited| FlowPod {
        ifindex,
        is_limited,
    };
    FlowFacts {
        snapshot: Arc::new(Snapshot::new(&spec, None)),
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        pods: HashMap::from([
            ("10.244.1.2".parse().unwrap(), pod(12, false)),
            ("10.244.1.3".parse().unwrap(), pod(13, true)),
            // Not in the node's subnet, whatever a record says.
            ("10.244.9.9".parse().unwrap(), pod(19, false)),
        ]),
        encapsulation_ports: vec![8472, 8285, 18472],
        devices: vec![2, 3, 4],
    }
}

fn key(protocol: i32, here: &str, there: &str) -> FlowKey {
    FlowKey {
        source: here.parse().unwrap(),
        destination: there.parse().unwrap(),
        source_port: 40_000,
        destination_port: 80,
        protocol: protocol as u8,
    }
}

/// The answer for a flow between two addresses, which is the same in both directions.
fn judged(protocol: i32, here: &str, there: &str) -> Result<Ends, Refusal> {
    let facts = facts();
    let out = key(protocol, here, there);
    let answer = ends(Outbound, &out, &facts);
    assert_eq!(ends(Inbound, &inverse(&out), &facts), answer);
    answer
}

#[test]
fn a_pod_and_a_pod_of_a_peer_are_the_ends_of_a_flow() {
    for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
        assert_eq!(
            judged(protocol, "10.244.1.2", "10.244.2.2"),
            Ok(Ends {
                pod: "10.244.1.2".parse().unwrap(),
                peer: "192.0.2.2".parse().unwrap(),
            })
        );
    }
}

#[test]
fn each_address_that_is_no_pods_is_refused_by_its_reason() {
    for (here, there, refusal) in [
        ("10.244.1.2", "224.0.0.1", Refusal::NotUnicast),
        ("10.244.1.2", "255.255.255.255", Refusal::NotUnicast),
        ("10.244.1.2", "127.0.0.1", Refusal::NotUnicast),
        ("10.244.1.2", "169.254.1.1", Refusal::NotUnicast),
        ("10.244.1.2", "10.244.1.2", Refusal::NotUnicast),
        // Another pod, one on a bridge, our tunnel's, the node's, one that a pod is allowed, a foreign one.
        ("10.244.1.4", "10.244.2.2", Refusal::NotPod),
        ("10.244.1.65", "10.244.2.2", Refusal::NotPod),
        ("10.244.1.0", "10.244.2.2", Refusal::NotPod),
        ("192.0.2.1", "10.244.2.2", Refusal::NotPod),
        ("203.0.113.7", "10.244.2.2", Refusal::NotPod),
        ("10.244.9.9", "10.244.2.2", Refusal::NotPod),
        ("10.244.2.3", "10.244.2.2", Refusal::NotPod),
        ("10.244.1.3", "10.244.2.2", Refusal::PodLimited),
        ("10.244.1.2", "10.244.1.3", Refusal::OwnSubnet),
        ("10.244.1.2", "10.244.1.0", Refusal::OwnSubnet),
        ("10.244.1.2", "10.244.2.0", Refusal::NodeAddress),
        ("10.244.1.2", "10.244.2.1", Refusal::NodeAddress),
        ("10.244.1.2", "10.244.2.255", Refusal::NodeAddress),
        // An address that the node itself has, in a peer's subnet; and the node's own.
        ("10.244.1.2", "10.244.2.77", Refusal::NodeAddress),
        ("10.244.1.2", "192.0.2.1", Refusal::NodeAddress),
        ("10.244.1.2", "192.0.2.2", Refusal::NoPeer),
        ("10.244.1.2", "172.16.0.1", Refusal::NoPeer),
        ("10.244.1.2", "10.244.7.2", Refusal::NoPeer),
        ("10.244.1.2", "10.244.3.2", Refusal::NoPeer),
        ("10.244.1.2", "10.244.4.2", Refusal::NoPeer),
    ] {
        assert_eq!(
            judged(libc::IPPROTO_TCP, here, there),
            Err(refusal),
            "{here} {there}"
        );
    }
}

#[test]
fn other_protocols_and_encapsulated_packets_are_refused() {
    for protocol in [libc::IPPROTO_ICMP, libc::IPPROTO_SCTP, libc::IPPROTO_IPIP] {
        assert_eq!(
            judged(protocol, "10.244.1.2", "10.244.2.2"),
            Err(Refusal::NotTcpOrUdp)
        );
    }
    for port in [8472, 8285, 18472] {
        let mut flow = key(libc::IPPROTO_UDP, "10.244.1.2", "10.244.2.2");
        flow.destination_port = port;
        assert_eq!(
            ends(Outbound, &flow, &facts()),
            Err(Refusal::EncapsulationPort)
        );
        assert_eq!(
            ends(Inbound, &inverse(&flow), &facts()),
            Err(Refusal::EncapsulationPort)
        );
        flow.protocol = libc::IPPROTO_TCP as u8;
        assert!(ends(Outbound, &flow, &facts()).is_ok());
    }
}

#[test]
fn a_flow_in_the_wrong_direction_is_refused() {
    let out = key(libc::IPPROTO_TCP, "10.244.1.2", "10.244.2.2");
    assert_eq!(ends(Inbound, &out, &facts()), Err(Refusal::NotPod));
    assert_eq!(
        ends(Outbound, &inverse(&out), &facts()),
        Err(Refusal::NotPod)
    );
}

fn connection(original: FlowKey) -> Connection {
    let is_tcp = i32::from(original.protocol) == libc::IPPROTO_TCP;
    Connection {
        original,
        reply: inverse(&original),
        status: 0x18e,
        timeout: Duration::from_secs(120),
        is_marked: false,
        is_rewritten: false,
        tcp: is_tcp.then_some(TcpState {
            is_established: true,
            is_liberal: false,
        }),
    }
}

#[test]
fn each_thing_that_stands_against_a_connection_refuses_it() {
    let flow = key(libc::IPPROTO_TCP, "10.244.1.2", "10.244.2.2");
    type Change = fn(&mut Connection);
    let changes: [(Change, Refusal); 15] = [
        (|c| c.status |= 1 << 11, Refusal::NoConnection),
        (|c| c.status |= 1 << 4, Refusal::Translated),
        (|c| c.status |= 1 << 5, Refusal::Translated),
        (|c| c.reply.source_port += 1, Refusal::Translated),
        (|c| c.status |= 1 << 13, Refusal::Helper),
        (|c| c.status |= 1, Refusal::Helper),
        (|c| c.status |= 1 << 6, Refusal::Helper),
        (|c| c.is_rewritten = true, Refusal::Helper),
        (|c| c.is_marked = true, Refusal::Marked),
        (|c| c.status |= 1 << 14, Refusal::Offloaded),
        (|c| c.status |= 1 << 9, Refusal::Ending),
        (|c| c.status &= !4, Refusal::NotEstablished),
        (|c| c.status &= !8, Refusal::NotEstablished),
        (|c| c.tcp = None, Refusal::NotEstablished),
        (|c| c.timeout = Duration::from_secs(1), Refusal::Ending),
    ];
    for (index, (change, refusal)) in changes.into_iter().enumerate() {
        let mut connection = connection(flow);
        assert!(lifetime(&flow, Some(&connection)).is_ok());
        change(&mut connection);
        assert_eq!(
            lifetime(&flow, Some(&connection)),
            Err(refusal),
            "change {index}"
        );
    }
    assert_eq!(lifetime(&flow, None), Err(Refusal::NoConnection));
}

#[test]
fn a_connection_is_as_judged_until_it_ends_or_another_takes_its_place() {
    for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
        let flow = key(protocol, "10.244.1.2", "10.244.2.2");
        let mut judged = connection(flow);
        if let Some(tcp) = &mut judged.tcp {
            assert_eq!(
                is_as_judged(&flow, Some(&connection(flow))),
                Err(Refusal::NoConnection),
                "a new one, still strict"
            );
            tcp.is_liberal = true;
        }
        assert_eq!(is_as_judged(&flow, Some(&judged)), Ok(()));
        assert_eq!(is_as_judged(&flow, None), Err(Refusal::NoConnection));
        judged.status |= 1 << 9;
        assert_eq!(is_as_judged(&flow, Some(&judged)), Err(Refusal::Ending));
    }
}

fn address() -> impl Strategy<Value = Ipv4Addr> {
    let parts = prop_oneof![Just(1_u8), Just(2), Just(3), Just(9), any::<u8>()];
    let host = prop_oneof![Just(0_u8), Just(1), Just(2), Just(3), Just(77), any::<u8>()];
    prop_oneof![
        9 => (parts, host).prop_map(|(net, host)| Ipv4Addr::new(10, 244, net, host)),
        1 => any::<u32>().prop_map(Ipv4Addr::from_bits),
    ]
}

prop_compose! {
    fn any_key()(
        source in address(), destination in address(),
        source_port in prop_oneof![Just(8472_u16), any::<u16>()],
        destination_port in prop_oneof![Just(18472_u16), any::<u16>()],
        protocol in prop_oneof![Just(6_u8), Just(17), any::<u8>()],
    ) -> FlowKey {
        FlowKey { source, destination, source_port, destination_port, protocol }
    }
}

/// Mostly what connections have, or that with one bit more or less: of any numbers next to none is allowed.
fn any_status() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        (0..16_u32).prop_map(|bit| 0xc ^ 1 << bit),
        (0..16_u32).prop_map(|bit| 0xe ^ 1 << bit),
        Just(0xc),
    ]
}

proptest! {
    /// Whatever is allowed is what the tables of the workers allow too, said here in other words.
    #[test]
    fn what_is_allowed_the_workers_would_carry(key in any_key(), is_out in any::<bool>()) {
        let facts = facts();
        let direction = if is_out { Outbound } else { Inbound };
        if let Ok(ends) = ends(direction, &key, &facts) {
            let (here, there) = if is_out { (key.source, key.destination) } else { (key.destination, key.source) };
            let snapshot = &facts.snapshot;
            prop_assert_eq!(ends.pod, here);
            prop_assert_eq!(here, Ipv4Addr::new(10, 244, 1, 2), "the only pod without a limit");
            prop_assert!(snapshot.pods.may_speak(here.into()) && snapshot.pods.is_local(here.into()));
            let id = snapshot.cluster.fib.lookup(there.into()).unwrap();
            let peer = snapshot.cluster.peers.peer(id).unwrap();
            prop_assert_eq!(&*peer.name, "node2");
            prop_assert!(snapshot.belongs(id, peer, there.into()));
            let [a, b, c, host] = there.octets();
            prop_assert_eq!([a, b, c], [10, 244, 2]);
            prop_assert!(host > 1 && host < 255);
        }
    }

    #[test]
    fn no_connection_is_allowed_with_any_bit_against_it(
        key in any_key(), status in any_status(), seconds in 0..1_000_u64,
        is_marked: bool, is_rewritten: bool, is_established: bool, is_liberal: bool, is_reply: bool,
    ) {
        let mut connection = connection(key);
        connection.status = status & 0xffff;
        connection.timeout = Duration::from_secs(seconds);
        (connection.is_marked, connection.is_rewritten) = (is_marked, is_rewritten);
        if let Some(tcp) = &mut connection.tcp {
            *tcp = TcpState { is_established, is_liberal };
        }
        let asked = if is_reply { inverse(&key) } else { key };
        // SEEN_REPLY, and both kinds of NAT_DONE, FIXED_TIMEOUT and NAT_CLASH say nothing against it.
        let neutral = 1 << 1 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12;
        // CONFIRMED, and of TCP ASSURED: a stream of UDP that nothing answers never is.
        let (neutral, needed) = match key.protocol {
            6 => (neutral, 0xc),
            _ => (neutral | 0x4, 0x8),
        };
        let stands = connection.status & !neutral == needed
            && !is_marked && !is_rewritten && seconds >= 2
            && connection.tcp.is_none_or(|tcp| tcp.is_established);
        let answer = lifetime(&asked, Some(&connection));
        prop_assert_eq!(answer.is_ok(), stands, "{:?}", answer);
        if let Ok(allowed) = answer {
            prop_assert!(allowed.lifetime <= LIFETIME && allowed.lifetime <= connection.timeout);
        }
    }
}
