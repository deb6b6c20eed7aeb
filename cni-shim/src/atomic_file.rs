//! Whole files, written so that a reader sees the old one or the new one, and read like any hostile input.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

/// Puts `bytes` in the place of the file at `path`, with mode 0600: temporary file, rename. The temporary file starts
/// with a dot and bears our process id, so two writers never share one. After an error the old file is there as it was,
/// and no temporary.
///
/// What is written so outlives its writer, not the machine: it is for the run directory, which a power loss empties as it
/// ends the pods. Nothing is synced: that costs milliseconds where the directory lies on a disk after all, and there a
/// power loss may leave records that cannot be read.
///
/// # Errors
/// `InvalidInput` for a path without a file name; what the system calls give.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, |_| Ok(()))
}

/// The same for what has to outlive the machine: makes the directory where it is missing (mode 0700), and syncs the file
/// before it is renamed, the directory afterwards.
///
/// # Errors
/// As of [`replace`].
pub fn replace_for_good(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    put(path, bytes, File::sync_all)?;
    File::open(directory)?.sync_all()
}

fn put(path: &Path, bytes: &[u8], settle: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let temporary = temporary_for(path)?;
    let filled = fill(&temporary, bytes).and_then(|file| settle(&file));
    let renamed = filled.and_then(|()| fs::rename(&temporary, path));
    if renamed.is_err() {
        // The error that matters is the first; a full disk should not hold half a file besides.
        let _ = fs::remove_file(&temporary);
    }
    renamed
}

/// Reads the file at `path`, of at most `limit` bytes, that nobody but root and our own user can have written. Never
/// waits: a pipe is refused. Follows no symbolic link.
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

/// Removes the temporary files that killed writers left in `directory`: of [`replace`], and not written since `age`, which
/// must be longer than any writer takes; zero where nobody else writes, and then all go, whatever the clock says. Returns
/// how many others there are. A directory that is not there holds none.
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
        if !is_temporary(&entry.file_name()) {
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
        // One that its own attachment's DEL was faster with is gone; one that cannot go does not keep the others.
        if removed.is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
            left += 1;
        }
    }
    Ok(left)
}

/// `.PID.NAME`.
fn is_temporary(name: &OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.strip_prefix('.'));
    parts
        .and_then(|parts| parts.split_once('.'))
        .is_some_and(|(writer, written)| writer.parse::<u32>().is_ok() && !written.is_empty())
}

/// `.PID.NAME` beside the file at `path`, which [`sweep`] removes.
pub(crate) fn temporary_for(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = OsString::from(format!(".{}.", std::process::id()));
    temporary.push(name);
    Ok(path.with_file_name(temporary))
}

fn fill(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut out = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    out.write_all(bytes)?;
    Ok(out)
}

fn too_long() -> io::Error {
    io::Error::other("it is longer than any Tartan writes")
}

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
    fn a_clock_that_was_set_back_keeps_nothing_where_nobody_writes() {
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
}
