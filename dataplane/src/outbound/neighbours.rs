//! Requests of the link layer: a TAP reads them, and Tartan answers them itself. None leaves the node.
//!
//! The request becomes its answer: it is counted as received, and as delivered when the answer is written. Answered are
//! requests that the same checks would let pass as packets: from a source that may send, for an address that a peer owns.

use std::io::{self, IoSlice};

use encap::inner::Inner;
use encap::neighbour::{self, Request};

use super::Outbound;
use crate::capture::{Event, Stage};
use crate::device::{Device, Offload};
use crate::drops::{Direction, DropReason};

impl<D: Device> Outbound<'_, D> {
    /// Answers the ARP packet of `len` bytes in frame number `frame`, or drops it: an answer and an announcement like what
    /// is no ARP between IPv4 addresses.
    pub(super) fn arp(&mut self, frame: usize, len: usize) {
        let packet = self.batch.bytes(frame, 0..len);
        let Some(request) = neighbour::arp_request(packet) else {
            return self.drop(frame, DropReason::NotIp, 1);
        };
        if let Err(reason) = self.is_answered(&request) {
            let of = self.snapshot.parties(None, Some(request.source));
            return self.drop_of(of, frame, reason, 1);
        }
        let mac = self.device.mac();
        let reply = mac.and_then(|mac| neighbour::arp_reply(packet, mac));
        let written = match &reply {
            Some(reply) => self.device.write_arp(reply),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        let reply = reply.as_ref().map_or(&[][..], |reply| reply);
        self.account_answer(&request, (reply, true), written.is_ok());
    }

    /// Answers a neighbour solicitation.
    pub(super) fn solicitation(&mut self, frame: usize, request: &Request) {
        if let Err(reason) = self.is_answered(request) {
            return self.drop(frame, reason, 1);
        }
        let mac = self.device.mac();
        let answer = mac.and_then(|mac| neighbour::advertisement(request, mac));
        let written = match &answer {
            Some(answer) => self.device.write(Offload::NONE, &[IoSlice::new(answer)]),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        let answer = answer.as_ref().map_or(&[][..], |answer| answer);
        self.account_answer(request, (answer, false), written.is_ok());
    }

    /// The neighbour solicitation in frame number `frame`, whose packet `inner` describes, if the device has a link layer
    /// and it is one.
    pub(super) fn solicited(&self, frame: usize, inner: &Inner) -> Option<Request> {
        self.device.mac()?;
        neighbour::solicitation(self.batch.bytes(frame, 0..inner.len), inner)
    }

    fn is_answered(&self, request: &Request) -> Result<(), DropReason> {
        let Request { source, target } = *request;
        if !self.snapshot.pods.may_speak(source) {
            return Err(DropReason::SpoofedSource);
        }
        if self.snapshot.pods.in_own_subnet(target) {
            return Err(DropReason::OwnSubnet);
        }
        let peer = self.snapshot.cluster.fib.lookup(target);
        peer.map(drop).ok_or(DropReason::NoRoute)
    }

    /// Counts the request as delivered, once its answer is written, or as dropped.
    fn account_answer(&self, request: &Request, (answer, is_arp): (&[u8], bool), is_written: bool) {
        let reason = DropReason::DeviceRefused;
        let (stage, reason) = if is_written {
            self.tally.deliver(Direction::Outbound, 1);
            (Stage::Written, None)
        } else {
            let of = self.snapshot.parties(None, Some(request.source));
            self.tally.drop(Direction::Outbound, reason, 1, of);
            (Stage::Dropped, Some(reason))
        };
        if self.tap.wants(stage) {
            let event = Event {
                reason,
                is_not_ip: is_arp,
                is_own: true,
                ..Event::inner(stage, Direction::Outbound, 1)
            };
            self.tap
                .offer(self.snapshot, &event, std::iter::once(answer));
        }
    }
}
