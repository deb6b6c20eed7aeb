//! Finds a worker that hangs: the tick of a worker that works moves, however idle it is.

use std::time::{Duration, Instant};

/// What the last check saw.
#[derive(Debug, Default)]
pub struct Watchdog {
    workers: Vec<(u64, Instant)>,
    /// A tick has not moved since the check before.
    suspects: bool,
}

/// A worker whose tick has not moved for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// Which worker, from 0.
    pub worker: usize,
    /// For how long.
    pub stalled_for: Duration,
}

impl Watchdog {
    /// Checks every worker's tick; returns the first that has not moved for 2 s.
    pub fn check(&mut self, ticks: &[u64], now: Instant) -> Option<Stalled> {
        self.suspects = false;
        if self.workers.len() != ticks.len() {
            self.workers = ticks.iter().map(|tick| (*tick, now)).collect();
            return None;
        }
        let mut stalled = None;
        for (worker, (tick, (seen, since))) in ticks.iter().zip(&mut self.workers).enumerate() {
            if tick != seen {
                (*seen, *since) = (*tick, now);
            } else {
                self.suspects = true;
            }
            let stalled_for = now.saturating_duration_since(*since);
            if stalled_for >= PATIENCE && stalled.is_none() {
                stalled = Some(Stalled {
                    worker,
                    stalled_for,
                });
            }
        }
        stalled
    }

    /// How long after this check the next one is due: sooner while a tick does not move.
    pub fn pause(&self) -> Duration {
        if self.suspects {
            CHECK_STALLED_EVERY
        } else {
            CHECK_EVERY
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(2);

/// How often the keeper checks. An idle worker's tick moves twice in that time.
pub const CHECK_EVERY: Duration = Duration::from_secs(1);
const CHECK_STALLED_EVERY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tick_that_has_not_moved_for_two_seconds_is_reported() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut watchdog = Watchdog::default();
        assert_eq!(watchdog.check(&[5, 9], at(0)), None);
        assert_eq!(watchdog.check(&[6, 9], at(1500)), None);
        assert_eq!(watchdog.check(&[7, 10], at(1999)), None);
        assert_eq!(watchdog.check(&[8, 10], at(3900)), None);
        let stalled = watchdog.check(&[9, 10], at(3999)).unwrap();
        assert_eq!(
            stalled,
            Stalled {
                worker: 1,
                stalled_for: Duration::from_secs(2)
            }
        );
    }

    #[test]
    fn only_a_worker_that_may_hang_is_checked_often() {
        let start = Instant::now();
        let at = |seconds| start + CHECK_EVERY * seconds;
        let mut watchdog = Watchdog::default();
        for (second, ticks, pause) in [
            (0, [5, 9], CHECK_EVERY),
            (1, [6, 10], CHECK_EVERY),
            (2, [7, 10], CHECK_STALLED_EVERY),
            (3, [8, 11], CHECK_EVERY),
        ] {
            assert_eq!(watchdog.check(&ticks, at(second)), None);
            assert_eq!(watchdog.pause(), pause, "{second}");
        }
    }

    #[test]
    fn another_number_of_workers_starts_afresh() {
        let start = Instant::now();
        let mut watchdog = Watchdog::default();
        assert_eq!(watchdog.check(&[1], start), None);
        assert_eq!(watchdog.check(&[1, 1], start + PATIENCE), None);
        assert!(watchdog.check(&[1, 1], start + PATIENCE * 2).is_some());
    }
}
