//! What the flow thread counts, for `tartan status`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::refusal::Refusal;
use super::revoke::Cause;

/// Counters of the flow thread, readable from any other.
#[derive(Debug, Default)]
pub struct FlowCounts {
    proposed: AtomicU64,
    installed: AtomicU64,
    extended: AtomicU64,
    ended: AtomicU64,
    pods: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
    epochs: [AtomicU64; Cause::ALL.len()],
}

/// The same as numbers, since the thread started. A flow is one direction of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTotals {
    /// Proposals of the programs that were read.
    pub proposed: u64,
    /// Flows that were installed: each time one changed from the host's stack to the short path.
    pub installed: u64,
    /// Live flows that were checked again and go on.
    pub extended: u64,
    /// Entries removed because connection tracking forgot the connection.
    pub ended: u64,
    /// Pods all of whose flows were revoked at once because their interface went.
    pub pods_revoked: u64,
    /// Proposals refused, by reason; every reason, in the order of [`Refusal::ALL`].
    pub refused: Vec<(Refusal, u64)>,
    /// How often all flows were revoked at once, by cause; every cause, in the order of [`Cause::ALL`].
    pub revoked: Vec<(Cause, u64)>,
}

impl FlowCounts {
    /// Reads all of them. Each is exact; they are not of one moment.
    pub fn read(&self) -> FlowTotals {
        let read = |count: &AtomicU64| count.load(Relaxed);
        FlowTotals {
            proposed: read(&self.proposed),
            installed: read(&self.installed),
            extended: read(&self.extended),
            ended: read(&self.ended),
            pods_revoked: read(&self.pods),
            refused: Refusal::ALL
                .into_iter()
                .zip(self.refused.iter().map(read))
                .collect(),
            revoked: Cause::ALL
                .into_iter()
                .zip(self.epochs.iter().map(read))
                .collect(),
        }
    }

    pub(super) fn propose(&self) {
        self.proposed.fetch_add(1, Relaxed);
    }

    pub(super) fn install(&self, is_new: bool) {
        let count = if is_new {
            &self.installed
        } else {
            &self.extended
        };
        count.fetch_add(1, Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Relaxed);
    }

    pub(super) fn revoke_pod(&self) {
        self.pods.fetch_add(1, Relaxed);
    }

    pub(super) fn refuse(&self, refusal: Refusal) {
        if let Some(count) = self.refused.get(refusal as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn revoke_all(&self, cause: Cause) {
        if let Some(count) = self.epochs.get(cause as usize) {
            count.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_and_cause_has_a_count_of_its_own() {
        let counts = FlowCounts::default();
        for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, index);
            (0..=index).for_each(|_| counts.refuse(refusal));
        }
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
            (0..=index).for_each(|_| counts.revoke_all(cause));
        }
        let totals = counts.read();
        for (index, (refusal, count)) in totals.refused.into_iter().enumerate() {
            assert_eq!((refusal as usize, count), (index, index as u64 + 1));
        }
        for (index, (cause, count)) in totals.revoked.into_iter().enumerate() {
            assert_eq!((cause as usize, count), (index, index as u64 + 1));
        }
    }
}
