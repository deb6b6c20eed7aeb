//! How soon a list is made again while a registry's content keeps changing.
//!
//! Each list that is reported is published to the workers, written to the disk and to the log. The first change after a
//! quiet time is reported at once; while changes go on, each report waits twice as long as the one before, up to
//! [`LONGEST`]. So a record that is rewritten a thousand times a second costs little more than one that is at rest.

use std::time::Duration;

use tokio::time::Instant;

/// The pace of one registry.
#[derive(Debug)]
pub(super) struct Pace {
    first: Duration,
    wait: Duration,
    made: Option<Instant>,
}

impl Pace {
    /// After a quiet time a change waits `first` for those that come with it.
    pub(super) fn starting_with(first: Duration) -> Pace {
        Pace {
            first,
            wait: first,
            made: None,
        }
    }

    /// How long a change that is seen at `now` waits.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let is_busy = self.made.is_some_and(|made| now < made + QUIET);
        if is_busy { self.wait } else { self.first }
    }

    /// The list is made at `now`.
    pub(super) fn made(&mut self, now: Instant) {
        self.wait = self.wait(now).saturating_mul(2).min(LONGEST);
        self.made = Some(now);
    }
}

/// Changes are to be in force within two seconds.
const LONGEST: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_while_changes_go_on() {
        let mut pace = Pace::starting_with(Duration::from_millis(20));
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.push(pace.wait(now).as_millis());
            now += pace.wait(now);
            pace.made(now);
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        let later = now + QUIET;
        assert_eq!(pace.wait(later), Duration::from_millis(20));
    }
}
