//! Wake-up between workers: a worker announces that it is about to block, and only then do others wake it.
//!
//! Theory of operation: a worker announces its sleep, checks its queues once more, then blocks. Another worker pushes to
//! a queue, then checks whether a sleep is announced, and wakes the worker if so. A fence stands between the two steps
//! of each, so at least one of them sees what the other did: either the worker finds the push, or the other finds the
//! announcement. Several workers may find one announcement; the first clears it and wakes the sleeper.

use super::sync::Waker;
use super::sync::atomic::{AtomicU8, Ordering, fence};

/// A worker's announcement of its sleep, and the waker of its thread.
pub(crate) struct Wakeup {
    announced: AtomicU8,
    waker: Waker,
}

/// The event of another worker that a sleeper waits for, beside the events of its poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum WakeFor {
    /// A share in one of its inboxes.
    Shares = 1,
    /// A share, or a returned batch or room in an inbox: it waits for these before it receives.
    Batches = 2,
}

impl Wakeup {
    /// For a worker that is awake.
    pub(crate) fn new(waker: Waker) -> Wakeup {
        Wakeup {
            announced: AtomicU8::new(AWAKE),
            waker,
        }
    }

    /// The waker of the worker's thread.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Announces that the worker is about to block. It must check its queues after this.
    pub(crate) fn announce_sleep(&self, wanted: WakeFor) {
        // A swap, not a store: ordered after the swaps that cleared earlier announcements, so none of them clears this one.
        self.announced.swap(wanted as u8, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// The worker no longer blocks.
    pub(crate) fn mark_awake(&self) {
        self.announced.store(AWAKE, Ordering::Relaxed);
    }

    /// Wakes the worker if it sleeps and waits for `event`, which happened before this call.
    pub(crate) fn wake_for(&self, event: WakeFor) {
        fence(Ordering::SeqCst);
        let waits = self.announced.load(Ordering::Relaxed) >= event as u8;
        if waits && self.announced.swap(AWAKE, Ordering::AcqRel) != AWAKE {
            self.waker.wake();
        }
    }
}

/// No sleep is announced.
const AWAKE: u8 = 0;
