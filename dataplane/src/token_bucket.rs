//! A token bucket: so many at once, and one more every so often.

use std::time::Duration;

use crate::now::Now;

/// The tokens that are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    tokens: u32,
    /// When the latest were gained.
    filled: Now,
}

/// How many tokens a bucket holds, and how long it takes to gain one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) burst: u32,
    pub(crate) every: Duration,
}

impl TokenBucket {
    /// A full bucket.
    pub(crate) const fn full(rate: Rate) -> TokenBucket {
        TokenBucket {
            tokens: rate.burst,
            filled: Now(0),
        }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, rate: Rate, now: Now) -> bool {
        let gained = now.since(self.filled).as_nanos() / rate.every.as_nanos().max(1);
        if gained >= u128::from(rate.burst - self.tokens) {
            self.tokens = rate.burst;
            self.filled = now;
        } else {
            // Less than a burst, which fits 32 bits. What is left of the time counts for the next token.
            self.tokens += gained as u32;
            self.filled = self.filled.after(rate.every * gained as u32);
        }
        self.tokens
            .checked_sub(1)
            .map(|left| self.tokens = left)
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let rate = Rate {
            burst: 32,
            every: Duration::from_millis(10),
        };
        let mut bucket = TokenBucket::full(rate);
        let start = Now(0).after(Duration::from_secs(1));
        assert_eq!((0..1000).filter(|_| bucket.take(rate, start)).count(), 32);
        let taken = (0..100u32)
            .filter(|i| bucket.take(rate, start.after(rate.every * *i / 2)))
            .count();
        assert!((48..=50).contains(&taken), "{taken}");
    }

    #[test]
    fn no_part_of_the_time_is_lost() {
        let every = Duration::from_millis(10);
        let rate = Rate { burst: 4, every };
        let mut bucket = TokenBucket::full(rate);
        let start = Now(0).after(Duration::from_secs(1));
        let taken = (1..=1000u32)
            .filter(|i| bucket.take(rate, start.after(every * *i * 99 / 100)))
            .count();
        assert!((990..=994).contains(&taken), "{taken}");
    }
}
