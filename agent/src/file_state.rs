//! Detects a change of a file without reading it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The metadata that a write changes. Two writes within one tick of the kernel's clock that keep the size cannot be
/// told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    /// The state of the file at `path`, links followed; `None` if it does not exist.
    pub(crate) fn of(path: &Path) -> Option<FileState> {
        let found = path.metadata().ok()?;
        Some(FileState {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}
