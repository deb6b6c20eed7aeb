use super::*;

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
