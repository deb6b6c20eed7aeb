//! Ethernet: addresses and the header of the frames inside VXLAN.

use std::fmt;
use std::str::FromStr;

use crate::Family;

/// An IEEE 802 MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// True of an address that one station can have: the group bit is clear and it is not all zero
    /// (Linux `is_valid_ether_addr`).
    pub fn is_unicast(self) -> bool {
        let [first, ..] = self.0;
        first & GROUP == 0 && self != Mac::default()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not a MAC address: six pairs of hex digits between colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAMac;

impl fmt::Display for NotAMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a MAC address is six pairs of hex digits, as in 2e:fd:04:c7:59:61")
    }
}

impl std::error::Error for NotAMac {}

impl FromStr for Mac {
    type Err = NotAMac;

    fn from_str(text: &str) -> Result<Mac, NotAMac> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or(NotAMac)?;
            if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(NotAMac);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| NotAMac)?;
        }
        if parts.next().is_some() {
            Err(NotAMac)
        } else {
            Ok(Mac(bytes))
        }
    }
}

/// An Ethernet header as a frame inside VXLAN carries it: no VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
    pub(crate) ether_type: u16,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Header {
        let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = bytes;
        Header {
            destination: Mac([d0, d1, d2, d3, d4, d5]),
            source: Mac([s0, s1, s2, s3, s4, s5]),
            ether_type: u16::from_be_bytes([t0, t1]),
        }
    }

    pub(crate) fn emit(self) -> [u8; HEADER] {
        let [d0, d1, d2, d3, d4, d5] = self.destination.0;
        let [s0, s1, s2, s3, s4, s5] = self.source.0;
        let [t0, t1] = self.ether_type.to_be_bytes();
        [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]
    }
}

/// The EtherType of packets of `family`.
pub(crate) const fn ether_type(family: Family) -> u16 {
    match family {
        Family::V4 => 0x0800,
        Family::V6 => 0x86dd,
    }
}

/// The family that `ether_type` announces, or `None` for anything but IP.
pub(crate) const fn family(ether_type: u16) -> Option<Family> {
    match ether_type {
        0x0800 => Some(Family::V4),
        0x86dd => Some(Family::V6),
        _ => None,
    }
}

/// The EtherType of a probe: local experimental 1 (IEEE Std 802).
pub(crate) const PROBE: u16 = 0x88b5;

/// Bytes of an Ethernet header without a VLAN tag.
pub(crate) const HEADER: usize = 14;

/// The group bit of the first byte: multicast and broadcast.
const GROUP: u8 = 0x01;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mac: Mac = "2e:fd:04:c7:59:61".parse().unwrap();
        assert_eq!(mac, Mac([0x2e, 0xfd, 0x04, 0xc7, 0x59, 0x61]));
        assert_eq!(mac.to_string(), "2e:fd:04:c7:59:61");
        assert_eq!(format!("{mac:?}"), "2e:fd:04:c7:59:61");
    }

    #[test]
    fn text_that_is_no_mac() {
        for text in [
            "",
            "2e:fd:04:c7:59",
            "2e:fd:04:c7:59:61:00",
            "2e:fd:04:c7:59:6",
            "+2:fd:04:c7:59:61",
            "zz:fd:04:c7:59:61",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(NotAMac), "{text}");
        }
    }

    #[test]
    fn unicast() {
        assert!(Mac([2, 0, 0, 0, 0, 1]).is_unicast());
        assert!(!Mac([0; 6]).is_unicast());
        assert!(!Mac([0xff; 6]).is_unicast());
        assert!(!Mac([1, 0, 0x5e, 0, 0, 1]).is_unicast());
    }

    #[test]
    fn header_and_back() {
        let header = Header {
            destination: Mac([1, 2, 3, 4, 5, 6]),
            source: Mac([7, 8, 9, 10, 11, 12]),
            ether_type: 0x86dd,
        };
        assert_eq!(Header::parse(&header.emit()), header);
        assert_eq!(
            header.emit(),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd]
        );
    }
}
