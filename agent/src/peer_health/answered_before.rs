//! Which peers have answered probes, from one run of the agent to the next.
//!
//! Theory of operation. A peer that has never answered may run flannel, and is no problem. Were nothing kept, a new start would
//! take a Tartan node that is dead by then for one of those, and be content. So the names of the peers that answer are
//! kept in `answering-peers.json` of the state directory: one of these that does not answer is `silent`. A name is dropped when
//! the peer runs flannel, as far as is seen, or is no peer any more. A file that is missing or damaged means that nothing is
//! known.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use cni_shim::atomic_file;
use tracing::{debug, warn};

/// The file, and what it has.
#[derive(Debug)]
pub(super) struct AnsweredBefore {
    path: PathBuf,
    written: BTreeSet<String>,
}

impl AnsweredBefore {
    pub(super) fn read(state_dir: &Path) -> AnsweredBefore {
        let path = state_dir.join(NAME);
        let written = match atomic_file::read(&path, MOST_BYTES) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                warn!(
                    "{} is damaged ({error}): which peers answered probes before is not known, and it is written anew",
                    path.display()
                );
                BTreeSet::new()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => {
                warn!(
                    "{} cannot be read ({error}): which peers answered probes before is not known",
                    path.display()
                );
                BTreeSet::new()
            }
        };
        AnsweredBefore { path, written }
    }

    pub(super) fn names(&self) -> &BTreeSet<String> {
        &self.written
    }

    /// Writes the names, where they are others than before. What the disk refuses is tried again by the next call: the last
    /// good state, which lies beside it, is then a problem of `tartan status`.
    pub(super) fn write(&mut self, names: BTreeSet<String>) {
        if names == self.written {
            return;
        }
        let written = serde_json::to_vec(&names)
            .map_err(io::Error::from)
            .and_then(|text| atomic_file::replace(&self.path, &text));
        match written {
            Ok(()) => self.written = names,
            Err(error) => debug!("{}: {error}", self.path.display()),
        }
    }
}

/// Name of the file in the state directory.
const NAME: &str = "answering-peers.json";
/// More than names of nodes take in the longest list that is read.
const MOST_BYTES: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_damage_means_that_nothing_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let names: BTreeSet<String> = ["node2", "node3"].map(str::to_owned).into();
        let mut before = AnsweredBefore::read(directory.path());
        assert!(before.names().is_empty());
        before.write(names.clone());
        assert_eq!(*AnsweredBefore::read(directory.path()).names(), names);
        std::fs::write(directory.path().join(NAME), "[\"node2\"").unwrap();
        let mut damaged = AnsweredBefore::read(directory.path());
        assert!(damaged.names().is_empty());
        damaged.write(names.clone());
        assert_eq!(*AnsweredBefore::read(directory.path()).names(), names);
    }
}
