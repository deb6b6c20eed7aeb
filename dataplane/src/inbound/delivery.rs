//! The last stage inbound: writes accepted packets to the device, as few writes as possible.
//!
//! Theory of operation: a device without offloads gets each packet at once, finished and cut. One with offloads gets the
//! packets of a batch at its end: those of a flow are coalesced into super-packets, and a super-packet that came as one
//! is written as it is. Payload stays where it was received. A packet that must be written before the end of the batch,
//! because it can only be cut here or because the coalescer is full, is written after those coalesced before it: a flow
//! keeps its order.
//!
//! No packet gets a good checksum that came with a bad one: only packets that were verified, or came unfinished from a
//! sender on this host, are coalesced or cut.

use encap::Family;
use encap::checksum;
use encap::coalesce::{Coalescer, FrameSlice};
use encap::inner::Inner;
use encap::offload::{Cut, GsoType, Offload, Unfinished};
use encap::protocol::{TCP, UDP};
use encap::segment::SegmentPlan;
use encap::transport::{self, ChecksumState};

use super::writer::Writer;
use crate::device::{Device, Offloads};
use crate::drops::DropReason;
use crate::peers::PeerId;

/// What the stage needs.
pub(crate) struct Delivery<'a, D> {
    /// The offloads of the device during this batch.
    pub(crate) offloads: Offloads,
    pub(crate) coalescer: &'a mut Coalescer,
    pub(crate) writer: Writer<'a, D>,
}

impl<D: Device> Delivery<'_, D> {
    /// Delivers the packet of peer `id` at `place`, which `inner` describes; `plan` says how to cut a super-packet.
    pub(super) fn deliver(
        &mut self,
        id: PeerId,
        place: FrameSlice,
        inner: &Inner,
        plan: Option<SegmentPlan>,
    ) {
        let verdict = transport::checksum_state(self.writer.bytes(place), inner);
        match plan.filter(|plan| plan.count() > 1) {
            None => self.single(id, place, inner, verdict),
            Some(plan) => self.super_packet(id, place, inner, verdict, &plan),
        }
    }

    /// Writes the coalesced packets.
    pub(crate) fn flush(&mut self) {
        let writer = &mut self.writer;
        self.coalescer.drain(|packet| writer.gathered(&packet));
    }

    fn single(&mut self, id: PeerId, place: FrameSlice, inner: &Inner, verdict: ChecksumState) {
        if !self.offloads.checksum {
            self.writer.finished(id, place, inner, verdict);
            return;
        }
        let taken = |this: &mut Self| {
            let packet = this.writer.bytes(place);
            if kind(inner).is_none_or(|kind| this.offloads.takes(kind)) {
                this.coalescer.push(packet, inner, verdict, place, id.0)
            } else {
                let offload = unfinished(verdict);
                let counts = (1, inner.len);
                this.coalescer.pass(inner, offload, counts, place, id.0)
            }
        };
        if taken(self).is_err() {
            self.flush();
            // There is room now.
            let _ = taken(self);
        }
    }

    fn super_packet(
        &mut self,
        id: PeerId,
        place: FrameSlice,
        inner: &Inner,
        verdict: ChecksumState,
        plan: &SegmentPlan,
    ) {
        let known = !matches!(verdict, ChecksumState::Invalid | ChecksumState::Unknown);
        if !known || !header_is_sound(self.writer.bytes(place), inner) {
            // Cutting it would give every segment a good checksum over damaged bytes.
            let reason = DropReason::BadSuperPacket;
            return self.writer.drop(id, place, reason, plan.count());
        }
        let Some(offload) = self.through(place, inner, verdict, plan) else {
            self.flush();
            self.writer.cut(id, place, plan);
            return;
        };
        let bytes = inner.len + (plan.count() - 1) * plan.header_len();
        let counts = (plan.count(), bytes);
        let passed = |this: &mut Self| this.coalescer.pass(inner, offload, counts, place, id.0);
        if passed(self).is_err() {
            self.flush();
            // There is room now.
            let _ = passed(self);
        }
    }

    /// The offload for writing a super-packet as it came, whose checksum is left unfinished; `None` where it must be cut
    /// here.
    fn through(
        &mut self,
        place: FrameSlice,
        inner: &Inner,
        verdict: ChecksumState,
        plan: &SegmentPlan,
    ) -> Option<Offload> {
        let kind = kind(inner).filter(|kind| self.offloads.takes(*kind))?;
        let packet = self.writer.bytes(place);
        // CWR belongs to the first segment alone, and some devices copy it to all.
        if kind != GsoType::Udp && packet.get(inner.transport + TCP_FLAGS)? & CWR != 0 {
            return None;
        }
        let (start, offset) = match verdict {
            ChecksumState::Partial { start, offset } => (start, offset),
            ChecksumState::Valid => {
                transport::unfinish_checksum(self.writer.frames.at_mut(place)?, inner)?
            }
            // A device that segments always writes a checksum.
            ChecksumState::Absent | ChecksumState::Invalid | ChecksumState::Unknown => return None,
        };
        Some(Offload {
            checksum: numbers(start, offset),
            cut: Some(Cut {
                kind,
                size: plan.size(),
                header: u16::try_from(plan.header_len()).ok()?,
            }),
        })
    }
}

/// The GSO type of a super-packet of this protocol.
fn kind(inner: &Inner) -> Option<GsoType> {
    match (inner.protocol, inner.family) {
        (TCP, Family::V4) => Some(GsoType::Tcp4),
        (TCP, Family::V6) => Some(GsoType::Tcp6),
        (UDP, _) => Some(GsoType::Udp),
        _ => None,
    }
}

fn unfinished(verdict: ChecksumState) -> Offload {
    let checksum = match verdict {
        ChecksumState::Partial { start, offset } => numbers(start, offset),
        _ => None,
    };
    Offload {
        checksum,
        cut: None,
    }
}

fn numbers(start: usize, offset: usize) -> Option<Unfinished> {
    Some(Unfinished {
        start: u16::try_from(start).ok()?,
        offset: u16::try_from(offset).ok()?,
    })
}

/// Whether the IPv4 header checksum is right; IPv6 has none.
fn header_is_sound(packet: &[u8], inner: &Inner) -> bool {
    let header = packet.get(..inner.transport).unwrap_or_default();
    inner.family == Family::V6 || checksum::sum(header) == 0xffff
}

/// Offset of the flags in a TCP header.
const TCP_FLAGS: usize = 13;
/// The flag for a reduced congestion window (RFC 3168).
const CWR: u8 = 0x80;
