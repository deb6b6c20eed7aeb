//! A packet that may join a chain, and the fields that decide it.

use crate::checksum;
use crate::inner::{Fragment, Inner};
use crate::offload::GsoType;
use crate::protocol::{TCP, UDP};
use crate::transport::ChecksumState;
use crate::{Family, field, ipv4, ipv6, tcp, udp};

/// A packet that may share one header with others of its flow.
pub(super) struct Candidate<'a> {
    pub(super) kind: GsoType,
    /// Its IP and transport header.
    pub(super) header: &'a [u8],
    /// Offset of the transport header.
    pub(super) transport: usize,
    /// Bytes behind the header: none for a pure acknowledgment.
    pub(super) payload: usize,
    /// The TCP sequence number; 0 for UDP.
    pub(super) sequence: u32,
    /// The IPv4 identification; 0 for IPv6.
    pub(super) identification: u16,
    /// Identifications count up: IPv4 that routers may fragment.
    pub(super) identified: bool,
    /// TCP's PSH.
    pub(super) push: bool,
    /// The transport checksum is unfinished.
    pub(super) partial: bool,
}

impl<'a> Candidate<'a> {
    /// `None` where the packet must stay as it is: a fragment, IP options or extension headers, an IPv4 header that
    /// fails its checksum, a transport checksum that is absent or not known to be right, TCP flags other than ACK,
    /// PSH and ECE, a datagram of no bytes, or lengths that disagree.
    pub(super) fn parse(
        packet: &'a [u8],
        inner: &Inner,
        verdict: ChecksumState,
    ) -> Option<Candidate<'a>> {
        let partial = match verdict {
            ChecksumState::Valid => false,
            ChecksumState::Partial { .. } => true,
            ChecksumState::Absent | ChecksumState::Invalid | ChecksumState::Unknown => return None,
        };
        let transport = match inner.family {
            Family::V4 => ipv4::HEADER,
            Family::V6 => ipv6::HEADER,
        };
        if inner.fragment != Fragment::Whole || inner.transport != transport {
            return None;
        }
        let packet = packet.get(..inner.len)?;
        let (ip, segment) = packet.split_at_checked(transport)?;
        let (kind, len) = match (inner.protocol, inner.family) {
            (TCP, Family::V4) => (GsoType::Tcp4, tcp_header(segment)?),
            (TCP, Family::V6) => (GsoType::Tcp6, tcp_header(segment)?),
            (UDP, _) => (GsoType::Udp, udp_header(segment)?),
            _ => return None,
        };
        let identification = match inner.family {
            // A new header would hide a fault from the kernel, which drops the packet for it.
            Family::V4 if checksum::sum(ip) != 0xffff => return None,
            Family::V4 => field::u16(ip, ipv4::IDENTIFICATION)?,
            Family::V6 => 0,
        };
        let (sequence, push) = match kind {
            GsoType::Udp => (0, false),
            GsoType::Tcp4 | GsoType::Tcp6 => (
                u32::from_be_bytes(field::bytes(segment, tcp::SEQUENCE)?),
                segment.get(tcp::FLAGS)? & tcp::PSH != 0,
            ),
        };
        let header = packet.get(..transport + len)?;
        Some(Candidate {
            kind,
            header,
            transport,
            payload: packet.len() - header.len(),
            sequence,
            identification,
            identified: inner.family == Family::V4 && !inner.dont_fragment,
            push,
            partial,
        })
    }

    /// Whether `header` differs only in what segmentation writes: IP length, identification and header checksum, TCP
    /// sequence number, PSH and checksum, UDP length and checksum.
    pub(super) fn shares(&self, header: &[u8]) -> bool {
        if self.header.len() != header.len() {
            return false;
        }
        let (Some((ip, transport)), Some((other_ip, other_transport))) = (
            self.header.split_at_checked(self.transport),
            header.split_at_checked(self.transport),
        ) else {
            return false;
        };
        let transports = match self.kind {
            GsoType::Udp => same::<4>(transport, other_transport, 0),
            GsoType::Tcp4 | GsoType::Tcp6 => same_tcp(transport, other_transport),
        };
        transports && same_ip(ip, other_ip)
    }
}

/// All but total length, identification and header checksum; all but the payload length.
fn same_ip(a: &[u8], b: &[u8]) -> bool {
    if a.len() == ipv4::HEADER {
        same::<2>(a, b, 0) && same::<4>(a, b, 6) && same::<8>(a, b, 12)
    } else {
        same::<4>(a, b, 0) && same::<2>(a, b, 6) && same::<32>(a, b, 8)
    }
}

/// All but sequence number, PSH and checksum.
fn same_tcp(a: &[u8], b: &[u8]) -> bool {
    let flags = |header: &[u8]| header.get(tcp::FLAGS).map(|flags| flags & !tcp::PSH);
    let words = same::<4>(a, b, 0) && same::<5>(a, b, 8) && same::<2>(a, b, 14);
    let options = a.get(tcp::HEADER..) == b.get(tcp::HEADER..);
    words && flags(a) == flags(b) && same::<2>(a, b, 18) && options
}

/// Whether both have the same `N` bytes at `at`.
fn same<const N: usize>(a: &[u8], b: &[u8], at: usize) -> bool {
    field::bytes::<N>(a, at) == field::bytes::<N>(b, at)
}

/// Bytes of the TCP header at the start of `segment`, if its flags let it join others.
fn tcp_header(segment: &[u8]) -> Option<usize> {
    let flags = *segment.get(tcp::FLAGS)?;
    let plain = flags & tcp::ACK != 0 && flags & !(tcp::ACK | tcp::PSH | tcp::ECE) == 0;
    tcp::header(segment).filter(|_| plain)
}

/// Bytes of the UDP header at the start of `segment`, if data follow and the packet ends with the datagram.
fn udp_header(segment: &[u8]) -> Option<usize> {
    let length = usize::from(udp::Header::parse(segment)?.length);
    (length == segment.len() && length > udp::HEADER).then_some(udp::HEADER)
}

/// The longest header of a candidate, bytes: IPv6 and TCP with all its options.
pub(super) const HEADER: usize = ipv6::HEADER + 60;
