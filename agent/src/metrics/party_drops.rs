//! The drops of a peer or pod as further counters of its [`OwnSeries`](super::own_series::OwnSeries): one for each
//! direction and reason, of which those that count nothing have no sample.

use dataplane::drop_counts::Dropped;
use dataplane::drops::{Direction, DropReason};

use super::facts::word;

/// Counters of each peer or pod.
pub(super) const DROP_COUNTERS: usize = 2 * DropReason::COUNT;

/// The counters of a member: `counts`, then its drops, outbound first. `N` is the number of both.
pub(super) fn with_drops<const N: usize>(counts: &[u64], dropped: &Dropped) -> [u64; N] {
    let mut all = [0; N];
    let drops = dropped.outbound.iter().chain(&dropped.inbound);
    for (place, count) in all.iter_mut().zip(counts.iter().chain(drops)) {
        *place = *count;
    }
    all
}

/// The drops among the counters of a member: direction, reason and count of each that is not 0.
pub(super) fn drops(counters: &[u64]) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    let first = counters.len().saturating_sub(DROP_COUNTERS);
    let kinds = [Direction::Outbound, Direction::Inbound].into_iter();
    let kinds = kinds.flat_map(|direction| DropReason::ALL.map(|reason| (direction, reason)));
    let counted = kinds.zip(counters.iter().skip(first).copied());
    counted
        .filter(|(_, count)| *count > 0)
        .map(|((direction, reason), count)| (word(direction), reason.name(), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_stand_behind_the_other_counters_and_zeros_are_left_out() {
        let mut dropped = Dropped::NONE;
        dropped.outbound[DropReason::ProbeLimit as usize] = 3;
        dropped.inbound[DropReason::Malformed as usize] = 4;
        let counters: [u64; 2 + DROP_COUNTERS] = with_drops(&[7, 8], &dropped);
        assert_eq!(counters[..2], [7, 8]);
        assert_eq!(
            drops(&counters).collect::<Vec<_>>(),
            [("outbound", "ProbeLimit", 3), ("inbound", "Malformed", 4)]
        );
    }
}
