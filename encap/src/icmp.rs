//! The ICMP errors that we make (RFC 792, RFC 1191, RFC 4443).
//!
//! Never in answer to an ICMP error, to a fragment other than the first, to or from addresses that are not one
//! host's (RFC 1122 section 3.2.2, RFC 4443 section 2.4 (e)). Limiting their rate is the caller's part.

use std::net::{IpAddr, Ipv4Addr};

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::icmpv6::DestUnreachableCode;
use etherparse::{Icmpv4Type, Icmpv6Type, IpDscp, IpHeaders, IpNumber, Ipv4Header, PacketBuilder};

use crate::inner::{Fragment, Inner};
use crate::protocol::{self, ICMPV6};
use crate::{Family, ipv4, ipv6};

/// "There is no way to that destination": network unreachable, or no route to destination over IPv6.
///
/// Writes a whole packet from `source` to the sender of `offender`, which `inner` describes, at the start of `out`
/// and returns its length. `None` where no error may be sent, `source` has another family or `out` is too short;
/// [`MAX_ICMP`] bytes always suffice.
pub fn net_unreachable(
    source: IpAddr,
    offender: &[u8],
    inner: &Inner,
    out: &mut [u8],
) -> Option<usize> {
    let error = ErrorTypes {
        v4: Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Network),
        v6: Icmpv6Type::DestinationUnreachable(DestUnreachableCode::NoRoute),
    };
    error.write(source, offender, inner, out)
}

/// "Packets to there must not exceed `mtu` bytes": fragmentation needed with the next-hop MTU (RFC 1191), or packet
/// too big over IPv6. Arguments and result as of [`net_unreachable`].
pub fn too_big(
    source: IpAddr,
    offender: &[u8],
    inner: &Inner,
    mtu: u16,
    out: &mut [u8],
) -> Option<usize> {
    let error = ErrorTypes {
        v4: Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::FragmentationNeeded {
            next_hop_mtu: mtu,
        }),
        v6: Icmpv6Type::PacketTooBig {
            mtu: u32::from(mtu),
        },
    };
    error.write(source, offender, inner, out)
}

/// The longest error, bytes: IPv6's minimum MTU (RFC 4443 section 2.4 (c)).
pub const MAX_ICMP: usize = 1280;

/// The types of one error in ICMP and ICMPv6.
struct ErrorTypes {
    v4: Icmpv4Type,
    v6: Icmpv6Type,
}

impl ErrorTypes {
    fn write(
        self,
        source: IpAddr,
        offender: &[u8],
        inner: &Inner,
        out: &mut [u8],
    ) -> Option<usize> {
        let packet = offender.get(..inner.len)?;
        if !may_answer(packet, inner) {
            return None;
        }
        match (source, inner.source) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let step = PacketBuilder::ip(v4_header(source, destination)?).icmpv4(self.v4);
                step.write_to_slice(out, quote(packet, MAX_V4 - ipv4::HEADER))
                    .ok()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let step = PacketBuilder::ipv6(source.octets(), destination.octets(), HOP_LIMIT)
                    .icmpv6(self.v6);
                step.write_to_slice(out, quote(packet, MAX_ICMP - ipv6::HEADER))
                    .ok()
            }
            _ => None,
        }
    }
}

/// As much of the offender as fits an IP payload of `room` bytes.
fn quote(packet: &[u8], room: usize) -> &[u8] {
    packet.get(..room - ICMP).unwrap_or(packet)
}

/// DF with identification 0 is an atomic datagram (RFC 6864), which needs no counter of identifications.
fn v4_header(source: Ipv4Addr, destination: Ipv4Addr) -> Option<IpHeaders> {
    let header = Ipv4Header::new(
        0,
        HOP_LIMIT,
        IpNumber::ICMP,
        source.octets(),
        destination.octets(),
    )
    .ok()?;
    let dscp = IpDscp::try_new(INTERNETWORK_CONTROL).ok()?;
    Some(IpHeaders::Ipv4(
        Ipv4Header {
            dscp,
            dont_fragment: true,
            ..header
        },
        Default::default(),
    ))
}

/// The rules of the module's head.
fn may_answer(packet: &[u8], inner: &Inner) -> bool {
    inner.fragment != Fragment::Later
        && one_host(inner.source)
        && !to_many(inner.destination)
        && !is_error(packet, inner)
}

/// "A datagram whose source address does not define a single host", and class E with the limited broadcast.
fn one_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !(a.octets().starts_with(&[0]) || a.is_loopback() || a >= FIRST_MULTICAST),
        IpAddr::V6(a) => !(a.is_unspecified() || a.is_loopback() || a.is_multicast()),
    }
}

/// Sent to more than one host.
fn to_many(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// True of an ICMP error, and of ICMP that might be one: types that are not known as queries, or cut off.
fn is_error(packet: &[u8], inner: &Inner) -> bool {
    let kind = packet.get(inner.transport).copied();
    match (inner.family, inner.protocol) {
        (Family::V4, protocol::ICMP) => !kind.is_some_and(|kind| QUERIES_V4.contains(&kind)),
        (Family::V6, ICMPV6) => {
            !kind.is_some_and(|kind| kind >= FIRST_INFORMATIONAL && kind != REDIRECT_V6)
        }
        _ => false,
    }
}

/// "As much of the original datagram as possible" without exceeding this, bytes (RFC 1812 section 4.3.2.3).
const MAX_V4: usize = 576;
/// Bytes of an ICMP header with its unused or MTU word.
const ICMP: usize = 8;
/// TTL and hop limit of what we send.
const HOP_LIMIT: u8 = 64;
/// The DSCP of precedence 6: errors are sent with it (RFC 1812 section 4.3.2.5).
const INTERNETWORK_CONTROL: u8 = 48;

/// ICMP types that are questions or answers: echo, router discovery, timestamp, information, mask, extended echo.
const QUERIES_V4: [u8; 12] = [0, 8, 9, 10, 13, 14, 15, 16, 17, 18, 42, 43];
/// ICMPv6 types below this are errors (RFC 4443 section 2.1).
const FIRST_INFORMATIONAL: u8 = 128;
/// A redirect must not be answered with an error either (RFC 4443 section 2.4 (e.2)).
const REDIRECT_V6: u8 = 137;
/// Multicast, class E and the limited broadcast lie from here on.
const FIRST_MULTICAST: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 0);

#[cfg(test)]
mod tests;
