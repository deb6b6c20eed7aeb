//! How workers get the tables: the snapshot in force, and those before it that a worker may still forward by.
//!
//! Theory of operation: control builds a snapshot beside the one in force and swaps a pointer; each worker adopts it at
//! its next step, which for an unchanged pointer is one load. Building and freeing are control's: a worker that adopts
//! only moves its share from the old to the new ([`retired`]).

pub(crate) mod retired;

use std::sync::{Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Cache};

use crate::snapshot::Snapshot;
use crate::spec::Spec;
use retired::Retired;
use sync::Arc;

/// What the protocol is made of; the loom model replaces it.
mod sync {
    pub(super) use std::sync::Arc;
}

/// The snapshot in force and those before it.
pub struct Publication {
    current: ArcSwap<Snapshot>,
    /// Control's alone: no worker takes the lock.
    retired: Mutex<Retired<Snapshot>>,
}

/// What one worker has adopted.
pub struct Adopted<'a> {
    cache: Cache<&'a ArcSwap<Snapshot>, Arc<Snapshot>>,
}

impl Publication {
    /// The first snapshot.
    pub fn new(spec: &Spec) -> Publication {
        Publication {
            current: ArcSwap::from_pointee(Snapshot::new(spec, None)),
            retired: Mutex::new(Retired::new()),
        }
    }

    /// Builds the snapshot of `spec` from the one in force and puts it in its place. Its version must be higher: workers
    /// report by it which snapshots they have left.
    pub fn publish(&self, spec: &Spec) {
        let mut retired = self.retired();
        let current = self.current.load_full();
        debug_assert!(spec.version > current.version);
        let next = Arc::new(Snapshot::new(spec, Some(&current)));
        retired.retire(current, next.version);
        self.current.store(next);
    }

    /// Frees the snapshots before the one of version `adopted`, which every worker has adopted.
    pub fn free(&self, adopted: u64) {
        self.retired().free(adopted);
    }

    /// How many snapshots wait until every worker has adopted a later one.
    pub fn waiting(&self) -> usize {
        self.retired().count()
    }

    /// The snapshot in force.
    pub fn latest(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// For one worker, in its own thread.
    pub fn adopt(&self) -> Adopted<'_> {
        Adopted {
            cache: Cache::new(&self.current),
        }
    }

    fn retired(&self) -> MutexGuard<'_, Retired<Snapshot>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Adopted<'_> {
    /// Adopts the snapshot in force. A worker that has done so notes its version in the counters afterwards.
    pub fn load(&mut self) -> &Snapshot {
        self.cache.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::spec;

    #[test]
    fn a_replaced_snapshot_lives_until_every_worker_has_adopted_a_later_one() {
        let mut spec = spec();
        let publication = Publication::new(&spec);
        let mut adopted = publication.adopt();
        let first = Arc::downgrade(&publication.latest());
        assert_eq!(adopted.load().version, 1);
        for _ in 0..2 {
            spec.version += 1;
            publication.publish(&spec);
        }
        publication.free(1);
        assert_eq!((publication.waiting(), first.strong_count()), (2, 2));
        assert_eq!(adopted.load().version, 3);
        assert_eq!(first.strong_count(), 1, "control's share is the last");
        publication.free(2);
        assert_eq!((publication.waiting(), first.strong_count()), (1, 0));
        publication.free(3);
        assert_eq!(publication.waiting(), 0);
    }

    #[test]
    fn what_did_not_change_is_shared() {
        let mut spec = spec();
        let publication = Publication::new(&spec);
        let first = publication.latest();
        spec.version += 1;
        let local = Arc::make_mut(&mut spec.local);
        local.attachments.push([10, 244, 1, 3].into());
        publication.publish(&spec);
        let second = publication.latest();
        assert!(Arc::ptr_eq(&first.cluster, &second.cluster));
        assert!(second.pods.is_local([10, 244, 1, 3].into()));
        spec.version += 1;
        Arc::make_mut(&mut spec.cluster).node.inner_mtu.v4 = 1400;
        publication.publish(&spec);
        let third = publication.latest();
        assert!(Arc::ptr_eq(&second.pods, &third.pods));
        assert_eq!(third.cluster.inner_mtu.v4, 1400);
    }
}
