//! How many probes a peer, or the node as a whole, may still send: so many a second in the long run, and a few at once
//! when something is to be found out quickly.

use std::time::Duration;

use dataplane::now::Now;

/// The probes that may be sent at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    most: u32,
    /// Thousandths of a probe.
    thousandths: u64,
    at: Now,
}

impl Credit {
    /// All of it: `most` probes.
    pub(super) fn full(most: u32, now: Now) -> Credit {
        Credit {
            most,
            thousandths: u64::from(most) * 1000,
            at: now,
        }
    }

    /// Takes so many, or none where there are fewer. `every`: how long one takes to come back.
    pub(super) fn take(&mut self, probes: usize, every: Duration, now: Now) -> bool {
        self.come_back(every, now);
        let wanted = probes as u64 * 1000;
        let is_there = self.thousandths >= wanted;
        if is_there {
            self.thousandths -= wanted;
        }
        is_there
    }

    /// Whether so many are there; takes none.
    pub(super) fn has(mut self, probes: usize, every: Duration, now: Now) -> bool {
        self.come_back(every, now);
        self.thousandths >= probes as u64 * 1000
    }

    fn come_back(&mut self, every: Duration, now: Now) {
        let passed = now.since(self.at).as_micros() as u64;
        let back = passed.saturating_mul(1000) / (every.as_micros() as u64).max(1);
        // Less than a thousandth is not lost by asking often.
        if back > 0 {
            self.add(back);
            self.at = now;
        }
    }

    /// Puts so many back.
    pub(super) fn give_back(&mut self, probes: usize) {
        self.add(probes as u64 * 1000);
    }

    fn add(&mut self, thousandths: u64) {
        let most = u64::from(self.most) * 1000;
        self.thousandths = self.thousandths.saturating_add(thousandths).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_in_the_long_run() {
        const MOST: u64 = 30;
        let mut credit = Credit::full(MOST as u32, Now::default());
        let mut taken = 0;
        for millis in (0..100_000).step_by(7) {
            let now = Now::default().after(Duration::from_millis(millis));
            taken += u64::from(credit.take(1, Duration::from_secs(1), now));
        }
        assert!((95 + MOST..=100 + MOST).contains(&taken), "{taken}");
        let now = Now::default().after(Duration::from_secs(1000));
        assert!(!credit.has(MOST as usize + 1, Duration::from_secs(1), now));
        assert!(credit.has(MOST as usize, Duration::from_secs(1), now));
        assert!(credit.take(MOST as usize, Duration::from_secs(1), now));
        assert!(!credit.take(1, Duration::from_secs(1), now));
    }
}
