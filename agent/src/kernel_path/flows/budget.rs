//! How many proposals are judged.
//!
//! Theory of operation. A judgement costs a question to connection tracking, and a pod proposes as many flows as it opens
//! connections. So there is a bucket of judgements for all pods together, refilled at [`RATE`], and each pod may take
//! more than its own share of it ([`POD_RATE`]) only while more than half of it is left: a pod that floods never takes
//! the half that the others live on. What is not judged stays on the way through the host's stack, and is proposed again
//! by a later packet.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

/// What all pods and each of them may still take.
#[derive(Debug)]
pub(super) struct Budget {
    all: Bucket,
    pods: HashMap<Ipv4Addr, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Judgements, in thousandths.
    left: u64,
    filled: Duration,
}

impl Budget {
    /// A full one, at `now` of any clock that never goes back.
    pub(super) fn new(now: Duration) -> Budget {
        Budget {
            all: Bucket::full(BURST, now),
            pods: HashMap::new(),
        }
    }

    /// Takes a judgement for a flow of `pod`; false where there is none left for it.
    pub(super) fn take(&mut self, pod: Ipv4Addr, now: Duration) -> bool {
        self.all.refill(RATE, BURST, now);
        if !self.all.has(1) {
            return false;
        }
        // A pod that has not taken any for a while has a full share, and needs no entry.
        if self.pods.len() >= MOST_PODS {
            self.pods.retain(|_, share| {
                share.refill(POD_RATE, POD_BURST, now);
                !share.has(POD_BURST)
            });
        }
        let fresh = Bucket::full(POD_BURST, now);
        let share = self.pods.entry(pod).or_insert(fresh);
        share.refill(POD_RATE, POD_BURST, now);
        let is_share = share.has(1);
        if !is_share && !self.all.has(BURST / 2 + 1) {
            return false;
        }
        if is_share {
            share.take();
        }
        self.all.take();
        true
    }
}

impl Bucket {
    fn full(burst: u64, now: Duration) -> Bucket {
        Bucket {
            left: burst * UNIT,
            filled: now,
        }
    }

    fn refill(&mut self, rate: u64, burst: u64, now: Duration) {
        let passed = now.saturating_sub(self.filled);
        let micros = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
        // In whole thousandths, so that no time is lost by rounding.
        let gained = micros.saturating_mul(rate) / (1_000_000 / UNIT);
        if gained > 0 {
            self.left = self.left.saturating_add(gained).min(burst * UNIT);
            self.filled = now;
        }
    }

    fn has(&self, count: u64) -> bool {
        self.left >= count * UNIT
    }

    fn take(&mut self) {
        self.left = self.left.saturating_sub(UNIT);
    }
}

const UNIT: u64 = 1_000;
/// Judgements a second, of all pods together. One costs about 10 µs, so all of them less than a tenth of a core.
pub(super) const RATE: u64 = 8_000;
const BURST: u64 = 800;
/// Judgements a second that a pod has whatever the others do.
pub(super) const POD_RATE: u64 = 500;
const POD_BURST: u64 = 100;
/// Shares kept at most, before those that are full are forgotten: more than a node has pods.
const MOST_PODS: usize = 4_096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 3);

    #[test]
    fn a_flooding_pod_leaves_the_others_their_share() {
        let mut budget = Budget::new(Duration::ZERO);
        let (mut flood, mut other) = (0, 0);
        for micros in (0..1_000_000).step_by(10) {
            let now = Duration::from_micros(micros);
            flood += u64::from(budget.take(POD, now));
            // 400 flows a second, less than a share.
            if micros % 2_500 == 0 {
                other += u64::from(budget.take(OTHER, now));
            }
        }
        assert_eq!(other, 400, "each of them");
        assert!((RATE - 1_000..=RATE + BURST).contains(&flood), "{flood}");
    }

    #[test]
    fn many_pods_do_not_fill_memory() {
        let mut budget = Budget::new(Duration::ZERO);
        for pod in 0..100_000_u32 {
            budget.take(Ipv4Addr::from_bits(pod), Duration::from_millis(pod.into()));
        }
        assert!(budget.pods.len() <= MOST_PODS + 1, "{}", budget.pods.len());
    }

    proptest! {
        #[test]
        fn no_second_has_more_than_rate_and_burst(
            steps in proptest::collection::vec((0..3_000_u64, 0..5_u32), 1..3_000),
        ) {
            let (mut now, mut taken) = (Duration::ZERO, 0);
            let mut budget = Budget::new(now);
            for (micros, pod) in steps {
                now += Duration::from_micros(micros);
                taken += u64::from(budget.take(Ipv4Addr::from_bits(pod), now));
            }
            let most = BURST as f64 + now.as_secs_f64() * RATE as f64 + 1.0;
            prop_assert!(taken as f64 <= most, "{taken} in {now:?}");
        }
    }
}
