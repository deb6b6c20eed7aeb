//! What a packet is to the chains: something that may join one, and by which fields that is judged.

use crate::checksum::{self, TCP, Transport, UDP};
use crate::inner::{Fragment, Inner};
use crate::offload::Kind;
use crate::{Family, field, ipv4, ipv6, tcp, udp};

/// A packet that may share one header with others of its flow.
pub(super) struct Candidate {
    pub(super) kind: Kind,
    pub(super) family: Family,
    /// The header, zero in all fields that segmentation writes: candidates of one chain agree in every byte of it.
    /// These fields are the IP length, identification and header checksum, the TCP sequence number, PSH and
    /// checksum, the UDP length and checksum.
    pub(super) shared: [u8; HEADER],
    /// Bytes of the header.
    pub(super) header: usize,
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

impl Candidate {
    /// `None` where the packet must stay as it is: a fragment, IP options or extension headers, an IPv4 header that
    /// fails its checksum, a transport checksum that is absent or not known to be right, TCP flags other than ACK,
    /// PSH and ECE, a datagram of no bytes, or lengths that disagree.
    pub(super) fn parse(packet: &[u8], inner: &Inner, verdict: Transport) -> Option<Candidate> {
        let partial = match verdict {
            Transport::Valid => false,
            Transport::Partial { .. } => true,
            Transport::Absent | Transport::Invalid | Transport::Unknown => return None,
        };
        let fixed = match inner.family {
            Family::V4 => ipv4::HEADER,
            Family::V6 => ipv6::HEADER,
        };
        if inner.fragment != Fragment::Whole || inner.transport != fixed {
            return None;
        }
        let packet = packet.get(..inner.len)?;
        let (ip, segment) = packet.split_at_checked(fixed)?;
        let (kind, transport_len) = match (inner.protocol, inner.family) {
            (TCP, Family::V4) => (Kind::Tcp4, tcp_header(segment)?),
            (TCP, Family::V6) => (Kind::Tcp6, tcp_header(segment)?),
            (UDP, _) => (Kind::Udp, udp_header(segment)?),
            _ => return None,
        };
        // A new header would hide the fault from the kernel, which drops the packet for it.
        if inner.family == Family::V4 && checksum::sum(ip) != 0xffff {
            return None;
        }
        let header = fixed + transport_len;
        let mut shared = [0; HEADER];
        shared
            .get_mut(..header)?
            .copy_from_slice(packet.get(..header)?);
        let mut candidate = Candidate {
            kind,
            family: inner.family,
            shared,
            header,
            transport: fixed,
            payload: inner.len - header,
            sequence: 0,
            identification: 0,
            identified: inner.family == Family::V4 && !inner.dont_fragment,
            push: false,
            partial,
        };
        candidate.take_ip()?;
        candidate.take_transport()?;
        Some(candidate)
    }

    /// Takes out what differs between the IP headers of a chain.
    fn take_ip(&mut self) -> Option<()> {
        match self.family {
            Family::V4 => {
                self.identification = field::u16(&self.shared, ipv4::IDENTIFICATION)?;
                field::put_u16(&mut self.shared, ipv4::LENGTH, 0)?;
                field::put_u16(&mut self.shared, ipv4::IDENTIFICATION, 0)?;
                field::put_u16(&mut self.shared, ipv4::CHECKSUM, 0)
            }
            Family::V6 => field::put_u16(&mut self.shared, ipv6::LENGTH, 0),
        }
    }

    /// Takes out what differs between the transport headers of a chain.
    fn take_transport(&mut self) -> Option<()> {
        let transport = self.shared.get_mut(self.transport..)?;
        if self.kind == Kind::Udp {
            field::put_u16(transport, udp::LENGTH, 0)?;
            return field::put_u16(transport, udp::CHECKSUM, 0);
        }
        self.sequence = u32::from_be_bytes(field::bytes(transport, tcp::SEQUENCE)?);
        field::put(transport, tcp::SEQUENCE, [0; 4])?;
        field::put_u16(transport, tcp::CHECKSUM, 0)?;
        let flags = transport.get_mut(tcp::FLAGS)?;
        self.push = *flags & tcp::PSH != 0;
        *flags &= !tcp::PSH;
        Some(())
    }
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
