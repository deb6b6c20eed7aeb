//! How long the keeper waits before it starts the service again.

use std::time::Duration;

/// After a first death the service is started at once. After deaths in a row the keeper waits: 100 ms doubling to 5 s
/// where the service did not forward, 200 ms at most where it did, because a service that forwards is worth the load.
#[derive(Debug, Default)]
pub struct Backoff {
    /// Services in a row that never forwarded.
    never_forwarded: u32,
    /// Services in a row that forwarded, each for less than a second.
    forwarded_briefly: u32,
}

impl Backoff {
    /// The wait after a service that forwarded this long, or never.
    pub fn after(&mut self, forwarded: Option<Duration>) -> Duration {
        let (row, longest) = match forwarded {
            None => (&mut self.never_forwarded, LONGEST),
            Some(forwarded) => {
                // The cause that kept earlier services from forwarding is gone.
                self.never_forwarded = 0;
                if forwarded >= HEALTHY {
                    self.forwarded_briefly = 0;
                    return Duration::ZERO;
                }
                (&mut self.forwarded_briefly, LONGEST_AFTER_FORWARDING)
            }
        };
        let doublings = row.checked_sub(1);
        *row = row.saturating_add(1);
        match doublings {
            None => Duration::ZERO,
            Some(doublings) => FIRST.saturating_mul(1u32 << doublings.min(16)).min(longest),
        }
    }
}

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
const LONGEST_AFTER_FORWARDING: Duration = Duration::from_millis(200);
const HEALTHY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(backoff: &mut Backoff, forwarded: Option<u64>, lives: usize) -> Vec<u128> {
        let forwarded = forwarded.map(Duration::from_millis);
        (0..lives)
            .map(|_| backoff.after(forwarded).as_millis())
            .collect()
    }

    #[test]
    fn without_forwarding_at_once_then_doubling_to_five_seconds() {
        let expected = [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000];
        assert_eq!(waits(&mut Backoff::default(), None, 9), expected);
        let mut long = Backoff {
            never_forwarded: u32::MAX,
            forwarded_briefly: 0,
        };
        assert_eq!(long.after(None), LONGEST);
        assert_eq!(long.after(None), LONGEST);
    }

    #[test]
    fn after_a_service_that_forwarded_the_next_starts_soon() {
        let mut backoff = Backoff::default();
        waits(&mut backoff, None, 20);
        assert_eq!(waits(&mut backoff, Some(3600), 3), [0, 0, 0]);
        waits(&mut backoff, None, 20);
        assert_eq!(waits(&mut backoff, Some(10), 5), [0, 100, 200, 200, 200]);
        assert_eq!(waits(&mut backoff, None, 2), [0, 100], "a row of its own");
        assert_eq!(waits(&mut backoff, Some(1000), 1), [0]);
        assert_eq!(waits(&mut backoff, Some(10), 2), [0, 100]);
    }
}
