use etherparse::icmpv6::{Icmpv6PayloadSlice, NdpOptionSlice, NeighborSolicitationPayload};
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, ArpPacketSlice, Icmpv6Slice, Icmpv6Type, IpNumber,
    Ipv6HeaderSlice, PacketBuilder,
};
use proptest::prelude::*;

use super::*;

fn request(source: [u8; 4], target: [u8; 4], mac: [u8; 6]) -> ArpEthIpv4Packet {
    ArpEthIpv4Packet {
        operation: ArpOperation::REQUEST,
        sender_mac: mac,
        sender_ipv4: source,
        target_mac: [0; 6],
        target_ipv4: target,
    }
}

/// A solicitation as etherparse makes it.
fn solicits(source: [u8; 16], destination: [u8; 16], target: [u8; 16], hops: u8) -> Vec<u8> {
    let payload = NeighborSolicitationPayload {
        target_address: target.into(),
    };
    let builder = PacketBuilder::ipv6(source, destination, hops);
    let builder = builder.icmpv6(Icmpv6Type::NeighborSolicitation);
    let mut packet = Vec::new();
    builder.write(&mut packet, &payload.to_bytes()).unwrap();
    packet
}

fn asked(packet: &[u8]) -> Option<Request> {
    solicitation(packet, &Inner::parse(packet).unwrap())
}

proptest! {
    #[test]
    fn an_arp_reply_is_the_one_that_etherparse_would_make(
        source: [u8; 4],
        target: [u8; 4],
        asker: [u8; 6],
        mac: [u8; 6],
        padding in 0_usize..40,
    ) {
        prop_assume!(source != target);
        let mut packet = request(source, target, asker).to_bytes().to_vec();
        packet.resize(packet.len() + padding, 0);
        let found = arp_request(&packet).unwrap();
        prop_assert_eq!(found, Request { source: source.into(), target: target.into() });
        let reply = arp_reply(&packet, Mac(mac)).unwrap();
        let expected = ArpEthIpv4Packet {
            operation: ArpOperation::REPLY,
            sender_mac: mac,
            sender_ipv4: target,
            target_mac: asker,
            target_ipv4: source,
        };
        prop_assert_eq!(&reply[..], &expected.to_bytes()[..]);
        prop_assert!(arp_reply(&reply, Mac(mac)).is_none(), "a reply is never answered");
    }

    #[test]
    fn any_bytes_get_an_arp_reply_only_as_a_request(packet in proptest::collection::vec(any::<u8>(), 0..60)) {
        if let Some(reply) = arp_reply(&packet, Mac([2; 6])) {
            let read = ArpPacketSlice::from_slice(&packet).unwrap();
            prop_assert_eq!(read.operation(), ArpOperation::REQUEST);
            let read = ArpPacketSlice::from_slice(&reply).unwrap();
            prop_assert_eq!(read.operation(), ArpOperation::REPLY);
        }
    }

    #[test]
    fn an_advertisement_is_one_to_etherparse(source: [u8; 16], target: [u8; 16], mac: [u8; 6]) {
        prop_assume!(source != target && target[0] != 0xff);
        let packet = solicits(source, [0xff; 16], target, 255);
        let found = asked(&packet).unwrap();
        prop_assert_eq!(found, Request { source: source.into(), target: target.into() });
        let answer = advertisement(&found, Mac(mac)).unwrap();
        let header = Ipv6HeaderSlice::from_slice(&answer).unwrap();
        prop_assert_eq!((header.source(), header.destination()), (target, source));
        prop_assert_eq!((header.hop_limit(), header.next_header()), (255, IpNumber::IPV6_ICMP));
        prop_assert_eq!(usize::from(header.payload_length()), answer.len() - 40);
        let message = Icmpv6Slice::from_slice(&answer[40..]).unwrap();
        prop_assert!(message.is_checksum_valid(header.source(), header.destination()));
        let Icmpv6Type::NeighborAdvertisement(flags) = message.icmp_type() else {
            panic!("{:?}", message.icmp_type());
        };
        prop_assert!(flags.solicited && flags.r#override && !flags.router);
        let Ok(Icmpv6PayloadSlice::NeighborAdvertisement(payload)) = message.payload_slice() else {
            panic!("no payload of an advertisement");
        };
        prop_assert_eq!(payload.target_address().octets(), target);
        let options: Vec<_> = payload.options_iterator().map(Result::unwrap).collect();
        let [NdpOptionSlice::TargetLinkLayerAddress(option)] = &options[..] else {
            panic!("{options:?}");
        };
        prop_assert_eq!(option.link_layer_address(), &mac[..]);
        prop_assert!(asked(&answer).is_none(), "an answer is never answered");
    }

    #[test]
    fn a_damaged_or_forwarded_solicitation_is_none(at in 0_usize..64, bit in 0_u8..8, hops in 0_u8..255) {
        let source = [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let target = [0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        prop_assert!(asked(&solicits(source, target, target, hops)).is_none());
        let mut packet = solicits(source, target, target, 255);
        packet[at] ^= 1 << bit;
        // Traffic class and flow label are under no checksum.
        let free = at < 4 && (at > 0 || bit < 4);
        if let Ok(inner) = Inner::parse(&packet) && !free {
            prop_assert!(solicitation(&packet, &inner).is_none());
        }
    }
}

#[test]
fn announcements_and_other_hardware_are_no_requests() {
    let own = request([10, 244, 2, 2], [10, 244, 2, 2], [2; 6]);
    assert_eq!(arp_request(&own.to_bytes()), None);
    let good = request([10, 244, 1, 2], [10, 244, 2, 2], [2; 6]).to_bytes();
    assert!(arp_request(&good).is_some());
    assert_eq!(arp_request(&good[..27]), None);
    for at in 0..7 {
        let mut other = good;
        other[at] ^= 0x20;
        assert_eq!(arp_request(&other), None, "byte {at}");
    }
}

#[test]
fn a_solicitation_of_a_group_or_of_the_asker_is_none() {
    let source = [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut group = [0; 16];
    (group[0], group[15]) = (0xff, 1);
    assert_eq!(asked(&solicits(source, source, group, 255)), None);
    assert_eq!(asked(&solicits(source, source, source, 255)), None);
}
