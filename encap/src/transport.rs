//! The transport checksum of an inner packet: TCP, UDP, ICMP and ICMPv6.
//!
//! [`checksum`](crate::checksum) has the arithmetic; here it is applied to a parsed packet.

use crate::checksum::{add, pseudo, sum};
use crate::inner::{Fragment, Inner};
use crate::protocol::{ICMP, ICMPV6, TCP, UDP};
use crate::{Family, field, ipv6, tcp, udp};

/// The state of a packet's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// Present and right.
    Valid,
    /// Unfinished: the field holds the pseudo-header's sum. [`checksum::finish`](crate::checksum::finish) completes it with these two numbers, which are
    /// also `csum_start` and `csum_offset` of a `virtio_net_hdr`.
    Partial {
        /// Offset of the transport header in the packet, bytes.
        start: usize,
        /// Offset of the checksum field behind `start`, bytes.
        offset: usize,
    },
    /// UDP over IPv4 with a zero field: the sender made none (RFC 768).
    Absent,
    /// Wrong, or the transport header is cut off, or UDP over IPv6 without one.
    Invalid,
    /// Cannot be checked from this packet alone: a fragment, a protocol whose checksum we do not know, or an IPv6
    /// packet with a routing header still in use, whose pseudo-header names another destination.
    Unknown,
}

/// Checks the transport checksum of `packet`, which `inner` describes: TCP, UDP, ICMP and ICMPv6.
///
/// Verified first; only what fails can be unfinished. ICMP over IPv4 has no pseudo-header and is never unfinished.
pub fn checksum_state(packet: &[u8], inner: &Inner) -> ChecksumState {
    if inner.fragment != Fragment::Whole {
        return ChecksumState::Unknown;
    }
    let Some(segment) = packet.get(inner.transport..inner.len) else {
        return ChecksumState::Invalid;
    };
    let (header, offset) = match (inner.family, inner.protocol) {
        (_, TCP) => (tcp::HEADER, tcp::CHECKSUM),
        (_, UDP) => (udp::HEADER, udp::CHECKSUM),
        (Family::V6, ICMPV6) => (4, ICMP_CHECKSUM),
        (Family::V4, ICMP) => (4, ICMP_CHECKSUM),
        _ => return ChecksumState::Unknown,
    };
    if ipv6::routed(packet, inner) {
        return ChecksumState::Unknown;
    }
    let Some(field) = field::u16(segment, offset).filter(|_| segment.len() >= header) else {
        return ChecksumState::Invalid;
    };
    if inner.protocol == ICMP {
        return if sum(segment) == 0xffff {
            ChecksumState::Valid
        } else {
            ChecksumState::Invalid
        };
    }
    let covered = match inner.protocol {
        UDP => udp_covered(segment),
        _ => Some(segment),
    };
    if inner.protocol == UDP && field == 0 {
        return if inner.family == Family::V4 {
            ChecksumState::Absent
        } else {
            ChecksumState::Invalid
        };
    }
    let Some(covered) = covered else {
        return ChecksumState::Invalid;
    };
    let pseudo = pseudo(
        inner.source,
        inner.destination,
        inner.protocol,
        covered.len(),
    );
    if add(pseudo, sum(covered)) == 0xffff {
        ChecksumState::Valid
    } else if field == pseudo && covered.len() == segment.len() {
        ChecksumState::Partial {
            start: inner.transport,
            offset,
        }
    } else {
        ChecksumState::Invalid
    }
}

/// The reverse of [`checksum::finish`](crate::checksum::finish): makes the checksum of `packet`, which `inner` describes and which [`checksum_state`] found
/// [`Valid`](ChecksumState::Valid), unfinished. Returns the two numbers of [`ChecksumState::Partial`], or `None`, and the packet
/// is as it was, where it is neither TCP nor UDP, or a fragment.
pub fn unfinish_checksum(packet: &mut [u8], inner: &Inner) -> Option<(usize, usize)> {
    let offset = match inner.protocol {
        TCP => tcp::CHECKSUM,
        UDP => udp::CHECKSUM,
        _ => return None,
    };
    let len = inner.len.checked_sub(inner.transport)?;
    let pseudo = pseudo(inner.source, inner.destination, inner.protocol, len);
    if inner.fragment != Fragment::Whole {
        return None;
    }
    let segment = packet.get_mut(inner.transport..inner.len)?;
    field::put_u16(segment, offset, pseudo)?;
    Some((inner.transport, offset))
}

/// What the UDP length field covers, or `None` where it lies.
fn udp_covered(segment: &[u8]) -> Option<&[u8]> {
    let length = usize::from(udp::Header::parse(segment)?.length);
    segment
        .get(..length)
        .filter(|covered| covered.len() >= udp::HEADER)
}

/// Offset of the checksum field in an ICMP and an ICMPv6 header.
const ICMP_CHECKSUM: usize = 2;

#[cfg(test)]
mod tests;
