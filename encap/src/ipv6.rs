//! IPv6 headers (RFC 8200): the fixed header by hand, extension headers through `etherparse`.

use std::net::{IpAddr, Ipv6Addr};

use etherparse::{IpAuthHeaderSlice, Ipv6FragmentHeaderSlice, Ipv6RawExtHeaderSlice};

use crate::inner::{self, Fragment, Inner, Malformed};
use crate::protocol::{
    AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, NO_NEXT_HEADER, ROUTING,
};
use crate::{Ecn, Family, field};

/// Parses a packet whose version nibble is 6.
pub(crate) fn parse(bytes: &[u8]) -> Result<Inner, Malformed> {
    let (fixed, rest) = bytes
        .split_first_chunk::<HEADER>()
        .ok_or(Malformed::Short)?;
    let &[v, tc, _, _, l0, l1, next, _, ref addresses @ ..] = fixed;
    let payload = usize::from(u16::from_be_bytes([l0, l1]));
    let len = HEADER + payload;
    let packet = bytes.get(..len).ok_or(Malformed::TotalLength)?;
    // A jumbogram (RFC 2675) has length 0 and a hop-by-hop header: the chain then finds its first header cut off.
    let chain = Chain::walk(next, rest.get(..payload).unwrap_or_default())?;
    let transport = HEADER + chain.len;
    Ok(Inner {
        family: Family::V6,
        source: address(addresses, 0),
        destination: address(addresses, 16),
        len,
        ecn: Ecn::of(v << 4 | tc >> 4),
        dont_fragment: true,
        fragment: chain.fragment,
        protocol: chain.protocol,
        transport,
        ports: inner::ports(packet, chain.protocol, transport, chain.fragment),
    })
}

/// True when the packet has a routing header with segments left: the destination in the transport's pseudo-header is
/// then the final one, not the one in the fixed header (RFC 8200 section 8.1).
pub(crate) fn routed(packet: &[u8], inner: &Inner) -> bool {
    if inner.family != Family::V6 || inner.transport == HEADER {
        return false;
    }
    let next = packet.get(NEXT_HEADER).copied().unwrap_or(NO_NEXT_HEADER);
    let chain = Chain::walk(next, packet.get(HEADER..inner.len).unwrap_or_default());
    chain.is_ok_and(|chain| chain.routed)
}

/// What the extension headers of a packet amount to.
struct Chain {
    /// What stands behind them.
    protocol: u8,
    /// Their length, bytes.
    len: usize,
    fragment: Fragment,
    routed: bool,
}

impl Chain {
    /// Follows the chain from the header of type `next` at the start of `payload`.
    fn walk(next: u8, payload: &[u8]) -> Result<Chain, Malformed> {
        let mut chain = Chain {
            protocol: next,
            len: 0,
            fragment: Fragment::Whole,
            routed: false,
        };
        for nth in 0..=MAX_EXTENSIONS {
            let rest = payload.get(chain.len..).unwrap_or_default();
            // Behind the fragment header of a later fragment comes data.
            let ends = chain.fragment == Fragment::Later || !is_extension(chain.protocol);
            if ends {
                return Ok(chain);
            }
            if nth == MAX_EXTENSIONS || chain.protocol == HOP_BY_HOP && nth > 0 {
                return Err(Malformed::Extensions);
            }
            chain.step(rest).ok_or(Malformed::Extensions)?;
        }
        Err(Malformed::Extensions)
    }

    /// Steps over the extension header at the start of `rest`, or returns `None` where it is cut off.
    fn step(&mut self, rest: &[u8]) -> Option<()> {
        let (next, len) = match self.protocol {
            FRAGMENT => {
                let header = Ipv6FragmentHeaderSlice::from_slice(rest).ok()?;
                if header.fragment_offset().value() != 0 {
                    self.fragment = Fragment::Later;
                } else if header.more_fragments() {
                    self.fragment = Fragment::First;
                }
                (header.next_header(), header.slice().len())
            }
            AUTHENTICATION => {
                let header = IpAuthHeaderSlice::from_slice(rest).ok()?;
                (header.next_header(), header.slice().len())
            }
            _ => {
                let header = Ipv6RawExtHeaderSlice::from_slice(rest).ok()?;
                self.routed |=
                    self.protocol == ROUTING && header.slice().get(SEGMENTS_LEFT) != Some(&0);
                (header.next_header(), header.slice().len())
            }
        };
        self.protocol = next.0;
        self.len += len;
        Some(())
    }
}

/// The extension headers that Linux steps over too (`ipv6_ext_hdr`).
const fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS
    )
}

fn address(addresses: &[u8], at: usize) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(
        field::bytes::<16>(addresses, at).unwrap_or_default(),
    ))
}

/// Bytes of the fixed header.
pub(crate) const HEADER: usize = 40;
/// Offset of the payload length.
pub(crate) const LENGTH: usize = 4;
/// Offset of the type of what follows the fixed header.
const NEXT_HEADER: usize = 6;
/// Offset of Segments Left in a routing header.
const SEGMENTS_LEFT: usize = 3;

/// Extension headers followed before a packet is given up: RFC 8200 section 4.1 names seven.
const MAX_EXTENSIONS: usize = 8;
