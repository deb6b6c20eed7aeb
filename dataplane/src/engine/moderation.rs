//! Whether a worker that has emptied its sources pauses for packets to gather, as network cards moderate interrupts.
//!
//! Theory of operation: a worker is faster than most senders, so it reads a flood in batches of a few packets. Each batch
//! costs system calls, a pass through both kernels and a wake-up at the other end; the sender pays too, for waking the
//! worker, or for the cache lines of a queue that is emptied while it is filled. So a worker pauses for a moment when its
//! packets have gone only one way for several batches, several small packets at a time; other threads can use the core.
//! A packet that comes alone never waits, nor does bulk, whose batches are large anyway, nor traffic with replies; but
//! where another worker carries the replies, this one does not see them. After a quiet time the worker starts anew.

use std::time::Duration;

use crate::limits::{
    MODERATION_BYTES, MODERATION_MEMORY, MODERATION_PACKETS, MODERATION_PAUSE, MODERATION_STEPS,
};
use crate::now::Now;
use crate::worker::{Amount, Work};

/// What a worker has learned of its batches.
#[derive(Debug, Default)]
pub(super) struct Moderation {
    /// The direction of the latest packets.
    way: Traffic,
    /// Batches in a row with packets of this direction alone.
    steps: u32,
    /// When the latest of them was.
    latest: Now,
}

/// The direction of the packets of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Traffic {
    #[default]
    Both,
    Out,
    In,
}

impl Moderation {
    /// Takes note of what a step that began `now` has moved. Returns how long to sleep, if no source is ready.
    pub(super) fn learn(&mut self, work: Work, now: Now) -> Duration {
        let (way, amount) = match (work.outbound.packets, work.inbound.packets) {
            (0, 0) => return Duration::ZERO,
            (_, 0) => (Traffic::Out, work.outbound),
            (0, _) => (Traffic::In, work.inbound),
            _ => (Traffic::Both, Amount::default()),
        };
        let was_quiet = now.since(self.latest) > MODERATION_MEMORY;
        if was_quiet || way != self.way || way == Traffic::Both {
            self.steps = 0;
        }
        self.way = way;
        self.latest = now;
        self.steps = self.steps.saturating_add(1);
        let gathers = amount.packets >= MODERATION_PACKETS && amount.bytes <= MODERATION_BYTES;
        if gathers && self.steps > MODERATION_STEPS {
            MODERATION_PAUSE
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Amount = Amount {
        packets: 0,
        bytes: 0,
    };
    const ONE: Amount = Amount {
        packets: 1,
        bytes: 100,
    };
    const SEVERAL: Amount = Amount {
        packets: MODERATION_PACKETS,
        bytes: MODERATION_BYTES,
    };

    fn after(work: impl IntoIterator<Item = (Amount, Amount)>) -> Duration {
        let mut moderation = Moderation::default();
        let steps = work.into_iter().map(|(outbound, inbound)| {
            let work = Work {
                outbound,
                inbound,
                probes: 0,
            };
            moderation.learn(work, Now(0))
        });
        steps.last().unwrap_or_default()
    }

    #[test]
    fn a_flood_is_forgotten_in_a_quiet_time() {
        let after_a_break = |quiet| {
            let mut moderation = Moderation::default();
            let work = Work {
                outbound: SEVERAL,
                ..Work::default()
            };
            let mut now = Now(0);
            for _ in 0..=MODERATION_STEPS {
                now = now.after(MODERATION_MEMORY);
                moderation.learn(work, now);
            }
            // Steps without packets, as of a worker that shows that it is alive, are quiet too.
            moderation.learn(Work::default(), now.after(quiet / 2));
            moderation.learn(work, now.after(quiet))
        };
        assert_eq!(after_a_break(MODERATION_MEMORY), MODERATION_PAUSE);
        assert_eq!(
            after_a_break(MODERATION_MEMORY + Duration::from_nanos(1)),
            Duration::ZERO
        );
    }

    #[test]
    fn a_flood_gathers_either_way() {
        let steps = MODERATION_STEPS as usize;
        assert_eq!(after(vec![(SEVERAL, NONE); steps]), Duration::ZERO);
        assert_eq!(after(vec![(SEVERAL, NONE); steps + 1]), MODERATION_PAUSE);
        assert_eq!(after(vec![(NONE, SEVERAL); steps + 1]), MODERATION_PAUSE);
    }

    #[test]
    fn what_is_answered_never_waits() {
        let exchange = [(SEVERAL, NONE), (NONE, SEVERAL)].repeat(100);
        assert_eq!(after(exchange), Duration::ZERO);
        assert_eq!(after([(SEVERAL, SEVERAL); 100]), Duration::ZERO);
        let flood = std::iter::repeat_n((SEVERAL, NONE), 100);
        let answer = [(NONE, ONE), (SEVERAL, NONE)];
        assert_eq!(after(flood.chain(answer)), Duration::ZERO);
    }

    #[test]
    fn a_packet_that_comes_alone_never_waits() {
        assert_eq!(after([(ONE, NONE); 100]), Duration::ZERO);
        assert_eq!(after([(NONE, ONE); 100]), Duration::ZERO);
    }

    #[test]
    fn bulk_never_waits() {
        let bulk = Amount {
            packets: MODERATION_PACKETS,
            bytes: MODERATION_BYTES + 1,
        };
        assert_eq!(after([(bulk, NONE); 100]), Duration::ZERO);
    }

    #[test]
    fn a_step_without_packets_says_nothing() {
        let flood = std::iter::repeat_n((SEVERAL, NONE), 100);
        let pause = [(NONE, NONE)];
        assert_eq!(after(flood.clone().chain(pause)), Duration::ZERO);
        let again = [(NONE, NONE), (SEVERAL, NONE)];
        assert_eq!(after(flood.chain(again)), MODERATION_PAUSE);
    }
}
