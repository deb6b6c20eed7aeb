//! Whether the clock was set back: what this node wrote last lies in the future. Leases of a registry end, and certificates
//! begin, by the clock.

use std::fs;
use std::time::Duration;

use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::problems::Severity;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("clock");
    let Ok(configuration) = &e.configuration else {
        check.unknown("the state directory is not known");
        return check.done();
    };
    let place = configuration.config.state_dir().join("last-good.json");
    let Ok(written) = fs::metadata(&place).and_then(|file| file.modified()) else {
        check.unknown("no service of this node has written a state yet");
        return check.done();
    };
    match written.duration_since(e.now) {
        Ok(ahead) if ahead > TOLERATED => check.find(
            Finding::new("clock-set-back", "", Severity::Warning)
                .says(format!(
                    "the clock was set back by {} s or more: leases of a registry seem to last longer than they do, and certificates not to be valid yet",
                    ahead.as_secs()
                ))
                .shown_by(format!(
                    "{} was written {} s in the future",
                    place.display(),
                    ahead.as_secs()
                ))
                .remedied_by("let a time service set the clock (`timedatectl`, `chronyc tracking`), then restart the agent"),
        ),
        _ => check.fact("the last state that was written lies in the past"),
    }
    check.done()
}

/// File times are coarse, and clocks are slewed.
const TOLERATED: Duration = Duration::from_secs(5);
