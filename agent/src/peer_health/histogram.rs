//! How long probes took there and back, counted since the service started: what Prometheus makes quantiles of, over any
//! time and any number of nodes. What [`super::round_trips`] keeps is of one path and its last probes; this is of all
//! paths, and never forgets, so its size does not depend on how many peers there are.

use std::time::Duration;

/// Round trips of the probes that were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many took at most each of [`BOUNDS`], and longer than the one before it; the last took longer than all.
    counts: [u64; BOUNDS.len() + 1],
    /// Of all together, nanoseconds: it overflows after 584 years of waiting.
    sum: u64,
}

impl Histogram {
    /// Counts one.
    pub(crate) fn observe(&mut self, took: Duration) {
        let place = BOUNDS.partition_point(|bound| Duration::from_micros(*bound) < took);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum = self.sum.saturating_add(nanos);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How long all of them took together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// For each bucket its upper bound, inclusive, in seconds, and how many are in it and in no lower one. The last has no
    /// bound: infinity.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        // Divided, not multiplied by a millionth: 0.0005 is to be written as such.
        let bounds = BOUNDS.iter().map(|micros| *micros as f64 / 1e6);
        let bounds = bounds.chain([f64::INFINITY]);
        bounds.zip(self.counts)
    }
}

/// Upper bounds, microseconds: 20 us is less than a wake-up of the peer's worker takes, and beyond a second a probe is
/// lost. 1, 2, 5 in each decade, so a quantile is off by a factor of 2.5 at most.
const BOUNDS: [u64; 15] = [
    20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000,
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut histogram = Histogram::default();
        for nanos in [0, 20_000, 20_001, 50_000, 1_000_000_000, 1_000_000_001] {
            histogram.observe(Duration::from_nanos(nanos));
        }
        let filled: Vec<_> = histogram
            .buckets()
            .filter(|(_, count)| *count > 0)
            .collect();
        let expected = [(0.000_02, 2), (0.000_05, 2), (1.0, 1), (f64::INFINITY, 1)];
        assert_eq!(filled, expected);
        assert_eq!(histogram.sum(), Duration::from_nanos(2_000_090_002));
    }

    proptest! {
        #[test]
        fn each_is_in_the_lowest_bucket_that_holds_it(nanos in 0..3_000_000_000_u64) {
            let mut histogram = Histogram::default();
            histogram.observe(Duration::from_nanos(nanos));
            let seconds = nanos as f64 / 1e9;
            let bounds: Vec<_> = histogram.buckets().collect();
            let place = bounds.iter().position(|(bound, _)| seconds <= *bound);
            prop_assert_eq!(bounds.iter().position(|(_, count)| *count == 1), place);
            prop_assert_eq!((histogram.count(), histogram.sum()), (1, Duration::from_nanos(nanos)));
        }
    }

    #[test]
    fn what_never_ends_is_counted_all_the_same() {
        let mut histogram = Histogram::default();
        histogram.observe(Duration::MAX);
        histogram.observe(Duration::MAX);
        assert_eq!(histogram.count(), 2);
        assert_eq!(histogram.sum(), Duration::from_nanos(u64::MAX));
    }
}
