//! The run directory: where it is and what it is called inside.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::{FileAction, FileError};

/// `<root>/run/tartan`, the directory the agent and the plugin meet in.
///
/// `root` is `/` on a node. Several nodes can share one host when each has a
/// root of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// The run directory of the node whose paths hang off `root`.
    pub fn under(root: &Path) -> RunDir {
        RunDir {
            path: root.join("run").join("tartan"),
        }
    }

    /// The one at `path`.
    pub fn at(path: &Path) -> RunDir {
        RunDir {
            path: path.to_owned(),
        }
    }

    /// The directory itself, `<root>/run/tartan`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The agent's stream socket, `tartan.sock`.
    pub fn socket(&self) -> PathBuf {
        self.path.join("tartan.sock")
    }

    /// The agent's stream socket for the plugin alone, `cni.sock`: what other callers do on the other delays no pod. An agent
    /// that is older has none.
    pub fn plugin_socket(&self) -> PathBuf {
        self.path.join("cni.sock")
    }

    /// The directory of attachment records, `attachments/`.
    pub fn attachments(&self) -> PathBuf {
        self.path.join("attachments")
    }

    /// The agent's note about the node, `node.json`.
    pub fn node(&self) -> PathBuf {
        self.path.join("node.json")
    }

    /// Makes the run directory and its `attachments/`, both mode 0700, where
    /// they do not exist. Leaves existing ones as they are.
    ///
    /// # Errors
    /// [`FileAction::MakeDirectory`] with the first directory that could not be made.
    pub fn make(&self) -> Result<(), FileError> {
        if let Some(parent) = self.path.parent() {
            make(parent, 0o755)?;
        }
        make(&self.path, 0o700)?;
        make(&self.attachments(), 0o700)
    }
}

/// Makes one directory and what is missing above it.
fn make(path: &Path, mode: u32) -> Result<(), FileError> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(FileAction::MakeDirectory.failed(path))
}

/// Longest file of it that is read back, bytes: many times what is written.
pub(crate) const LONGEST_FILE: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_path_hangs_off_the_root() {
        let run = RunDir::under(Path::new("/srv/n1"));
        assert_eq!(run.path(), Path::new("/srv/n1/run/tartan"));
        for path in [
            run.socket(),
            run.plugin_socket(),
            run.attachments(),
            run.node(),
        ] {
            assert_eq!(path.parent(), Some(run.path()));
        }
    }

    #[test]
    fn directories_are_private_and_making_them_twice_is_fine() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::under(root.path());
        run.make().unwrap();
        run.make().unwrap();
        for path in [run.path().to_path_buf(), run.attachments()] {
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("run"), b"").unwrap();
        let error = RunDir::under(root.path()).make().unwrap_err();
        assert!(error.to_string().contains("/run"), "{error}");
    }
}
