//! One core's share of the work, run to completion.
//!
//! Theory of operation: a step receives a bounded batch from each underlay port and walks it into the device, then
//! reads a bounded batch from the device and walks it to the underlay, so neither direction starves the other. What
//! the underlay does not take is *held*: nothing more is read from the device until it was sent, or until
//! [`HOLD`](crate::limits::HOLD) has passed and it is dropped. A source is *ready* from the moment the poll says so
//! until a read of it would block; a worker sleeps only when no source is ready.
//!
//! Reports of lost datagrams are a source of their own (`error_reports`). Most come with an error of the next send or receive,
//! but the kernel drops that error when it occurs after the first datagram of a `sendmmsg`, and keeps the report.
//!
//! A worker owns its descriptors, buffers and counters alone. It reads no clock and makes no random choice, so a test
//! can run many of them in one thread under virtual time.

mod error_reports;
mod flush;
mod probes;
mod read;
mod ready;
mod receive;
mod steered;

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use encap::coalesce::Coalescer;

use crate::batch::{InboundBatch, OutboundBatch};
use crate::capture::{CapturePoint, Tap};
use crate::counters::{Counters, OffloadsInUse, Tally};
use crate::device::Device;
use crate::fair_shares::FairShares;
use crate::heavy_flows::{FlowRecorder, FlowTable};
use crate::icmp_errors::IcmpErrors;
use crate::inbound::Refused;
use crate::limits::{COALESCED_CHAINS, COALESCED_PACKETS, HOLD, NOTICES};
use crate::now::Now;
use crate::probe::{Answers, Heard, HeardReport, HeardRing};
use crate::sent::SentDatagrams;
use crate::snapshot::Snapshot;
use crate::steer::Steering;
use crate::sys::simd;
use crate::underlay::{Port, TxSlot, Underlay};
use error_reports::ErrorReports;
use ready::Ready;

pub use ready::Source;

/// A worker over one device queue and one underlay.
pub struct Worker<D, U> {
    device: D,
    underlay: U,
    tally: Tally,
    inbound: InboundBatch,
    coalescer: Coalescer,
    outbound: OutboundBatch,
    icmp_errors: IcmpErrors,
    outbound_shares: FairShares,
    inbound_shares: FairShares,
    ready: Ready,
    error_reports: ErrorReports,
    /// What it sent lately, which a report must quote.
    sent: SentDatagrams,
    /// Counts flows while something watches.
    flows: FlowRecorder,
    /// Copies packets while something captures.
    tap: Tap,
    /// What the latest step moved.
    work: Work,
    /// Offloads given up that are counted already.
    given_up: u64,
    device_lost: bool,
    refused: Arc<ArrayQueue<Refused>>,
    /// Of probes.
    answers: Answers,
    /// Set where there are several workers.
    steering: Option<Box<Steering>>,
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

/// What a step has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// From the device.
    pub outbound: Amount,
    /// From the underlay, or from a worker that received it there.
    pub inbound: Amount,
    /// Probes of that, which hold no packet of a pod.
    pub probes: usize,
}

impl Work {
    /// Whether it is probes and nothing else.
    pub(crate) fn is_of_probes(&self) -> bool {
        self.probes > 0 && self.probes == self.inbound.packets && self.outbound.packets == 0
    }
}

/// Packets as the kernel handed them over, super-packets as one, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Packets; datagrams of the underlay.
    pub packets: usize,
    /// Bytes.
    pub bytes: usize,
}

impl Amount {
    fn add(&mut self, read: impl IntoIterator<Item = (usize, usize)>) {
        for (packets, bytes) in read {
            self.packets += packets;
            self.bytes += bytes;
        }
    }
}

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Worker number `index` of a node, counting on its block of `counters`. A report of a path MTU must quote what it notes in `sent`.
    /// Every source counts as ready at first.
    pub fn new(
        device: D,
        underlay: U,
        counters: &Counters,
        index: usize,
        sent: SentDatagrams,
    ) -> Worker<D, U> {
        simd::sum_checksums();
        Worker {
            device,
            underlay,
            tally: counters.worker(index),
            inbound: InboundBatch::new(),
            coalescer: Coalescer::new(COALESCED_PACKETS, COALESCED_CHAINS),
            outbound: OutboundBatch::new(),
            icmp_errors: IcmpErrors::new(),
            outbound_shares: FairShares::new(sent.another_key()),
            inbound_shares: FairShares::new(sent.another_key()),
            ready: Ready {
                device: true,
                // A port that does not exist is found empty at its first read.
                ports: [true; Port::ALL.len()],
                error_queues: [false; Port::ALL.len()],
            },
            error_reports: ErrorReports::default(),
            answers: Answers::new(sent.another_key()),
            flows: FlowRecorder::new(sent.another_key()),
            tap: Tap::new(index),
            sent,
            work: Work::default(),
            given_up: 0,
            device_lost: false,
            refused: Arc::new(ArrayQueue::new(NOTICES)),
            steering: None,
        }
    }

    /// Marks a source as ready.
    pub fn wake(&mut self, source: Source) {
        self.ready.set(source, true);
    }

    /// Marks every source as ready: what became so while it did not look is found at the next step.
    pub fn wake_all(&mut self) {
        self.ready.device = true;
        self.ready.ports = [true; Port::ALL.len()];
    }

    /// One round: shares from other workers, inbound, outbound, flush, account.
    pub fn step(&mut self, snapshot: &Snapshot, now: Now) -> Next {
        self.work = Work::default();
        self.flows.begin(now);
        self.tap.begin(now);
        self.take_shares(snapshot, now);
        for (ready, due) in self
            .ready
            .error_queues
            .iter_mut()
            .zip(self.error_reports.due(now))
        {
            *ready |= due;
        }
        for port in Port::ALL {
            if self.ready.is(Source::ErrorQueue(port)) {
                self.read_error_reports(port, snapshot, now);
            }
            self.receive(port, snapshot, now);
        }
        if !self.ready.is_any_port(false) && !self.has_shares() {
            self.inbound_shares.end_round(now);
        }
        if self.hold_ends().is_none() && self.ready.device {
            self.read(snapshot, now);
        }
        self.flush(snapshot, now);
        self.flows.end();
        self.work.probes = self.answers.take_count();
        self.account_offloads(now);
        self.tally.batch(self.work);
        self.tally.tick(snapshot.version);
        let waits = self.waits_for_others(now);
        match self.hold_ends() {
            _ if self.ready.is_any_port(waits.is_some()) || self.has_shares() => Next::Now,
            Some(end) => Next::Held(waits.map_or(end, |wait| wait.min(end)).since(now)),
            None if self.ready.device => Next::Now,
            None => waits.map_or(Next::Idle, |end| Next::Held(end.since(now))),
        }
    }

    /// Delivers shares from other workers, sends what is held, or drops it when its time has passed; reads nothing.
    /// Returns whether something is left.
    pub fn drain(&mut self, snapshot: &Snapshot, now: Now) -> bool {
        self.tap.begin(now);
        self.take_shares(snapshot, now);
        self.flush(snapshot, now);
        self.hold_ends().is_some() || self.has_shares()
    }

    /// What the latest step has moved.
    pub fn latest(&self) -> Work {
        self.work
    }

    /// The full sockets for which something is held.
    pub(crate) fn full_sockets(&self) -> impl Iterator<Item = (Port, RawFd)> {
        let held = TxSlot::all().zip(self.outbound.queues());
        held.filter(|(_, queue)| queue.held_since.is_some())
            .filter_map(|(slot, _)| Some((slot.port, self.underlay.tx_descriptor(slot)?)))
    }

    /// The descriptor of a source, to poll on.
    pub fn descriptor(&self, source: Source) -> Option<RawFd> {
        match source {
            Source::Device => self.device.descriptor(),
            Source::Port(port) | Source::ErrorQueue(port) => self.underlay.descriptor(port),
        }
    }

    /// Whether the device was deleted.
    pub fn device_lost(&self) -> bool {
        self.device_lost
    }

    /// Replaces the underlay, and returns the old one, which is not read again. What is held leaves through the new one.
    pub fn rebind(&mut self, underlay: U) -> U {
        self.ready.ports = [true; Port::ALL.len()];
        self.given_up = self.device.given_up() + underlay.given_up();
        std::mem::replace(&mut self.underlay, underlay)
    }

    /// The device.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The underlay.
    pub fn underlay_mut(&mut self) -> &mut U {
        &mut self.underlay
    }

    pub(crate) fn refused(&self) -> Arc<ArrayQueue<Refused>> {
        Arc::clone(&self.refused)
    }

    /// What it heard of probes since it was last asked.
    pub fn heard(&self) -> impl Iterator<Item = Heard> {
        let ring = self.heard_ring();
        std::iter::from_fn(move || ring.pop())
    }

    /// The reports of peers since it was last asked.
    pub fn reports(&self) -> impl Iterator<Item = HeardReport> {
        let ring = self.heard_ring();
        std::iter::from_fn(move || ring.pop_report())
    }

    /// The ring by which control learns of probes.
    pub(crate) fn heard_ring(&self) -> Arc<HeardRing> {
        self.answers.ring()
    }

    /// What it counts of flows.
    pub fn flows(&self) -> Arc<FlowTable> {
        self.flows.table()
    }

    /// Where captures of its packets begin.
    pub fn capture_point(&self) -> Arc<CapturePoint> {
        self.tap.point()
    }

    /// Adds to the time that the worker was busy and to the time that it had nothing to do.
    pub(crate) fn account_time(&self, busy: Duration, idle: Duration) {
        self.tally.time(busy, idle);
    }

    fn account_offloads(&mut self, now: Now) {
        let in_use = OffloadsInUse {
            device: self.device.offloads(now),
            gso_sends: TxSlot::all().all(|slot| self.underlay.takes_gso(slot, now)),
        };
        let given_up = self.device.given_up() + self.underlay.given_up();
        self.tally
            .offloads(in_use, given_up.saturating_sub(self.given_up));
        self.given_up = given_up;
    }

    /// The time at which the oldest held datagrams are dropped; `None` while nothing is held.
    fn hold_ends(&self) -> Option<Now> {
        let held = self.outbound.queues().iter();
        let since = held.filter_map(|queue| queue.held_since).min()?;
        Some(since.after(HOLD))
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
