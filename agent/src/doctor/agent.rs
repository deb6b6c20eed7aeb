//! Whether the agent answers, and how it has run.

use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::causes::causes;
use crate::problems::Severity;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("agent");
    match &e.status {
        Ok(status) => {
            let restarts = match (status.restarts, &status.last_end) {
                (0, _) => "never restarted".to_owned(),
                (restarts, None) => format!("restarted {restarts} times"),
                (restarts, Some(end)) => {
                    format!("restarted {restarts} times: the one before {end}")
                }
            };
            check.fact(format!(
                "process {} of version {}, up {} s, {restarts}",
                status.service_pid, status.version, status.uptime
            ));
            if status.version != env!("CARGO_PKG_VERSION") {
                check.fact(format!(
                    "this program is of version {}",
                    env!("CARGO_PKG_VERSION")
                ));
            }
        }
        Err(error) => check.find(
            Finding::new(NOT_RUNNING, "", Severity::Error)
                .says(causes(error))
                .shown_by(format!("what asking its socket came to: {}", error.code()))
                .remedied_by(error.remedy()),
        ),
    }
    e.board.deal(&mut check);
    check.done()
}

/// The code of the finding that no agent answers.
pub const NOT_RUNNING: &str = "agent-not-running";
