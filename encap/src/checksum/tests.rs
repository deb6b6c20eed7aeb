use super::*;
use std::net::Ipv4Addr;

/// The example of RFC 1071 section 3.
#[test]
fn the_rfcs_example() {
    assert_eq!(
        sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
        0xddf2
    );
}

/// The example of RFC 1624 section 4: equation 3 gives 0x0000 where equation 2 gave 0xffff.
#[test]
fn the_incremental_example() {
    assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn an_odd_byte_is_a_high_half() {
    assert_eq!(sum(&[0x12]), 0x1200);
    assert_eq!(sum(&[0, 1, 0x12]), 0x1201);
}

#[test]
fn carries_wrap_around() {
    assert_eq!(add(0xffff, 0x0001), 0x0001);
    assert_eq!(fold(u64::MAX), 0xffff);
    assert_eq!(fold(0x1_0000_0001_0001), 0x0003);
    assert_eq!(fold(0), 0);
}

#[test]
fn a_header_sums_without_its_own_field() {
    // A captured header: checksum 0xb861.
    let header = [
        0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
        0xc7,
    ];
    assert_eq!(ipv4_header(&header), 0xb861);
    let mut other = header;
    other[10..12].fill(0x55);
    assert_eq!(ipv4_header(&other), 0xb861);
    assert_eq!(ipv4_header(&[]), 0xffff);
    assert_eq!(ipv4_header(&header[..11]), ipv4_header(&header[..10]));
}

#[test]
fn finish_stays_inside() {
    let mut packet = [0x11; 28];
    for (start, offset) in [(20, 7), (28, 0), (29, 0), (usize::MAX, 0), (0, usize::MAX)] {
        assert_eq!(
            finish(&mut packet, start, offset),
            Err(OutOfBounds),
            "{start} {offset}"
        );
        assert_eq!(packet, [0x11; 28]);
    }
    assert_eq!(finish(&mut packet, 20, 6), Ok(()));
}

/// Any protocol, at the place that the device names: here a field that no header of ours has.
#[test]
fn finish_takes_the_place_as_given() {
    let mut packet = [9, 9, 9, 0x00, 0x05, 0x00, 0x00, 0x01, 0x02];
    finish(&mut packet, 3, 2).unwrap();
    assert_eq!(packet, [9, 9, 9, 0x00, 0x05, 0xfe, 0xf8, 0x01, 0x02]);
}

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
    assert_eq!(transport(&packet, &inner), Transport::Valid);
}

#[test]
fn a_udp_length_that_lies_is_invalid() {
    for length in [0, 7, 13, 0xffff] {
        let (packet, inner) = udp(length, pseudo_of(12), &[1, 2, 3, 4]);
        assert_eq!(transport(&packet, &inner), Transport::Invalid, "{length}");
    }
}

#[test]
fn unfinished_covers_the_whole_packet_or_nothing() {
    let (packet, inner) = udp(12, pseudo_of(12), &[1, 2, 3, 4]);
    assert_eq!(
        transport(&packet, &inner),
        Transport::Partial {
            start: 20,
            offset: 6
        }
    );
    // The length says 10, the sum says 10, but the packet has 12: finishing would cover two bytes too many.
    let (packet, inner) = udp(10, pseudo_of(10), &[1, 2, 3, 4]);
    assert_eq!(transport(&packet, &inner), Transport::Invalid);
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
                transport(&packet, &inner),
                Transport::Invalid,
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
            transport(&packet, &Inner { protocol, ..inner }),
            Transport::Unknown,
            "{protocol}"
        );
    }
}

#[test]
fn a_packet_that_is_not_the_inners_is_invalid() {
    let (packet, inner) = udp(12, 1, &[1, 2, 3, 4]);
    assert_eq!(transport(&packet[..30], &inner), Transport::Invalid);
    assert_eq!(transport(&[], &inner), Transport::Invalid);
}

/// RFC 8200 section 8.1: with segments left the pseudo-header names the final destination, which we do not know.
#[test]
fn a_routing_header_in_use_hides_the_destination() {
    let mut packet = vec![0x60, 0, 0, 0, 0, 16, 43, 64];
    packet.extend([0x20; 32]);
    packet.extend([17, 0, 4, 1, 0, 0, 0, 0]);
    packet.extend([0, 1, 0, 2, 0, 8, 0x12, 0x34]);
    let inner = Inner::parse(&packet).unwrap();
    assert_eq!(transport(&packet, &inner), Transport::Unknown);
    packet[43] = 0;
    assert_eq!(transport(&packet, &inner), Transport::Invalid);
}
