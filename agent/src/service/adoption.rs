//! Callers who wait until the workers use new tables.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::control::Control;
use crate::api::wire::Reply;

/// A caller who waits until every worker uses a version of the tables.
pub(super) struct Waiting {
    version: u64,
    since: Instant,
    answer: oneshot::Sender<Reply>,
}

impl Control {
    /// Answers once every worker uses the tables published last.
    pub(super) fn when_adopted(&mut self, answer: oneshot::Sender<Reply>) {
        let version = self.node.desired.spec.version;
        self.waiting.push(Waiting {
            version,
            since: Instant::now(),
            answer,
        });
        self.settle();
    }

    pub(super) fn settle(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let reply = if self.engine.adopted(waiting.version) {
                Reply::Ok(serde_json::json!({ "snapshot": waiting.version }))
            } else if waiting.since.elapsed() > ADOPTION_PATIENCE {
                Reply::Error("the workers do not take new tables; see the agent's log".to_owned())
            } else {
                self.waiting.push(waiting);
                continue;
            };
            // A caller that has left does not mind.
            let _ = waiting.answer.send(reply);
        }
    }
}

pub(super) const ADOPTION_STEP: Duration = Duration::from_millis(1);
pub(super) const ADOPTION_PATIENCE: Duration = Duration::from_secs(3);
