//! Packets built without the code under test.

use std::net::IpAddr;

use etherparse::{IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder};

/// A UDP packet of `length` bytes in all, from port 12345 to port 9999, its payload all zero and without a UDP checksum;
/// `dont_fragment` says whether an IPv4 header has DF.
pub fn udp(source: IpAddr, destination: IpAddr, length: u16, dont_fragment: bool) -> Vec<u8> {
    let header = if source.is_ipv4() { 28 } else { 48 };
    let mut ip = headers(source, destination);
    if let IpHeaders::Ipv4(header, _) = &mut ip {
        header.dont_fragment = dont_fragment;
        header.identification = 7;
    }
    let mut bytes = Vec::new();
    PacketBuilder::ip(ip)
        .udp(12_345, 9_999)
        .write_to_vec(&mut bytes, &vec![0; usize::from(length) - header])
        .unwrap();
    bytes[header - 2..header].fill(0);
    bytes
}

/// The headers of a packet between two addresses of one family: 64 hops, no DF.
pub fn headers(source: IpAddr, destination: IpAddr) -> IpHeaders {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (source, destination) = (source.octets(), destination.octets());
            let mut header = Ipv4Header::new(0, 64, IpNumber::UDP, source, destination).unwrap();
            (header.identification, header.dont_fragment) = (0x4321, false);
            IpHeaders::Ipv4(header, Default::default())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => IpHeaders::Ipv6(
            Ipv6Header {
                hop_limit: 64,
                source: source.octets(),
                destination: destination.octets(),
                ..Default::default()
            },
            Default::default(),
        ),
        _ => panic!("two families"),
    }
}

/// Bytes that repeat only after 251: a cut at the wrong place shows.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut bytes = (0..251).collect::<Vec<u8>>().repeat(length.div_ceil(251));
    bytes.truncate(length);
    bytes
}
