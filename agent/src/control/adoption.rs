//! Callers who wait until the workers use new tables.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::api::wire::Reply;
use crate::control::event_loop::Control;

/// A caller who waits until every worker uses a version of the tables.
pub(crate) struct Waiting {
    version: u64,
    since: Instant,
    answer: oneshot::Sender<Reply>,
}

impl Control {
    /// Answers once every worker uses the tables published last.
    pub(crate) fn when_adopted(&mut self, answer: oneshot::Sender<Reply>) {
        let version = self.node.desired.spec.version;
        self.waiting.push(Waiting {
            version,
            since: Instant::now(),
            answer,
        });
        self.settle();
    }

    pub(crate) fn settle(&mut self) {
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

/// Until it is worth looking again whether the workers use the tables that `waiting` wait for. A worker that slept is
/// awake in tens of microseconds and a timer goes by milliseconds, so the first looks follow each other at once, with
/// whatever else is due in between.
pub(crate) async fn next_look(waiting: &[Waiting]) {
    if waiting.iter().any(|one| one.since.elapsed() < EAGER) {
        yield_now().await;
    } else {
        sleep(ADOPTION_STEP).await;
    }
}

/// A worker is late then: it has no core, or a long batch.
const EAGER: Duration = Duration::from_micros(500);
const ADOPTION_STEP: Duration = Duration::from_millis(1);
pub(crate) const ADOPTION_PATIENCE: Duration = Duration::from_secs(3);
