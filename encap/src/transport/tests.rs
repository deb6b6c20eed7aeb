use super::*;
use std::net::{IpAddr, Ipv4Addr};

fn udp(length: u16, checksum: u16, data: &[u8]) -> (Vec<u8>, Inner) {
    let total = (28 + data.len()) as u16;
    let mut packet = vec![
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2,
    ];
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet.extend(length.to_be_bytes());
    packet.extend(checksum.to_be_bytes());
    packet.extend(data);
    let inner = Inner::parse(&packet).unwrap();
    (packet, inner)
}

/// The pseudo-header's sum for `len` bytes of UDP between the addresses of [`udp`].
fn pseudo_of(len: usize) -> u16 {
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    pseudo(address(1), address(2), UDP, len)
}

#[test]
fn a_udp_length_covers_what_it_says() {
    let (mut packet, inner) = udp(10, 0, &[1, 2, 3, 4]);
    let covered = add(pseudo_of(10), sum(&packet[20..30]));
    packet[26..28].copy_from_slice(&(!covered).to_be_bytes());
    assert_eq!(checksum_state(&packet, &inner), ChecksumState::Valid);
}

#[test]
fn a_udp_length_that_lies_is_invalid() {
    for length in [0, 7, 13, 0xffff] {
        let (packet, inner) = udp(length, pseudo_of(12), &[1, 2, 3, 4]);
        assert_eq!(
            checksum_state(&packet, &inner),
            ChecksumState::Invalid,
            "{length}"
        );
    }
}

#[test]
fn unfinished_covers_the_whole_packet_or_nothing() {
    let (packet, inner) = udp(12, pseudo_of(12), &[1, 2, 3, 4]);
    assert_eq!(
        checksum_state(&packet, &inner),
        ChecksumState::Partial {
            start: 20,
            offset: 6
        }
    );
    // The length says 10, the sum says 10, but the packet has 12: finishing would cover two bytes too many.
    let (packet, inner) = udp(10, pseudo_of(10), &[1, 2, 3, 4]);
    assert_eq!(checksum_state(&packet, &inner), ChecksumState::Invalid);
}

#[test]
fn a_cut_off_transport_is_invalid() {
    for (protocol, least) in [(6, 20), (17, 8), (1, 4)] {
        for len in 0..least {
            let mut packet = vec![
                0x45,
                0,
                0,
                20 + len,
                0,
                0,
                0,
                0,
                64,
                protocol,
                0,
                0,
                10,
                0,
                0,
                1,
                10,
                0,
                0,
                2,
            ];
            packet.extend(vec![0xff; usize::from(len)]);
            let inner = Inner::parse(&packet).unwrap();
            assert_eq!(
                checksum_state(&packet, &inner),
                ChecksumState::Invalid,
                "{protocol} {len}"
            );
        }
    }
}

#[test]
fn other_protocols_are_unknown() {
    let (packet, inner) = udp(12, 1, &[1, 2, 3, 4]);
    for protocol in [0, 2, 4, 33, 47, 50, 58, 132, 136] {
        assert_eq!(
            checksum_state(&packet, &Inner { protocol, ..inner }),
            ChecksumState::Unknown,
            "{protocol}"
        );
    }
}

#[test]
fn a_packet_that_is_not_the_inners_is_invalid() {
    let (packet, inner) = udp(12, 1, &[1, 2, 3, 4]);
    assert_eq!(
        checksum_state(&packet[..30], &inner),
        ChecksumState::Invalid
    );
    assert_eq!(checksum_state(&[], &inner), ChecksumState::Invalid);
}

/// RFC 8200 section 8.1: with segments left the pseudo-header names the final destination, which we do not know.
#[test]
fn a_routing_header_in_use_hides_the_destination() {
    let mut packet = vec![0x60, 0, 0, 0, 0, 16, 43, 64];
    packet.extend([0x20; 32]);
    packet.extend([17, 0, 4, 1, 0, 0, 0, 0]);
    packet.extend([0, 1, 0, 2, 0, 8, 0x12, 0x34]);
    let inner = Inner::parse(&packet).unwrap();
    assert_eq!(checksum_state(&packet, &inner), ChecksumState::Unknown);
    packet[43] = 0;
    assert_eq!(checksum_state(&packet, &inner), ChecksumState::Invalid);
}
