//! Sleep and wake: a worker that blocks says so first, and who has something for it wakes it only then.
//!
//! Theory of operation: the sleeper announces its sleep, then looks once more at what others give it, then blocks. The
//! giver gives, then looks whether a sleep is announced, and wakes the sleeper if so. A fence stands between the two
//! steps of each, so at least one of them sees what the other did: either the sleeper finds the gift or the giver finds
//! the sleeper. Several givers may find one sleeper; the first takes the announcement away and wakes it.

use super::sync::Waker;
use super::sync::atomic::{AtomicU8, Ordering, fence};

/// A worker's announcement, and what wakes it.
pub(crate) struct Wakeup {
    announced: AtomicU8,
    waker: Waker,
}

/// What a sleeper waits for beside what its poll tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum WakeFor {
    /// Shares in its inboxes.
    Shares = 1,
    /// Shares, and batches of its own: it has none left to receive into.
    Batches = 2,
}

impl Wakeup {
    /// Of a worker that is awake.
    pub(crate) fn new(waker: Waker) -> Wakeup {
        Wakeup {
            announced: AtomicU8::new(AWAKE),
            waker,
        }
    }

    /// What wakes the worker.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Announces that the worker is about to block. It must look at what it waits for after this.
    pub(crate) fn announce_sleep(&self, wanted: WakeFor) {
        // In the order of those who took earlier announcements away: none of them is taken to have taken this one.
        self.announced.swap(wanted as u8, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// The worker blocks no more.
    pub(crate) fn mark_awake(&self) {
        self.announced.store(AWAKE, Ordering::Relaxed);
    }

    /// Wakes the worker if it sleeps and waits for `gift`, which was given before this.
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
