//! Probes that were lost, over one minute and over ten.
//!
//! Outcomes are counted in [`SLOTS`] slots of [`SLOT`]: 120 bytes for a path, whatever happens. The slot that has begun
//! counts, so that "one minute" is the last 50 to 60 s. Beside them is what was counted since the path is known, of which
//! the table makes counters of all paths ([`super::table`]).

use std::time::Duration;

use dataplane::now::Now;

/// Outcomes of probes, by time.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    slots: [Slot; SLOTS],
    /// The number of the latest slot since the clock's origin.
    latest: u64,
    all: Outcomes,
}

/// How many probes were answered, and how many lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Answered in time.
    pub answered: u64,
    /// Not answered in time.
    pub lost: u64,
}

impl Outcomes {
    /// Both together: probes whose outcome is known.
    pub fn sent(&self) -> u64 {
        self.answered.saturating_add(self.lost)
    }

    /// Adds what was counted between two looks at the same path.
    pub(super) fn add(&mut self, before: Outcomes, after: Outcomes) {
        self.answered += after.answered.saturating_sub(before.answered);
        self.lost += after.lost.saturating_sub(before.lost);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    answered: u8,
    lost: u8,
}

impl Default for Loss {
    fn default() -> Loss {
        Loss {
            slots: [Slot::default(); SLOTS],
            latest: 0,
            all: Outcomes::default(),
        }
    }
}

impl Loss {
    /// Counts a probe whose outcome is known now.
    pub(super) fn count(&mut self, is_answered: bool, now: Now) {
        match is_answered {
            true => self.all.answered += 1,
            false => self.all.lost += 1,
        }
        self.advance(now);
        let place = self.latest as usize % SLOTS;
        if let Some(slot) = self.slots.get_mut(place) {
            let count = match is_answered {
                true => &mut slot.answered,
                false => &mut slot.lost,
            };
            *count = count.saturating_add(1);
        }
    }

    /// What was counted since the path is known.
    pub(super) fn all(&self) -> Outcomes {
        self.all
    }

    /// The share of probes that were lost within `window`, 0 to 1; `None` without a probe.
    pub(super) fn share(&self, window: Duration, now: Now) -> Option<f64> {
        let slots = window.as_secs().div_ceil(SLOT.as_secs()).min(SLOTS as u64);
        let current = number(now);
        let (mut lost, mut all) = (0u32, 0u32);
        for back in 0..slots {
            let Some(wanted) = current.checked_sub(back) else {
                break;
            };
            // What lies further back than the ring, or was never reached, has no slot.
            if wanted > self.latest || self.latest - wanted >= SLOTS as u64 {
                continue;
            }
            if let Some(slot) = self.slots.get(wanted as usize % SLOTS) {
                lost += u32::from(slot.lost);
                all += u32::from(slot.lost) + u32::from(slot.answered);
            }
        }
        (all > 0).then(|| f64::from(lost) / f64::from(all))
    }

    /// Empties the slots that began since the last outcome.
    fn advance(&mut self, now: Now) {
        let current = number(now);
        let new = current.saturating_sub(self.latest).min(SLOTS as u64);
        for ahead in 0..new {
            let place = (current - ahead) as usize % SLOTS;
            if let Some(slot) = self.slots.get_mut(place) {
                *slot = Slot::default();
            }
        }
        self.latest = self.latest.max(current);
    }
}

fn number(now: Now) -> u64 {
    now.0 / SLOT.as_nanos() as u64
}

const SLOT: Duration = Duration::from_secs(10);
const SLOTS: usize = 60;
/// What `LOSS` in `tartan peers` is of.
pub(super) const SHORT: Duration = Duration::from_secs(60);
/// The long window.
pub(super) const LONG: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Now {
        Now::default().after(Duration::from_secs(seconds))
    }

    #[test]
    fn what_is_lost_counts_for_its_window() {
        let mut loss = Loss::default();
        assert_eq!(loss.share(SHORT, at(5)), None);
        for second in 0..10 {
            loss.count(second != 3, at(second));
        }
        assert_eq!(loss.share(SHORT, at(9)), Some(0.1));
        for second in 10..70 {
            loss.count(true, at(second));
        }
        assert_eq!(loss.share(SHORT, at(69)), Some(0.0));
        assert_eq!(loss.share(LONG, at(69)), Some(1.0 / 70.0));
        assert_eq!(loss.share(LONG, at(2000)), None);
    }

    proptest! {
        /// The ring gives what a list of all outcomes gives.
        #[test]
        fn the_ring_is_exact(steps in prop::collection::vec((0u64..200, any::<bool>()), 1..100)) {
            let (mut loss, mut all, mut now) = (Loss::default(), Vec::new(), 0);
            for (pause, is_answered) in steps {
                now += pause;
                loss.count(is_answered, at(now));
                all.push((now / 10, is_answered));
                let lost = all.iter().filter(|(_, ok)| !*ok).count() as u64;
                prop_assert_eq!((loss.all().lost, loss.all().sent()), (lost, all.len() as u64));
                for window in [SHORT, LONG] {
                    let first = (now / 10 + 1).saturating_sub(window.as_secs() / 10);
                    let within: Vec<bool> = all.iter().filter(|(slot, _)| *slot >= first).map(|(_, ok)| *ok).collect();
                    let lost = within.iter().filter(|ok| !**ok).count();
                    prop_assert_eq!(loss.share(window, at(now)), Some(lost as f64 / within.len() as f64));
                }
            }
        }
    }
}
