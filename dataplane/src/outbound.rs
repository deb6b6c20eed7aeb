//! Pod → peer: the stages in the order a packet meets them.
//!
//! inner packet → unicast → its own source → not our subnet → route → way → fits the path → headers in front.
//! What survives waits in the batch as [`Transmit`]s; payload bytes stay where the device put them.

use std::net::IpAddr;
use std::ops::Range;

use encap::inner::Inner;
use encap::{Ecn, Family, Format, ecn, fragment};

use crate::answers::{Answer, Answers};
use crate::batch::{OutboundBatch, Transmit};
use crate::counters::Tally;
use crate::device::Device;
use crate::drops::{Direction, DropReason};
use crate::now::Now;
use crate::peers::Way;
use crate::snapshot::Snapshot;

/// What the stages need.
pub(crate) struct Outbound<'a, D> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) batch: &'a mut OutboundBatch,
    pub(crate) device: &'a mut D,
    pub(crate) answers: &'a mut Answers,
    pub(crate) tally: &'a Tally,
    pub(crate) now: Now,
}

/// Why a packet goes no further, and what its sender is told.
struct Refusal(DropReason, Option<Answer>);

impl<D: Device> Outbound<'_, D> {
    /// Walks the packet in `range` of frame number `frame` to its transmits or its drop. `again`: it proved too large
    /// for the underlay once already.
    pub(crate) fn packet(&mut self, frame: usize, range: Range<usize>, again: bool) {
        let bytes = self
            .batch
            .frames
            .get(frame)
            .and_then(|f| f.get(range.clone()))
            .unwrap_or_default();
        let Ok(inner) = Inner::parse(bytes) else {
            return self
                .tally
                .drop(Direction::Outbound, DropReason::Malformed, 1);
        };
        let packet = bytes.get(..inner.len).unwrap_or_default();
        match route(self.snapshot, &inner).and_then(|way| Ok((way, fit(way, &inner, self.now)?))) {
            Ok((way, Fit::Whole)) => {
                let payload = range.start..range.start + inner.len;
                let transmit = whole(way, &inner, frame, payload, again);
                self.batch.transmits.push(transmit);
            }
            Ok((way, Fit::Fragments(mtu))) => self.fragments(way, &inner, frame, range.start, mtu),
            Err(Refusal(reason, answer)) => {
                self.tally.drop(Direction::Outbound, reason, 1);
                if let Some((answer, from)) =
                    answer.zip(self.snapshot.pods.tunnel_address(inner.source))
                {
                    self.answers.send(
                        answer,
                        from,
                        (packet, &inner),
                        self.now,
                        self.device,
                        self.tally,
                    );
                }
            }
        }
    }

    /// Cuts an inner IPv4 packet that may be fragmented.
    fn fragments(&mut self, way: &Way, inner: &Inner, frame: usize, start: usize, mtu: u16) {
        let packet = self
            .batch
            .frames
            .get(frame)
            .and_then(|f| f.get(start..start + inner.len))
            .unwrap_or_default();
        let plan = match fragment::plan(packet, inner, mtu) {
            Ok(plan) if self.batch.has_room(plan.count()) => plan,
            Ok(_) => {
                return self
                    .tally
                    .drop(Direction::Outbound, DropReason::UnderlayFull, 1);
            }
            Err(_) => return self.tally.drop(Direction::Outbound, DropReason::TooBig, 1),
        };
        self.tally
            .originate(Direction::Outbound, plan.count().saturating_sub(1));
        for index in 0..plan.count() {
            let mut header = [0; IPV4_HEADER];
            let length = plan.header(packet, index, &mut header).unwrap_or_default();
            let payload = plan.payload(index);
            let mut transmit = whole(
                way,
                inner,
                frame,
                start + payload.start..start + payload.end,
                true,
            );
            transmit.push(header.get(..length).unwrap_or_default());
            transmit.inner_len = length + payload.len();
            self.batch.transmits.push(transmit);
        }
    }
}

/// How a packet fits the path.
enum Fit {
    Whole,
    /// To be cut into fragments of at most so many bytes.
    Fragments(u16),
}

/// The way to the peer that the packet goes to.
fn route<'a>(snapshot: &'a Snapshot, inner: &Inner) -> Result<&'a Way, Refusal> {
    if !is_unicast(inner.destination) {
        return Err(Refusal(DropReason::NotUnicast, None));
    }
    if !snapshot.pods.may_speak(inner.source) {
        return Err(Refusal(DropReason::SpoofedSource, None));
    }
    if snapshot.pods.in_own_subnet(inner.destination) {
        return Err(Refusal(DropReason::OwnSubnet, None));
    }
    let Some(peer) = snapshot
        .fib
        .lookup(inner.destination)
        .and_then(|id| snapshot.peers.peer(id))
    else {
        return Err(Refusal(DropReason::NoRoute, Some(Answer::Unreachable)));
    };
    if inner.family == Family::V6 && peer.format == Format::Udp && !snapshot.ipv6_over_udp {
        return Err(Refusal(DropReason::Ipv6InUdp, Some(Answer::Unreachable)));
    }
    peer.way(inner.family)
        .ok_or(Refusal(DropReason::NoUnderlay, Some(Answer::Unreachable)))
}

fn fit(way: &Way, inner: &Inner, now: Now) -> Result<Fit, Refusal> {
    let mtu = way.inner_mtu(inner.family, now);
    if inner.len <= usize::from(mtu) {
        Ok(Fit::Whole)
    } else if inner.dont_fragment {
        Err(Refusal(DropReason::TooBig, Some(Answer::TooBig(mtu))))
    } else {
        Ok(Fit::Fragments(mtu))
    }
}

fn whole(
    way: &Way,
    inner: &Inner,
    frame: usize,
    payload: Range<usize>,
    last_try: bool,
) -> Transmit {
    // Stock peers of the `udp` format do not decapsulate ECN: there the outer header is Not-ECT.
    let ecn = match way.port.format {
        Format::Udp => Ecn::NotEct,
        Format::Vxlan => ecn::encapsulate(inner.ecn),
    };
    let mut transmit = Transmit::new(way.to, way.port, ecn, frame, payload);
    transmit.push(way.header.as_slice());
    transmit.inner_len = inner.len;
    transmit.last_try = last_try;
    transmit
}

fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_multicast() && !v4.is_broadcast() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_multicast() && !v6.is_unspecified(),
    }
}

/// The longest IPv4 header, bytes (RFC 791: IHL 15).
const IPV4_HEADER: usize = 60;
