//! What goes wrong on request: answers that do not come, and answers that are errors.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use tokio::sync::watch;
use tokio::time::Instant;

use super::refusal::{Refusal, answer};

/// The faults of a server.
pub(super) struct Faults {
    /// Until when nothing is answered.
    silent: watch::Sender<Option<Instant>>,
    failures: Mutex<VecDeque<Failure>>,
}

/// Requests that fail, the next ones.
struct Failure {
    code: u16,
    left: usize,
    retry_after: Option<u64>,
}

impl Faults {
    pub(super) fn none() -> Self {
        Faults {
            silent: watch::channel(None).0,
            failures: Mutex::default(),
        }
    }

    /// Nothing is answered, and open watches send nothing, for so long. Connections stay open, new ones are accepted.
    pub(super) fn black_hole(&self, time: Option<Duration>) {
        self.silent
            .send_replace(time.map(|time| Instant::now() + time));
    }

    /// Returns when the server answers.
    pub(super) async fn answering(&self) {
        let mut silent = self.silent.subscribe();
        loop {
            let Some(until) = *silent.borrow_and_update() else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                // The sender lives as long as the server.
                _ = silent.changed() => {}
            }
        }
    }

    /// The next `times` requests for Nodes get this status code.
    pub(super) fn fail(&self, code: u16, times: usize, retry_after: Option<u64>) {
        let mut failures = self.failures();
        failures.retain(|failure| failure.code != code);
        failures.push_back(Failure {
            code,
            left: times,
            retry_after,
        });
    }

    /// The error that this request gets.
    pub(super) fn failure(&self) -> Option<Response> {
        let mut failures = self.failures();
        failures.retain(|failure| failure.left > 0);
        let failure = failures.front_mut()?;
        failure.left -= 1;
        Some(failure.response())
    }

    fn failures(&self) -> MutexGuard<'_, VecDeque<Failure>> {
        self.failures.lock().unwrap()
    }
}

impl Failure {
    fn response(&self) -> Response {
        let refusal = match self.code {
            // The real server says this before it looks at what is asked, without an object.
            429 => {
                let mut response = answer(
                    429,
                    Body::from("Too many requests, please try again later.\n"),
                );
                let text = HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().insert(header::CONTENT_TYPE, text);
                let seconds = HeaderValue::from(self.retry_after.unwrap_or(1));
                response.headers_mut().insert(header::RETRY_AFTER, seconds);
                return response;
            }
            410 => Refusal::expired(),
            500 => Refusal::internal("a fault for a test"),
            503 => Refusal::new(
                503,
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            ),
            code => Refusal::new(code, "", "a fault for a test"),
        };
        refusal.retry_after(self.retry_after).response()
    }
}
