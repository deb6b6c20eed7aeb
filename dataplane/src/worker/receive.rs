//! The first stage inbound: what a step receives from a port, and the stages behind it.

use crossbeam_queue::ArrayQueue;
use encap::coalesce::Coalescer;

use super::steered::is_steered;
use super::{Source, Worker, would_block};
use crate::batch::InboundBatch;
use crate::capture::Tap;
use crate::counters::Tally;
use crate::device::Device;
use crate::drops::Direction;
use crate::fair_shares::FairShares;
use crate::heavy_flows::FlowRecorder;
use crate::inbound::{Delivery, Frames, Inbound, PeerCache, Refused, Writer};
use crate::limits::ERROR_ROUNDS;
use crate::now::Now;
use crate::probe::Answers;
use crate::snapshot::Snapshot;
use crate::underlay::{Port, Underlay};

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Receives a bounded batch of `port` and walks it to the device, or to its drop.
    pub(super) fn receive(&mut self, port: Port, snapshot: &Snapshot, now: Now) {
        if !self.ready.is(Source::Port(port)) {
            return;
        }
        if self.steering.is_some() && is_steered(port) {
            return self.receive_for_all(port, snapshot, now);
        }
        let Some(count) = self.receive_batch(port, None, snapshot, now) else {
            return;
        };
        self.tally.receive(Direction::Inbound, count);
        let Worker {
            device,
            tally,
            inbound,
            coalescer,
            refused,
            inbound_shares,
            answers,
            flows,
            tap,
            work,
            ..
        } = self;
        let InboundBatch { frames, metas } = inbound;
        let frames = Frames::Own(frames);
        let gathering = (coalescer, &**refused, inbound_shares, answers, flows);
        let mut stages = inbound_stages(device, frames, gathering, (tally, tap), snapshot, now);
        for (frame, meta) in metas.iter().enumerate().take(count) {
            let datagrams = stages.buffer(port.format, frame, meta);
            work.inbound.add([(datagrams, meta.len)]);
        }
        stages.delivery.flush();
        self.device_lost |= stages.delivery.writer.device_lost;
        self.send_answers(snapshot, now);
    }

    /// Receives one batch, into `batch` or the worker's own. Repeats the call after pending errors: they belong to earlier
    /// sends, and the datagrams are still queued.
    pub(super) fn receive_batch(
        &mut self,
        port: Port,
        mut batch: Option<&mut InboundBatch>,
        snapshot: &Snapshot,
        now: Now,
    ) -> Option<usize> {
        for _ in 0..ERROR_ROUNDS {
            let batch = batch.as_deref_mut().unwrap_or(&mut self.inbound);
            match self.underlay.receive(port, batch) {
                Ok(received) => {
                    if received.emptied {
                        self.ready.set(Source::Port(port), false);
                    }
                    return Some(received.buffers);
                }
                Err(error) if would_block(&error) => {
                    self.ready.set(Source::Port(port), false);
                    return None;
                }
                Err(_) => self.read_error_reports(port, snapshot, now),
            };
        }
        None
    }
}

/// What the inbound stages keep from batch to batch.
pub(super) type Gathering<'a> = (
    &'a mut Coalescer,
    &'a ArrayQueue<Refused>,
    &'a mut FairShares,
    &'a mut Answers,
    &'a mut FlowRecorder,
);

/// The inbound stages for a batch whose packets lie in `frames`.
pub(super) fn inbound_stages<'a, D: Device>(
    device: &'a mut D,
    frames: Frames<'a>,
    (coalescer, refused, shares, answers, flows): Gathering<'a>,
    (tally, tap): (&'a Tally, &'a Tap),
    snapshot: &'a Snapshot,
    now: Now,
) -> Inbound<'a, D> {
    Inbound {
        snapshot,
        tally,
        refused,
        shares,
        answers,
        flows,
        now,
        peer_cache: PeerCache::default(),
        delivery: Delivery {
            offloads: device.offloads(now),
            coalescer,
            writer: Writer {
                device,
                frames,
                snapshot,
                tally,
                tap,
                now,
                device_lost: false,
            },
        },
    }
}
