//! The kernel path: off as configured, in use, or given up.

use super::examination::Examination;
use super::finding::Check;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("kernel-path");
    match (&e.status, &e.configuration) {
        (Ok(status), _) => {
            let path = &status.kernel_path;
            check.fact(match (path.in_use, &path.reason) {
                (true, _) => format!(
                    "{} in use, {} programs attached, tables version {}",
                    path.mode,
                    path.programs.len(),
                    path.tables
                ),
                (false, _) if matches!(&path.mode[..], "" | "off") => {
                    "off, as configured".to_owned()
                }
                (false, Some(reason)) => format!("{} not in use: {reason}", path.mode),
                (false, None) => format!("{} not in use yet", path.mode),
            });
            if path.in_use && path.tables != status.snapshot {
                check.fact(format!(
                    "user space is at version {}; until the programs follow, they pass on what they do not know",
                    status.snapshot
                ));
            }
        }
        (Err(_), Ok(configuration)) => check.fact(format!(
            "configured: {}",
            configuration.config.kernel_path.word()
        )),
        (Err(_), Err(_)) => check.unknown("the configuration cannot be used"),
    }
    e.board.deal(&mut check);
    check.done()
}
