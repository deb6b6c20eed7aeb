//! Headers in front of an inner packet.
//!
//! The kernel's UDP socket makes the outer IP and UDP headers; what stands between them and the inner packet is
//! [`Header`]. [`outer`] makes the outer ones too, for captures, tests and tools.

use std::net::{IpAddr, SocketAddr};

use crate::{Ecn, Family, Mac, Vni, checksum, ether, field, ipv4, ipv6, protocol, udp, vxlan};

/// The bytes between the UDP header and the inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; VXLAN],
    len: usize,
}

impl Header {
    /// The bytes, 0 or 22 of them.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The same with another EtherType, where there is one.
    pub(crate) fn with_ether_type(mut self, ether_type: u16) -> Header {
        if self.len == VXLAN {
            // The last field of the Ethernet header; it lies inside.
            let _ = field::put_u16(&mut self.bytes, VXLAN - 2, ether_type);
        }
        self
    }
}

/// flannel `udp`: nothing stands in front of the inner packet.
pub const fn udp() -> Header {
    Header {
        bytes: [0; VXLAN],
        len: 0,
    }
}

/// VXLAN as flannel's kernel device sends it: the I flag alone, `vni`, and an untagged Ethernet header from the VTEP
/// `source` to the VTEP `destination` in front of a packet of family `inner`.
pub fn vxlan(vni: Vni, source: Mac, destination: Mac, inner: Family) -> Header {
    let frame = ether::Header {
        destination,
        source,
        ether_type: ether::ether_type(inner),
    };
    let mut bytes = [0; VXLAN];
    let (front, back) = bytes.split_at_mut(vxlan::HEADER);
    front.copy_from_slice(&vxlan::Header::plain(vni).emit());
    back.copy_from_slice(&frame.emit());
    Header { bytes, len: VXLAN }
}

/// The way of a datagram: everything that the outer headers say and the payload does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Outer source address and port.
    pub source: SocketAddr,
    /// Outer destination address and port, of the same family.
    pub destination: SocketAddr,
    /// Outer ECN codepoint; the rest of the traffic class is 0.
    pub ecn: Ecn,
    /// Outer TTL or hop limit.
    pub ttl: u8,
    /// IPv4 identification. DF is never set: flannel's is not, and identification 0 is as good as any where the
    /// path does not fragment.
    pub identification: u16,
}

/// Complete outer IP and UDP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    bytes: [u8; OUTER],
    len: usize,
}

impl Outer {
    /// The bytes: 28 over IPv4, 48 over IPv6.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Outer IP and UDP headers for the datagram `[header][inner]` on its way along `path`, checksums finished.
///
/// `None` when the two addresses differ in family or the datagram would not fit a 16-bit length.
pub fn outer(path: &Path, header: &Header, inner: &[u8]) -> Option<Outer> {
    let length = udp::HEADER + header.as_slice().len() + inner.len();
    let (source, destination) = (path.source.ip(), path.destination.ip());
    let mut bytes = [0; OUTER];
    let ip = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let ip = bytes.get_mut(..ipv4::HEADER)?;
            field::put(ip, 0, [0x45, path.ecn as u8])?;
            field::put_u16(ip, ipv4::LENGTH, field::length(ipv4::HEADER + length)?)?;
            field::put_u16(ip, ipv4::IDENTIFICATION, path.identification)?;
            field::put(ip, 8, [path.ttl, protocol::UDP])?;
            field::put(ip, 12, source.octets())?;
            field::put(ip, 16, destination.octets())?;
            ipv4::put_checksum(ip)?;
            ipv4::HEADER
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            field::put(&mut bytes, 0, [0x60, (path.ecn as u8) << 4])?;
            field::put_u16(&mut bytes, ipv6::LENGTH, field::length(length)?)?;
            field::put(&mut bytes, 6, [protocol::UDP, path.ttl])?;
            field::put(&mut bytes, 8, source.octets())?;
            field::put(&mut bytes, 24, destination.octets())?;
            ipv6::HEADER
        }
        _ => return None,
    };
    let mut udp = udp::Header {
        source: path.source.port(),
        destination: path.destination.port(),
        length: field::length(length)?,
        checksum: 0,
    };
    let parts = [
        checksum::pseudo(source, destination, protocol::UDP, length),
        checksum::sum(&udp.emit()),
        checksum::sum(header.as_slice()),
        checksum::sum(inner),
    ];
    udp.checksum = udp::transmitted(!parts.into_iter().fold(0, checksum::add));
    field::put(&mut bytes, ip, udp.emit())?;
    Some(Outer {
        bytes,
        len: ip + udp::HEADER,
    })
}

/// Bytes of a VXLAN and an Ethernet header.
const VXLAN: usize = vxlan::HEADER + ether::HEADER;
/// Bytes of the longest outer headers.
const OUTER: usize = ipv6::HEADER + udp::HEADER;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vxlan_header_byte_for_byte() {
        let header = vxlan(
            Vni::new(0x01_02_03).unwrap(),
            Mac([2; 6]),
            Mac([4; 6]),
            Family::V6,
        );
        let expected = [
            8, 0, 0, 0, 1, 2, 3, 0, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 0x86, 0xdd,
        ];
        assert_eq!(header.as_slice(), expected);
    }

    #[test]
    fn udp_header_is_empty() {
        assert_eq!(udp().as_slice(), []);
    }

    #[test]
    fn outer_refuses_what_has_no_header() {
        let v4: SocketAddr = "192.0.2.1:8472".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::1]:8472".parse().unwrap();
        let path = |source, destination| Path {
            source,
            destination,
            ecn: Ecn::NotEct,
            ttl: 64,
            identification: 0,
        };
        assert_eq!(outer(&path(v4, v6), &udp(), &[]), None);
        assert_eq!(outer(&path(v4, v4), &udp(), &[0; 65_508]), None);
        assert!(outer(&path(v4, v4), &udp(), &[0; 65_507]).is_some());
        assert_eq!(outer(&path(v6, v6), &udp(), &[0; 65_528]), None);
        assert!(outer(&path(v6, v6), &udp(), &[0; 65_527]).is_some());
    }

    /// RFC 768: a computed zero would say that there is no checksum.
    #[test]
    fn outer_sends_a_checksum_of_zero_as_ones() {
        let path = |end: &str| Path {
            source: end.parse().unwrap(),
            destination: end.parse().unwrap(),
            ecn: Ecn::NotEct,
            ttl: 64,
            identification: 0,
        };
        for (end, at) in [("192.0.2.1:8285", 26), ("[2001:db8::1]:8285", 46)] {
            let field = |inner: &[u8]| {
                let made = outer(&path(end), &udp(), inner).unwrap();
                field::u16(made.as_slice(), at).unwrap()
            };
            // Payload that holds the checksum of zeros brings the sum to all ones, and the checksum to zero.
            let inner = field(&[0, 0]).to_be_bytes();
            assert_eq!(field(&inner), 0xffff, "{end}");
        }
    }
}
