//! The workers' tables: published, adopted, and the callers who wait for that.
//!
//! Theory of operation. [`Tables::publish`] hands a spec to the engine, which never waits for a worker. A caller whose
//! answer means "the workers forward by this" waits in a list, with the version that it needs; [`Tables::settle`] answers
//! those whose version every worker has adopted. A worker that slept is awake in tens of microseconds and a timer goes by
//! milliseconds, so [`Tables::next_settle`] returns at once at first, and lets whatever else is due run in between.

use std::time::{Duration, Instant};

use dataplane::counters::Counters;
use dataplane::engine::{Engine, Notice};
use dataplane::spec::Spec;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::sleep;
use tracing::{info, warn};

use super::refused_sources::RefusedSources;
use crate::api::wire::Reply;
use crate::control::view::offloads::{given_up, in_use};
use crate::problems::Problem;

/// The engine, and who waits for it.
pub struct Tables {
    /// The workers.
    pub engine: Engine,
    /// Their counters.
    pub counters: Counters,
    /// Outer sources that they refused and that could be accepted.
    pub refused_sources: RefusedSources,
    /// When a spec was published last.
    published: Instant,
    waiting: Vec<Waiting>,
    offloads_given_up: u64,
}

/// A caller who waits until every worker uses a version of the tables.
struct Waiting {
    version: u64,
    since: Instant,
    answer: oneshot::Sender<Reply>,
}

impl Tables {
    /// The tables of an engine that has just started.
    pub fn new(engine: Engine, counters: Counters) -> Tables {
        Tables {
            engine,
            offloads_given_up: given_up(&counters.read()),
            counters,
            refused_sources: RefusedSources::default(),
            published: Instant::now(),
            waiting: Vec::new(),
        }
    }

    /// Hands tables to the workers.
    pub fn publish(&mut self, spec: &Spec) {
        self.engine.publish(spec);
        self.published = Instant::now();
        info!(
            version = spec.version,
            peers = spec.cluster.peers.len(),
            "tables published"
        );
    }

    /// Answers the caller once every worker uses the tables of `version`.
    pub fn answer_when_adopted(&mut self, version: u64, answer: oneshot::Sender<Reply>) {
        self.waiting.push(Waiting {
            version,
            since: Instant::now(),
            answer,
        });
        self.settle();
    }

    /// Answers the callers whose tables every worker uses, and those who have waited too long.
    pub fn settle(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let reply = if self.engine.adopted(waiting.version) {
                Reply::Ok(serde_json::json!({ "snapshot": waiting.version }))
            } else if waiting.since.elapsed() > ADOPTION_PATIENCE {
                Reply::Error("the workers do not adopt new tables; see the agent's log".to_owned())
            } else {
                self.waiting.push(waiting);
                continue;
            };
            // The caller may have disconnected.
            let _ = waiting.answer.send(reply);
        }
    }

    /// Whether any caller waits.
    pub fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Waits until [`settle`](Tables::settle) is worth another call. Dropping the future loses nothing.
    pub async fn next_settle(&self) {
        if self.waiting.iter().any(|one| one.since.elapsed() < EAGER) {
            yield_now().await;
        } else {
            sleep(ADOPTION_STEP).await;
        }
    }

    /// Why the workers are behind `version`, the latest, if they are.
    pub fn behind(&self, version: u64) -> Option<Problem> {
        let is_late = self.published.elapsed() > ADOPTION_PATIENCE && !self.engine.adopted(version);
        is_late.then_some(Problem::WorkersBehind { version })
    }

    /// Takes note of what the workers noticed: refused sources, and offloads that the kernel refused. Frees the tables that
    /// no worker uses any more.
    pub fn take_notices(&mut self) {
        self.engine.free_retired();
        for notice in self.engine.notices() {
            match notice {
                Notice::RefusedSource {
                    outer,
                    inner,
                    owner,
                } => self.refused_sources.note(outer, inner, owner),
                Notice::OtherVni { peer, vni } => self.refused_sources.note_vni(peer, vni),
            }
        }
        let snapshot = self.engine.snapshot();
        self.refused_sources
            .forget(|source| snapshot.cluster.peers.by_source(source).is_some());
        let totals = self.counters.read();
        let times = given_up(&totals);
        if times > self.offloads_given_up {
            let left = in_use(&totals).join(", ");
            warn!("the kernel refuses an offload; it is tried again in a minute. In use: {left}");
        }
        self.offloads_given_up = times;
    }
}

/// A worker is late then: it has no core, or a long batch.
const EAGER: Duration = Duration::from_micros(500);
const ADOPTION_STEP: Duration = Duration::from_millis(1);
const ADOPTION_PATIENCE: Duration = Duration::from_secs(3);
