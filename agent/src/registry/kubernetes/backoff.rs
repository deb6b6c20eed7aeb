//! Pauses between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Pauses that double from 100 ms to 4.5 s, each shortened at random by up to a third, so that the nodes of a cluster do
/// not ask at the same moment.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after another failure.
    pub(super) fn next(&mut self) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.failures.min(16)).min(MOST);
        self.failures = self.failures.saturating_add(1);
        let random = RandomState::new().hash_one(self.failures) % 1000;
        let random = u32::try_from(random).unwrap_or_default();
        longest - longest / 3 * random / 1000
    }

    /// Failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// An attempt succeeded.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

const FIRST: Duration = Duration::from_millis(100);
/// With the time of an attempt it stays below 5 s.
const MOST: Duration = Duration::from_millis(4500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_differ() {
        let mut backoff = Backoff::default();
        let first = backoff.next();
        assert!((FIRST * 2 / 3..=FIRST).contains(&first), "{first:?}");
        let late: Vec<_> = (0..40).map(|_| backoff.next()).skip(10).collect();
        assert!(late.iter().all(|p| (MOST * 2 / 3..=MOST).contains(p)));
        assert!(late.iter().any(|p| *p != late[0]), "{late:?}");
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
