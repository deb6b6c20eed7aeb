//! Checksums: against smoltcp's, incremental against full, unfinished against finished.

use encap::protocol::{ICMP, UDP};
use std::net::IpAddr;

use encap::checksum;
use encap::transport::{self, ChecksumState};
use encap::{Fragment, Inner};
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::{IpProtocol, TcpPacket, UdpPacket, checksum as smol};

use crate::packets::{self, Made};

/// Offset of the checksum field behind the transport header.
fn field(protocol: u8) -> usize {
    match protocol {
        6 => 16,
        17 => 6,
        _ => 2,
    }
}

/// The packet with its checksum unfinished, as a kernel sender leaves it: the pseudo-header's sum by smoltcp.
pub(crate) fn unfinished(made: &Made) -> Vec<u8> {
    let mut bytes = made.bytes.clone();
    let len = (bytes.len() - made.transport) as u32;
    let pseudo = smol::pseudo_header(
        &made.source.into(),
        &made.destination.into(),
        made.protocol.into(),
        len,
    );
    let at = made.transport + field(made.protocol);
    bytes[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    bytes
}

fn state(bytes: &[u8]) -> ChecksumState {
    transport::checksum_state(bytes, &Inner::parse(bytes).unwrap())
}

#[test]
fn sum_of_every_length_and_alignment() {
    let bytes: Vec<u8> = (0..600u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    for start in 0..8 {
        for end in start..bytes.len() {
            assert_eq!(
                checksum::sum(&bytes[start..end]),
                smol::data(&bytes[start..end]),
                "{start}..{end}"
            );
        }
    }
}

#[test]
fn sum_of_the_largest_packet_of_ones() {
    assert_eq!(checksum::sum(&[0xff; 65_535]), smol::data(&[0xff; 65_535]));
    assert_eq!(checksum::sum(&[0; 65_535]), 0);
}

proptest! {
    #[test]
    fn sum_agrees(bytes in vec(any::<u8>(), 0..70_000)) {
        prop_assert_eq!(checksum::sum(&bytes), smol::data(&bytes));
    }

    #[test]
    fn sums_of_parts_add_up(bytes in vec(any::<u8>(), 0..4_000), cut in any::<prop::sample::Index>()) {
        let (front, back) = bytes.split_at(cut.index(bytes.len() + 1) & !1);
        let parts = checksum::add(checksum::sum(front), checksum::sum(back));
        prop_assert_eq!(parts, checksum::sum(&bytes));
    }

    #[test]
    fn pseudo_agrees(v6 in any::<bool>(), ends in any::<(u128, u128)>(), protocol in any::<u8>(), len in 0..65_536usize) {
        let address = |bits: u128| if v6 { IpAddr::V6(bits.into()) } else { IpAddr::V4((bits as u32).into()) };
        let (source, destination) = (address(ends.0), address(ends.1));
        let expected =
            smol::pseudo_header(&source.into(), &destination.into(), IpProtocol::from(protocol), len as u32);
        prop_assert_eq!(checksum::pseudo(source, destination, protocol, len), expected);
    }

    #[test]
    fn incremental_is_full(mut words in vec(any::<u16>(), 2..40), at in any::<prop::sample::Index>(), new in any::<u16>()) {
        let full = |words: &[u16]| !checksum::sum(&words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>());
        let at = at.index(words.len());
        let (before, old) = (full(&words), words[at]);
        words[at] = new;
        // Real headers are never all zero; all-zero data has two checksums.
        prop_assume!(before != 0xffff && words.iter().any(|word| *word != 0));
        prop_assert_eq!(checksum::update(before, old, new), full(&words));
    }

    #[test]
    fn finished_is_valid(made in packets::any_packet()) {
        prop_assert_eq!(state(&made.bytes), ChecksumState::Valid);
    }

    #[test]
    fn damage_is_invalid(made in packets::any_packet(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let mut bytes = made.bytes.clone();
        let at = made.transport + at.index(bytes.len() - made.transport);
        bytes[at] ^= 1u8 << bit;
        let zero_udp = made.protocol == UDP && bytes[made.transport + 6..made.transport + 8] == [0, 0];
        prop_assume!(!zero_udp);
        // One damaged packet in 65,536 looks unfinished; then the field is the pseudo-header's sum.
        let looks_unfinished = bytes == unfinished(&Made { bytes: bytes.clone(), ..made });
        prop_assume!(!looks_unfinished);
        prop_assert_eq!(state(&bytes), ChecksumState::Invalid);
    }

    #[test]
    fn unfinished_is_recognised_and_finished(made in packets::any_packet()) {
        let mut bytes = unfinished(&made);
        if made.protocol == ICMP {
            prop_assert_ne!(state(&bytes), ChecksumState::Partial { start: made.transport, offset: 2 });
            return Ok(());
        }
        let (source, destination) = (made.source.into(), made.destination.into());
        match made.protocol {
            6 => prop_assert!(TcpPacket::new_unchecked(&bytes[made.transport..]).verify_partial_checksum(&source, &destination)),
            17 => prop_assert!(UdpPacket::new_unchecked(&bytes[made.transport..]).verify_partial_checksum(&source, &destination)),
            _ => {}
        }
        let offset = field(made.protocol);
        // A sum that happens to be right is no unfinished one.
        prop_assume!(bytes != made.bytes);
        prop_assert_eq!(state(&bytes), ChecksumState::Partial { start: made.transport, offset });
        checksum::finish(&mut bytes, made.transport, offset).unwrap();
        prop_assert_eq!(state(&bytes), ChecksumState::Valid);
        let at = made.transport + offset;
        if made.bytes[at..at + 2] != [0, 0] {
            prop_assert_eq!(bytes, made.bytes);
        }
    }

    #[test]
    fn no_udp_checksum(made in packets::udp(300)) {
        let mut bytes = made.bytes.clone();
        bytes[made.transport + 6..made.transport + 8].fill(0);
        let expected = if made.is_v4() { ChecksumState::Absent } else { ChecksumState::Invalid };
        prop_assert_eq!(state(&bytes), expected);
    }

    #[test]
    fn fragments_are_unknown(made in packets::any_packet()) {
        let inner = Inner::parse(&made.bytes).unwrap();
        for fragment in [Fragment::First, Fragment::Later] {
            prop_assert_eq!(transport::checksum_state(&made.bytes, &Inner { fragment, ..inner }), ChecksumState::Unknown);
        }
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_ones(made in packets::udp(300)) {
        let mut bytes = made.bytes.clone();
        prop_assume!(bytes.len() >= made.header + 2);
        // Payload that takes the finished checksum to zero: add the checksum itself into the first payload word.
        let field = u16::from_be_bytes([bytes[made.transport + 6], bytes[made.transport + 7]]);
        let word = u16::from_be_bytes([bytes[made.header], bytes[made.header + 1]]);
        let word = checksum::add(word, field);
        bytes[made.header..made.header + 2].copy_from_slice(&word.to_be_bytes());
        let mut bytes = unfinished(&Made { bytes, ..made.clone() });
        checksum::finish(&mut bytes, made.transport, 6).unwrap();
        prop_assert_eq!(&bytes[made.transport + 6..made.transport + 8], &[0xff, 0xff]);
        prop_assert_eq!(state(&bytes), ChecksumState::Valid);
    }
}
