//! Copies of packets as the workers see them, with what becomes of each, while something captures.
//!
//! Theory of operation. A capture has one [ring](ring) for each worker, which the worker writes and one thread of control
//! reads; neither waits for the other. A worker that finds its ring full leaves the packet out and counts it: of each stage
//! `offered = in the ring + lost + left out by sampling`, exactly. A [filter](filter) chooses by what a worker knows
//! anyway; what asks more of a packet is for the reader.
//!
//! *Stages.* A packet shows at each stage that it reaches ([`Stage`]). What the kernel hands over as one, a super-packet
//! or what the worker joined, is one record, and so are datagrams of one packet in one message and datagrams of one flow
//! in a row in one buffer: the record has the first one's bytes and says how many there are. The `packets` of all records
//! of a stage add up to what [`counters`](crate::counters) count there; of `received` they are datagrams, and at `sent` there
//! are answers to probes too.
//!
//! *Cost.* A worker asks once in a step, with one load, whether the captures are others than before; at each stage it
//! tests a byte of its own. Rings are made by control and freed by it, once the worker has said that it has left them.
//! The time of a record is that at which the worker's step began.
//!
//! *Limits.* [`CAPTURES`] at a time. A worker knows no pod but by the inner addresses: a packet with a forged source is
//! no packet of its pod. What the kernel path carries passes no worker and shows nowhere.

mod filter;
mod point;
mod record;
mod ring;
mod stage;
mod tap;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::Waker;

use crate::drops::{Direction, DropReason};
use crate::engine::Clock;
use crate::limits::CAPTURES;

pub use filter::CaptureFilter;
pub use point::CapturePoint;
pub use record::Record;
pub use stage::{Stage, Stages};
pub(crate) use tap::{Event, Tap};

use ring::Ring;

/// The captures of an engine: starts them.
#[derive(Clone)]
pub struct Captures {
    shared: Arc<Shared>,
}

struct Shared {
    points: Vec<Arc<CapturePoint>>,
    /// Wake the workers, so that they adopt a change at once.
    wakers: Vec<Arc<Waker>>,
    clock: Clock,
    /// How many run.
    running: Mutex<usize>,
}

/// One capture, which runs until it is dropped.
pub struct Capture {
    shared: Arc<Shared>,
    /// Of each worker.
    rings: Vec<Arc<Ring>>,
    is_on: bool,
}

/// What a capture has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// Of each stage, in the order of [`Stage::ALL`].
    pub stages: [StageCounts; Stage::ALL.len()],
    /// Wire packets that were dropped and passed the filter, by direction and reason: also those of no record.
    pub drops: BTreeMap<(u8, u8), u64>,
}

/// Records of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounts {
    /// That passed the filter.
    pub offered: u64,
    /// For which a ring had no room.
    pub lost: u64,
    /// That a sampled capture left out.
    pub left_out: u64,
}

/// Why there is no capture.
#[derive(Debug)]
pub enum CaptureError {
    /// As many run as there can be.
    TooMany,
    /// The kernel gives no memory for the rings.
    Memory(io::Error),
}

impl Captures {
    pub(crate) fn new(
        points: impl IntoIterator<Item = Arc<CapturePoint>>,
        wakers: Vec<Arc<Waker>>,
        clock: Clock,
    ) -> Captures {
        Captures {
            shared: Arc::new(Shared {
                points: points.into_iter().collect(),
                wakers,
                clock,
                running: Mutex::new(0),
            }),
        }
    }

    /// The captures of workers that no engine runs, in their order.
    pub fn of_points(points: impl IntoIterator<Item = Arc<CapturePoint>>) -> Captures {
        Captures::new(points, Vec::new(), Clock::begin())
    }

    /// Has the workers capture what `filter` says from their next step on.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn start(&self, filter: CaptureFilter) -> Result<Capture, CaptureError> {
        let shared = &self.shared;
        let mut running = shared.running();
        if *running >= CAPTURES {
            return Err(CaptureError::TooMany);
        }
        let filter = Arc::new(filter);
        let ring = |_| Ring::new(Arc::clone(&filter)).map(Arc::new);
        let rings: io::Result<Vec<Arc<Ring>>> = shared.points.iter().map(ring).collect();
        let rings = rings.map_err(CaptureError::Memory)?;
        *running += 1;
        for (point, ring) in shared.points.iter().zip(&rings) {
            point.add(Arc::clone(ring));
        }
        shared.wake();
        Ok(Capture {
            shared: Arc::clone(shared),
            rings,
            is_on: true,
        })
    }

    /// The clock of the records' times.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// How many run.
    pub fn running(&self) -> usize {
        *self.shared.running()
    }
}

impl fmt::Debug for Captures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captures")
            .field("running", &self.running())
            .finish_non_exhaustive()
    }
}

impl Capture {
    /// Appends whole records to `into`, at most about `most` bytes from each ring. Returns whether there were any.
    pub fn drain(&mut self, into: &mut Vec<u8>, most: usize) -> bool {
        let before = into.len();
        for ring in &self.rings {
            ring.drain(into, most);
        }
        into.len() > before
    }

    /// What was counted until now.
    pub fn counts(&self) -> CaptureCounts {
        let mut counts = CaptureCounts::default();
        for ring in &self.rings {
            ring.count_into(&mut counts);
        }
        counts
    }

    /// Has the workers capture no more, and waits until none writes any more, for a second at most. What is in the rings
    /// stays to be drained; returns whether the counts are final.
    pub fn end(&mut self) -> bool {
        self.switch_off();
        let is_final = self.shared.wait_until_adopted();
        self.shared.points.iter().for_each(|point| point.free());
        is_final
    }

    /// Waits until every worker captures, for a second at most.
    pub fn wait_until_on(&self) {
        self.shared.wait_until_adopted();
    }

    fn switch_off(&mut self) {
        if std::mem::take(&mut self.is_on) {
            for (point, ring) in self.shared.points.iter().zip(&self.rings) {
                point.remove(ring);
            }
            *self.shared.running() -= 1;
            self.shared.wake();
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.switch_off();
    }
}

impl Shared {
    fn running(&self) -> std::sync::MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until each worker has the latest captures; whether that came about in time.
    fn wait_until_adopted(&self) -> bool {
        let until = Instant::now() + END_WAIT;
        while !self.points.iter().all(|point| point.has_adopted_latest()) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn wake(&self) {
        for waker in &self.wakers {
            // A waker fails only if its poll is gone, and then so is the worker.
            let _ = waker.wake();
        }
    }
}

impl CaptureCounts {
    /// Wire packets that were dropped for `reason` and passed the filter.
    pub fn dropped(&self, direction: Direction, reason: DropReason) -> u64 {
        let key = (direction as u8, reason as u8);
        self.drops.get(&key).copied().unwrap_or(0)
    }

    /// Those counts of drops that are not zero.
    pub fn each_drop(&self) -> impl Iterator<Item = (Direction, DropReason, u64)> + '_ {
        let named = self
            .drops
            .iter()
            .filter_map(|((direction, reason), count)| {
                let direction = match direction {
                    0 => Direction::Outbound,
                    _ => Direction::Inbound,
                };
                let reason = DropReason::ALL.get(usize::from(*reason))?;
                Some((direction, *reason, *count))
            });
        named.filter(|(_, _, count)| *count > 0)
    }

    /// The sum over all stages.
    pub fn all(&self) -> StageCounts {
        let each = self.stages.iter();
        each.fold(StageCounts::default(), |sum, stage| StageCounts {
            offered: sum.offered + stage.offered,
            lost: sum.lost + stage.lost,
            left_out: sum.left_out + stage.left_out,
        })
    }
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::TooMany => write!(
                f,
                "{CAPTURES} captures run on this node already: end one of them (Ctrl-C where it runs)"
            ),
            CaptureError::Memory(error) => write!(
                f,
                "the kernel gives no memory for the packets of a capture: {error}; capture fewer bytes of each (--snaplen)"
            ),
        }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CaptureError::TooMany => None,
            CaptureError::Memory(error) => Some(error),
        }
    }
}

/// A sleeping worker wakes twice a second, if the waker should fail.
const END_WAIT: Duration = Duration::from_secs(1);
