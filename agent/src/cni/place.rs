//! Files put in their places so that whoever looks sees the old one or the new one, whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Puts `bytes` in the place of `path` with the given mode, by a temporary file beside it and a rename: a program that
/// runs meanwhile goes on with the old file, and nobody ever executes half a one or one that is open for writing.
/// `check` sees the complete file before it gets its name.
///
/// # Errors
/// The kernel's, or the check's; the old file stays then, and nothing beside it.
pub fn replace(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    check: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = temporary(path, path.parent().unwrap_or(Path::new("/")))?;
    put(&temporary, path, bytes, mode, check)
}

/// The same for a file in a directory that a container runtime watches. containerd 1.6 takes notice of a write inside it
/// and of a rename inside it, but not of a rename into it (and of the second of two close events not always), so the
/// file comes from outside, complete, and then the first byte of it is written once more.
///
/// # Errors
/// The kernel's.
pub fn replace_watched(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let outside = directory.parent().unwrap_or(directory);
    let placed =
        temporary(path, outside).and_then(|from| put(&from, path, bytes, mode, |_| Ok(())));
    // The directory may be a mount of its own; a name that starts with a dot and ends otherwise no runtime reads.
    match placed {
        Err(error) if matches!(error.kind(), CROSSES_DEVICES | DENIED | READ_ONLY) => {
            replace(path, bytes, mode, |_| Ok(()))?;
        }
        placed => placed?,
    }
    let file = OpenOptions::new().write(true).open(path)?;
    let first = bytes.get(..1).unwrap_or_default();
    file.write_all_at(first, 0)?;
    file.sync_all()
}

/// Temporary files that a killed [`replace`] of `path` left in `directory`.
pub fn leftovers(path: &Path, directory: &Path) -> Vec<PathBuf> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Vec::new();
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| {
        let found = path.file_name().and_then(|name| name.to_str());
        let rest = found.and_then(|found| found.strip_prefix(&format!(".{name}.")));
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    entries.map(|entry| entry.path()).filter(is_one).collect()
}

fn temporary(path: &Path, directory: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| io::Error::other("a path without a file name"))?;
    for leftover in leftovers(path, directory) {
        // Of one that is being written this very moment the writer is told, by its rename.
        let _ = fs::remove_file(leftover);
    }
    Ok(directory.join(format!(".{name}.{}", std::process::id())))
}

fn put(
    from: &Path,
    to: &Path,
    bytes: &[u8],
    mode: u32,
    check: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let placed = write(from, bytes, mode)
        .and_then(|()| check(from))
        .and_then(|()| fs::rename(from, to));
    if placed.is_err() {
        // The first error is the one worth reporting.
        let _ = fs::remove_file(from);
    }
    placed?;
    to.parent()
        .map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    // Whatever the umask is.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()
}

const CROSSES_DEVICES: io::ErrorKind = io::ErrorKind::CrossesDevices;
const DENIED: io::ErrorKind = io::ErrorKind::PermissionDenied;
const READ_ONLY: io::ErrorKind = io::ErrorKind::ReadOnlyFilesystem;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_what_a_killed_one_left_is_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin");
        fs::write(directory.path().join(".plugin.12345"), "half").unwrap();
        fs::write(directory.path().join(".plugin.x"), "not ours").unwrap();
        fs::write(&path, "old").unwrap();
        let running = File::open(&path).unwrap();
        replace(&path, b"new", 0o755, |file| {
            assert_eq!(fs::read(file).unwrap(), b"new");
            assert_eq!(fs::read(&path).unwrap(), b"old");
            Ok(())
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(io::read_to_string(running).unwrap(), "old");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(names(directory.path()), [".plugin.x", "plugin"]);
    }

    #[test]
    fn what_fails_the_check_never_gets_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin");
        fs::write(&path, "old").unwrap();
        let refused = replace(&path, b"new", 0o755, |_| Err(io::Error::other("no")));
        assert!(refused.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["plugin"]);
    }

    #[test]
    fn a_watched_file_comes_from_outside_and_nothing_is_left_there() {
        let directory = tempfile::tempdir().unwrap();
        let watched = directory.path().join("net.d");
        fs::create_dir(&watched).unwrap();
        let path = watched.join("10-x.conflist");
        replace_watched(&path, b"{}", 0o644).unwrap();
        replace_watched(&path, b"{ }", 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{ }");
        assert_eq!(names(&watched), ["10-x.conflist"]);
        assert_eq!(names(directory.path()), ["net.d"]);
    }
}
