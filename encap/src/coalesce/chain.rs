//! Packets that go to the device as one.

use std::net::IpAddr;

use super::candidate::{Candidate, HEADER};
use super::flows::Flow;
use crate::checksum;
use crate::offload::{Cut, GsoType, Offload, Unfinished};
use crate::protocol::{TCP, UDP};
use crate::{field, ipv4, ipv6, tcp, udp};

/// What one [`Packet`](super::Packet) is made of: packets that share a header, or one packet by itself.
pub(super) struct Chain {
    /// How it may grow; `None` where nothing ever joins.
    pub(super) growth: Option<Growth>,
    /// What each of its packets leaves undone as it came.
    pub(super) offload: Offload,
    /// The owner of the packets.
    pub(super) owner: u32,
    /// Wire packets.
    pub(super) count: usize,
    /// Bytes of all wire packets, each with its own header.
    pub(super) bytes: usize,
    /// Its packets are a list of links: the first, and the last.
    pub(super) first: u16,
    pub(super) last: u16,
    /// Its slot among the flows.
    pub(super) slot: Option<usize>,
}

/// A chain that began with a packet that others may join.
pub(super) struct Growth {
    flow: Flow,
    kind: GsoType,
    /// The first packet's header.
    header: [u8; HEADER],
    header_len: usize,
    /// Offset of the transport header.
    transport: usize,
    /// Payload of every packet but the last.
    size: usize,
    /// The checksums of all packets are unfinished.
    partial: bool,
    /// Takes more packets.
    open: bool,
    /// One of the packets has PSH.
    push: bool,
    /// What the next packet begins with.
    sequence: u32,
    identification: u16,
}

impl Growth {
    /// A chain that `candidate` begins.
    pub(super) fn new(flow: Flow, candidate: &Candidate<'_>) -> Option<Growth> {
        let mut header = [0; HEADER];
        header
            .get_mut(..candidate.header.len())?
            .copy_from_slice(candidate.header);
        let mut growth = Growth {
            flow,
            kind: candidate.kind,
            header,
            header_len: candidate.header.len(),
            transport: candidate.transport,
            size: candidate.payload,
            partial: candidate.partial,
            open: true,
            push: false,
            sequence: 0,
            identification: 0,
        };
        growth.join(candidate);
        Some(growth)
    }

    fn header(&self) -> &[u8] {
        self.header.get(..self.header_len).unwrap_or_default()
    }

    /// Whether `candidate` continues the last packet.
    fn is_continued_by(&self, candidate: &Candidate<'_>) -> bool {
        self.open
            && self.sequence == candidate.sequence
            && (!candidate.identified || self.identification == candidate.identification)
            && candidate.payload <= self.size
            && self.partial == candidate.partial
            && candidate.shares(self.header())
    }

    /// Counts `candidate` in.
    fn join(&mut self, candidate: &Candidate<'_>) {
        self.sequence = match candidate.kind {
            GsoType::Tcp4 | GsoType::Tcp6 => {
                candidate.sequence.wrapping_add(candidate.payload as u32)
            }
            GsoType::Udp => 0,
        };
        self.identification = candidate.identification.wrapping_add(1);
        self.push |= candidate.push;
        // Only the last segment may be short.
        self.open = candidate.payload == self.size && !(PUSH_ENDS && candidate.push);
    }

    /// Makes the header that of the super-packet over `payload` bytes, its checksum unfinished.
    fn write(&mut self, payload: usize) -> Option<(&[u8], Offload)> {
        let segment = self.header_len - self.transport + payload;
        let header = self.header.get_mut(..self.header_len)?;
        let (ip, transport) = header.split_at_mut_checked(self.transport)?;
        if ip.len() == ipv4::HEADER {
            field::put_u16(ip, ipv4::LENGTH, field::length(ip.len() + segment)?)?;
            ipv4::put_checksum(ip)?;
        } else {
            field::put_u16(ip, ipv6::LENGTH, field::length(segment)?)?;
        }
        let (protocol, offset) = if self.kind == GsoType::Udp {
            field::put_u16(transport, udp::LENGTH, field::length(segment)?)?;
            (UDP, udp::CHECKSUM)
        } else {
            *transport.get_mut(tcp::FLAGS)? |= if self.push { tcp::PSH } else { 0 };
            (TCP, tcp::CHECKSUM)
        };
        let Flow {
            source,
            destination,
            ..
        } = self.flow;
        let pseudo = checksum::pseudo(source, destination, protocol, segment);
        field::put_u16(transport, offset, pseudo)?;
        let offload = Offload {
            checksum: Some(Unfinished {
                start: field::length(self.transport)?,
                offset: field::length(offset)?,
            }),
            cut: Some(Cut {
                kind: self.kind,
                size: field::length(self.size)?,
                header: field::length(self.header_len)?,
            }),
        };
        Some((header, offload))
    }
}

impl Chain {
    /// A packet of `bytes` bytes that nothing joins.
    pub(super) fn alone(offload: Offload, bytes: usize, link: u16, owner: u32) -> Chain {
        Chain {
            growth: None,
            offload,
            owner,
            count: 1,
            bytes,
            first: link,
            last: link,
            slot: None,
        }
    }

    /// Whether its packets are of `flow`.
    pub(super) fn is_of(&self, flow: &Flow) -> bool {
        self.growth
            .as_ref()
            .is_some_and(|growth| growth.flow == *flow)
    }

    /// Whether its packets may be of a flow from `source` to `destination`.
    pub(super) fn is_between(&self, source: IpAddr, destination: IpAddr) -> bool {
        let growth = self.growth.as_ref();
        growth.is_some_and(|g| g.flow.source == source && g.flow.destination == destination)
    }

    /// Whether a pure acknowledgment with the header of `candidate` has no more information than the chain:
    /// later data that joins the chain may pass it by.
    pub(super) fn says_as_much(&self, candidate: &Candidate<'_>) -> bool {
        let growth = self.growth.as_ref();
        growth.is_some_and(|growth| candidate.shares(growth.header()))
    }

    /// Takes `candidate` of `owner` as the next packet, or says that it does not fit.
    pub(super) fn join(&mut self, candidate: &Candidate<'_>, owner: u32) -> bool {
        let Some(growth) = &mut self.growth else {
            return false;
        };
        let fits = self.owner == owner
            && self.count < MAX_PACKETS
            && growth.is_continued_by(candidate)
            // All headers have one length; the super-packet has one of them.
            && self.bytes + candidate.payload
                <= MAX_LEN + (self.count - 1) * candidate.header.len();
        if fits {
            growth.join(candidate);
            self.count += 1;
            self.bytes += candidate.header.len() + candidate.payload;
        }
        fits
    }

    /// Lets nothing join from now on.
    pub(super) fn seal(&mut self) {
        if let Some(growth) = &mut self.growth {
            growth.open = false;
        }
    }

    /// The header to be written in front of all payloads, and what it leaves undone. `None` where the chain's packets
    /// go out as they came.
    pub(super) fn header(&mut self) -> Option<(&[u8], Offload)> {
        let growth = self.growth.as_mut().filter(|_| self.count > 1)?;
        growth.write(self.bytes - self.count * growth.header_len)
    }
}

/// Whether a segment with PSH is the last of its chain. It need not be: PSH asks the receiver to hand over what it
/// has, and so does the end of every super-packet. Senders set it at the end of each write of the application.
const PUSH_ENDS: bool = false;

/// Packets of one chain at most: what a receiver of `UDP_GRO` may be handed at a time (`UDP_GRO_CNT_MAX`).
pub(super) const MAX_PACKETS: usize = 64;

/// Bytes of a super-packet at most, headers included (`GSO_LEGACY_MAX_SIZE`).
const MAX_LEN: usize = 65_535;
