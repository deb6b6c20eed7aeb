//! When the control loop tries again what was refused.
//!
//! A try reads the whole node, and a refusal mostly lasts: the wait between two tries doubles from one to the next. A change
//! that is announced, or of the configuration or the leases, may be what was waited for: then the first wait is short again.

use std::time::{Duration, Instant};

use super::event_loop::REFRESH_EVERY;

/// The wait for the next try.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// When it is due, where anything was refused.
    due: Option<Instant>,
    /// How long the last wait was.
    wait: Duration,
}

impl Retry {
    /// Something was refused, now.
    pub(crate) fn tried(&mut self) {
        self.wait = (self.wait * 2).clamp(FIRST, LONGEST);
        self.due = Some(Instant::now() + self.wait);
    }

    /// The next refusal is the first.
    pub(crate) fn start_over(&mut self) {
        *self = Retry::default();
    }

    /// Whether something was refused, and its next try is not due yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.due.is_some_and(|due| Instant::now() < due)
    }
}

/// Just less than the time between two quick checks, so that the next one tries.
const FIRST: Duration = Duration::from_millis(900);
/// Everything is read and tried again as often in any case.
const LONGEST: Duration = REFRESH_EVERY;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_bound_and_starts_over() {
        let mut retry = Retry::default();
        assert!(!retry.is_waiting());
        let mut waits = Vec::new();
        for _ in 0..8 {
            retry.tried();
            assert!(retry.is_waiting());
            waits.push(retry.wait);
        }
        assert_eq!(waits[..4], [FIRST, FIRST * 2, FIRST * 4, FIRST * 8]);
        assert!(
            waits[4..]
                .iter()
                .all(|wait| *wait == Duration::from_secs(10))
        );
        retry.start_over();
        assert!(!retry.is_waiting());
        retry.tried();
        assert_eq!(retry.wait, FIRST);
    }
}
