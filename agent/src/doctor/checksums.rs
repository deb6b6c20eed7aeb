//! Datagrams that arrive with a wrong checksum, counted for a second.

use std::time::{Duration, Instant};

use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::node_faults::checksum_errors::{self, ChecksumErrors};

pub(super) async fn check(e: &Examination) -> Check {
    let mut check = Check::new("checksums");
    let (begun, before) = &e.checksum_errors;
    tokio::time::sleep_until((*begun + WATCHED).into()).await;
    let (Ok(before), Ok(now)) = (before, ChecksumErrors::read()) else {
        check.unknown("the kernel's counters of UDP cannot be read");
        return check.done();
    };
    let grown = now.since(*before);
    let lasted = Instant::now().duration_since(*begun).as_millis();
    check.fact(format!(
        "{} datagrams with a wrong checksum and {} others within {lasted} ms; {} since boot",
        grown.wrong, grown.received, now.wrong
    ));
    e.board.deal(&mut check);
    if e.status.is_err()
        && let Some(problem) = checksum_errors::judge(*before, now)
    {
        check.find(Finding::at_start(&problem));
    }
    check.done()
}

/// How long the counters are watched.
const WATCHED: Duration = Duration::from_secs(1);
