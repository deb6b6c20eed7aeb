//! Whether the clock was set back.

use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::node_faults::clock;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("clock");
    e.board.deal(&mut check);
    let Ok(configuration) = &e.configuration else {
        check.unknown("the state directory is not known");
        return check.done();
    };
    let Some((path, written)) = clock::last_written(&configuration.config.state_dir()) else {
        check.unknown("no service of this node has written a state yet");
        return check.done();
    };
    match written.duration_since(e.now) {
        Ok(ahead) if !ahead.is_zero() => check.fact(format!(
            "{} was written {} s in the future",
            path.display(),
            ahead.as_secs()
        )),
        _ => check.fact("the last state that was written lies in the past"),
    }
    if e.status.is_err()
        && let Some(problem) = clock::judge(&path, written, e.now)
    {
        check.find(Finding::at_start(&problem));
    }
    check.done()
}
