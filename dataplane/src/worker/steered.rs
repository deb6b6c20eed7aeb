//! A worker among several: what it receives for others, and what others receive for it (see [`crate::steer`]).

use encap::Format;

use super::Worker;
use super::receive::inbound_stages;
use crate::capture::{Event, Stage};
use crate::device::Device;
use crate::drop_counts::{Parties, addresses};
use crate::drops::{Direction, DropReason};
use crate::inbound::{Frames, count_wire_packets};
use crate::limits::TICK;
use crate::now::Now;
use crate::snapshot::Snapshot;
use crate::steer::{Assigned, Borrowed, SteeredBatch, SteeredDatagram, Steering, sort};
use crate::underlay::{Port, Underlay};

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Makes this one of several workers that hand flows to each other.
    #[must_use]
    pub fn with_steering(mut self, steering: Steering) -> Worker<D, U> {
        self.steering = Some(Box::new(steering));
        self
    }

    /// Announces that the worker is about to block, and returns whether it may: from now on other workers wake it. Call
    /// it after a step, and [`Worker::mark_awake`] after the block.
    pub fn may_sleep(&self) -> bool {
        let reads = Port::ALL
            .iter()
            .any(|port| is_steered(*port) && self.ready.is(super::Source::Port(*port)));
        let steering = self.steering.as_ref();
        steering.is_none_or(|steering| steering.may_sleep(reads))
    }

    /// The worker no longer blocks.
    pub fn mark_awake(&self) {
        if let Some(steering) = &self.steering {
            steering.mark_awake();
        }
    }

    /// The time until which nothing is received for others, because they have borrowed all batches or an inbox is full.
    /// `None` if the worker may receive.
    pub(super) fn waits_for_others(&mut self, now: Now) -> Option<Now> {
        let steering = self.steering.as_mut()?;
        let end = steering.full_inbox_deadline(now);
        // If a batch is returned at the last moment, the worker must not sleep past this.
        end.or_else(|| steering.is_starved().then(|| now.after(TICK)))
    }

    /// Whether shares from other workers wait.
    pub(crate) fn has_shares(&self) -> bool {
        let steering = self.steering.as_ref();
        steering.is_some_and(|steering| steering.has_shares())
    }

    /// Delivers the next share that each other worker has received for this one.
    pub(super) fn take_shares(&mut self, snapshot: &Snapshot, now: Now) {
        let Some(steering) = self.steering.take() else {
            return;
        };
        for sender in 0..steering.workers() {
            let Some(borrowed) = steering.share_from(sender) else {
                continue;
            };
            if let Some(batch) = borrowed.batch() {
                let share = batch.shares.of(steering.index());
                self.tally.take_over(share.len());
                let bytes = share.iter().map(|part| part.range().len()).sum();
                self.work.inbound.add([(share.len(), bytes)]);
                self.walk(batch, share, snapshot, now);
            }
        }
        self.steering = Some(steering);
    }

    /// Receives a batch of a port whose flows the kernel does not spread, and gives every worker its share.
    pub(super) fn receive_for_all(&mut self, port: Port, snapshot: &Snapshot, now: Now) {
        if self.waits_for_others(now).is_some() {
            return;
        }
        if let Some(mut steering) = self.steering.take() {
            self.receive_and_steer(&mut steering, port, snapshot, now);
            self.steering = Some(steering);
        }
    }

    fn receive_and_steer(
        &mut self,
        steering: &mut Steering,
        port: Port,
        snapshot: &Snapshot,
        now: Now,
    ) {
        let own = steering.index();
        let Some((number, batch)) = steering.spare() else {
            return;
        };
        let received = &mut batch.received;
        let Some(count) = self.receive_batch(port, Some(received), snapshot, now) else {
            return;
        };
        let Assigned {
            datagrams,
            lost,
            bytes,
        } = sort(batch, count, own, snapshot);
        self.work.inbound.add([(datagrams, bytes)]);
        self.tally.receive(Direction::Inbound, lost);
        // Which they were is not known any more.
        self.drop_for_lack_of_room(lost, Parties::default());
        if lost > 0 && self.tap.wants(Stage::Received) {
            let event = Event::inner(Stage::Received, Direction::Inbound, lost);
            self.tap.offer(snapshot, &event, std::iter::empty());
        }
        if lost > 0 && self.tap.wants(Stage::Dropped) {
            let event = Event::drop(Direction::Inbound, DropReason::RingFull, lost);
            self.tap.offer(snapshot, &event, std::iter::empty());
        }
        let kept = steering.hand_over(
            number,
            |share| self.tally.hand_over(share.len()),
            |batch, share| self.refuse(batch, share, snapshot),
        );
        if let Some(batch) = kept.as_ref().and_then(Borrowed::batch) {
            let share = batch.shares.of(own);
            self.tally.receive(Direction::Inbound, share.len());
            self.walk(batch, share, snapshot, now);
        }
    }

    /// Walks a share, each datagram of which was counted as one received packet, into the device.
    fn walk(
        &mut self,
        batch: &SteeredBatch,
        share: &[SteeredDatagram],
        snapshot: &Snapshot,
        now: Now,
    ) {
        let Worker {
            device,
            tally,
            coalescer,
            refused,
            inbound_shares,
            answers,
            flows,
            tap,
            ..
        } = self;
        let frames = Frames::Shared(&batch.received.frames);
        let gathering = (coalescer, &**refused, inbound_shares, answers, flows);
        let mut stages = inbound_stages(device, frames, gathering, (tally, tap), snapshot, now);
        stages.capture_share(batch, share);
        for part in share {
            if let Some(meta) = batch.meta(part.frame) {
                stages.steered_datagram(part, meta);
            }
        }
        stages.delivery.flush();
        self.device_lost |= stages.delivery.writer.device_lost;
        self.send_answers(snapshot, now);
    }

    /// Drops a share whose owner's inbox is full.
    fn refuse(&self, batch: &SteeredBatch, share: &[SteeredDatagram], snapshot: &Snapshot) {
        for part in share {
            let Some(meta) = batch.meta(part.frame) else {
                continue;
            };
            let frame = batch.received.frames.get(usize::from(part.frame));
            let datagram = frame.and_then(|frame| frame.get(part.range()));
            let datagram = datagram.unwrap_or_default();
            let packets =
                count_wire_packets(datagram, part.inner_segment(), snapshot.cluster.inner_mtu);
            let peer = snapshot.cluster.peers.by_source(meta.source.ip());
            let destination = addresses(datagram).map(|(_, destination)| destination);
            let of = snapshot.parties(peer.map(|(_, peer)| peer), destination);
            self.tally.receive(Direction::Inbound, packets);
            self.drop_for_lack_of_room(packets, of);
            if self.tap.wants(Stage::Received) {
                let event = Event::received(Format::Udp, meta.source, &[]);
                self.tap.offer(snapshot, &event, std::iter::once(datagram));
            }
            if self.tap.wants(Stage::Dropped) {
                let dropped = Event::drop(Direction::Inbound, DropReason::RingFull, packets);
                let event = Event {
                    remote: Some(meta.source),
                    format: Some(Format::Udp),
                    ..dropped
                };
                self.tap.offer(snapshot, &event, std::iter::once(datagram));
            }
        }
    }

    fn drop_for_lack_of_room(&self, packets: usize, of: Parties<'_>) {
        let reason = DropReason::RingFull;
        self.tally
            .drop(Direction::Inbound, reason, packets as u64, of);
    }
}

/// Whether the flows that come to `port` need spreading.
pub(super) fn is_steered(port: Port) -> bool {
    port.format == Format::Udp
}
