//! The rings on which workers put what they hear of probes, and control's end of them. Reports have one of their own: they are
//! seldom, and as large as ten probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_queue::ArrayQueue;

use super::{Heard, HeardReport};
use crate::limits::{HEARD_PROBES, HEARD_REPORTS};

/// The ring of one worker.
pub(crate) struct HeardRing {
    ring: ArrayQueue<Heard>,
    reports: ArrayQueue<HeardReport>,
    forgotten: AtomicU64,
}

/// What the workers of an engine hear. It belongs to that engine: the workers of the next have rings of their own.
#[derive(Clone)]
pub struct Hearing(Arc<[Arc<HeardRing>]>);

impl HeardRing {
    pub(crate) fn new() -> HeardRing {
        HeardRing {
            ring: ArrayQueue::new(HEARD_PROBES),
            reports: ArrayQueue::new(HEARD_REPORTS),
            forgotten: AtomicU64::new(0),
        }
    }

    /// Puts a probe on the ring; a full ring forgets it.
    pub(crate) fn push(&self, heard: Heard) {
        if self.ring.push(heard).is_err() {
            self.forgotten.fetch_add(1, Relaxed);
        }
    }

    /// Puts a report on its ring; a full ring forgets it.
    pub(crate) fn push_report(&self, report: HeardReport) {
        if self.reports.push(report).is_err() {
            self.forgotten.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn pop(&self) -> Option<Heard> {
        self.ring.pop()
    }

    pub(crate) fn pop_report(&self) -> Option<HeardReport> {
        self.reports.pop()
    }
}

impl Hearing {
    pub(crate) fn of(rings: impl Iterator<Item = Arc<HeardRing>>) -> Hearing {
        Hearing(rings.collect())
    }

    /// The probes of peers that the workers accepted since the last call, each worker's in the order in which they came.
    /// To be called several times a second: a worker keeps [`HEARD_PROBES`].
    pub fn heard(&self) -> impl Iterator<Item = Heard> {
        // No more than there is room for, however fast they come.
        let each = |ring: &Arc<HeardRing>| {
            let ring = Arc::clone(ring);
            (0..HEARD_PROBES).map_while(move |_| ring.pop())
        };
        self.0.iter().flat_map(each)
    }

    /// The reports of peers that the workers accepted since the last call, in no order between workers. A worker keeps
    /// [`HEARD_REPORTS`].
    pub fn reports(&self) -> impl Iterator<Item = HeardReport> {
        let each = |ring: &Arc<HeardRing>| {
            let ring = Arc::clone(ring);
            (0..HEARD_REPORTS).map_while(move |_| ring.pop_report())
        };
        self.0.iter().flat_map(each)
    }

    /// How many accepted probes were forgotten because nothing called [`Hearing::heard`] or [`Hearing::reports`] in time.
    pub fn forgotten(&self) -> u64 {
        let forgotten = |ring: &Arc<HeardRing>| ring.forgotten.load(Relaxed);
        self.0.iter().map(forgotten).sum()
    }
}
