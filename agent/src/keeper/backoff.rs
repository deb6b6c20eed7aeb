//! How long the keeper waits before it starts the service again.

use std::time::Duration;

/// A first death is followed at once. Deaths in a row are waited for: 100 ms doubling to 5 s where the service
/// did not even forward, 200 ms at most where it did, for a life that forwards is worth more than rest.
#[derive(Debug, Default)]
pub struct Backoff {
    /// Lives in a row that never forwarded.
    barren: u32,
    /// Lives in a row that forwarded, each for less than a second.
    brief: u32,
}

impl Backoff {
    /// The wait after a service that forwarded this long, or never.
    pub fn after(&mut self, forwarded: Option<Duration>) -> Duration {
        let (row, longest) = match forwarded {
            None => (&mut self.barren, LONGEST),
            Some(forwarded) => {
                // Whatever kept the services before from forwarding is mended.
                self.barren = 0;
                if forwarded >= HEALTHY {
                    self.brief = 0;
                    return Duration::ZERO;
                }
                (&mut self.brief, LONGEST_AFTER_FORWARDING)
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
            barren: u32::MAX,
            brief: 0,
        };
        assert_eq!(long.after(None), LONGEST);
        assert_eq!(long.after(None), LONGEST);
    }

    #[test]
    fn a_life_that_forwarded_is_followed_soon_whatever_was_before() {
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
