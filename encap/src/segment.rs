//! A super-packet cut into wire packets.
//!
//! The kernel hands over up to 64 KB of one flow under one header (TSO, USO). A [`Plan`] describes the cut: where
//! each segment's payload lies in the super-packet, and what its header must be. Payload is never copied; a segment
//! goes out as `[header][payload slice]`.
//!
//! Per segment, as in the kernel (`tcp_gso_segment`, `__udp_gso_segment`): IP length, IPv4 identification + i, IPv4
//! header checksum; TCP sequence number, FIN and PSH on the last only, CWR on the first only; UDP length; transport
//! checksum. Everything else is copied, IP options, extension headers and TCP options included.

use std::fmt;
use std::ops::Range;

use crate::checksum::{self, TCP, UDP};
use crate::inner::{Fragment, Inner};
use crate::{Family, field, ipv4, ipv6, tcp, udp};

/// How a super-packet is cut. Belongs to the packet that it was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    family: Family,
    protocol: u8,
    /// Offset of the transport header.
    transport: usize,
    /// Bytes of all headers.
    header: usize,
    /// Bytes of the super-packet.
    len: usize,
    /// Payload bytes per segment; the last may have fewer.
    size: u16,
    /// Sum over addresses and protocol: the pseudo-header without its length.
    pseudo: u16,
    /// A UDP sender that made no checksum: the segments have none either.
    unsummed: bool,
}

/// Why a packet cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unsegmentable {
    /// Neither TCP nor UDP, or an IPv6 routing header in use hides which destination the checksum covers.
    NotTcpOrUdp,
    /// A fragment.
    Fragment,
    /// The headers are cut off, lie about their length, or are longer than [`MAX_HEADER`].
    HeaderLength,
    /// Segments of no bytes.
    ZeroSize,
    /// More than [`MAX_SEGMENTS`].
    TooManySegments,
}

impl fmt::Display for Unsegmentable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unsegmentable::NotTcpOrUdp => "only TCP and UDP can be segmented",
            Unsegmentable::Fragment => "a fragment cannot be segmented",
            Unsegmentable::HeaderLength => {
                "the headers are cut off, inconsistent or too long to segment"
            }
            Unsegmentable::ZeroSize => "segments cannot be empty",
            Unsegmentable::TooManySegments => "the packet has too many segments",
        })
    }
}

impl std::error::Error for Unsegmentable {}

/// Plans the cut of `packet`, which `inner` describes, into segments of `size` payload bytes. A packet without
/// payload, or with no more than `size` bytes of it, has one segment.
///
/// The transport checksum may be unfinished, wrong or right: each segment gets its own.
///
/// # Errors
/// [`Unsegmentable`] where it cannot be cut.
pub fn plan(packet: &[u8], inner: &Inner, size: u16) -> Result<Plan, Unsegmentable> {
    if inner.fragment != Fragment::Whole {
        return Err(Unsegmentable::Fragment);
    }
    if !matches!(inner.protocol, TCP | UDP) || ipv6::routed(packet, inner) {
        return Err(Unsegmentable::NotTcpOrUdp);
    }
    let segment = packet
        .get(inner.transport..inner.len)
        .ok_or(Unsegmentable::HeaderLength)?;
    let header = inner.transport
        + transport_header(inner.protocol, segment).ok_or(Unsegmentable::HeaderLength)?;
    if header > MAX_HEADER {
        return Err(Unsegmentable::HeaderLength);
    }
    if size == 0 {
        return Err(Unsegmentable::ZeroSize);
    }
    let plan = Plan {
        family: inner.family,
        protocol: inner.protocol,
        transport: inner.transport,
        header,
        len: inner.len,
        size,
        pseudo: checksum::pseudo(inner.source, inner.destination, inner.protocol, 0),
        unsummed: inner.family == Family::V4
            && inner.protocol == UDP
            && field::u16(segment, udp::CHECKSUM) == Some(0),
    };
    if plan.count() > MAX_SEGMENTS {
        Err(Unsegmentable::TooManySegments)
    } else {
        Ok(plan)
    }
}

impl Plan {
    /// Segments, at least 1 and at most [`MAX_SEGMENTS`].
    pub fn count(&self) -> usize {
        (self.len - self.header).div_ceil(self.size.into()).max(1)
    }

    /// Payload bytes of every segment but the last, which may have fewer.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Bytes of every segment's header, at most [`MAX_HEADER`].
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// Where segment `i`'s payload lies in the super-packet; empty where there is no such segment.
    pub fn payload(&self, i: usize) -> Range<usize> {
        let start = self
            .header
            .saturating_add(i.saturating_mul(self.size.into()))
            .min(self.len);
        start..start.saturating_add(self.size.into()).min(self.len)
    }

    /// Writes segment `i`'s complete header at the start of `out` and returns its length.
    ///
    /// `None` where there is no such segment, `out` is shorter than [`Plan::header_len`], or `packet` is not the
    /// one that was planned.
    pub fn header(&self, packet: &[u8], i: usize, out: &mut [u8]) -> Option<usize> {
        if i >= self.count() {
            return None;
        }
        let payload = packet.get(self.payload(i))?;
        let out = out.get_mut(..self.header)?;
        out.copy_from_slice(packet.get(..self.header)?);
        let (ip, transport) = out.split_at_mut_checked(self.transport)?;
        self.number_ip(ip, i, payload.len())?;
        match self.protocol {
            TCP => self.number_tcp(transport, i)?,
            _ => field::put_u16(
                transport,
                udp::LENGTH,
                field::length(transport.len() + payload.len())?,
            )?,
        }
        self.put_checksum(transport, payload)?;
        Some(self.header)
    }

    fn number_ip(&self, ip: &mut [u8], i: usize, payload: usize) -> Option<()> {
        let len = self.header + payload;
        match self.family {
            Family::V4 => {
                let first = field::u16(ip, ipv4::IDENTIFICATION)?;
                field::put_u16(ip, ipv4::IDENTIFICATION, first.wrapping_add(i as u16))?;
                field::put_u16(ip, ipv4::LENGTH, field::length(len)?)?;
                ipv4::put_checksum(ip)
            }
            Family::V6 => field::put_u16(
                ip,
                ipv6::LENGTH,
                field::length(len.checked_sub(ipv6::HEADER)?)?,
            ),
        }
    }

    fn number_tcp(&self, header: &mut [u8], i: usize) -> Option<()> {
        let first = u32::from_be_bytes(field::bytes(header, tcp::SEQUENCE)?);
        let sequence = first.wrapping_add((i * usize::from(self.size)) as u32);
        field::put(header, tcp::SEQUENCE, sequence.to_be_bytes())?;
        let flags = header.get_mut(tcp::FLAGS)?;
        if i > 0 {
            *flags &= !tcp::CWR;
        }
        if i + 1 < self.count() {
            *flags &= !(tcp::FIN | tcp::PSH);
        }
        Some(())
    }

    fn put_checksum(&self, transport: &mut [u8], payload: &[u8]) -> Option<()> {
        let at = if self.protocol == TCP {
            tcp::CHECKSUM
        } else {
            udp::CHECKSUM
        };
        field::put_u16(transport, at, 0)?;
        if self.unsummed {
            return Some(());
        }
        let length = field::length(transport.len() + payload.len())?;
        let pseudo = checksum::add(self.pseudo, length);
        let covered = checksum::add(checksum::sum(transport), checksum::sum(payload));
        let sum = !checksum::add(pseudo, covered);
        let sum = if self.protocol == UDP {
            udp::transmitted(sum)
        } else {
            sum
        };
        field::put_u16(transport, at, sum)
    }
}

/// Payload bytes per TCP segment for which the packet's real headers and the payload together fit `mtu` bytes.
///
/// `None` for anything but whole TCP, and where the headers alone fill the MTU.
pub fn tcp_size(inner: &Inner, packet: &[u8], mtu: u16) -> Option<u16> {
    if inner.protocol != TCP || inner.fragment != Fragment::Whole {
        return None;
    }
    let segment = packet.get(inner.transport..inner.len)?;
    let header = inner.transport + transport_header(TCP, segment)?;
    usize::from(mtu)
        .checked_sub(header)
        .and_then(field::length)
        .filter(|size| *size > 0)
}

/// Bytes of the transport header at the start of `segment`, or `None` where it is cut off or too short to be one.
fn transport_header(protocol: u8, segment: &[u8]) -> Option<usize> {
    match protocol {
        TCP => tcp::header(segment),
        _ => (segment.len() >= udp::HEADER).then_some(udp::HEADER),
    }
}

/// The longest header that is segmented, bytes: a buffer of this size always suffices for [`Plan::header`]. IPv4 and
/// TCP with all their options come to 120; IPv6 keeps 156 for extension headers.
pub const MAX_HEADER: usize = 256;

/// The most segments of one packet: 64 KB at Linux' smallest MSS (`tcp_min_snd_mss` 48, 36 payload bytes beside
/// timestamps) come to 1,821.
pub const MAX_SEGMENTS: usize = 2_048;

#[cfg(test)]
mod tests;
