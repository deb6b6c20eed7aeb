//! What the node answers over HTTP: flannel's health endpoints (flannel `main.go`, mustRunHealthz), for the probes of
//! Kubernetes, and the metrics ([`crate::metrics`]).
//!
//! Theory of operation. `/healthz` is 200 as long as the service runs. `/readyz` is 200 while this node carries packets of
//! pods, and otherwise 503 with a line for each reason ([`readiness`]): it is a pure function of the latest view. Every
//! other path is 404. `/metrics` has an address of its own, because it tells of every peer and pod: probes come from the
//! node itself, scrapes from elsewhere. Where both addresses are the same, one listener answers all three paths.
//!
//! They are answered on a thread of their own, from before the registry is awaited until the service ends, so no probe
//! waits for the control loop. Anyone who reaches the port may ask: a connection lasts 5 s and reads 16 KiB at most, and of
//! more than 64 the oldest is closed for the next ([`crate::callers`]). The thread, which alone is asked by strangers, changes no
//! file and loads nothing into the kernel ([`confinement`]).
//!
//! A port that another process holds does not end the service, as it would end flanneld: that is a [`Problem`], and the
//! port is tried again every 2 s.

mod confinement;
mod readiness;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::any;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use tracing::warn;

use crate::callers::Connections;
use crate::control::view::View;
use crate::host::tcp_port_holder;
use crate::metrics::{self, Metrics};
use crate::problems::Problem;
use crate::start_failure;
use readiness::reasons;

/// The thread that answers. Dropping it ends the thread.
#[derive(Debug)]
pub struct Health {
    /// Dropped with this.
    _stop: oneshot::Sender<()>,
    /// One for each listener.
    problems: Vec<watch::Receiver<Option<Problem>>>,
}

/// What is answered, and where.
#[derive(Clone, Copy, Debug, Default)]
pub struct Endpoints {
    /// Where `/healthz` and `/readyz` are answered, if at all.
    pub probes: Option<SocketAddr>,
    /// Where `/metrics` is answered, if at all.
    pub metrics: Option<SocketAddr>,
    /// How many peers, and how many pods, have series of their own.
    pub metrics_limit: usize,
}

/// A listener, and what it answers.
#[derive(Clone)]
struct Endpoint {
    address: SocketAddr,
    has_probes: bool,
    metrics: Option<Arc<Metrics>>,
}

/// What the answers are made from.
#[derive(Clone)]
pub struct Sources {
    /// The latest view; none until the service forwards.
    pub view: watch::Receiver<Option<Arc<View>>>,
    /// Where a service notes why it does not start, or what it waits for.
    pub run_dir: PathBuf,
}

impl Health {
    /// Answers at `endpoints`, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses a thread or an event loop. A port that cannot be had is one of the
    /// [`problems`](Health::problems).
    pub fn start(endpoints: Endpoints, sources: Sources) -> io::Result<Health> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(SCRAPING_THREADS)
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let mut problems = Vec::new();
        for endpoint in endpoints.listeners(&sources) {
            let (reported, problem) = watch::channel(None);
            problems.push(problem);
            let sources = sources.clone();
            runtime.spawn(async move { answer(endpoint, sources, &reported).await });
        }
        let serve = move || {
            if let Err(error) = confinement::apply() {
                warn!(%error, "the thread of health endpoints and metrics keeps rights that it does not need");
            }
            // What was spawned runs meanwhile. An error is the end of this too.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name("health".to_owned())
            .spawn(serve)?;
        Ok(Health {
            _stop: stop,
            problems,
        })
    }

    /// Why something is not answered at this moment.
    pub fn problems(&self) -> Vec<Problem> {
        let problems = self.problems.iter();
        problems
            .filter_map(|problem| problem.borrow().clone())
            .collect()
    }
}

impl Endpoints {
    /// One listener for each address.
    fn listeners(&self, sources: &Sources) -> Vec<Endpoint> {
        let metrics = self.metrics.map(|address| {
            let view = sources.view.clone();
            let metrics = Arc::new(Metrics::new(view, is_ready, self.metrics_limit));
            (address, metrics)
        });
        let of_probes = self.probes.map(|address| Endpoint {
            address,
            has_probes: true,
            metrics: metrics
                .as_ref()
                .filter(|(at, _)| *at == address)
                .map(|(_, metrics)| Arc::clone(metrics)),
        });
        let of_metrics = metrics
            .filter(|(address, _)| self.probes != Some(*address))
            .map(|(address, metrics)| Endpoint {
                address,
                has_probes: false,
                metrics: Some(metrics),
            });
        of_probes.into_iter().chain(of_metrics).collect()
    }
}

async fn answer(endpoint: Endpoint, sources: Sources, reported: &watch::Sender<Option<Problem>>) {
    let address = endpoint.address;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                reported.send_replace(None);
                // It goes on for ever: a connection that cannot be accepted is logged and tried again.
                let _ = axum::serve(
                    Connections::of(listener),
                    router(&endpoint, sources.clone()),
                )
                .await;
            }
            Err(error) => {
                let is_taken = error.kind() == io::ErrorKind::AddrInUse;
                let holder = is_taken.then(|| tcp_port_holder(address)).flatten();
                let reason = error.to_string();
                reported.send_replace(Some(match endpoint.has_probes {
                    true => Problem::HealthPort {
                        address,
                        holder,
                        reason,
                    },
                    false => Problem::MetricsPort {
                        address,
                        holder,
                        reason,
                    },
                }));
            }
        }
        sleep(RETRY).await;
    }
}

fn router(endpoint: &Endpoint, sources: Sources) -> Router {
    let ready = move || {
        let answer = ready(&sources);
        async { answer }
    };
    let mut router = Router::new();
    if endpoint.has_probes {
        router = router
            .route("/healthz", any(|| async { RUNNING }))
            .route("/readyz", any(ready));
    }
    if let Some(metrics) = &endpoint.metrics {
        let metrics = Arc::clone(metrics);
        let scrape = move || async move {
            let page = metrics.page().await;
            let page = page.ok_or((StatusCode::SERVICE_UNAVAILABLE, ENDING))?;
            Ok::<_, (StatusCode, &str)>(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page))
        };
        router = router.route("/metrics", any(scrape));
    }
    router
}

/// Whether the node carries its pods' packets.
fn is_ready(view: &View) -> bool {
    reasons_of(view).is_empty()
}

/// Why the node does not carry its pods' packets.
pub(crate) fn reasons_of(view: &View) -> Vec<String> {
    reasons(view.problems.iter().map(|posted| &posted.problem))
}

fn ready(sources: &Sources) -> (StatusCode, String) {
    let view = sources.view.borrow().clone();
    let reasons = match view {
        Some(view) => reasons_of(&view),
        None => {
            let waits = start_failure::read(&sources.run_dir);
            vec![waits.unwrap_or_else(|| STARTING.to_owned())]
        }
    };
    if reasons.is_empty() {
        return (StatusCode::OK, READY.to_owned());
    }
    let text = format!("{NOT_READY}\n{}\n", reasons.join("\n"));
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

/// flannel's words, of both endpoints.
const RUNNING: &str = "flanneld is running";
const READY: &str = "flanneld is ready";
const NOT_READY: &str = "flanneld is not ready yet";
const STARTING: &str = "this node does not forward yet: it is starting";
const ENDING: &str = "the service is ending\n";
/// Pages are made one after the other.
const SCRAPING_THREADS: usize = 1;
const RETRY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
