//! How often this node lost its key, and when it may have another.
//!
//! Another program may delete the key each time that it is written, or write another address into it. Followed at once for
//! ever, the first leaves an etcd lease of a day behind each time, and the second drives this node through all subnets of
//! the cluster and strands its pods in each. So a key is replaced [`MOST_LOSSES`] times in [`WITHIN`] at once. After that one
//! that was deleted is written again after a [`PAUSE`], and nothing replaces one that was overwritten: the subnet in force is
//! kept.

use std::collections::VecDeque;
use std::time::Duration;

use dataplane::families::PublicAddresses;
use tokio::time::Instant;

/// The losses of the last ten minutes.
#[derive(Debug, Default)]
pub(super) struct Losses {
    at: VecDeque<Instant>,
    /// The address with which the key was overwritten last; `None` where it was deleted.
    to: Option<PublicAddresses>,
}

impl Losses {
    /// The key was deleted, or overwritten by the node at `to`.
    pub(super) fn note(&mut self, now: Instant, to: Option<PublicAddresses>) {
        self.at.push_back(now);
        self.to = to;
    }

    /// Whether another key may be written.
    ///
    /// # Errors
    /// Why not: one sentence for the operator.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), String> {
        let is_old = |at: &Instant| now.duration_since(*at) > WITHIN;
        while self.at.front().is_some_and(is_old) {
            self.at.pop_front();
        }
        let has_paused = |at: &Instant| now.duration_since(*at) >= PAUSE;
        match self.to {
            _ if self.at.len() <= MOST_LOSSES => Ok(()),
            None if self.at.back().is_none_or(has_paused) => Ok(()),
            None => Err(
                "another program keeps deleting this node's lease, which is written again in a while: stop it"
                    .to_owned(),
            ),
            Some(public) => Err(format!(
                "another node, at {public}, overwrites each lease that this node takes: stop the program that does it; the subnet in force is kept"
            )),
        }
    }
}

const MOST_LOSSES: usize = 3;
const WITHIN: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(15);
