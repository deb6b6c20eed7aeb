//! Pod → peer: the stages in the order a packet meets them.
//!
//! inner packet → no request of the link layer → unicast → its own source → not our subnet → route → way → fits the path → its pod's share → cut →
//! headers in front.
//! An accepted packet waits in the batch, as one datagram for each wire packet; payload bytes stay in the frame.
//!
//! A super-packet is checked once for all its wire packets, by the size of the largest. Where that is too large for the
//! path and must not be fragmented, the super-packet is dropped and its sender gets an ICMP error, as from a router
//! (`ip_forward`). To cut TCP smaller than its sender asked and deliver it would be possible, but the sender would never
//! learn the path MTU, and each of its super-packets would cost us a cut.

mod captured;
mod neighbours;
mod route;

use std::net::SocketAddr;
use std::ops::Range;

use encap::checksum;
use encap::fragment;
use encap::inner::{Fragment, Inner};
use encap::offload::Unfinished;
use encap::protocol::{ICMPV6, TCP};
use encap::segment::{self, Headers, SegmentPlan};

use crate::batch::{Datagram, Head, OutboundBatch, Retry};
use crate::capture::Tap;
use crate::counters::Tally;
use crate::decision::Fit;
use crate::device::{Content, Device, Read};
use crate::drops::{Direction, DropReason};
use crate::fair_shares::FairShares;
use crate::heavy_flows::FlowRecorder;
use crate::icmp_errors::{IcmpError, IcmpErrors};
use crate::limits::FRAME;
use crate::now::Now;
use crate::snapshot::Snapshot;

use captured::capture_own;
pub(crate) use route::RouteCache;
use route::Target;

/// What the stages need.
pub(crate) struct Outbound<'a, D> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) batch: &'a mut OutboundBatch,
    pub(crate) device: &'a mut D,
    pub(crate) icmp_errors: &'a mut IcmpErrors,
    pub(crate) tally: &'a Tally,
    pub(crate) tap: &'a Tap,
    pub(crate) now: Now,
    pub(crate) shares: &'a mut FairShares,
    pub(crate) flows: &'a mut FlowRecorder,
    /// The route of the packet before, which the next one mostly shares.
    pub(crate) cached: Option<RouteCache<'a>>,
}

/// Why a packet is dropped, and the ICMP error for its sender.
struct Refusal(DropReason, Option<IcmpError>);

/// A range of bytes in the frame of that number.
type FrameRange = (usize, Range<usize>);

impl<D: Device> Outbound<'_, D> {
    /// Walks the packet that was read into frame number `frame` to its datagrams or its drop. Returns whether it was within
    /// its pod's share: of the rest a step reads on, because it was no work.
    pub(crate) fn packet(&mut self, frame: usize) -> bool {
        let Read {
            len,
            offload,
            content,
        } = self.batch.read(frame);
        if content != Content::Ip {
            self.receive(frame, 1);
            match content {
                Content::Arp => self.arp(frame, len),
                _ => self.drop(frame, DropReason::NotIp, 1),
            }
            return true;
        }
        let bytes = self.batch.bytes(frame, 0..len);
        let inner = Inner::parse(bytes).ok();
        let Some(inner) = inner.filter(|inner| lies_behind(inner, offload.checksum)) else {
            self.receive(frame, 1);
            self.drop(frame, DropReason::Malformed, 1);
            return true;
        };
        if inner.protocol == ICMPV6
            && let Some(request) = self.solicited(frame, &inner)
        {
            self.receive(frame, 1);
            self.solicitation(frame, &request);
            return true;
        }
        let Ok(plan) = plan(bytes, &inner, &self.batch.read(frame)) else {
            self.receive(frame, 1);
            self.drop(frame, DropReason::BadSuperPacket, 1);
            return true;
        };
        let count = plan.as_ref().map_or(1, SegmentPlan::count);
        self.receive(frame, count);
        let target = self.target(&inner, wire_length(&inner, plan.as_ref()));
        if target.is_ok() && !self.shares.charge(inner.source, count, inner.len, self.now) {
            self.drop_routed(frame, DropReason::OverShare, count);
            return false;
        }
        if target.is_ok() {
            let header = plan.as_ref().map_or(0, SegmentPlan::header_len);
            self.flows.count(Direction::Outbound, &inner, count, header);
        }
        match (target, plan) {
            (Ok((target, Fit::Whole)), Some(plan)) => self.segments(&target, frame, &plan),
            (Ok((target, Fit::Fragments(mtu))), Some(plan)) => {
                self.cut_smaller(&target, frame, &inner, &plan, mtu)
            }
            (Ok((target, fit)), None) => {
                self.finish(frame, inner.len, offload.checksum);
                let retry = Retry::Packet {
                    frame: frame as u16,
                    segment: 0,
                };
                self.single(&target, frame, &inner, fit, retry);
            }
            (Err(refusal), plan) => {
                // The ICMP error quotes the packet with its checksum finished.
                let unfinished = offload.checksum.filter(|_| plan.is_none());
                self.finish(frame, inner.len, unfinished);
                if refusal.0 == DropReason::TooBig {
                    self.try_path(&inner, frame, plan.as_ref());
                }
                self.refuse(refusal, (frame, 0), plan, count);
            }
        }
        true
    }

    /// Walks the packet of a datagram to `to` again that the kernel refused as too large. It was counted as received before.
    pub(crate) fn retry(&mut self, datagram: &Datagram, to: SocketAddr) {
        let Retry::Packet { frame, segment } = datagram.retry else {
            return self.drop_datagram(datagram, to, DropReason::TooBig);
        };
        let (frame, segment) = (usize::from(frame), usize::from(segment));
        let read = self.batch.read(frame);
        let bytes = self.batch.bytes(frame, 0..read.len);
        let Ok(inner) = Inner::parse(bytes) else {
            return self.drop(frame, DropReason::Malformed, 1);
        };
        let plan = plan(bytes, &inner, &read).ok().flatten();
        match (
            self.retry_target(&inner, wire_length(&inner, plan.as_ref())),
            plan,
        ) {
            (Ok((target, Fit::Whole)), Some(plan)) => {
                let headers = plan.headers(self.batch.bytes(frame, 0..FRAME));
                self.segment(&target, frame, (&plan, headers), segment, Retry::Never);
            }
            (Ok((target, Fit::Fragments(mtu))), Some(plan)) => {
                self.segment_in_fragments(&target, frame, &inner, &plan, segment, mtu)
            }
            (Ok((target, fit)), None) => self.single(&target, frame, &inner, fit, Retry::Never),
            (Err(refusal), plan) => self.refuse(refusal, (frame, segment), plan, 1),
        }
    }

    /// A packet that is one wire packet.
    fn single(&mut self, target: &Target<'_>, frame: usize, inner: &Inner, fit: Fit, retry: Retry) {
        if let Fit::Fragments(mtu) = fit {
            let mut header = [0; fragment::MAX_HEADER];
            let place = (frame, inner.transport..inner.len);
            let ip = self.batch.bytes(frame, 0..inner.transport);
            let Some(header) = header.get_mut(..ip.len()) else {
                return self.drop_routed(frame, DropReason::TooBig, 1);
            };
            header.copy_from_slice(ip);
            return self.fragments(target, header, place, inner, mtu);
        }
        let head = self.batch.head(target.outer(), 0, |_, _| Some(0));
        self.push(target, head, (frame, 0..inner.len), retry);
    }

    /// The wire packets of a super-packet that fit the path.
    fn segments(&mut self, target: &Target<'_>, frame: usize, plan: &SegmentPlan) {
        let head = target.outer().len() + plan.header_len();
        if !self.batch.takes(plan.count(), head) {
            return self.drop_routed(frame, DropReason::UnderlayFull, plan.count());
        }
        let headers = plan.headers(self.batch.bytes(frame, 0..FRAME));
        for index in 0..plan.count() {
            let retry = Retry::Packet {
                frame: frame as u16,
                segment: index as u16,
            };
            self.segment(target, frame, (plan, headers), index, retry);
        }
    }

    /// One wire packet of a super-packet.
    fn segment(
        &mut self,
        target: &Target<'_>,
        frame: usize,
        (plan, headers): (&SegmentPlan, Option<Headers>),
        index: usize,
        retry: Retry,
    ) {
        let head = self
            .batch
            .head(target.outer(), plan.header_len(), |frames, out| {
                let packet = frames.get(frame)?;
                headers?.write(packet.as_slice(), index, out)
            });
        self.push(target, head, (frame, plan.payload(index)), retry);
    }

    /// The wire packets of a super-packet that do not fit the path and may be fragmented. TCP is cut into smaller
    /// segments, so the receiver gets no fragments; UDP is fragmented, because its datagrams are its sender's.
    fn cut_smaller(
        &mut self,
        target: &Target<'_>,
        frame: usize,
        inner: &Inner,
        plan: &SegmentPlan,
        mtu: u16,
    ) {
        let packet = self.batch.bytes(frame, 0..inner.len);
        let smaller = segment::tcp_size(inner, packet, mtu)
            .and_then(|size| segment::plan(packet, inner, size).ok());
        if let Some(smaller) = smaller {
            let more = smaller.count().saturating_sub(plan.count());
            self.tally.originate(Direction::Outbound, more);
            // A retry uses this cut.
            self.batch.cut_at(frame, smaller.size());
            return self.segments(target, frame, &smaller);
        }
        for index in 0..plan.count() {
            self.segment_in_fragments(target, frame, inner, plan, index, mtu);
        }
    }

    /// Cuts one wire packet of a super-packet, which `inner` describes, into fragments.
    fn segment_in_fragments(
        &mut self,
        target: &Target<'_>,
        frame: usize,
        inner: &Inner,
        plan: &SegmentPlan,
        index: usize,
        mtu: u16,
    ) {
        let mut header = [0; segment::MAX_HEADER];
        let packet = self.batch.bytes(frame, 0..inner.len);
        let length = plan.header(packet, index, &mut header);
        let Some(header) = length.and_then(|length| header.get(..length)) else {
            return self.drop_routed(frame, DropReason::BadSuperPacket, 1);
        };
        let payload = plan.payload(index);
        let inner = Inner {
            len: header.len() + payload.len(),
            ..*inner
        };
        self.fragments(target, header, (frame, payload), &inner, mtu);
    }

    /// Cuts an inner IPv4 packet that may be fragmented: `header`, the IP header at least, and what lies behind it.
    fn fragments(
        &mut self,
        target: &Target<'_>,
        header: &[u8],
        (frame, behind): FrameRange,
        inner: &Inner,
        mtu: u16,
    ) {
        // Of the packet behind its IP header only the length counts.
        let packet = self.batch.bytes(frame, 0..inner.len);
        let Ok(plan) = fragment::plan(packet, inner, mtu) else {
            return self.drop_routed(frame, DropReason::TooBig, 1);
        };
        if !self
            .batch
            .takes(plan.count(), target.outer().len() + header.len())
        {
            return self.drop_routed(frame, DropReason::UnderlayFull, 1);
        }
        self.tally
            .originate(Direction::Outbound, plan.count().saturating_sub(1));
        for index in 0..plan.count() {
            let part = plan.payload(index);
            let (start, end) = (part.start, part.end);
            let written = header.get(start.min(header.len())..end.min(header.len()));
            let written = written.unwrap_or_default();
            let length = plan.header_len() + written.len();
            let head = self.batch.head(target.outer(), length, |_, out| {
                let (ip, transport) = out.split_at_mut_checked(plan.header_len())?;
                plan.header(header, index, ip)?;
                transport.copy_from_slice(written);
                Some(length)
            });
            let lies = |at: usize| behind.start + at.saturating_sub(header.len());
            self.push(target, head, (frame, lies(start)..lies(end)), Retry::Never);
        }
    }

    fn push(&mut self, target: &Target<'_>, head: Option<Head>, payload: FrameRange, retry: Retry) {
        let (slot, to, frame) = (target.slot, target.to(), payload.0);
        if !head.is_some_and(|head| self.batch.push(slot, to, head, payload, retry)) {
            self.drop_routed(frame, DropReason::UnderlayFull, 1);
        }
    }

    /// Tries whether the path carries more than routers reported, if that is due: sends a copy of the first wire packet
    /// of a TCP packet that is refused as too large. A receiver takes the same bytes twice, from the copy and from what
    /// the sender sends again in smaller segments, so neither the copy nor its loss costs the connection anything. Of
    /// other protocols a datagram would arrive twice, so they make no trial.
    fn try_path(&mut self, inner: &Inner, frame: usize, plan: Option<&SegmentPlan>) {
        if inner.protocol != TCP || inner.fragment != Fragment::Whole {
            return;
        }
        let Some(target) = self.trial_target(inner, wire_length(inner, plan)) else {
            return;
        };
        self.tally.originate(Direction::Outbound, 1);
        match plan {
            Some(plan) => {
                let headers = plan.headers(self.batch.bytes(frame, 0..FRAME));
                self.segment(&target, frame, (plan, headers), 0, Retry::Never);
            }
            None => self.single(&target, frame, inner, Fit::Whole, Retry::Never),
        }
    }

    /// Completes an unfinished checksum of any protocol: pods run tunnels too. `lies_behind` has checked its place.
    fn finish(&mut self, frame: usize, len: usize, unfinished: Option<Unfinished>) {
        if let Some(Unfinished { start, offset }) = unfinished {
            let packet = self.batch.bytes_mut(frame, 0..len);
            let _ = checksum::finish(packet, start.into(), offset.into());
        }
    }

    /// Drops `count` wire packets and sends their sender an ICMP error that quotes wire packet number `segment`.
    fn refuse(
        &mut self,
        Refusal(reason, answer): Refusal,
        (frame, segment): (usize, usize),
        plan: Option<SegmentPlan>,
        count: usize,
    ) {
        match is_routed(reason) {
            true => self.drop_routed(frame, reason, count),
            false => self.drop(frame, reason, count),
        }
        let Some(answer) = answer else { return };
        let place = match plan {
            Some(plan) => self.joined(frame, &plan, segment),
            None => Some((frame, 0..self.batch.read(frame).len)),
        };
        let Some((frame, range)) = place else { return };
        let bytes = self.batch.bytes(frame, range);
        let inner = Inner::parse(bytes).ok();
        let from = inner.and_then(|inner| self.snapshot.pods.tunnel_address(inner.source));
        if let Some((inner, from)) = inner.zip(from) {
            let packet = bytes.get(..inner.len).unwrap_or_default();
            let (device, tally) = (&mut *self.device, self.tally);
            let error =
                self.icmp_errors
                    .send(answer, from, (packet, &inner), self.now, device, tally);
            capture_own(self.tap, self.snapshot, error);
        }
    }

    /// One wire packet of a super-packet in one piece, until the next is joined.
    fn joined(&mut self, frame: usize, plan: &SegmentPlan, index: usize) -> Option<FrameRange> {
        let mut header = [0; segment::MAX_HEADER];
        let packet = self.batch.bytes(frame, 0..self.batch.read(frame).len);
        let length = plan.header(packet, index, &mut header)?;
        self.batch
            .join(header.get(..length)?, frame, plan.payload(index))
    }
}

/// Whether a packet that has no target was routed to a peer all the same.
fn is_routed(reason: DropReason) -> bool {
    matches!(
        reason,
        DropReason::Ipv6InUdp | DropReason::NoUnderlay | DropReason::TooBig
    )
}

/// Whether the checksum to finish lies behind the IP header and its extensions. A pod may name any place
/// (`PACKET_VNET_HDR`), and fields that are checked here, above all the addresses, must not change afterwards.
fn lies_behind(inner: &Inner, unfinished: Option<Unfinished>) -> bool {
    unfinished.is_none_or(|Unfinished { start, offset }| {
        let (start, offset) = (usize::from(start), usize::from(offset));
        start >= inner.transport && start + offset + 2 <= inner.len
    })
}

/// How a super-packet is to be cut; `None` for a single wire packet.
fn plan(
    bytes: &[u8],
    inner: &Inner,
    read: &Read,
) -> Result<Option<SegmentPlan>, segment::Unsegmentable> {
    let Some(cut) = read.offload.cut else {
        return Ok(None);
    };
    let plan = segment::plan(bytes, inner, cut.size)?;
    Ok(Some(plan).filter(|plan| plan.count() > 1))
}

/// Bytes of the largest wire packet.
fn wire_length(inner: &Inner, plan: Option<&SegmentPlan>) -> usize {
    plan.map_or(inner.len, |plan| plan.header_len() + plan.payload(0).len())
}
