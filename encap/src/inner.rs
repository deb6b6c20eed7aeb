//! What an inner packet is: addresses, length, ECN, fragment, transport, ports. Made by
//! [`Inner::parse`].

use std::fmt;
use std::net::IpAddr;

use crate::protocol::{DCCP, SCTP, TCP, UDP, UDP_LITE};
use crate::{Ecn, Family, field};

/// Which part of an IP packet these bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// All of it (an IPv6 atomic fragment, RFC 6946, included).
    Whole,
    /// The first of several fragments: it has the transport header.
    First,
    /// Any other fragment: what stands at [`Inner::transport`] is data.
    Later,
}

/// An IP packet's header, understood. The bytes stay where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// IP version.
    pub family: Family,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// The packet's own length in bytes, header included; bytes behind it (Ethernet padding) are not part of it.
    pub len: usize,
    /// Its ECN codepoint.
    pub ecn: Ecn,
    /// Routers must not fragment it: the IPv4 DF bit; always true of IPv6.
    pub dont_fragment: bool,
    /// Whether these are all its bytes.
    pub fragment: Fragment,
    /// IANA protocol number of what stands at `transport`: behind IPv6 extension headers, of which 8 are followed.
    pub protocol: u8,
    /// Offset of the transport header, bytes; at most `len`.
    pub transport: usize,
    /// Source and destination port of TCP, UDP, DCCP, SCTP and UDP-Lite, where the packet has them.
    pub ports: Option<(u16, u16)>,
}

/// Why bytes are no IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// Fewer bytes than the fixed IP header has.
    Short,
    /// A version nibble other than 4 and 6.
    Version,
    /// An IPv4 header length below 20 bytes or beyond the packet.
    HeaderLength,
    /// A total length below the header's or beyond the bytes that are there.
    TotalLength,
    /// An IPv6 extension header chain that is cut off, longer than 8, or has hop-by-hop options behind its start.
    Extensions,
}

impl Malformed {
    /// One sentence for the operator.
    pub const fn gloss(self) -> &'static str {
        match self {
            Malformed::Short => "the packet is shorter than an IP header",
            Malformed::Version => "the IP version is neither 4 nor 6",
            Malformed::HeaderLength => {
                "the IPv4 header length is below 20 bytes or beyond the packet"
            }
            Malformed::TotalLength => "the IP length disagrees with the bytes that are there",
            Malformed::Extensions => {
                "the IPv6 extension headers are cut off, out of order or more than 8"
            }
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.gloss())
    }
}

impl std::error::Error for Malformed {}

impl Inner {
    /// A hash of the flow, the same in both directions, spread over all 32 bits.
    ///
    /// Whole packets hash on addresses, protocol and ports. Fragments hash on addresses only, the first like the
    /// later ones, which have no ports: the fragments of one packet stay together.
    pub fn flow_hash(&self) -> u32 {
        let whole = self.fragment == Fragment::Whole;
        let (source, destination) = self.ports.filter(|_| whole).unwrap_or_default();
        let protocol = if whole {
            u64::from(self.protocol)
        } else {
            FRAGMENT
        };
        // Addition forgets which end is which; the ends are mixed before it so that it forgets nothing else.
        let ends = end(self.source, source).wrapping_add(end(self.destination, destination));
        (mix(ends ^ protocol << 48) >> 32) as u32
    }
}

/// The two ports at `transport`, where the packet is `fragment` of something that has them.
pub(crate) fn ports(
    packet: &[u8],
    protocol: u8,
    transport: usize,
    fragment: Fragment,
) -> Option<(u16, u16)> {
    if fragment == Fragment::Later || !matches!(protocol, TCP | UDP | DCCP | SCTP | UDP_LITE) {
        return None;
    }
    let [s0, s1, d0, d1] = field::bytes(packet, transport)?;
    Some((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])))
}

/// One end of a flow.
fn end(address: IpAddr, port: u16) -> u64 {
    let port = u64::from(port) << 32;
    match address {
        IpAddr::V4(address) => mix(u64::from(address.to_bits()) | port),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            mix(mix((bits >> 64) as u64) ^ bits as u64 ^ port.rotate_left(8))
        }
    }
}

/// The finaliser of SplitMix64: every input bit reaches every output bit.
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Stands for the protocol in a fragment's hash.
const FRAGMENT: u64 = 0x100;

#[cfg(test)]
mod tests;
