//! What could not be done with a file or a directory, and what to check: one sentence for each action, whatever the file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An action on a file or a directory that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {}", action.remedy())]
pub struct FileError {
    /// What was to be done.
    pub action: FileAction,
    /// The file or directory.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

/// What is done with a file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAction {
    /// Read it, or list it.
    Read,
    /// Write or replace it.
    Write,
    /// Remove or rename it.
    Remove,
    /// Open it and lock it.
    Lock,
    /// Make the directory.
    MakeDirectory,
    /// Make and list the directory.
    UseDirectory,
}

impl FileAction {
    /// The error of this action on `path`, for `map_err`.
    pub fn failed(self, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        move |source| FileError {
            action: self,
            path: path.to_owned(),
            source,
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            FileAction::Read => "check its owner and mode (root, 0600)",
            FileAction::Write => "check free space and that its directory is writable by root",
            FileAction::Remove => "check that its directory is writable by root",
            FileAction::Lock => {
                "check free space, its owner and mode (root, 0600), and that its directory is writable by root"
            }
            FileAction::MakeDirectory => "check that its parent is writable by root",
            FileAction::UseDirectory => "check that it is a directory and writable by root",
        }
    }
}

/// The verb of "cannot …".
impl fmt::Display for FileAction {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            FileAction::Read => "read",
            FileAction::Write => "write",
            FileAction::Remove => "remove",
            FileAction::Lock => "lock",
            FileAction::MakeDirectory => "make the directory",
            FileAction::UseDirectory => "use the directory",
        })
    }
}
