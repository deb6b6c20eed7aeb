//! Whether a pod floods one way, from the counters of its host's end: a pure function of samples.
//!
//! A flood is many packets, none of them large, with little coming back. A ping-pong is none, however fast: what a NAPI
//! thread gains by gathering it would lose by waking a thread for each packet. Bulk TCP is none: its super-packets pass a
//! veth without its NAPI (drivers/net/veth.c, `veth_skb_is_eligible_for_gro`).

use std::time::Duration;

/// The counters of a host's end at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// When, on a clock that never goes back.
    pub(super) at: Duration,
    /// Packets from the pod; a super-packet is one.
    pub(super) packets: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Packets to the pod.
    pub(super) back: u64,
}

/// One pod's end, from sample to sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flood {
    last: Sample,
    /// The latest sample that showed a flood; none: no flood is going on.
    seen: Option<Duration>,
}

impl Flood {
    /// Begins with `first`. `is_on`: a flood was going on when the last watch ended.
    pub(super) fn new(first: Sample, is_on: bool) -> Flood {
        Flood {
            last: first,
            seen: is_on.then_some(first.at),
        }
    }

    /// Takes the next sample, and returns whether a flood is going on. It begins with the first sample that shows one,
    /// and ends [`QUIET`] after the last.
    pub(super) fn observe(&mut self, sample: Sample) -> bool {
        if is_flood(self.last, sample) {
            self.seen = Some(sample.at);
        }
        self.last = sample;
        let is_over = |seen: Duration| sample.at.saturating_sub(seen) >= QUIET;
        if self.seen.is_some_and(is_over) {
            self.seen = None;
        }
        self.seen.is_some()
    }
}

/// Whether so many packets came within that time that a flood may go on.
pub(super) fn is_many(packets: u64, within: Duration) -> bool {
    within > Duration::ZERO && packets as f64 > LEAST_RATE * within.as_secs_f64()
}

/// Whether what came between two samples is a flood. Counters that went back are those of another interface: none.
fn is_flood(before: Sample, after: Sample) -> bool {
    let packets = after.packets.saturating_sub(before.packets);
    let bytes = after.bytes.saturating_sub(before.bytes);
    let back = after.back.saturating_sub(before.back);
    is_many(packets, after.at.saturating_sub(before.at))
        && bytes / packets.max(1) < LARGE
        && back.saturating_mul(LEAST_ONE_WAY) < packets
}

/// A flood that pauses this long is over.
pub(super) const QUIET: Duration = Duration::from_millis(100);
/// Packets a second of which a flood has more.
const LEAST_RATE: f64 = 20_000.0;
/// Bytes that a packet of a flood has less of, in the mean.
const LARGE: u64 = 2_000;
/// Of so many packets of a flood less than one comes back.
const LEAST_ONE_WAY: u64 = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    fn after(last: Sample, packets: u64, size: u64, back: u64) -> Sample {
        Sample {
            at: last.at + STEP,
            packets: last.packets + packets,
            bytes: last.bytes + packets * size,
            back: last.back + back,
        }
    }

    #[test]
    fn a_flood_begins_at_once_and_ends_after_a_pause() {
        let mut sample = Sample::default();
        let mut flood = Flood::new(sample, false);
        let mut observe = |packets, size, back| {
            sample = after(sample, packets, size, back);
            flood.observe(sample)
        };
        assert!(!observe(200, 64, 0), "20,000 a second");
        assert!(observe(201, 64, 0));
        for _ in 0..9 {
            assert!(observe(0, 0, 0), "it pauses for less than {QUIET:?}");
        }
        assert!(!observe(0, 0, 0));
        assert!(!observe(5000, 2000, 0), "bulk");
        assert!(!observe(5000, 64, 1250), "a quarter comes back");
        assert!(observe(5000, 1999, 1249));
    }

    #[test]
    fn a_flood_that_a_killed_service_saw_ends_too() {
        let first = Sample::default();
        let mut flood = Flood::new(first, true);
        let soon = after(first, 0, 0, 0);
        assert!(flood.observe(soon));
        let later = Sample { at: QUIET, ..soon };
        assert!(!flood.observe(later));
    }

    proptest! {
        #[test]
        fn a_ping_pong_is_never_a_flood(
            rounds in prop::collection::vec((0u64..1_000_000, 1u64..70_000), 1..50),
        ) {
            let mut sample = Sample::default();
            let mut flood = Flood::new(sample, false);
            for (packets, size) in rounds {
                // At most one is on its way at any moment.
                sample = after(sample, packets, size, packets.saturating_sub(1).max(packets.div_ceil(4)));
                prop_assert!(!flood.observe(sample));
            }
        }

        #[test]
        fn it_changes_no_more_often_than_once_in_a_pause(
            rounds in prop::collection::vec(prop_oneof![Just(0u64), Just(1000)], 1..200),
        ) {
            let mut sample = Sample::default();
            let mut flood = Flood::new(sample, false);
            let (mut is_on, mut last_seen) = (false, None);
            for packets in rounds {
                sample = after(sample, packets, 64, 0);
                if packets > 0 {
                    last_seen = Some(sample.at);
                }
                let now = flood.observe(sample);
                prop_assert!(packets == 0 || now);
                if is_on && !now {
                    let pause = sample.at - last_seen.unwrap();
                    prop_assert!(pause >= QUIET && pause < QUIET + STEP);
                }
                is_on = now;
            }
        }

        #[test]
        fn no_counters_make_it_panic(
            samples in prop::collection::vec(any::<(u32, u64, u64, u64)>(), 1..20),
        ) {
            let mut flood = Flood::new(Sample::default(), false);
            for (at, packets, bytes, back) in samples {
                let at = Duration::from_millis(at.into());
                flood.observe(Sample { at, packets, bytes, back });
            }
        }
    }
}
