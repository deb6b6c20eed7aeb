//! One core's share of the work, run to completion.
//!
//! Theory of operation: a step receives a bounded batch from each underlay port and walks it into the device, then
//! reads a bounded batch from the device and walks it to the underlay, so neither direction starves the other. What
//! the underlay does not take is *held*: nothing more is read from the device until it went, or until
//! [`HOLD`](crate::limits::HOLD) has passed and it is dropped. A source is *ready* from the moment the poll says so
//! until a read of it would block; a worker sleeps only when no source is ready.
//!
//! A worker owns its descriptors, buffers and counters alone. It reads no clock and makes no random choice, so a test
//! can run many of them in one thread under virtual time.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use encap::Format;

use crate::answers::Answers;
use crate::batch::{InboundBatch, OutboundBatch};
use crate::counters::{Counters, Tally};
use crate::device::Device;
use crate::drops::{Direction, DropReason};
use crate::inbound::{Inbound, RefusedSource};
use crate::limits::{ERRORS, FRAGMENTS, HOLD, NOTICES, OUTBOUND_BYTES, OUTBOUND_PACKETS};
use crate::mtu;
use crate::now::Now;
use crate::outbound::Outbound;
use crate::snapshot::Snapshot;
use crate::sys::mmsg::SEND_MESSAGES;
use crate::underlay::{Outgoing, Underlay};

/// A worker over one device queue and one underlay.
pub struct Worker<D, U> {
    device: D,
    underlay: U,
    tally: Tally,
    inbound: InboundBatch,
    outbound: OutboundBatch,
    answers: Answers,
    ready: Ready,
    held_since: Option<Now>,
    device_lost: bool,
    refused: Arc<ArrayQueue<RefusedSource>>,
}

/// Sources that may have something to read.
#[derive(Clone, Copy, Debug)]
struct Ready {
    device: bool,
    udp: bool,
    vxlan: bool,
}

/// Something that a worker reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The device queue.
    Device,
    /// The underlay port of a format.
    Port(Format),
}

/// When a worker wants its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: a source is ready.
    Now,
    /// When a source becomes ready or the underlay takes more, at the latest after so long.
    Held(Duration),
    /// When a source becomes ready.
    Idle,
}

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Worker number `index` of a node, counting on its block of `counters`. Every source counts as ready at first.
    pub fn new(device: D, underlay: U, counters: &Counters, index: usize) -> Worker<D, U> {
        Worker {
            device,
            underlay,
            tally: counters.worker(index),
            inbound: InboundBatch::new(),
            outbound: OutboundBatch::new(),
            answers: Answers::new(),
            ready: Ready {
                device: true,
                udp: true,
                vxlan: true,
            },
            held_since: None,
            device_lost: false,
            refused: Arc::new(ArrayQueue::new(NOTICES)),
        }
    }

    /// Marks a source as ready.
    pub fn wake(&mut self, source: Source) {
        match source {
            Source::Device => self.ready.device = true,
            Source::Port(Format::Udp) => self.ready.udp = true,
            Source::Port(Format::Vxlan) => self.ready.vxlan = true,
        }
    }

    /// One round: inbound, outbound, flush, account.
    pub fn step(&mut self, snapshot: &Snapshot, now: Now) -> Next {
        for format in [Format::Vxlan, Format::Udp] {
            self.receive(format, snapshot, now);
        }
        self.transmit(snapshot, now);
        self.tally
            .hold(Direction::Outbound, self.outbound.waiting().len());
        self.tally.tick(snapshot.version);
        match self.held_since {
            _ if self.ready.udp || self.ready.vxlan => Next::Now,
            Some(since) => Next::Held(HOLD.saturating_sub(now.since(since))),
            None if self.ready.device => Next::Now,
            None => Next::Idle,
        }
    }

    /// Sends what is held, or drops it when its time has passed; reads nothing. Returns whether something is held still.
    pub fn drain(&mut self, snapshot: &Snapshot, now: Now) -> bool {
        self.flush(snapshot, now);
        self.tally
            .hold(Direction::Outbound, self.outbound.waiting().len());
        self.held_since.is_some()
    }

    /// The descriptor of a source, to poll on.
    pub fn descriptor(&self, source: Source) -> Option<RawFd> {
        match source {
            Source::Device => self.device.descriptor(),
            Source::Port(format) => self.underlay.descriptor(format),
        }
    }

    /// Whether the device is gone for good: somebody deleted it.
    pub fn device_lost(&self) -> bool {
        self.device_lost
    }

    /// The device.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The underlay.
    pub fn underlay_mut(&mut self) -> &mut U {
        &mut self.underlay
    }

    pub(crate) fn refused(&self) -> Arc<ArrayQueue<RefusedSource>> {
        Arc::clone(&self.refused)
    }

    fn receive(&mut self, format: Format, snapshot: &Snapshot, now: Now) {
        let ready = match format {
            Format::Udp => &mut self.ready.udp,
            Format::Vxlan => &mut self.ready.vxlan,
        };
        if !*ready {
            return;
        }
        let count = match self.underlay.receive(format, &mut self.inbound) {
            Ok(count) => count,
            Err(error) if would_block(&error) => {
                *ready = false;
                return;
            }
            // The error of an earlier send; what is queued to read is still there.
            Err(_) => return self.failures(format, snapshot, now),
        };
        self.tally.receive(Direction::Inbound, count);
        let Worker {
            device,
            tally,
            inbound,
            refused,
            ..
        } = self;
        let mut stairs = Inbound {
            snapshot,
            device,
            tally,
            refused,
        };
        for (frame, meta) in inbound.frames.iter_mut().zip(&inbound.metas).take(count) {
            stairs.buffer(format, frame, meta);
        }
    }

    fn transmit(&mut self, snapshot: &Snapshot, now: Now) {
        if self.held_since.is_none() && self.ready.device {
            self.read(snapshot, now);
        }
        self.flush(snapshot, now);
    }

    fn read(&mut self, snapshot: &Snapshot, now: Now) {
        let Worker {
            device,
            tally,
            outbound,
            answers,
            ..
        } = self;
        let mut stages = Outbound {
            snapshot,
            batch: outbound,
            device,
            answers,
            tally,
            now,
        };
        let mut bytes = 0;
        for index in 0..OUTBOUND_PACKETS {
            if bytes >= OUTBOUND_BYTES || !stages.batch.has_room(FRAGMENTS) {
                break;
            }
            let Some(frame) = stages.batch.frames.get_mut(index) else {
                break;
            };
            match stages.device.read(frame) {
                Ok(length) => {
                    bytes += length;
                    stages.tally.receive(Direction::Outbound, 1);
                    stages.packet(index, 0..length, false);
                }
                Err(error) => {
                    self.ready.device = error.kind() == io::ErrorKind::Interrupted;
                    self.device_lost |=
                        matches!(error.raw_os_error(), Some(libc::EBADFD | libc::EIO));
                    break;
                }
            }
        }
    }

    /// Sends what waits, in order, run by run of one format.
    fn flush(&mut self, snapshot: &Snapshot, now: Now) {
        let mut repeated = false;
        while let Some(format) = self
            .outbound
            .waiting()
            .first()
            .map(|transmit| transmit.format)
        {
            match self.send_run(format) {
                Ok(count) => {
                    self.account(count, snapshot);
                    repeated = false;
                }
                Err(error) if is_full(&error) => {
                    let since = *self.held_since.get_or_insert(now);
                    if now.since(since) < HOLD {
                        return;
                    }
                    self.drop_waiting();
                }
                // A pending error of an earlier datagram, perhaps to another peer: the same send again tells.
                Err(_) if !repeated => {
                    self.failures(format, snapshot, now);
                    repeated = true;
                }
                Err(error) => {
                    self.refuse_first(&error, snapshot, now);
                    repeated = false;
                }
            }
        }
        self.outbound.clear();
        self.held_since = None;
    }

    fn send_run(&mut self, format: Format) -> io::Result<usize> {
        let batch = &self.outbound;
        let run = batch
            .waiting()
            .iter()
            .take_while(|transmit| transmit.format == format)
            .take(SEND_MESSAGES);
        let datagrams = run.map(|t| Outgoing {
            to: t.to,
            ecn: t.ecn,
            parts: batch.parts(t),
        });
        match self.underlay.send(format, datagrams)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn account(&mut self, count: usize, snapshot: &Snapshot) {
        self.tally.send(count);
        for transmit in self.outbound.waiting().iter().take(count) {
            if let Some((_, peer)) = snapshot.peers.by_source(transmit.to.ip()) {
                peer.count_sent(transmit.inner_len);
            }
        }
        self.outbound.done += count;
    }

    /// The first waiting datagram was refused twice. Too large: walk its packet again, now that the path MTU is known.
    fn refuse_first(&mut self, error: &io::Error, snapshot: &Snapshot, now: Now) {
        let Some(first) = self.outbound.waiting().first() else {
            return;
        };
        let (frame, range) = first.packet();
        let too_big = error.raw_os_error() == Some(libc::EMSGSIZE);
        let again = too_big && !first.last_try && self.outbound.has_room(1);
        self.outbound.done += 1;
        if again {
            let Worker {
                device,
                tally,
                outbound,
                answers,
                ..
            } = self;
            let before = outbound.transmits.len();
            Outbound {
                snapshot,
                batch: outbound,
                device,
                answers,
                tally,
                now,
            }
            .packet(frame, range, true);
            outbound.bring_forward(before);
        } else {
            let reason = if too_big {
                DropReason::TooBig
            } else {
                DropReason::UnderlayRefused
            };
            self.tally.drop(Direction::Outbound, reason, 1);
        }
    }

    fn drop_waiting(&mut self) {
        let waiting = self.outbound.waiting().len();
        self.tally.drop(
            Direction::Outbound,
            DropReason::UnderlayFull,
            waiting as u64,
        );
        self.outbound.done += waiting;
    }

    /// Reads reports of earlier datagrams and learns path MTUs from those that prove themselves.
    fn failures(&mut self, format: Format, snapshot: &Snapshot, now: Now) {
        for _ in 0..ERRORS {
            let Some(failure) = self.underlay.failure(format) else {
                break;
            };
            mtu::learn(&failure, format, snapshot, now);
        }
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn is_full(error: &io::Error) -> bool {
    would_block(error) || error.raw_os_error() == Some(libc::ENOBUFS)
}
