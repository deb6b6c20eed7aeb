//! Whole files: each replacement is a rename, so a reader sees the old file or the new one, and each is read like
//! hostile input.
//!
//! Theory of operation. The new content goes to a temporary file, `.PID.NAME.new`, which is renamed to NAME when it is
//! complete. The name starts with a dot and bears our process id, so two writers never share one, and no container
//! runtime reads a configuration that ends in `.new`. After an error the old file is there as it was, and no temporary
//! file. A writer that is killed leaves its temporary file: the next synced replacement of the same file, [`sweep`], or
//! [`remove_temporaries`] removes it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

/// How one file is replaced.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'a> {
    path: &'a Path,
    /// Where the temporary file lies.
    directory: &'a Path,
    mode: u32,
    synced: bool,
}

/// Replaces the file at `path`, with mode 0600.
///
/// The new file outlives its writer, not the machine: this is for the run directory, which a power loss empties as it
/// ends the pods. Nothing is synced: that costs milliseconds where the directory lies on a disk after all, and there a
/// power loss may leave records that cannot be read.
///
/// # Errors
/// `InvalidInput` for a path without a file name; what the system calls give.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Replacement::of(path).write(bytes)
}

/// Replaces the file at `path`, with mode 0600, so that the new one outlives the machine ([`Replacement::synced`]).
/// Makes the directory where it is missing, with mode 0700.
///
/// # Errors
/// As of [`replace`].
pub fn replace_for_good(path: &Path, bytes: &[u8]) -> io::Result<()> {
    make_directory(path, 0o700)?;
    Replacement::of(path).synced().write(bytes)
}

/// Makes the directory of the file at `path`, and those above it, with `mode` where they are missing.
///
/// # Errors
/// As of [`replace`].
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory)
}

impl<'a> Replacement<'a> {
    /// Of the file at `path`: mode 0600, not synced, the temporary file beside it.
    pub fn of(path: &'a Path) -> Replacement<'a> {
        Replacement {
            path,
            directory: path.parent().unwrap_or(Path::new("/")),
            mode: 0o600,
            synced: false,
        }
    }

    /// With this mode, whatever the umask is.
    pub fn mode(self, mode: u32) -> Replacement<'a> {
        Replacement { mode, ..self }
    }

    /// Synced: the file before it is renamed, its directory afterwards. Removes the temporary files of killed writers
    /// first, so only one process at a time should write: another one that writes now fails at its rename.
    pub fn synced(self) -> Replacement<'a> {
        let synced = true;
        Replacement { synced, ..self }
    }

    /// With the temporary file in `directory`, which must be of the same file system.
    pub fn from_directory(self, directory: &'a Path) -> Replacement<'a> {
        Replacement { directory, ..self }
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// As of [`replace`].
    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        self.write_checked(bytes, |_| Ok(()))
    }

    /// Replaces the file if `check` accepts the complete temporary file, which is closed by then.
    ///
    /// # Errors
    /// As of [`replace`], and the check's.
    pub fn write_checked(
        self,
        bytes: &[u8],
        check: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        self.put(|temporary| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(self.mode)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(temporary)?;
            file.set_permissions(Permissions::from_mode(self.mode))?;
            file.write_all(bytes)?;
            if self.synced {
                file.sync_all()?;
            }
            drop(file);
            check(temporary)
        })
    }

    /// Renames what `make` makes at the path that it is given, and returns what it returns.
    pub(crate) fn put<T>(self, make: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let name = self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        if self.synced {
            remove_temporaries(self.path, self.directory);
        }
        let mut temporary = OsString::from(format!(".{}.", std::process::id()));
        temporary.push(name);
        temporary.push(SUFFIX);
        let temporary = self.directory.join(temporary);
        let renamed = make(&temporary).and_then(|made| {
            fs::rename(&temporary, self.path)?;
            Ok(made)
        });
        if renamed.is_err() {
            // The error that matters is the first; a full disk should not hold half a file besides.
            let _ = fs::remove_file(&temporary);
        } else if self.synced
            && let Some(directory) = self.path.parent()
        {
            File::open(directory)?.sync_all()?;
        }
        renamed
    }
}

/// Reads the file at `path`, of at most `limit` bytes. Refuses one that other users than root and our own can have
/// written, and what is no regular file: it never waits for a pipe, and follows no symbolic link.
///
/// # Errors
/// The refusal in words; what the system calls give.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&found.uid()) || found.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::other("others than root can write it"));
    }
    // Before a byte of it is in memory; a file that grows meanwhile is cut by the bound.
    if found.len() > limit {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(found.len() as usize + 1);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_long());
    }
    Ok(bytes)
}

/// Removes the temporary files that killed writers left in `directory` and that were not written since `age`, which must
/// be longer than any writer takes; zero where no other process writes, and then all go, whatever the clock says. Returns
/// how many others there are. A directory that does not exist holds none.
///
/// # Errors
/// What the system calls give.
pub fn sweep(directory: &Path, age: Duration) -> io::Result<usize> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut left = 0;
    for entry in entries {
        let entry = entry?;
        if target_of(&entry.file_name()).is_none() {
            continue;
        }
        let written = entry.metadata().and_then(|found| found.modified());
        // A clock that was set back makes it young.
        let is_old = |written: SystemTime| {
            age.is_zero() || written.elapsed().is_ok_and(|since| since >= age)
        };
        let removed = match written {
            Ok(written) if is_old(written) => fs::remove_file(entry.path()),
            Ok(_) => Err(io::ErrorKind::ResourceBusy.into()),
            Err(error) => Err(error),
        };
        // A DEL of its attachment may have removed it first; one that cannot be removed does not keep the others.
        if removed.is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
            left += 1;
        }
    }
    Ok(left)
}

/// Removes the temporary files that killed writers of the file at `path` left in `directory`. One that cannot be removed
/// stays.
pub fn remove_temporaries(path: &Path, directory: &Path) {
    for temporary in temporaries(path, directory) {
        let _ = fs::remove_file(temporary);
    }
}

/// The temporary files in `directory` of the file at `path`.
pub fn temporaries(path: &Path, directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_of_path = |name: &OsStr| {
        let target = target_of(name);
        target.is_some_and(|target| path.file_name() == Some(target.as_ref()))
    };
    entries
        .filter(|entry| is_of_path(&entry.file_name()))
        .map(|entry| entry.path())
        .collect()
}

/// NAME of a temporary file `.PID.NAME.new`, or `.PID.NAME` as older releases wrote it.
fn target_of(temporary: &OsStr) -> Option<&str> {
    let (writer, target) = temporary.to_str()?.strip_prefix('.')?.split_once('.')?;
    let target = target.strip_suffix(SUFFIX).unwrap_or(target);
    (writer.parse::<u32>().is_ok() && !target.is_empty()).then_some(target)
}

fn too_long() -> io::Error {
    io::Error::other("it is longer than any Tartan writes")
}

const SUFFIX: &str = ".new";
const WRITABLE_BY_OTHERS: u32 = 0o022;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_belongs_to_us_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/file");
        replace_for_good(&path, b"first").unwrap();
        replace_for_good(&path, b"2nd").unwrap();
        assert_eq!(read(&path, 3).unwrap(), b"2nd");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let entries = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(entries.count(), 1, "no temporary stays");
    }

    #[test]
    fn a_place_that_cannot_be_written_leaves_no_temporary() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::create_dir(&path).unwrap();
        assert!(replace_for_good(&path, b"x").is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(replace_for_good(Path::new("/"), b"x").is_err());
    }

    #[test]
    fn what_is_no_file_of_ours_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let refusal = || read(&path, 4).unwrap_err().to_string();
        let missing = read(&path, 4).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        replace_for_good(&path, b"12345").unwrap();
        assert_eq!(refusal(), "it is longer than any Tartan writes");
        replace_for_good(&path, b"1234").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(refusal(), "others than root can write it");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(read(&path, 1 << 20).is_err());
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(refusal(), "it is not a regular file");
    }

    #[test]
    fn a_missing_directory_is_made_only_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/file");
        assert!(replace(&path, b"x").is_err());
        replace_for_good(&path, b"x").unwrap();
        replace(&path, b"y").unwrap();
        assert_eq!(read(&path, 1).unwrap(), b"y");
    }

    #[test]
    fn directories_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(read(directory.path(), 1 << 20).is_err());
    }

    #[test]
    fn only_what_a_writer_left_long_ago_is_swept() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let kept = [
            ".last",
            ".lock",
            ".x.json",
            ".12.",
            ".damaged-7.json",
            "7.a.json",
        ];
        for name in kept.iter().chain(&[".77.c1:eth0.json", ".78.c2:eth0.json"]) {
            fs::write(at(name), "half").unwrap();
        }
        let long_ago = SystemTime::now() - Duration::from_secs(61);
        for name in kept.iter().chain(&[".77.c1:eth0.json"]) {
            let file = File::open(at(name)).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        let minute = Duration::from_secs(60);
        assert_eq!(sweep(directory.path(), minute).unwrap(), 1, "one is young");
        let mut left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expected = [&kept[..], &[".78.c2:eth0.json"]].concat();
        expected.sort_unstable();
        assert_eq!(left, expected);
        assert_eq!(sweep(&at("none"), minute).unwrap(), 0);
    }

    #[test]
    fn a_clock_that_was_set_back_keeps_nothing_where_no_process_writes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(".77.c1:eth0.json");
        let file = File::create(&path).unwrap();
        let hour = Duration::from_secs(3600);
        file.set_modified(SystemTime::now() + hour).unwrap();
        let minute = Duration::from_secs(60);
        assert_eq!(sweep(directory.path(), minute).unwrap(), 1);
        assert_eq!(sweep(directory.path(), Duration::ZERO).unwrap(), 0);
        assert!(!path.exists());
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_synced_replacement_clears_the_temporary_files_of_killed_writers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin");
        fs::write(directory.path().join(".12345.plugin.new"), "half").unwrap();
        fs::write(directory.path().join(".x.plugin.new"), "not ours").unwrap();
        fs::write(&path, "old").unwrap();
        let running = File::open(&path).unwrap();
        let replacement = Replacement::of(&path).mode(0o755).synced();
        replacement
            .write_checked(b"new", |file| {
                assert_eq!(fs::read(file).unwrap(), b"new");
                assert_eq!(fs::read(&path).unwrap(), b"old");
                Ok(())
            })
            .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(io::read_to_string(running).unwrap(), "old");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(names(directory.path()), [".x.plugin.new", "plugin"]);
    }

    #[test]
    fn what_fails_the_check_never_gets_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin");
        fs::write(&path, "old").unwrap();
        let replacement = Replacement::of(&path).mode(0o755).synced();
        let refused = replacement.write_checked(b"new", |_| Err(io::Error::other("no")));
        assert!(refused.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["plugin"]);
    }

    #[test]
    fn the_temporary_file_of_a_configuration_is_none_that_a_runtime_reads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("10-x.conflist");
        let is_hidden = |file: &Path| {
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(name.starts_with('.') && name.ends_with(".new"), "{name}");
            Ok(())
        };
        Replacement::of(&path)
            .write_checked(b"{}", is_hidden)
            .unwrap();
    }
}
