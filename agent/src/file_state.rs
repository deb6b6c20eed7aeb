//! Detects a change of a file without reading it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

    /// Whether at `now` the last change of content or metadata is longer ago than `rest`. A change that the clock has not
    /// reached yet, because one of them was set, is not.
    pub(crate) fn has_rested(&self, now: SystemTime, rest: Duration) -> bool {
        // Not by the time of modification alone, which any writer may set.
        let (seconds, nanoseconds) = self.modified.max(self.changed);
        let changed = u64::try_from(seconds)
            .ok()
            .zip(u32::try_from(nanoseconds).ok())
            .and_then(|(seconds, nanoseconds)| {
                UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
            });
        changed
            .and_then(|changed| now.duration_since(changed).ok())
            .is_some_and(|age| age > rest)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// The state of a new file, and when it was made as the file system has it.
    fn state_and_time(prepare: impl FnOnce(&File)) -> (FileState, SystemTime) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "text").unwrap();
        prepare(&File::options().write(true).open(&path).unwrap());
        let state = FileState::of(&path).unwrap();
        let (seconds, nanoseconds) = state.changed;
        let changed = Duration::new(
            u64::try_from(seconds).unwrap(),
            u32::try_from(nanoseconds).unwrap(),
        );
        (state, UNIX_EPOCH + changed)
    }

    const REST: Duration = Duration::from_secs(2);

    #[test]
    fn a_file_rests_after_the_time_and_not_before() {
        let (state, changed) = state_and_time(|_| ());
        let just_more = REST + Duration::from_nanos(1);
        assert!(!state.has_rested(changed, REST));
        assert!(!state.has_rested(changed + REST, REST));
        assert!(state.has_rested(changed + just_more, REST));
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_file_old() {
        let (state, changed) = state_and_time(|_| ());
        assert!(!state.has_rested(changed - Duration::from_nanos(1), REST));
        assert!(!state.has_rested(UNIX_EPOCH, REST));
    }

    /// As `cp --preserve` and archives leave it: old content, written a moment ago.
    #[test]
    fn a_time_of_modification_that_was_set_back_does_not_count() {
        let (state, changed) = state_and_time(|file| file.set_modified(UNIX_EPOCH + REST).unwrap());
        assert!(!state.has_rested(changed + REST, REST));
        assert!(state.has_rested(changed + REST * 2, REST));
    }

    #[test]
    fn a_time_of_modification_to_come_counts() {
        let hour = Duration::from_secs(3600);
        let (state, changed) =
            state_and_time(|file| file.set_modified(SystemTime::now() + hour).unwrap());
        assert!(!state.has_rested(changed + REST * 2, REST));
        assert!(state.has_rested(changed + hour * 2, REST));
    }
}
