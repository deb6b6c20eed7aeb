//! Which flows may have an entry.
//!
//! Theory of operation. The kernel announces every connection that it forgets, and most never had an entry: to ask the
//! tables for each direction of each would take three quarters of the flow thread's time where connections are short. So
//! the thread notes what it installs, one bit by a hash of the flow, and asks for nothing else (in its first seconds, while flows
//! of another service are left, for all). A bit may be another
//! flow's; then it asks in vain. An entry that is not installed again ends after [`LIFETIME`], so a bit may go after that:
//! two tables of bits take turns, and memory does not grow with flows.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use dataplane::drops::Direction;
use dataplane::kernel_path::FlowKey;

use super::policy::LIFETIME;

/// What was installed since the last turn, and between that and the one before.
#[derive(Debug)]
pub(super) struct Noted {
    current: Box<[u64]>,
    previous: Box<[u64]>,
    /// The last turn.
    turned: Duration,
    /// Pods choose ports: without a key of its own they could choose what collides.
    hashing: RandomState,
}

impl Noted {
    /// Nothing, at `now` of any clock that never goes back.
    pub(super) fn new(now: Duration) -> Noted {
        Noted {
            current: nothing(),
            previous: nothing(),
            turned: now,
            hashing: RandomState::new(),
        }
    }

    /// Notes a flow that is installed at `now`.
    pub(super) fn note(&mut self, direction: Direction, key: &FlowKey, now: Duration) {
        let passed = now.saturating_sub(self.turned);
        if passed >= LIFETIME {
            std::mem::swap(&mut self.current, &mut self.previous);
            self.current.fill(0);
            if passed >= 2 * LIFETIME {
                self.previous.fill(0);
            }
            self.turned = now;
        }
        let (word, bit) = self.place(direction, key);
        if let Some(word) = self.current.get_mut(word) {
            *word |= bit;
        }
    }

    /// Whether the flow may have an entry that holds and was installed by this thread. False only where it has none.
    pub(super) fn may_have(&self, direction: Direction, key: &FlowKey) -> bool {
        let (word, bit) = self.place(direction, key);
        let words = [self.current.get(word), self.previous.get(word)];
        words.into_iter().flatten().any(|word| word & bit != 0)
    }

    fn place(&self, direction: Direction, key: &FlowKey) -> (usize, u64) {
        let hash = self.hashing.hash_one((direction, key));
        // Truncation is what is wanted.
        let word = (hash >> 6) as usize % WORDS;
        (word, 1 << (hash % 64))
    }
}

fn nothing() -> Box<[u64]> {
    vec![0; WORDS].into_boxed_slice()
}

/// 1,048,576 bits, 128 KiB in each of the two: with 100,000 flows installed in [`LIFETIME`], one in eleven to one in six that
/// have no entry finds a bit of another.
const WORDS: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source_port: u16) -> FlowKey {
        FlowKey {
            source: [10, 244, 1, 2].into(),
            destination: [10, 244, 2, 2].into(),
            source_port,
            destination_port: 80,
            protocol: 6,
        }
    }

    /// How many of 10,000 flows may have an entry.
    fn found(noted: &Noted) -> usize {
        let keys = (0..10_000).map(key);
        keys.filter(|key| noted.may_have(Direction::Outbound, key))
            .count()
    }

    #[test]
    fn what_is_installed_is_noted_until_its_entry_has_ended() {
        let start = Duration::from_secs(1_000);
        let mut noted = Noted::new(start);
        assert_eq!(found(&noted), 0);
        // At every second of three lives: each is known for a life, and not for ever.
        for second in 0..180_u16 {
            let now = start + Duration::from_secs(second.into());
            noted.note(Direction::Outbound, &key(second), now);
            let alive = u64::from(second).min(LIFETIME.as_secs() - 1);
            for age in 0..=u16::try_from(alive).unwrap() {
                assert!(noted.may_have(Direction::Outbound, &key(second - age)));
            }
        }
        let (old, other) = (0..30, 120..180);
        let has = |numbers: std::ops::Range<u16>| {
            let keys = numbers.map(key);
            keys.filter(|key| noted.may_have(Direction::Outbound, key))
                .count()
        };
        assert_eq!(has(other), 60);
        assert!(has(old) <= 2, "of a life before");
        assert!(found(&noted) < 140, "{} of 10,000", found(&noted));
    }

    #[test]
    fn each_direction_is_a_flow_of_its_own() {
        let mut noted = Noted::new(Duration::ZERO);
        for port in 0..100 {
            noted.note(Direction::Outbound, &key(port), Duration::ZERO);
        }
        let keys = (0..100).map(key);
        let wrong = keys.filter(|key| noted.may_have(Direction::Inbound, key));
        assert!(wrong.count() <= 3);
    }

    #[test]
    fn after_a_long_silence_nothing_is_known() {
        let mut noted = Noted::new(Duration::ZERO);
        for port in 0..1_000 {
            noted.note(Direction::Outbound, &key(port), Duration::ZERO);
        }
        noted.note(Direction::Outbound, &key(9_999), 2 * LIFETIME);
        assert!(found(&noted) <= 5, "{} of 10,000", found(&noted));
        assert!(noted.may_have(Direction::Outbound, &key(9_999)));
    }
}
