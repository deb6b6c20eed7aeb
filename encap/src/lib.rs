//! Tartan's wire formats: bytes in, bytes out.

use std::fmt;
use std::str::FromStr;

/// An IEEE 802 MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mac(pub [u8; 6]);

/// A VXLAN network identifier, 24 bits (RFC 7348 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vni(u32);

impl Vni {
    /// The identifier `value`, or `None` above 2²⁴ − 1.
    pub const fn new(value: u32) -> Option<Vni> {
        if value < 1 << 24 { Some(Vni(value)) } else { None }
    }

    /// The number itself.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

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
            Family::V4 => 20,
            Family::V6 => 40,
        };
        match self {
            Format::Udp => ip + 8,
            Format::Vxlan => ip + 8 + 8 + 14,
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
        if parts.next().is_some() { Err(NotAMac) } else { Ok(Mac(bytes)) }
    }
}
