//! Answers to queries, on a thread of their own.
//!
//! Theory of operation. [`QueryService`] is one thread with its own event loop and its own netlink socket: it accepts the
//! callers of the API, reads their requests, and answers queries from the latest view. What an answer takes long to
//! compute (a list of 5,000 peers takes milliseconds) is computed on a further thread, so that a plugin's call that comes
//! in between is passed on at once. Only [changes](is_change) go to the control loop.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dataplane::capture::Captures;
use dataplane::counters::{Counters, Flow, Totals};
use dataplane::engine::Clock;
use dataplane::heavy_flows::FlowWatch;
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{debug, error};

use super::View;
use super::drops::KernelCounts;
use super::top::{Counted, clock};
use crate::api::server::{self, Call, Listeners};
use crate::api::wire::{Readiness, Reply, Request};
use crate::capture;
use crate::causes::causes;
use crate::health;
use crate::host::{KernelReader, PodDrops};
use crate::problems::Problem;
use crate::trace::Tracer;

/// What queries are answered from, and where changes go.
#[derive(Clone)]
pub struct Queries {
    /// The latest view; none before the loop's first turn.
    pub view: watch::Receiver<Option<Arc<View>>>,
    /// The workers' counters.
    pub counters: Counters,
    /// The workers' clock.
    pub clock: Clock,
    /// What the workers count of flows while something watches.
    pub flows: FlowWatch,
    /// Starts captures of packets.
    pub captures: Captures,
    /// Calls that change something, for the control loop.
    pub changes: mpsc::Sender<Call>,
}

/// The thread that answers. Dropping it ends the thread.
#[derive(Debug)]
pub struct QueryService {
    stop: oneshot::Sender<()>,
}

impl QueryService {
    /// Starts to answer the callers of both sockets, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses a thread or an event loop.
    pub fn start(listeners: Listeners, queries: Queries) -> io::Result<QueryService> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(ANSWERING_THREADS)
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || {
            let serving = runtime.block_on(async {
                tokio::select! {
                    served = queries.serve(listeners) => served,
                    _ = stopped => Ok(()),
                }
            });
            if let Err(error) = serving {
                error!("{}", causes(&error));
            }
            // A query that is being answered is not waited for.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("api".to_owned()).spawn(serve)?;
        Ok(QueryService { stop })
    }

    /// Whether the thread still answers.
    pub fn is_running(&self) -> bool {
        !self.stop.is_closed()
    }
}

impl Queries {
    async fn serve(self, listeners: Listeners) -> Result<(), server::ServerError> {
        let kernel = match KernelReader::open() {
            Ok(kernel) => Some(Arc::new(kernel)),
            Err(error) => {
                error!("{}", causes(&error));
                None
            }
        };
        let (sender, mut calls) = mpsc::channel::<Call>(CALLS);
        let dispatch = async {
            while let Some(call) = calls.recv().await {
                if let Request::Upgrade { .. } | Request::HandOver { .. } = call.request {
                    let changes = self.changes.clone();
                    tokio::spawn(async move { changes.send(call).await });
                } else if let Some(connection) = call.connection {
                    let (views, captures) = (self.view.clone(), self.captures.clone());
                    capture::serve(connection, call.request, views, captures);
                } else if is_change(&call.request) {
                    // The loop bounds what waits for it; a caller that finds it full waits in its own task.
                    let changes = self.changes.clone();
                    tokio::spawn(async move { changes.send(call).await });
                } else {
                    let (queries, kernel) = (self.clone(), kernel.clone());
                    tokio::spawn(async move {
                        let reply = queries.answer(&call.request, kernel.as_deref()).await;
                        // The caller may have disconnected.
                        let _ = call.answer.send(reply);
                    });
                }
            }
            Ok(())
        };
        tokio::select! {
            served = server::serve_both(listeners, sender) => served,
            done = dispatch => done,
        }
    }

    /// The answer to a query.
    async fn answer(&self, request: &Request, kernel: Option<&KernelReader>) -> Reply {
        let mut views = self.view.clone();
        let view = match views.wait_for(Option::is_some).await {
            Ok(view) => view.clone(),
            Err(_) => None,
        };
        let Some(view) = view else {
            return stopping();
        };
        match request {
            Request::Status => {
                let totals = self.quiet_totals().await;
                let device = device_stats(&view, kernel).await;
                compute(move || view.status(&totals, device.map(|stats| stats.queue))).await
            }
            Request::Peers => {
                let now = self.clock.now();
                compute(move || view.peers(now)).await
            }
            Request::Routes => compute(move || view.routes()).await,
            Request::Pods => {
                let links = match kernel {
                    Some(kernel) => kernel.pod_links().await.unwrap_or_default(),
                    None => Default::default(),
                };
                compute(move || view.pods(&links)).await
            }
            Request::Drops => {
                let totals = self.quiet_totals().await;
                let counts = KernelCounts {
                    device: device_stats(&view, kernel).await,
                    pods: pod_drops(kernel).await,
                    lost_routes: lost_routes(kernel).await,
                };
                compute(move || view.drops(&totals, counts)).await
            }
            Request::Top { flows } => self.top(view, kernel, (*flows).min(MOST_FLOWS)).await,
            Request::Trace { .. } => self.trace(view, kernel, request).await,
            Request::Reports { peers } => match view.reports(peers).await {
                Ok(reports) => value(&reports),
                Err(reason) => Reply::Error(reason),
            },
            Request::Ready => readiness(&view),
            Request::Adopt { .. } | Request::Release { .. } | Request::AdoptList => {
                Reply::Error("a change is no query".to_owned())
            }
            Request::Capture { .. } | Request::Upgrade { .. } | Request::HandOver { .. } => {
                Reply::Error("this needs a connection of its own".to_owned())
            }
        }
    }

    async fn trace(
        &self,
        view: Arc<View>,
        kernel: Option<&KernelReader>,
        request: &Request,
    ) -> Reply {
        let Some(kernel) = kernel else {
            return Reply::Error(
                "the kernel gives no netlink socket; see the agent's log".to_owned(),
            );
        };
        let tracer = Tracer {
            view,
            kernel,
            counters: &self.counters,
            clock: self.clock,
        };
        match tracer.trace(request).await {
            Ok(trace) => value(&trace),
            Err(reason) => Reply::Error(reason),
        }
    }

    async fn top(&self, view: Arc<View>, kernel: Option<&KernelReader>, flows: usize) -> Reply {
        if flows > 0 {
            self.flows.watch();
        }
        let links = match kernel {
            Some(kernel) => kernel.pod_links().await.unwrap_or_default(),
            None => Default::default(),
        };
        let kernel = KernelCounts {
            device: device_stats(&view, kernel).await,
            pods: pod_drops(kernel).await,
            lost_routes: lost_routes(kernel).await,
        };
        let (totals, at) = (self.quiet_totals().await, clock());
        let (watch, clock) = (self.flows.clone(), self.clock);
        let counted = move || Counted {
            clock: at,
            totals,
            kernel,
            links,
            flows: if flows > 0 {
                watch.read(flows)
            } else {
                Vec::new()
            },
            now: clock.now(),
        };
        compute(move || view.top(counted())).await
    }

    /// The counters at a moment when no packet is between two of them, if one comes soon. The words are read
    /// one after the other while a worker writes, so under load the law may seem off by what is in flight.
    async fn quiet_totals(&self) -> Totals {
        let mut totals = self.counters.read();
        for _ in 0..QUIET_TRIES {
            let off = |flow: &Flow| flow.balance() != 0;
            let mut workers = totals.workers.iter();
            if totals.in_rings == 0 && !workers.any(|w| off(&w.outbound) || off(&w.inbound)) {
                break;
            }
            sleep(QUIET_STEP).await;
            totals = self.counters.read();
        }
        totals
    }
}

/// Whether a request changes something, and so is the control loop's.
const fn is_change(request: &Request) -> bool {
    matches!(
        request,
        Request::Adopt { .. } | Request::Release { .. } | Request::AdoptList
    )
}

/// Whether an attachment would be delivered to.
fn readiness(view: &View) -> Reply {
    let is_behind = |problem: &Problem| matches!(problem, Problem::WorkersBehind { .. });
    let mut problems = view.problems.iter().map(|posted| &posted.problem);
    match problems.find(|problem| is_behind(problem)) {
        Some(problem) => Reply::Error(problem.to_string()),
        None => value(&Readiness {
            attachments: view.attachments.len(),
            instance: view.service.config.instance.clone(),
            not_ready: health::reasons_of(view),
        }),
    }
}

fn stopping() -> Reply {
    Reply::Error("the agent is stopping; try again".to_owned())
}

/// Computes an answer where it delays nothing else.
async fn compute<T: Serialize>(answer: impl FnOnce() -> T + Send + 'static) -> Reply {
    let computed = spawn_blocking(move || value(&answer())).await;
    computed.unwrap_or_else(|_| stopping())
}

async fn device_stats(
    view: &View,
    kernel: Option<&KernelReader>,
) -> Option<crate::host::LinkStats> {
    let device = &view.service.config.device_name;
    let stats = kernel?.device_stats(device).await;
    stats
        .inspect_err(|error| debug!("no counters of {device}: {}", causes(error)))
        .ok()
}

async fn pod_drops(kernel: Option<&KernelReader>) -> Option<PodDrops> {
    let count = kernel?.pod_drops().await;
    count
        .inspect_err(|error| debug!("no counters of what pods forge: {}", causes(error)))
        .ok()
        .flatten()
}

async fn lost_routes(kernel: Option<&KernelReader>) -> Option<u64> {
    let count = kernel?.lost_routes().await;
    count
        .inspect_err(|error| debug!("no counter of lost routes: {}", causes(error)))
        .ok()
        .flatten()
}

fn value<T: Serialize>(answer: &T) -> Reply {
    match serde_json::to_value(answer) {
        Ok(value) => Reply::Ok(value),
        Err(error) => Reply::Error(format!("the answer cannot be written as JSON: {error}")),
    }
}

/// Flows of one answer.
const MOST_FLOWS: usize = 1_000;
/// Requests that were read and are not yet passed on.
const CALLS: usize = 32;
const ANSWERING_THREADS: usize = 2;
const QUIET_TRIES: usize = 5;
const QUIET_STEP: Duration = Duration::from_millis(1);
