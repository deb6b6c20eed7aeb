//! What `tartan trace` is told of a packet is what the workers do with it: of any addresses and size, at the node that
//! sends and, by the probe, at the one that receives.

use std::net::IpAddr;

use dataplane::decision::Fit;
use dataplane::now::Now;
use dataplane::probe::{Fate, Kind, Message, QUESTION, Question, Verdict};
use dataplane::snapshot::Snapshot;
use encap::Format;
use encap::protocol::UDP;
use proptest::prelude::*;

use crate::world::node::Node;
use crate::world::packets::{dont_fragment, plain, probe, udp, vxlan};
use crate::world::plan::{self, ClusterPlan, ip, pod, pod6};

const NOW: Now = Now(5_000_000_000);
const NODES: u8 = 3;

/// Pods of every node, addresses that no pod has, of nodes, outside, and of no host.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        4 => (1..=NODES, 0..2u8).prop_map(|(node, n)| pod(node, n)),
        2 => (1..=NODES, 0..2u8).prop_map(|(node, n)| pod6(node, n)),
        1 => prop::sample::select(vec![
            "10.244.1.0", "10.244.1.200", "10.244.2.0", "10.244.2.200", "10.244.99.1", "203.0.113.9",
            "224.0.0.1", "255.255.255.255", "fd00:10:244:99::1", "2001:db8::1", "ff02::1",
        ]).prop_map(ip),
        1 => (1..=NODES).prop_map(|node| plan::v4(node).first()),
    ]
}

fn pair() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    (address(), address()).prop_filter("one family", |(a, b)| a.is_ipv4() == b.is_ipv4())
}

/// Node 1 of three; it sends VXLAN to node 2 and `udp` to node 3.
fn plan() -> ClusterPlan {
    let mut plan = ClusterPlan::new(NODES, Format::Vxlan);
    plan.formats[0][2] = Format::Udp;
    plan
}

/// The fate that node 1 tells node `from` for that packet.
fn told(node: &mut Node, from: u8, format: Format, question: &Question) -> Option<Verdict> {
    let message = Message {
        kind: Kind::Request,
        nonce: 7,
        clock: 0,
        length: 0,
        heard: None,
        inner_mtu: 1450,
        flags: QUESTION,
        verdict: None,
    };
    let bytes = [&message.emit()[..], &question.emit()[..]].concat();
    let length = bytes.len();
    let asks = probe(from, 1, format, bytes, 0);
    node.hand(asks.clone(), 1);
    let (sent, delivered) = node.run(NOW);
    assert_eq!(delivered, [[0; 0]; 0]);
    let [answer] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert!(answer.payload.len() <= length + Format::Vxlan.header_len());
    assert!(answer.payload.len() <= asks.payload.len());
    let at = answer.format.header_len();
    Message::parse(&answer.payload[at..]).unwrap().verdict
}

proptest! {
    #[test]
    fn a_departure_is_what_a_worker_does((source, destination) in pair(), size in 60..3_000usize, df: bool) {
        let spec = plan().spec(1);
        let snapshot = Snapshot::new(&spec, None);
        let headers = if source.is_ipv4() { 28 } else { 48 };
        let packet = udp(source, destination, &vec![0; size - headers]);
        let is_v4 = source.is_ipv4();
        let packet = if df && is_v4 { dont_fragment(packet) } else { packet };
        let mut node = Node::new(spec);
        node.push(packet);
        let (sent, _) = node.run(NOW);
        let drops: Vec<_> = dataplane::drops::DropReason::ALL
            .into_iter()
            .filter(|reason| node.totals().outbound.drops_of(*reason) > 0)
            .collect();
        let departure = snapshot.departure((source, destination), size, df || !is_v4, NOW);
        match departure.map(|departure| (departure.to, departure.fit)) {
            Err(reason) | Ok((_, Err(reason))) => {
                prop_assert!(sent.is_empty());
                prop_assert_eq!(drops, [reason]);
            }
            Ok((to, Ok(fit))) => {
                prop_assert!(drops.is_empty());
                prop_assert!(sent.iter().all(|datagram| datagram.to == to));
                match fit {
                    Fit::Whole => prop_assert_eq!(sent.len(), 1),
                    Fit::Fragments(_) => prop_assert!(sent.len() > 1),
                }
            }
        }
    }

    #[test]
    fn a_verdict_is_what_the_receiver_does(
        (source, destination) in pair(), from in 2..=NODES, is_vxlan: bool,
    ) {
        let spec = plan().spec(1);
        let format = if is_vxlan { Format::Vxlan } else { Format::Udp };
        let question = Question { source, destination, protocol: UDP, ports: (1, 2), size: 60 };
        let verdict = told(&mut Node::new(spec.clone()), from, format, &question).unwrap();
        let mut node = Node::new(spec);
        let packet = udp(source, destination, b"x");
        let datagram = if is_vxlan { vxlan(from, 1, &packet) } else { plain(from, 1, &packet) };
        node.hand(datagram, 1);
        let (_, delivered) = node.run(NOW);
        let drops: Vec<_> = dataplane::drops::DropReason::ALL
            .into_iter()
            .filter(|reason| node.totals().inbound.drops_of(*reason) > 0)
            .map(|reason| reason.name())
            .collect();
        let expected: &[&str] = match verdict.fate {
            Fate::Pod | Fate::KernelRoute | Fate::Tunnel => &[],
            Fate::NotPeersSource => &["NotPeersSource"],
            Fate::NoSuchPod | Fate::NotOurs => &["NotOurs"],
            Fate::Ipv6InUdp => &["Ipv6InUdp"],
            fate => panic!("{fate:?}"),
        };
        prop_assert_eq!(drops, expected);
        prop_assert_eq!(delivered.len(), usize::from(expected.is_empty()));
    }
}

/// A request that asks for nothing gets an answer that tells nothing; a question of another version is said not to be
/// understood.
#[test]
fn only_a_question_gets_a_verdict() {
    let mut node = Node::new(plan().spec(1));
    node.hand(
        crate::world::packets::request(2, 1, Format::Vxlan, 9, 200),
        1,
    );
    let (sent, _) = node.run(NOW);
    let at = sent[0].format.header_len();
    let answer = Message::parse(&sent[0].payload[at..]).unwrap();
    assert_eq!((answer.nonce, answer.verdict), (9, None));
    let message = Message {
        kind: Kind::Request,
        nonce: 9,
        flags: QUESTION,
        ..answer
    };
    let mut bytes = message.emit().to_vec();
    bytes.extend([9; 60]);
    node.hand(probe(2, 1, Format::Vxlan, bytes, 0), 1);
    let (sent, _) = node.run(NOW);
    let answer = Message::parse(&sent[0].payload[at..]).unwrap();
    assert_eq!(
        answer.verdict.map(|verdict| verdict.fate),
        Some(Fate::NotUnderstood)
    );
}
