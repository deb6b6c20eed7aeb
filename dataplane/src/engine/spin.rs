//! Whether an idle worker busy-polls before it sleeps.
//!
//! Theory of operation: waking a thread costs a context switch, and several times as much where its core is idle and
//! virtual. A worker that busy-polls does not pay for a wake-up, but uses its core. So every *gap* is measured, from the
//! end of work to the next packet, whether the worker slept or polled: it busy-polls only while most of the latest gaps
//! were shorter than the limit, and never longer than the limit. An idle node sleeps. Between two polls the worker
//! yields its core; the time that other threads run is part of the gap, so where others need the core, gaps are long
//! and the worker sleeps at once.

use std::time::Duration;

/// What a worker has learned of its gaps.
#[derive(Debug)]
pub(super) struct Spin {
    limit: Duration,
    /// Share of gaps that were short, of [`WHOLE`]; older ones count less and less.
    short: u32,
}

impl Spin {
    /// Busy-polls for `limit` at most; zero disables it.
    pub(super) const fn new(limit: Duration) -> Spin {
        Spin { limit, short: 0 }
    }

    /// How long to busy-poll in this gap before sleeping.
    pub(super) const fn time(&self) -> Duration {
        if self.short > WHOLE / 2 {
            self.limit
        } else {
            Duration::ZERO
        }
    }

    /// Takes note of a gap that is over.
    pub(super) fn learn(&mut self, gap: Duration) {
        let short = if gap < self.limit { WHOLE } else { 0 };
        self.short = (self.short * (MEMORY - 1) + short) / MEMORY;
    }
}

const WHOLE: u32 = 1 << 16;

/// About so many gaps are remembered.
const MEMORY: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(49);
    const LONG: Duration = Duration::from_millis(500);

    fn after(gaps: impl IntoIterator<Item = Duration>) -> Duration {
        let mut spin = Spin::new(LIMIT);
        gaps.into_iter().for_each(|gap| spin.learn(gap));
        spin.time()
    }

    #[test]
    fn an_idle_worker_sleeps_at_once() {
        assert_eq!(after([]), Duration::ZERO);
        assert_eq!(after([LONG; 100]), Duration::ZERO);
        assert_eq!(after([LIMIT; 100]), Duration::ZERO);
    }

    #[test]
    fn it_busy_polls_after_short_gaps() {
        assert_eq!(after([SHORT; 3]), Duration::ZERO);
        assert_eq!(after([SHORT; 10]), LIMIT);
    }

    #[test]
    fn it_busy_polls_while_most_gaps_are_short() {
        let three_of_four = [SHORT, SHORT, SHORT, LONG].repeat(100);
        assert_eq!(after(three_of_four), LIMIT);
        let one_of_four = [SHORT, LONG, LONG, LONG].repeat(100);
        assert_eq!(after(one_of_four), Duration::ZERO);
    }

    #[test]
    fn it_forgets_within_a_few_gaps() {
        let busy_then_idle = std::iter::repeat_n(SHORT, 10_000).chain([LONG; 8]);
        assert_eq!(after(busy_then_idle), Duration::ZERO);
    }

    #[test]
    fn a_limit_of_zero_never_busy_polls() {
        let mut spin = Spin::new(Duration::ZERO);
        (0..100).for_each(|_| spin.learn(Duration::ZERO));
        assert_eq!(spin.time(), Duration::ZERO);
    }
}
