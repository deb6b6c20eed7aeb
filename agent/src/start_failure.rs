//! Why the service does not start, kept for commands that run while it cannot answer.
//!
//! The keeper holds the API's listener, so callers of an agent whose service fails at every start connect and
//! hear nothing. The last reason therefore lies in words in the run directory. It is there from a failed start
//! until a service forwards or the agent is stopped. Best effort throughout: the log has it too.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::config::text_file;

/// Writes the reason down.
pub fn note(run_dir: &Path, reason: &str) {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(run_dir.join(NAME));
    let written = opened.and_then(|mut file| file.write_all(reason.as_bytes()));
    if let Err(error) = written {
        tracing::debug!(%error, "the reason is in this log alone");
    }
}

/// Takes the reason away: it holds no more.
pub fn forget(run_dir: &Path) {
    // Most often there is none.
    let _ = fs::remove_file(run_dir.join(NAME));
}

/// The reason on record, if there is one.
pub fn read(run_dir: &Path) -> Option<String> {
    let text = text_file::read(&run_dir.join(NAME), LONGEST).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The part of `reason` that says what a service waits for; none where it is no such reason.
pub fn awaited(reason: &str) -> Option<&str> {
    let rest = reason.strip_prefix(WAITS)?;
    Some(rest.trim_start_matches([':', ',', ' ']))
}

/// The beginning of the reason of a service that waits for its registry, and starts as soon as that answers.
pub const WAITS: &str = "it waits for the registry";
const NAME: &str = "start-failure";
/// Longest reason read, in bytes.
const LONGEST: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_read_until_it_is_forgotten_and_the_last_one_counts() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()), None);
        note(directory.path(), "a first and longer reason");
        note(directory.path(), "a second");
        assert_eq!(read(directory.path()).as_deref(), Some("a second"));
        forget(directory.path());
        assert_eq!(read(directory.path()), None);
        forget(directory.path());
    }

    #[test]
    fn nowhere_to_write_is_no_failure_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        note(&directory.path().join("none"), "a reason");
        assert_eq!(read(&directory.path().join("none")), None);
    }
}
