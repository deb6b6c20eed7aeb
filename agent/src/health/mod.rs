//! flannel's health endpoints (flannel `main.go`, mustRunHealthz), for the probes of Kubernetes.
//!
//! Theory of operation. `/healthz` is 200 as long as the service runs. `/readyz` is 200 while this node carries packets of
//! pods, and otherwise 503 with a line for each reason ([`readiness`]): it is a pure function of the latest view. Every
//! other path is 404.
//!
//! They are answered on a thread of their own, from before the registry is awaited until the service ends, so no probe
//! waits for the control loop. Anyone who reaches the port may ask: a connection lasts 5 s and reads 16 KiB at most, and of
//! more than 64 the oldest is closed for the next ([`connection`]).
//!
//! A port that another process holds does not end the service, as it would end flanneld: that is a [`Problem`], and the
//! port is tried again every 2 s.

mod connection;
mod readiness;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use crate::control::view::View;
use crate::host::tcp_port_holder;
use crate::problems::Problem;
use crate::start_failure;
use connection::Connections;
use readiness::reasons;

/// The thread that answers. Dropping it ends the thread.
#[derive(Debug)]
pub struct Health {
    /// Dropped with this.
    _stop: oneshot::Sender<()>,
    problem: watch::Receiver<Option<Problem>>,
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
    /// Answers on `address`, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses a thread or an event loop. A port that cannot be had is a [`problem`](Health::problem).
    pub fn start(address: SocketAddr, sources: Sources) -> io::Result<Health> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (reported, problem) = watch::channel(None);
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = answer(address, sources, &reported) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name("health".to_owned())
            .spawn(serve)?;
        Ok(Health {
            _stop: stop,
            problem,
        })
    }

    /// Why nothing is answered at this moment.
    pub fn problem(&self) -> Option<Problem> {
        self.problem.borrow().clone()
    }
}

async fn answer(address: SocketAddr, sources: Sources, reported: &watch::Sender<Option<Problem>>) {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                reported.send_replace(None);
                // It goes on for ever: a connection that cannot be accepted is logged and tried again.
                let _ = axum::serve(Connections::of(listener), router(sources.clone())).await;
            }
            Err(error) => {
                let is_taken = error.kind() == io::ErrorKind::AddrInUse;
                reported.send_replace(Some(Problem::HealthPort {
                    address,
                    holder: is_taken.then(|| tcp_port_holder(address)).flatten(),
                    reason: error.to_string(),
                }));
            }
        }
        sleep(RETRY).await;
    }
}

fn router(sources: Sources) -> Router {
    let ready = move || {
        let answer = ready(&sources);
        async { answer }
    };
    Router::new()
        .route("/healthz", any(|| async { RUNNING }))
        .route("/readyz", any(ready))
}

fn ready(sources: &Sources) -> (StatusCode, String) {
    let view = sources.view.borrow().clone();
    let reasons = match view {
        Some(view) => reasons(view.problems.iter().map(|posted| &posted.problem)),
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
const RETRY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
