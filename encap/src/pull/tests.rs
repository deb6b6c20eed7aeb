use super::*;

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn packet_v4() -> Vec<u8> {
    vec![
        0x45, 0, 0, 21, 0, 0, 0, 0, 64, 99, 0, 0, 10, 244, 1, 2, 10, 244, 2, 2, 0x5a,
    ]
}

fn packet_v6() -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 1, 99, 64];
    packet.extend([0xfd; 32]);
    packet.push(0x5a);
    packet
}

fn vtep(gbp: bool) -> Vtep {
    Vtep {
        mac: OURS,
        mac_v6: OURS,
        vni: Vni::new(1).unwrap(),
        gbp,
    }
}

/// A good datagram after `change`.
fn vxlan_after(change: impl Fn(&mut Vec<u8>), gbp: bool) -> Result<usize, Refusal> {
    let header = crate::push::vxlan(Vni::new(1).unwrap(), THEIRS, OURS, Family::V4);
    let mut datagram = [header.as_slice(), &packet_v4()].concat();
    change(&mut datagram);
    vxlan(&datagram, &vtep(gbp)).map(|pulled| pulled.offset)
}

#[test]
fn a_good_datagram() {
    assert_eq!(vxlan_after(|_| {}, false), Ok(22));
    assert_eq!(vxlan_after(|_| {}, true), Ok(22));
}

#[test]
fn every_refusal() {
    let put = |at: usize, bytes: &'static [u8]| {
        move |d: &mut Vec<u8>| d[at..at + bytes.len()].copy_from_slice(bytes)
    };
    assert_eq!(vxlan_after(|d| d.truncate(21), false), Err(Refusal::Short));
    assert_eq!(vxlan_after(|d| d.truncate(7), false), Err(Refusal::Short));
    assert_eq!(vxlan_after(|d| d.clear(), false), Err(Refusal::Short));
    assert_eq!(vxlan_after(put(0, &[0x00]), false), Err(Refusal::Flags));
    assert_eq!(vxlan_after(put(0, &[0x0c]), false), Err(Refusal::Flags));
    assert_eq!(vxlan_after(put(1, &[0x01]), true), Err(Refusal::Flags));
    assert_eq!(vxlan_after(put(7, &[1]), false), Err(Refusal::Flags));
    assert_eq!(vxlan_after(put(6, &[2]), false), Err(Refusal::Vni));
    assert_eq!(
        vxlan_after(put(13, &[9]), false),
        Err(Refusal::DestinationMac)
    );
    assert_eq!(
        vxlan_after(put(8, &[0xff; 6]), false),
        Err(Refusal::DestinationMac)
    );
    assert_eq!(
        vxlan_after(put(14, &OURS.0), false),
        Err(Refusal::SourceMac)
    );
    assert_eq!(
        vxlan_after(put(14, &[0; 6]), false),
        Err(Refusal::SourceMac)
    );
    assert_eq!(vxlan_after(put(14, &[3]), false), Err(Refusal::SourceMac));
    assert_eq!(
        vxlan_after(put(20, &[8, 6]), false),
        Err(Refusal::EtherType)
    );
    assert_eq!(
        vxlan_after(put(20, &[0x81, 0]), false),
        Err(Refusal::EtherType)
    );
    assert_eq!(
        vxlan_after(put(20, &[0x86, 0xdd]), false),
        Err(Refusal::EtherType)
    );
    assert_eq!(
        vxlan_after(put(22, &[0x55]), false),
        Err(Refusal::Malformed(Malformed::Version))
    );
    assert_eq!(
        vxlan_after(|d| d.truncate(22), false),
        Err(Refusal::Malformed(Malformed::Short))
    );
    assert_eq!(
        vxlan_after(put(25, &[99]), false),
        Err(Refusal::Malformed(Malformed::TotalLength))
    );
}

/// Each of flannel's two devices refuses frames for the other.
#[test]
fn each_family_has_its_own_mac() {
    let ours_v6 = Mac([0x0a, 0, 0, 0, 0, 6]);
    let vtep = Vtep {
        mac_v6: ours_v6,
        ..vtep(false)
    };
    let to = |source, destination, packet: &[u8], family| {
        let header = crate::push::vxlan(vtep.vni, source, destination, family);
        vxlan(&[header.as_slice(), packet].concat(), &vtep).map(|pulled| pulled.offset)
    };
    let (v4, v6) = (packet_v4(), packet_v6());
    assert_eq!(to(THEIRS, OURS, &v4, Family::V4), Ok(22));
    assert_eq!(to(THEIRS, ours_v6, &v6, Family::V6), Ok(22));
    let refused = Err(Refusal::DestinationMac);
    assert_eq!(to(THEIRS, ours_v6, &v4, Family::V4), refused);
    assert_eq!(to(THEIRS, OURS, &v6, Family::V6), refused);
    assert_eq!(
        to(ours_v6, ours_v6, &v6, Family::V6),
        Err(Refusal::SourceMac)
    );
}

#[test]
fn group_policy_bits_are_tolerated_on_request() {
    let policy = |d: &mut Vec<u8>| d[..4].copy_from_slice(&[0x88, 0x48, 0x12, 0x34]);
    assert_eq!(vxlan_after(policy, false), Err(Refusal::Flags));
    assert_eq!(vxlan_after(policy, true), Ok(22));
}

#[test]
fn udp_carries_ipv4_and_ipv6_on_request() {
    assert_eq!(udp(&packet_v4(), false).unwrap().offset, 0);
    assert_eq!(udp(&packet_v6(), false), Err(Refusal::Family));
    assert_eq!(udp(&packet_v6(), true).unwrap().inner.len, 41);
    assert_eq!(udp(&[], true), Err(Refusal::Malformed(Malformed::Short)));
}

#[test]
fn the_span_is_the_first_packets_own_length() {
    let two = [packet_v4(), packet_v4()].concat();
    assert_eq!(inner_span(&two, Format::Udp), Some(21));
    assert_eq!(inner_span(&packet_v6(), Format::Udp), Some(41));
    // A length beyond the datagram is reported, not checked.
    assert_eq!(inner_span(&packet_v4()[..20], Format::Udp), Some(21));
    let framed = [&[0xee; 22], packet_v4().as_slice()].concat();
    assert_eq!(inner_span(&framed, Format::Vxlan), Some(43));
    for (bytes, format) in [
        (&[][..], Format::Udp),
        (&[0x45, 0, 0], Format::Udp),
        (&[0x55; 60], Format::Udp),
        (&[0x45; 22], Format::Vxlan),
    ] {
        assert_eq!(inner_span(bytes, format), None);
    }
    let mut none = packet_v4();
    none[2..4].copy_from_slice(&[0, 19]);
    assert_eq!(inner_span(&none, Format::Udp), None);
}

#[test]
fn a_captured_packet_that_is_no_datagram() {
    let broken = |change: fn(&mut Vec<u8>)| {
        let mut packet = vec![
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 8,
            0, 0,
        ];
        change(&mut packet);
        outer(&packet).map(|outer| outer.payload.len())
    };
    assert_eq!(broken(|_| {}), Ok(0));
    assert_eq!(
        broken(|p| p[0] = 0x55),
        Err(NotADatagram::Malformed(Malformed::Version))
    );
    assert_eq!(broken(|p| p[6] = 0x20), Err(NotADatagram::Fragment));
    assert_eq!(broken(|p| p[9] = 6), Err(NotADatagram::Protocol));
    assert_eq!(broken(|p| p[3] = 27), Err(NotADatagram::Length));
    assert_eq!(broken(|p| p[25] = 7), Err(NotADatagram::Length));
    assert_eq!(broken(|p| p[25] = 9), Err(NotADatagram::Length));
}

#[test]
fn an_absent_outer_checksum_is_seen() {
    let packet = [
        0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 9, 0, 0,
        7,
    ];
    let read = outer(&packet).unwrap();
    assert_eq!(
        (read.checksum, read.payload),
        (ChecksumState::Absent, &[7][..])
    );
    assert_eq!(
        (read.source.to_string(), read.destination.to_string()),
        ("10.0.0.1:1".into(), "10.0.0.2:2".into())
    );
}
