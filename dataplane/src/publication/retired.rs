//! What was replaced and may still be held by a worker.
//!
//! Theory of operation: control keeps a share of each value that it replaced, and drops it once every worker has adopted
//! the next, or a later one. A worker gives up what it had before it notes the version of what it adopted, so the share
//! of control is the last: no worker ever frees a value.

use super::sync::Arc;

/// Replaced values, the oldest first.
pub(crate) struct Retired<T> {
    /// With the version that took its place.
    waiting: Vec<(u64, Arc<T>)>,
}

impl<T> Retired<T> {
    pub(crate) const fn new() -> Retired<T> {
        Retired {
            waiting: Vec::new(),
        }
    }

    /// Keeps `value`, which the value of version `successor` is about to replace.
    pub(crate) fn retire(&mut self, value: Arc<T>, successor: u64) {
        self.waiting.push((successor, value));
    }

    /// Drops what no worker can hold, where every worker has adopted version `adopted` or a later one.
    pub(crate) fn free(&mut self, adopted: u64) {
        self.waiting.retain(|(successor, _)| *successor > adopted);
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }
}
