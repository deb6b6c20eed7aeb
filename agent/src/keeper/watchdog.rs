//! Tells a worker that works from one that hangs: its tick moves, however idle it is.

use std::time::{Duration, Instant};

/// What the last look saw.
#[derive(Debug, Default)]
pub struct Watchdog {
    workers: Vec<(u64, Instant)>,
    /// A tick was where it had been at the look before.
    suspects: bool,
}

/// A worker whose tick stood still for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// Which worker, from 0.
    pub worker: usize,
    /// For how long.
    pub stood: Duration,
}

impl Watchdog {
    /// Takes a look at every worker's tick; names the first that stood still for 2 s.
    pub fn look(&mut self, ticks: &[u64], now: Instant) -> Option<Stalled> {
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
            let stood = now.saturating_duration_since(*since);
            if stood >= PATIENCE && stalled.is_none() {
                stalled = Some(Stalled { worker, stood });
            }
        }
        stalled
    }

    /// How long after this look the next one is due: a worker under suspicion is looked at more often.
    pub fn pause(&self) -> Duration {
        if self.suspects {
            LOOK_CLOSELY
        } else {
            LOOK_EVERY
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(2);

/// How often the keeper looks. An idle worker's tick moves twice in that time.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_CLOSELY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tick_that_stands_for_two_seconds_is_named() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut watchdog = Watchdog::default();
        assert_eq!(watchdog.look(&[5, 9], at(0)), None);
        assert_eq!(watchdog.look(&[6, 9], at(1500)), None);
        assert_eq!(watchdog.look(&[7, 10], at(1999)), None);
        assert_eq!(watchdog.look(&[8, 10], at(3900)), None);
        let stalled = watchdog.look(&[9, 10], at(3999)).unwrap();
        assert_eq!(
            stalled,
            Stalled {
                worker: 1,
                stood: Duration::from_secs(2)
            }
        );
    }

    #[test]
    fn only_what_may_hang_is_looked_at_often() {
        let start = Instant::now();
        let at = |seconds| start + LOOK_EVERY * seconds;
        let mut watchdog = Watchdog::default();
        for (second, ticks, pause) in [
            (0, [5, 9], LOOK_EVERY),
            (1, [6, 10], LOOK_EVERY),
            (2, [7, 10], LOOK_CLOSELY),
            (3, [8, 11], LOOK_EVERY),
        ] {
            assert_eq!(watchdog.look(&ticks, at(second)), None);
            assert_eq!(watchdog.pause(), pause, "{second}");
        }
    }

    #[test]
    fn another_number_of_workers_starts_afresh() {
        let start = Instant::now();
        let mut watchdog = Watchdog::default();
        assert_eq!(watchdog.look(&[1], start), None);
        assert_eq!(watchdog.look(&[1, 1], start + PATIENCE), None);
        assert!(watchdog.look(&[1, 1], start + PATIENCE * 2).is_some());
    }
}
