//! Round trips of the last probes: at most [`KEPT`], 512 bytes for a path; none for a peer that answers none.

use std::time::Duration;

/// The latest round trips.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTrips {
    /// Microseconds.
    kept: Vec<u32>,
    /// Where the next goes, once all places are taken.
    next: usize,
    /// The mean of late and its deviation, as TCP smooths them (RFC 6298, section 2), microseconds; `None` without any.
    smoothed: Option<(u32, u32)>,
}

impl RoundTrips {
    /// Takes one more, in the place of the oldest.
    pub(super) fn add(&mut self, took: Duration) {
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let (mean, deviation) = self.smoothed.unwrap_or((micros, micros));
        self.smoothed = Some((
            mean - mean / 8 + micros / 8,
            deviation - deviation / 4 + mean.abs_diff(micros) / 4,
        ));
        if self.kept.len() < KEPT {
            self.kept.push(micros);
            return;
        }
        if let Some(oldest) = self.kept.get_mut(self.next) {
            *oldest = micros;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// The round trip that so many of a hundred do not exceed, 1 to 100; `None` without any.
    pub(super) fn percentile(&self, percent: usize) -> Option<Duration> {
        let mut sorted = self.kept.clone();
        sorted.sort_unstable();
        let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        let micros = *sorted.get(place)?;
        Some(Duration::from_micros(micros.into()))
    }

    /// Within which an answer is to be expected: the mean and four times its deviation; `None` without any.
    pub(super) fn expected(&self) -> Option<Duration> {
        let (mean, deviation) = self.smoothed?;
        let micros = u64::from(mean) + 4 * u64::from(deviation);
        Some(Duration::from_micros(micros))
    }
}

/// At the pace of probes these are those of two to three minutes.
const KEPT: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_latest() {
        let mut trips = RoundTrips::default();
        assert_eq!(trips.percentile(50), None);
        for micros in 0..1000 {
            trips.add(Duration::from_micros(micros));
        }
        // 872 to 999.
        assert_eq!(trips.percentile(50), Some(Duration::from_micros(935)));
        assert_eq!(trips.percentile(99), Some(Duration::from_micros(998)));
        let expected = trips.expected().unwrap();
        assert!(
            expected > Duration::from_micros(980) && expected < Duration::from_micros(1100),
            "{expected:?}"
        );
        assert_eq!(trips.kept.len(), KEPT);
    }
}
