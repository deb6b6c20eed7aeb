//! A super-packet cut into wire packets.
//!
//! The kernel hands over up to 64 KB of one flow under one header (TSO, USO). A [`SegmentPlan`] describes the cut: where
//! each segment's payload lies in the super-packet, and what its header must be. Payload is never copied; a segment
//! goes out as `[header][payload slice]`.
//!
//! Per segment, as in the kernel (`tcp_gso_segment`, `__udp_gso_segment`): IP length, IPv4 identification + i, IPv4
//! header checksum; TCP sequence number, FIN and PSH on the last only, CWR on the first only; UDP length; transport
//! checksum. Everything else is copied, IP options, extension headers and TCP options included.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;

use crate::checksum;
use crate::inner::{Fragment, Inner};
use crate::protocol::{TCP, UDP};
use crate::{Family, field, ipv4, ipv6, tcp, udp};

/// How a super-packet is cut. Belongs to the packet that it was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPlan {
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
    source: IpAddr,
    destination: IpAddr,
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
pub fn plan(packet: &[u8], inner: &Inner, size: u16) -> Result<SegmentPlan, Unsegmentable> {
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
    let plan = SegmentPlan {
        family: inner.family,
        protocol: inner.protocol,
        transport: inner.transport,
        header,
        len: inner.len,
        size,
        source: inner.source,
        destination: inner.destination,
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

impl SegmentPlan {
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

    /// The headers of the segments of `packet`, whose bytes must stay as they are from now on.
    ///
    /// `None` where `packet` is not the one that was planned.
    pub fn headers(&self, packet: &[u8]) -> Option<Headers> {
        let (ip, transport) = packet
            .get(..self.header)?
            .split_at_checked(self.transport)?;
        let mut headers = Headers {
            plan: *self,
            identification: 0,
            sequence: 0,
            flags: 0,
            ip_sum: 0,
            transport_sum: 0,
        };
        if self.family == Family::V4 {
            headers.identification = field::u16(ip, ipv4::IDENTIFICATION)?;
            let written = [
                headers.identification,
                field::u16(ip, ipv4::LENGTH)?,
                field::u16(ip, ipv4::CHECKSUM)?,
            ];
            headers.ip_sum = without(checksum::sum(ip), &written);
        }
        let pseudo = checksum::pseudo(self.source, self.destination, self.protocol, 0);
        let sum = checksum::add(pseudo, checksum::sum(transport));
        headers.transport_sum = if self.protocol == TCP {
            let sequence = field::bytes(transport, tcp::SEQUENCE)?;
            headers.sequence = u32::from_be_bytes(sequence);
            headers.flags = field::u16(transport, tcp::FLAGS_WORD)?;
            let [high, low] = halves(headers.sequence);
            let checksum = field::u16(transport, tcp::CHECKSUM)?;
            without(sum, &[high, low, headers.flags, checksum])
        } else {
            let length = field::u16(transport, udp::LENGTH)?;
            without(sum, &[length, field::u16(transport, udp::CHECKSUM)?])
        };
        Some(headers)
    }

    /// Writes one segment's header alone, as [`Headers::write`] does.
    pub fn header(&self, packet: &[u8], i: usize, out: &mut [u8]) -> Option<usize> {
        self.headers(packet)?.write(packet, i, out)
    }
}

/// What the headers of all segments are made of: what they share is summed once. Belongs to the packet that it was made
/// from.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    plan: SegmentPlan,
    identification: u16,
    sequence: u32,
    /// The word that ends in the TCP flags.
    flags: u16,
    /// Sum of the IPv4 header without length, identification and checksum.
    ip_sum: u16,
    /// Sum of pseudo-header and transport header without both lengths, checksum, and TCP's sequence number and flags.
    transport_sum: u16,
}

impl Headers {
    /// Writes segment `i`'s complete header at the start of `out` and returns its length.
    ///
    /// `None` where there is no such segment, `out` is shorter than [`SegmentPlan::header_len`], or `packet` is not the one
    /// that was planned.
    pub fn write(&self, packet: &[u8], i: usize, out: &mut [u8]) -> Option<usize> {
        let plan = &self.plan;
        if i >= plan.count() {
            return None;
        }
        let payload = packet.get(plan.payload(i))?;
        let out = out.get_mut(..plan.header)?;
        out.copy_from_slice(packet.get(..plan.header)?);
        let length = field::length(plan.header + payload.len())?;
        let (ip, transport) = out.split_at_mut_checked(plan.transport)?;
        self.write_ip(ip, i, length)?;
        self.write_transport(transport, i, payload)?;
        Some(plan.header)
    }

    fn write_ip(&self, ip: &mut [u8], i: usize, length: u16) -> Option<()> {
        match self.plan.family {
            Family::V4 => {
                let identification = self.identification.wrapping_add(i as u16);
                let sum = checksum::add(self.ip_sum, checksum::add(identification, length));
                field::put_u16(ip, ipv4::IDENTIFICATION, identification)?;
                field::put_u16(ip, ipv4::LENGTH, length)?;
                field::put_u16(ip, ipv4::CHECKSUM, !sum)
            }
            Family::V6 => {
                field::put_u16(ip, ipv6::LENGTH, length.checked_sub(ipv6::HEADER as u16)?)
            }
        }
    }

    fn write_transport(&self, transport: &mut [u8], i: usize, payload: &[u8]) -> Option<()> {
        let length = field::length(transport.len() + payload.len())?;
        let shared = checksum::add(self.transport_sum, length);
        if self.plan.protocol == TCP {
            let sequence = self.sequence_of(i);
            let flags = self.flags_of(i);
            field::put(transport, tcp::SEQUENCE, sequence.to_be_bytes())?;
            field::put_u16(transport, tcp::FLAGS_WORD, flags)?;
            let [high, low] = halves(sequence);
            let own = checksum::add(checksum::add(high, low), flags);
            let sum = checksum::add(checksum::add(shared, own), checksum::sum(payload));
            return field::put_u16(transport, tcp::CHECKSUM, !sum);
        }
        field::put_u16(transport, udp::LENGTH, length)?;
        if self.plan.unsummed {
            return Some(());
        }
        // The length is in the header and in the pseudo-header.
        let sum = checksum::add(checksum::add(shared, length), checksum::sum(payload));
        field::put_u16(transport, udp::CHECKSUM, udp::transmitted(!sum))
    }

    fn sequence_of(&self, i: usize) -> u32 {
        let before = i * usize::from(self.plan.size);
        self.sequence.wrapping_add(before as u32)
    }

    /// FIN and PSH belong to the last segment, CWR to the first.
    fn flags_of(&self, i: usize) -> u16 {
        let not_first = if i > 0 { tcp::CWR } else { 0 };
        let not_last = if i + 1 < self.plan.count() {
            tcp::FIN | tcp::PSH
        } else {
            0
        };
        self.flags & !u16::from(not_first | not_last)
    }
}

/// A sum without some of the words in it. Something else than zero must remain: then it is the sum of what remains, bit
/// for bit.
fn without(sum: u16, words: &[u16]) -> u16 {
    words
        .iter()
        .fold(sum, |sum, word| checksum::add(sum, !word))
}

const fn halves(wide: u32) -> [u16; 2] {
    [(wide >> 16) as u16, wide as u16]
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

/// The longest header that is segmented, bytes: a buffer of this size always suffices for [`SegmentPlan::header`]. IPv4 and
/// TCP with all their options come to 120; IPv6 keeps 156 for extension headers.
pub const MAX_HEADER: usize = 256;

/// The most segments of one packet: 64 KB at Linux' smallest MSS (`tcp_min_snd_mss` 48, 36 payload bytes beside
/// timestamps) come to 1,821.
pub const MAX_SEGMENTS: usize = 2_048;

#[cfg(test)]
mod tests;
