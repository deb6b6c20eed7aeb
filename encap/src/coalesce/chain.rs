//! Packets that go to the device as one.

use std::net::IpAddr;

use super::candidate::Candidate;
use super::flows::Flow;
use crate::checksum::{self, TCP, UDP};
use crate::offload::{Cut, Kind, Offload, Unfinished};
use crate::{Family, field, ipv4, ipv6, tcp, udp};

/// What one [`Packet`](super::Packet) is made of: packets that share a header, or one packet by itself.
pub(super) struct Chain {
    /// How it may grow; `None` where nothing ever joins.
    pub(super) growth: Option<Growth>,
    /// What each of its packets leaves undone as it came.
    pub(super) offload: Offload,
    /// Who sent the packets.
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
    /// Takes more packets.
    open: bool,
    /// The first packet.
    candidate: Candidate,
    /// One of the packets has PSH.
    push: bool,
    /// What the next packet begins with.
    sequence: u32,
    identification: u16,
}

impl Growth {
    /// A chain that `candidate` begins.
    pub(super) fn new(flow: Flow, candidate: Candidate) -> Growth {
        Growth {
            flow,
            open: !(PUSH_ENDS && candidate.push),
            push: candidate.push,
            sequence: next(&candidate),
            identification: candidate.identification.wrapping_add(1),
            candidate,
        }
    }

    fn has_header_of(&self, candidate: &Candidate) -> bool {
        self.candidate.header == candidate.header && self.candidate.shared == candidate.shared
    }

    /// Whether `candidate` continues the last packet.
    fn is_continued_by(&self, candidate: &Candidate) -> bool {
        self.open
            && self.sequence == candidate.sequence
            && (!candidate.identified || self.identification == candidate.identification)
            && candidate.payload <= self.candidate.payload
            && self.candidate.partial == candidate.partial
            && self.has_header_of(candidate)
    }

    /// Counts `candidate` in.
    fn join(&mut self, candidate: &Candidate) {
        self.sequence = next(candidate);
        self.identification = candidate.identification.wrapping_add(1);
        self.push |= candidate.push;
        // Only the last segment may be short.
        self.open = candidate.payload == self.candidate.payload && !(PUSH_ENDS && candidate.push);
    }

    /// The super-packet's header over `payload` bytes, its checksum unfinished.
    fn write(&mut self, payload: usize) -> Option<(&[u8], Offload)> {
        let candidate = &mut self.candidate;
        let segment = candidate.header - candidate.transport + payload;
        let header = candidate.shared.get_mut(..candidate.header)?;
        let (ip, transport) = header.split_at_mut_checked(candidate.transport)?;
        match candidate.family {
            Family::V4 => {
                field::put_u16(ip, ipv4::LENGTH, field::length(ip.len() + segment)?)?;
                field::put_u16(ip, ipv4::IDENTIFICATION, candidate.identification)?;
                ipv4::put_checksum(ip)?;
            }
            Family::V6 => field::put_u16(ip, ipv6::LENGTH, field::length(segment)?)?,
        }
        let (protocol, offset) = if candidate.kind == Kind::Udp {
            field::put_u16(transport, udp::LENGTH, field::length(segment)?)?;
            (UDP, udp::CHECKSUM)
        } else {
            field::put(transport, tcp::SEQUENCE, candidate.sequence.to_be_bytes())?;
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
                start: field::length(candidate.transport)?,
                offset: field::length(offset)?,
            }),
            cut: Some(Cut {
                kind: candidate.kind,
                size: field::length(candidate.payload)?,
                header: field::length(candidate.header)?,
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

    /// Whether a pure acknowledgment with the header of `candidate` tells the receiver no more than the chain does:
    /// later data that joins the chain may pass it by.
    pub(super) fn says_as_much(&self, candidate: &Candidate) -> bool {
        let growth = self.growth.as_ref();
        growth.is_some_and(|growth| growth.has_header_of(candidate))
    }

    /// Takes `candidate` of `owner` as the next packet, or says that it does not fit.
    pub(super) fn join(&mut self, candidate: &Candidate, owner: u32) -> bool {
        let Some(growth) = &mut self.growth else {
            return false;
        };
        let fits = self.owner == owner
            && self.count < MAX_PACKETS
            && growth.is_continued_by(candidate)
            // All headers have one length; the super-packet has one of them.
            && self.bytes + candidate.payload <= MAX_LEN + (self.count - 1) * candidate.header;
        if fits {
            growth.join(candidate);
            self.count += 1;
            self.bytes += candidate.header + candidate.payload;
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
        growth.write(self.bytes - self.count * growth.candidate.header)
    }
}

/// The sequence number behind `candidate`.
fn next(candidate: &Candidate) -> u32 {
    match candidate.kind {
        Kind::Tcp4 | Kind::Tcp6 => candidate.sequence.wrapping_add(candidate.payload as u32),
        Kind::Udp => 0,
    }
}

/// Whether a segment with PSH is the last of its chain. It need not be: PSH asks the receiver to hand over what it
/// has, and so does the end of every super-packet. Senders set it at the end of each write of the application.
const PUSH_ENDS: bool = false;

/// Packets of one chain at most: what a receiver of `UDP_GRO` may be handed at a time (`UDP_GRO_CNT_MAX`).
pub(super) const MAX_PACKETS: usize = 64;

/// Bytes of a super-packet at most, headers included (`GSO_LEGACY_MAX_SIZE`).
const MAX_LEN: usize = 65_535;
