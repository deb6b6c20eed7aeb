//! Whether a file is still the one that was seen, without reading it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What of a file changes when somebody writes it. Two writings within a tick of the kernel's clock that leave it as long
/// as it was look like one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    /// The state of the file that the path leads to; `None` where there is none.
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
