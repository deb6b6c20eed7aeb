//! Requests of the link layer to a TAP: answered for what a peer owns, and never sent anywhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::drops::DropReason;
use etherparse::icmpv6::{Icmpv6PayloadSlice, NdpOptionSlice};
use etherparse::{ArpEthIpv4Packet, ArpOperation, EtherType, Icmpv6Slice, Ipv6HeaderSlice};
use proptest::prelude::*;

use crate::reasons::node;
use crate::world::node::TAP;
use crate::world::packets::{ASKER, arp, ethernet_frame, solicitation, udp};
use crate::world::plan::{ip, pod, pod6};
use dataplane::now::Now;

/// Sources: ours or not. Targets: of a peer, of our own subnet, of none.
const SOURCES: [(&str, bool); 5] = [
    ("10.244.1.2", true),
    ("10.244.1.0", true),
    ("10.244.1.77", false),
    ("10.244.2.3", false),
    ("0.0.0.0", false),
];
const TARGETS: [(&str, Option<DropReason>); 5] = [
    ("10.244.2.2", None),
    ("10.244.3.250", None),
    ("10.244.1.3", Some(DropReason::OwnSubnet)),
    ("10.244.77.1", Some(DropReason::NoRoute)),
    ("203.0.113.9", Some(DropReason::NoRoute)),
];

fn v4(text: &str) -> [u8; 4] {
    text.parse::<Ipv4Addr>().unwrap().octets()
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(v6) => v6,
        IpAddr::V4(_) => panic!("{address} is no IPv6 address"),
    }
}

/// The reason for which the only packet was dropped; `None` if it was answered. Nothing left the node.
fn fate(node: &mut crate::world::node::Node) -> (Option<DropReason>, Vec<Vec<u8>>) {
    let (sent, answers) = node.run(Now(1));
    assert_eq!(sent, [], "a request leaves the node");
    assert_eq!(node.audit(), [""; 0]);
    let outbound = node.totals().outbound;
    assert_eq!((outbound.received, outbound.originated), (1, 0));
    let mut dropped = DropReason::ALL
        .into_iter()
        .filter(|reason| outbound.drops_of(*reason) > 0);
    (dropped.next(), answers)
}

proptest! {
    #[test]
    fn an_arp_request_is_answered_for_what_a_peer_owns(source in 0..SOURCES.len(), target in 0..TARGETS.len()) {
        let ((source, ours), (target, refused)) = (SOURCES[source], TARGETS[target]);
        let mut node = node();
        let request = arp(v4(source), v4(target), ArpOperation::REQUEST);
        node.push_frame(ethernet_frame(EtherType::ARP, &request));
        let (dropped, answers) = fate(&mut node);
        let expected = if ours { refused } else { Some(DropReason::SpoofedSource) };
        prop_assert_eq!(dropped, expected);
        let reply = ArpEthIpv4Packet {
            operation: ArpOperation::REPLY,
            sender_mac: TAP.0,
            sender_ipv4: v4(target),
            target_mac: ASKER,
            target_ipv4: v4(source),
        };
        let expected: Vec<_> = expected.is_none().then(|| reply.to_bytes().to_vec()).into_iter().collect();
        prop_assert_eq!(answers, expected);
    }

    #[test]
    fn a_solicitation_is_answered_for_what_a_peer_owns(source in 0_usize..3, target in 0_usize..3) {
        let (source, ours) = [(pod6(1, 0), true), (pod6(2, 0), false), (ip("::"), false)][source];
        let (target, refused) = [
            (pod6(2, 0), None),
            (pod6(1, 1), Some(DropReason::OwnSubnet)),
            (ip("fd00:10:244:77::1"), Some(DropReason::NoRoute)),
        ][target];
        prop_assume!(source != target);
        let mut node = node();
        node.push_frame(ethernet_frame(EtherType::IPV6, &solicitation(v6(source), v6(target))));
        let (dropped, answers) = fate(&mut node);
        let expected = if ours { refused } else { Some(DropReason::SpoofedSource) };
        prop_assert_eq!(dropped, expected);
        prop_assert_eq!(answers.len(), usize::from(expected.is_none()));
        for answer in answers {
            let header = Ipv6HeaderSlice::from_slice(&answer).unwrap();
            prop_assert_eq!((header.source_addr(), header.destination_addr()), (v6(target), v6(source)));
            let message = Icmpv6Slice::from_slice(&answer[40..]).unwrap();
            prop_assert!(message.is_checksum_valid(header.source(), header.destination()));
            let Ok(Icmpv6PayloadSlice::NeighborAdvertisement(payload)) = message.payload_slice() else {
                panic!("{:?}", message.icmp_type());
            };
            prop_assert_eq!(payload.target_address(), v6(target));
            let options: Vec<_> = payload.options_iterator().map(Result::unwrap).collect();
            let [NdpOptionSlice::TargetLinkLayerAddress(option)] = &options[..] else {
                panic!("{options:?}");
            };
            prop_assert_eq!(option.link_layer_address(), &TAP.0[..]);
        }
    }
}

/// What is multicast or broadcast stays on the node; a packet of a pod leaves it as from a TUN.
#[test]
fn groups_stay_and_packets_leave() {
    for (ether_type, packet) in [
        (EtherType::IPV4, udp(pod(1, 0), ip("224.0.0.251"), b"mdns")),
        (EtherType::IPV6, udp(pod6(1, 0), ip("ff02::2"), b"rs")),
    ] {
        let mut node = node();
        node.push_frame(ethernet_frame(ether_type, &packet));
        assert_eq!(fate(&mut node), (Some(DropReason::NotUnicast), vec![]));
    }
    let mut node = node();
    node.push_frame(ethernet_frame(
        EtherType::IPV4,
        &udp(pod(1, 0), pod(2, 0), b"out"),
    ));
    let (sent, answers) = node.run(Now(1));
    assert_eq!((sent.len(), answers.len()), (1, 0));
    assert_eq!(node.audit(), [""; 0]);
}

/// An answer that the device refuses is dropped by name, and a device without a link layer answers nothing.
#[test]
fn an_answer_can_be_refused() {
    let mut refused = node();
    let request = arp(v4("10.244.1.2"), v4("10.244.2.2"), ArpOperation::REQUEST);
    refused.push_frame(ethernet_frame(EtherType::ARP, &request));
    refused.worker.device_mut().down = true;
    assert_eq!(
        fate(&mut refused),
        (Some(DropReason::DeviceRefused), vec![])
    );
    let mut tun = node();
    tun.push(solicitation(v6(pod6(1, 0)), v6(pod6(2, 0))));
    assert_eq!(fate(&mut tun), (Some(DropReason::NotUnicast), vec![]));
}
