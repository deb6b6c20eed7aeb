//! Whether an idle worker busy-polls before it sleeps.
//!
//! Theory of operation: waking a thread costs a context switch, and several times as much where its core is idle and
//! virtual. A worker that busy-polls does not pay for a wake-up, but uses its core. So every *gap* is measured, from the
//! end of work to the next packet, whether the worker slept or polled: it busy-polls only while most of the latest gaps
//! were shorter than the limit, and never longer than the limit. An idle node sleeps; one that peers ask for their health
//! is idle, however short the gaps between their probes. Between two polls the worker
//! yields its core; the time that other threads run is part of the gap, so where others need the core, gaps are long
//! and the worker sleeps at once.

use std::time::Duration;

use crate::worker::Work;

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

    /// Takes note of a gap that is over, and of the work that has ended it.
    pub(super) fn learn(&mut self, gap: Duration, work: Work) {
        let is_short = gap < self.limit;
        if is_short && work.is_of_probes() {
            return;
        }
        let short = if is_short { WHOLE } else { 0 };
        self.short = (self.short * (MEMORY - 1) + short) / MEMORY;
    }
}

const WHOLE: u32 = 1 << 16;

/// About so many gaps are remembered.
const MEMORY: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Amount;

    const LIMIT: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(49);
    const LONG: Duration = Duration::from_millis(500);

    fn after(gaps: impl IntoIterator<Item = Duration>) -> Duration {
        let mut spin = Spin::new(LIMIT);
        gaps.into_iter().for_each(|gap| spin.learn(gap, PACKET));
        spin.time()
    }

    const ONE: Amount = Amount {
        packets: 1,
        bytes: 100,
    };
    const PACKET: Work = Work {
        outbound: ONE,
        inbound: Amount {
            packets: 0,
            bytes: 0,
        },
        probes: 0,
    };
    const PROBE: Work = Work {
        outbound: Amount {
            packets: 0,
            bytes: 0,
        },
        inbound: ONE,
        probes: 1,
    };

    /// Regression: with 5,000 peers that answered and asked, a worker without a packet of a pod busy-polled behind most
    /// probes.
    #[test]
    fn probes_make_no_worker_busy_poll() {
        let mut spin = Spin::new(LIMIT);
        (0..100).for_each(|_| spin.learn(SHORT, PROBE));
        assert_eq!(spin.time(), Duration::ZERO);
        // And one among packets does not end it.
        for _ in 0..10 {
            (0..10).for_each(|_| spin.learn(SHORT, PACKET));
            spin.learn(SHORT, PROBE);
            assert_eq!(spin.time(), LIMIT);
        }
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
        (0..100).for_each(|_| spin.learn(Duration::ZERO, PACKET));
        assert_eq!(spin.time(), Duration::ZERO);
    }
}
