//! Where control hands a worker the rings of the captures that run.
//!
//! Theory of operation. As tables ([`publication`](crate::publication)): control swaps a list for another and moves a
//! number on; the worker sees another number at its next step, takes the list, and notes the number once it has given up
//! the list before. So control, which keeps a share of what was replaced until then, frees it, and no worker does.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use super::ring::Ring;
use crate::publication::retired::Retired;

/// The rings that a worker writes.
pub(super) type Rings = Vec<Arc<Ring>>;

/// One worker's rings, as control gives them.
pub struct CapturePoint {
    rings: ArcSwap<Rings>,
    /// Moves on with each change of `rings`, after it.
    version: AtomicU64,
    /// The version for which the worker has left what was before.
    adopted: AtomicU64,
    /// Control's alone: no worker takes the lock.
    retired: Mutex<Retired<Rings>>,
}

impl CapturePoint {
    pub(super) fn new() -> CapturePoint {
        CapturePoint {
            rings: ArcSwap::from_pointee(Rings::new()),
            version: AtomicU64::new(0),
            adopted: AtomicU64::new(0),
            retired: Mutex::new(Retired::new()),
        }
    }

    /// Gives the worker `ring` beside those that it has.
    pub(super) fn add(&self, ring: Arc<Ring>) {
        self.change(|rings| rings.push(ring));
    }

    /// Takes `ring` from the worker.
    pub(super) fn remove(&self, ring: &Arc<Ring>) {
        self.change(|rings| rings.retain(|other| !Arc::ptr_eq(other, ring)));
    }

    fn change(&self, change: impl FnOnce(&mut Rings)) {
        let mut retired = self.retired();
        let current = self.rings.load_full();
        let mut next = Rings::clone(&current);
        change(&mut next);
        let version = self.version.load(Acquire) + 1;
        retired.retire(current, version);
        self.rings.store(Arc::new(next));
        self.version.store(version, Release);
        retired.free(self.adopted.load(Acquire));
    }

    /// Whether the worker writes no ring any more that was taken from it.
    pub(super) fn has_adopted_latest(&self) -> bool {
        let version = self.version.load(Acquire);
        self.adopted.load(Acquire) >= version
    }

    /// Frees what the worker has left.
    pub(super) fn free(&self) {
        self.retired().free(self.adopted.load(Acquire));
    }

    /// How many lists wait until the worker has left them.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.retired().count()
    }

    /// The version in force; one load.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// The worker's rings.
    pub(super) fn latest(&self) -> Arc<Rings> {
        self.rings.load_full()
    }

    /// The worker has left what was before `version`.
    pub(super) fn note_adopted(&self, version: u64) {
        self.adopted.store(version, Release);
    }

    fn retired(&self) -> MutexGuard<'_, Retired<Rings>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
