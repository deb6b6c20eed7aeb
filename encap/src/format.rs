//! The wire formats of the overlay.

use std::fmt;

use crate::{Family, ether, ipv4, ipv6, udp, vxlan};

/// A wire format of the overlay: what flannel calls a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// flannel `udp`: the UDP payload is the raw inner packet.
    Udp,
    /// VXLAN (RFC 7348) as flannel `vxlan` sets it up.
    Vxlan,
}

impl Format {
    /// Bytes that the outer headers add to an inner packet: 28 or 50 over IPv4, 48 or 70 over IPv6.
    pub const fn overhead(self, outer: Family) -> u16 {
        let ip = match outer {
            Family::V4 => ipv4::HEADER,
            Family::V6 => ipv6::HEADER,
        };
        (ip + udp::HEADER + self.header_len()) as u16
    }

    /// Bytes between the UDP header and the inner packet: 0 or 22.
    pub const fn header_len(self) -> usize {
        match self {
            Format::Udp => 0,
            Format::Vxlan => vxlan::HEADER + ether::HEADER,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Udp => "udp",
            Format::Vxlan => "vxlan",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_is_flannels() {
        assert_eq!(Format::Udp.overhead(Family::V4), 28);
        assert_eq!(Format::Vxlan.overhead(Family::V4), 50);
        assert_eq!(Format::Udp.overhead(Family::V6), 48);
        assert_eq!(Format::Vxlan.overhead(Family::V6), 70);
    }

    #[test]
    fn names_are_flannels() {
        assert_eq!(Format::Udp.to_string(), "udp");
        assert_eq!(Format::Vxlan.to_string(), "vxlan");
    }
}
