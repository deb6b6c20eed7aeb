//! Shutdown: a worker that has left pushes nothing more; a worker that sees that all have left finds all that they pushed.

use super::sync::atomic::{AtomicUsize, Ordering};

/// The number of workers that may still push shares to others.
#[derive(Default)]
pub(crate) struct Senders(AtomicUsize);

impl Senders {
    /// None yet.
    pub(crate) fn new() -> Senders {
        Senders(AtomicUsize::new(0))
    }

    /// Adds a worker, before it runs.
    pub(crate) fn join(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a worker, after its last push.
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Whether none is left. All that they pushed is visible then.
    pub(crate) fn are_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}
