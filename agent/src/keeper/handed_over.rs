//! Which instances have handed over, kept in the run directory by the agent that has taken over.
//!
//! An agent that has handed over does not ask for it back. It may be started anew in the same container: then it finds its
//! name here, and waits for the lock without asking. Its name goes when it has the lock again. One that was killed and has lost
//! the lock is not noted: a new pod's that crashed is to take over again, and an old pod's takes over once more then.

use std::io;
use std::path::Path;

use cni_shim::atomic_file;
use tracing::warn;

use crate::config::node;

/// Whether the instance has handed over, and has not had the lock since.
pub(super) fn has(run_dir: &Path, instance: &str) -> bool {
    read(run_dir).iter().any(|line| line == instance)
}

/// Notes what has changed hands; only the holder of the lock may. `from` is none where the lock was free.
pub(super) fn note(run_dir: &Path, from: Option<&str>, to: &str) {
    let before = read(run_dir);
    let mut instances = before.clone();
    // What another process says goes into the file.
    let from = from.filter(|name| node::instance(name).is_ok());
    instances.retain(|line| line != to && Some(line.as_str()) != from);
    instances.extend(from.map(str::to_owned));
    let excess = instances.len().saturating_sub(KEPT);
    instances.drain(..excess);
    if instances == before {
        return;
    }
    let text: String = instances.iter().map(|line| format!("{line}\n")).collect();
    if let Err(error) = atomic_file::replace(&run_dir.join(NAME), text.as_bytes()) {
        warn!(%error, "an agent that has handed over would ask for it back, where it is started anew");
    }
}

fn read(run_dir: &Path) -> Vec<String> {
    match atomic_file::read(&run_dir.join(NAME), LONGEST) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            text.lines().map(str::to_owned).collect()
        }
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                warn!(%error, "it is not known which agents have handed over");
            }
            Vec::new()
        }
    }
}

const NAME: &str = "handed-over";
/// The others are of pods that are long gone.
const KEPT: usize = 32;
const LONGEST: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_noted_until_it_has_the_lock_again() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path();
        assert!(!has(run_dir, "a"));
        note(run_dir, None, "a");
        assert!(!run_dir.join(NAME).exists());
        note(run_dir, Some("a"), "b");
        note(run_dir, Some("b"), "c");
        assert_eq!(
            ["a", "b", "c"].map(|name| has(run_dir, name)),
            [true, true, false]
        );
        note(run_dir, None, "a");
        assert_eq!(
            ["a", "b", "c"].map(|name| has(run_dir, name)),
            [false, true, false]
        );
        // What is no name is not kept.
        note(run_dir, Some("x\ny"), "d");
        assert_eq!(
            ["a", "x", "y"].map(|name| has(run_dir, name)),
            [false, false, false]
        );
    }

    #[test]
    fn the_note_is_bounded_and_keeps_the_latest() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..KEPT + 10 {
            let (from, to) = (number.to_string(), (number + 1).to_string());
            note(directory.path(), Some(&from), &to);
        }
        assert_eq!(read(directory.path()).len(), KEPT);
        assert!(has(directory.path(), &(KEPT + 9).to_string()));
        assert!(!has(directory.path(), "0"));
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_no_failure() {
        let directory = tempfile::tempdir().unwrap();
        note(&directory.path().join("none"), Some("a"), "b");
        assert!(!has(&directory.path().join("none"), "a"));
    }
}
