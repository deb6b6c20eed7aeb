//! `Inner` against what the maker of a packet knows, and IPv6 chains against smoltcp's wire types.

use encap::protocol::TCP;
use encap::{Family, Fragment, Inner, Malformed};
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::{
    Ipv4Packet, Ipv6ExtHeader, Ipv6FragmentHeader, Ipv6Packet, TcpPacket, UdpPacket,
};

use crate::packets;

/// One extension header: its type and bytes, the next header's type in the first of them.
fn extension() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let raw =
        (prop_oneof![Just(43u8), Just(60)], 0..3u8, any::<u8>()).prop_map(|(kind, units, fill)| {
            let mut bytes = vec![fill; 8 + usize::from(units) * 8];
            bytes[1] = units;
            (kind, bytes)
        });
    let fragment = (
        prop_oneof![4 => Just(0u16), 1 => any::<u16>()],
        any::<u32>(),
    )
        .prop_map(|(word, id)| {
            let mut bytes = vec![0; 8];
            bytes[2..4].copy_from_slice(&word.to_be_bytes());
            bytes[4..8].copy_from_slice(&id.to_be_bytes());
            (44, bytes)
        });
    let hop_by_hop = Just((0u8, vec![0, 0, 1, 4, 0, 0, 0, 0]));
    prop_oneof![5 => raw, 2 => fragment, 1 => hop_by_hop]
}

/// A packet with up to 11 extension headers in any order, perhaps cut short.
fn chain() -> impl Strategy<Value = Vec<u8>> {
    let last = prop_oneof![Just(6u8), Just(17), Just(58), Just(59), Just(50), Just(253)];
    (
        vec(extension(), 0..12),
        last,
        vec(any::<u8>(), 0..30),
        0..40usize,
    )
        .prop_map(|(mut headers, last, data, cut)| {
            let mut next = last;
            for (kind, bytes) in headers.iter_mut().rev() {
                bytes[0] = next;
                next = *kind;
            }
            let mut payload: Vec<u8> = headers
                .into_iter()
                .flat_map(|(_, bytes)| bytes)
                .chain(data)
                .collect();
            payload.truncate(payload.len().saturating_sub(cut.saturating_sub(30)));
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend((payload.len() as u16).to_be_bytes());
            packet.extend([next, 64]);
            packet.extend([0x20; 32]);
            packet.extend(payload);
            packet
        })
}

/// Where the chain ends by smoltcp's wire types: protocol, offset, fragment.
fn smoltcp_walk(packet: &[u8]) -> Option<(u8, usize, Fragment)> {
    let ip = Ipv6Packet::new_checked(packet).ok()?;
    let (mut next, mut at, mut fragment) = (u8::from(ip.next_header()), 40, Fragment::Whole);
    for nth in 0..=8 {
        match next {
            0 if nth > 0 => return None,
            0 | 43 | 60 if nth < 8 => {
                let header = Ipv6ExtHeader::new_checked(packet.get(at..)?).ok()?;
                next = header.next_header().into();
                at += (usize::from(header.header_len()) + 1) * 8;
            }
            44 if nth < 8 => {
                next = *packet.get(at)?;
                let header = Ipv6FragmentHeader::new_checked(packet.get(at + 2..)?).ok()?;
                at += 8;
                if header.frag_offset() != 0 {
                    return Some((next, at, Fragment::Later));
                }
                if header.more_frags() {
                    fragment = Fragment::First;
                }
            }
            0 | 43 | 60 | 44 => return None,
            _ => return Some((next, at, fragment)),
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn ipv6_chains(packet in chain()) {
        let ours = match Inner::parse(&packet) {
            Ok(inner) => Some((inner.protocol, inner.transport, inner.fragment)),
            Err(error) => {
                prop_assert_eq!(error, Malformed::Extensions);
                None
            }
        };
        prop_assert_eq!(ours, smoltcp_walk(&packet));
    }

    #[test]
    fn every_field_is_the_makers(made in packets::any_packet(), padding in 0..50usize) {
        let mut bytes = made.bytes.clone();
        bytes.resize(bytes.len() + padding, 0xee);
        let inner = Inner::parse(&bytes).unwrap();
        let family = if made.is_v4() { Family::V4 } else { Family::V6 };
        prop_assert_eq!(inner.family, family);
        prop_assert_eq!((inner.source, inner.destination), (made.source, made.destination));
        prop_assert_eq!(inner.len, made.bytes.len());
        prop_assert_eq!(inner.ecn as u8, made.ecn);
        prop_assert_eq!(inner.protocol, made.protocol);
        prop_assert_eq!(inner.transport, made.transport);
        prop_assert_eq!(inner.ports, made.ports);
        prop_assert_eq!(inner.fragment, Fragment::Whole);
        if made.is_v4() {
            prop_assert_eq!(inner.dont_fragment, Ipv4Packet::new_checked(&bytes).unwrap().dont_frag());
        }
    }

    #[test]
    fn ports_are_smoltcps(made in prop_oneof![packets::tcp(100), packets::udp(100)]) {
        let inner = Inner::parse(&made.bytes).unwrap();
        let segment = &made.bytes[inner.transport..inner.len];
        let ports = if inner.protocol == TCP {
            let tcp = TcpPacket::new_checked(segment).unwrap();
            (tcp.src_port(), tcp.dst_port())
        } else {
            let udp = UdpPacket::new_checked(segment).unwrap();
            (udp.src_port(), udp.dst_port())
        };
        prop_assert_eq!(inner.ports, Some(ports));
    }
}
