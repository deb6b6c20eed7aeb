//! The end: who leaves sends nothing more, and who finds that all have left finds all that was sent.

use super::sync::atomic::{AtomicUsize, Ordering};

/// Workers that may still give others something.
#[derive(Default)]
pub(crate) struct Senders(AtomicUsize);

impl Senders {
    /// None yet.
    pub(crate) fn new() -> Senders {
        Senders(AtomicUsize::new(0))
    }

    /// One more, before it runs.
    pub(crate) fn join(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less, after it gave the last.
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Whether none is left. What they gave is there to be found then.
    pub(crate) fn are_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}
