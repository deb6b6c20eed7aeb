//! What a capture gets of the outbound stages: each packet as it was read, and each that is dropped.

use std::net::{IpAddr, SocketAddr};

use super::Outbound;
use crate::batch::Datagram;
use crate::capture::{Event, Stage, Tap};
use crate::device::Content;
use crate::drop_counts::{Parties, addresses};
use crate::drops::{Direction, DropReason};
use crate::snapshot::Snapshot;

impl<D> Outbound<'_, D> {
    /// Counts the packet in frame number `frame` as so many received.
    pub(super) fn receive(&self, frame: usize, packets: usize) {
        self.tally.receive(Direction::Outbound, packets);
        if self.tap.wants(Stage::Device) {
            self.capture(
                frame,
                &Event::inner(Stage::Device, Direction::Outbound, packets),
            );
        }
    }

    /// Drops so many wire packets of frame number `frame`, which were not routed to a peer.
    #[cold]
    pub(super) fn drop(&self, frame: usize, reason: DropReason, packets: usize) {
        let source = self.addresses(frame).map(|(source, _)| source);
        let of = self.snapshot.parties(None, source);
        self.drop_of(of, frame, reason, packets);
    }

    /// The same of what was routed to a peer.
    #[cold]
    pub(super) fn drop_routed(&self, frame: usize, reason: DropReason, packets: usize) {
        let of = self
            .addresses(frame)
            .map_or(Parties::default(), |(source, destination)| {
                let cluster = &self.snapshot.cluster;
                let peer = cluster.fib.lookup(destination);
                let peer = peer.and_then(|id| cluster.peers.peer(id));
                self.snapshot.parties(peer, Some(source))
            });
        self.drop_of(of, frame, reason, packets);
    }

    /// Source and destination of the packet in frame number `frame`, if they can be read.
    fn addresses(&self, frame: usize) -> Option<(IpAddr, IpAddr)> {
        let read = self.batch.read(frame);
        let packet = self.batch.bytes(frame, 0..read.len);
        addresses(packet).filter(|_| read.content == Content::Ip)
    }

    /// The same of a packet whose peer and pod are known.
    pub(super) fn drop_of(
        &self,
        of: Parties<'_>,
        frame: usize,
        reason: DropReason,
        packets: usize,
    ) {
        self.tally
            .drop(Direction::Outbound, reason, packets as u64, of);
        if self.tap.wants(Stage::Dropped) {
            self.capture(frame, &Event::drop(Direction::Outbound, reason, packets));
        }
    }

    /// Drops a datagram to `to` that the kernel refused.
    #[cold]
    pub(super) fn drop_datagram(&self, datagram: &Datagram, to: SocketAddr, reason: DropReason) {
        let of = self
            .snapshot
            .parties_of_datagram(to, self.batch.parts(datagram));
        self.tally.drop(Direction::Outbound, reason, 1, of);
        if self.tap.wants(Stage::Dropped) {
            let event = Event::drop(Direction::Outbound, reason, 1);
            let parts = self.batch.parts(datagram).into_iter();
            self.tap.offer(self.snapshot, &event, parts);
        }
    }

    #[cold]
    fn capture(&self, frame: usize, event: &Event<'_>) {
        let read = self.batch.read(frame);
        let packet = self.batch.bytes(frame, 0..read.len);
        let event = Event {
            gso: read.offload.cut.map_or(0, |cut| cut.size),
            is_not_ip: read.content != Content::Ip,
            is_unfinished: read.offload.checksum.is_some(),
            ..*event
        };
        self.tap
            .offer(self.snapshot, &event, std::iter::once(packet));
    }
}

/// Captures a packet that Tartan made, if it did, and whether the device took it.
pub(super) fn capture_own(tap: &Tap, snapshot: &Snapshot, made: Option<(&[u8], bool)>) {
    let Some((packet, is_taken)) = made else {
        return;
    };
    let (stage, reason) = match is_taken {
        true => (Stage::Written, None),
        false => (Stage::Dropped, Some(DropReason::DeviceRefused)),
    };
    if tap.wants(stage) {
        let event = Event {
            reason,
            is_own: true,
            ..Event::inner(stage, Direction::Outbound, 1)
        };
        tap.offer(snapshot, &event, std::iter::once(packet));
    }
}
