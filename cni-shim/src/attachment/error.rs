//! What can be wrong with a record.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{FileAction, FileError};

/// Why a record could not be read, written, removed, listed or locked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A container id or interface name that cannot be part of a file name.
    #[error("{what} {value:?} cannot be part of a record's name: {rule}")]
    Name {
        /// Which of the two.
        what: &'static str,
        /// The offending value.
        value: String,
        /// What it would have to be.
        rule: &'static str,
    },
    /// The kernel refused to read, write, remove, list or lock a file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is truncated or not ours.
    #[error("{path} is no attachment record: the DEL of its pod clears it, or remove it by hand")]
    Parse {
        /// The file in question.
        path: PathBuf,
        /// Where parsing stopped.
        source: serde_json::Error,
    },
    /// The file is a record of another format.
    #[error("{path} has format {version}, this program knows 1: use the release that wrote it")]
    Version {
        /// The file in question.
        path: PathBuf,
        /// The format it claims.
        version: u32,
    },
    /// The file's name and its content disagree.
    #[error("{path} describes another attachment than its name says: remove it by hand")]
    Misnamed {
        /// The file in question.
        path: PathBuf,
    },
    /// Another call for the same attachment does not end.
    #[error(
        "another call for this attachment has not ended within {} s: {}",
        waited.as_secs(),
        holder_and_remedy(holder.as_deref(), path)
    )]
    AtWork {
        /// Process id and name of the process that took the lock; none when it has
        /// ended and a child of it still holds the lock.
        holder: Option<String>,
        /// The lock file.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
}

fn holder_and_remedy(holder: Option<&str>, path: &Path) -> String {
    match holder {
        Some(holder) => format!("{holder}; see what it waits for, or delete the pod"),
        None => format!(
            "probably an ipam plugin whose caller was killed; see which process has {path} open \
             (`fuser {path}`) and what it waits for, or delete the pod",
            path = path.display()
        ),
    }
}

impl Error {
    /// Whether the record, or the directory of the lock, is simply not there.
    pub fn is_not_found(&self) -> bool {
        let Error::File(FileError { action, source, .. }) = self else {
            return false;
        };
        let looked_for = matches!(action, FileAction::Read | FileAction::Lock);
        looked_for && source.kind() == io::ErrorKind::NotFound
    }
}
