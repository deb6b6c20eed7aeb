//! How long the keeper waits before it starts the service again.

use std::time::Duration;

/// First at once, then 100 ms doubling to 5 s; a life of 10 s forgets what was before.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after a service that lived this long.
    pub fn after(&mut self, lived: Duration) -> Duration {
        if lived >= HEALTHY {
            self.failures = 0;
        }
        let doublings = self.failures.checked_sub(1);
        self.failures = self.failures.saturating_add(1);
        match doublings {
            None => Duration::ZERO,
            Some(doublings) => FIRST.saturating_mul(1u32 << doublings.min(16)).min(LONGEST),
        }
    }
}

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
const HEALTHY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_once_then_doubling_to_five_seconds_and_forgiven_after_ten() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..9)
            .map(|_| backoff.after(Duration::from_secs(1)).as_millis())
            .collect();
        assert_eq!(waits, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.after(Duration::from_secs(10)), Duration::ZERO);
        assert_eq!(backoff.after(Duration::ZERO), FIRST);
    }

    #[test]
    fn a_service_that_never_lives_is_tried_for_ever_at_the_longest_wait() {
        let mut backoff = Backoff { failures: u32::MAX };
        assert_eq!(backoff.after(Duration::ZERO), LONGEST);
        assert_eq!(backoff.after(Duration::ZERO), LONGEST);
    }
}
