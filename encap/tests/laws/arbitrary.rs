//! Arbitrary and mutated bytes: nothing panics, and what is accepted obeys the oracle.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::{oracle, packets};

/// Bytes to overwrite, and where to cut.
fn damage() -> impl Strategy<Value = (Vec<(Index, u8)>, Option<Index>)> {
    (
        vec(any::<(Index, u8)>(), 1..6),
        proptest::option::of(any::<Index>()),
    )
}

fn damaged(
    mut bytes: Vec<u8>,
    (writes, cut): (Vec<(Index, u8)>, Option<Index>),
    head: usize,
) -> Vec<u8> {
    for (at, value) in writes {
        // Headers decide; payload is seldom interesting.
        let at = at.index(bytes.len().min(head));
        bytes[at] = value;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()) + 1);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn inner_of_arbitrary_bytes(bytes in vec(any::<u8>(), 0..200)) {
        oracle::inner(&bytes);
    }

    #[test]
    fn inner_of_bytes_with_a_version(version in prop_oneof![0x45..=0x4fu8, 0x60..=0x6fu8], rest in vec(any::<u8>(), 0..200)) {
        let mut bytes = [&[version], rest.as_slice()].concat();
        let len = bytes.len();
        if len > 6 {
            let v6 = version >= 0x60;
            let (at, value) = if v6 { (4, len.saturating_sub(40)) } else { (2, len) };
            bytes[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
        }
        oracle::inner(&bytes);
    }

    #[test]
    fn inner_of_damaged_packets(packet in packets::any_packet(), damage in damage()) {
        oracle::inner(&damaged(packet.bytes, damage, 80));
    }

    #[test]
    fn inner_of_whole_packets(packet in packets::any_packet()) {
        oracle::inner(&packet.bytes);
    }

    #[test]
    fn pull_of_arbitrary_bytes(bytes in vec(any::<u8>(), 0..200)) {
        oracle::pull(&bytes);
    }

    #[test]
    fn pull_of_damaged_probes(choice in any::<u8>(), kind in 1..3u8, rest in vec(any::<u8>(), 0..120), damage in damage()) {
        let front = [choice, 8, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
        let message = [b"\0TRT\x01", &[kind][..], &rest].concat();
        for head in [&front[..], &[choice]] {
            let datagram = [head, &message].concat();
            oracle::pull(&datagram);
            oracle::pull(&damaged(datagram, damage.clone(), 90));
        }
    }

    #[test]
    fn pull_of_damaged_datagrams(packet in packets::any_packet(), choice in any::<u8>(), damage in damage()) {
        let ether_type: [u8; 2] = if packet.is_v4() { [8, 0] } else { [0x86, 0xdd] };
        let front = [choice, 8, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        let datagram = [&front[..], &ether_type, &packet.bytes].concat();
        oracle::pull(&datagram);
        oracle::pull(&damaged(datagram, damage, 90));
        oracle::pull(&[&[choice], packet.bytes.as_slice()].concat());
    }
}
