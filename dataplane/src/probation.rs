//! Whether an offload is in use: given up after failures, tried again after a time.
//!
//! Theory of operation: a refusal alone proves nothing, because the kernel refuses a bad packet too, and a remote node
//! could send one. A *failure* of the offload is a packet that was refused with the offload and taken without it.
//! After [`OFFLOAD_FAILURES`] of them within [`OFFLOAD_FAILURE_TIME`], without a success of the offload in between, the
//! worker gives the offload up for [`PROBATION`]. Where the kernel does not support the offload, no success resets the
//! count; where the offload works, traffic resets what a remote node could cause.

use crate::limits::{OFFLOAD_FAILURE_TIME, OFFLOAD_FAILURES, PROBATION};
use crate::now::Now;

/// The state of one offload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probation {
    /// Failures since the last packet that the offload took.
    failures: u32,
    /// When the first of them came.
    since: Now,
    /// Given up until then.
    until: Option<Now>,
}

impl Probation {
    /// Whether the offload is to be used now.
    pub(crate) fn in_use(&mut self, now: Now) -> bool {
        self.until = self.until.filter(|until| now < *until);
        self.until.is_none()
    }

    /// Notes a failure of the offload. Returns whether the offload is given up for it.
    pub(crate) fn note_failure(&mut self, now: Now) -> bool {
        if self.until.is_some() {
            return false;
        }
        if self.failures == 0 || now.since(self.since) > OFFLOAD_FAILURE_TIME {
            (self.failures, self.since) = (0, now);
        }
        self.failures += 1;
        if self.failures < OFFLOAD_FAILURES {
            return false;
        }
        self.failures = 0;
        self.until = Some(now.after(PROBATION));
        true
    }

    /// Notes that a packet was taken by the offload.
    pub(crate) fn note_success(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const START: Now = Now(7);

    #[test]
    fn three_failures_within_a_second_give_it_up_for_a_minute() {
        let mut offload = Probation::default();
        assert!(offload.in_use(START));
        assert!(!offload.note_failure(START));
        assert!(!offload.note_failure(START));
        assert!(offload.in_use(START));
        assert!(offload.note_failure(START.after(OFFLOAD_FAILURE_TIME)));
        let given_up = START.after(OFFLOAD_FAILURE_TIME);
        assert!(!offload.in_use(given_up));
        assert!(!offload.note_failure(given_up), "given up once");
        let last = PROBATION - Duration::from_nanos(1);
        assert!(!offload.in_use(given_up.after(last)));
        assert!(offload.in_use(given_up.after(PROBATION)));
        assert!(
            !offload.note_failure(given_up.after(PROBATION)),
            "a new start"
        );
    }

    #[test]
    fn failures_far_apart_or_between_successes_give_up_nothing() {
        let mut offload = Probation::default();
        for round in 0..100 {
            let now =
                START.after(OFFLOAD_FAILURE_TIME * round + Duration::from_millis(u64::from(round)));
            assert!(!offload.note_failure(now), "round {round}");
        }
        let mut offload = Probation::default();
        for round in 0..100 {
            assert!(!offload.note_failure(START), "round {round}");
            assert!(!offload.note_failure(START), "round {round}");
            offload.note_success();
        }
    }
}
