//! Whole files, written so that a reader sees the old one or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Replaces `path` by a file of mode 0600 holding `bytes`: temporary file,
/// fsync, rename. The temporary file starts with a dot and bears our process
/// id, so two writers never share one. On failure it is removed.
///
/// The directory itself is not synced: a power loss empties a tmpfs anyway.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary_for(path)?;
    let written = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one worth reporting.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Reads a regular file of at most [`LONGEST`] bytes; follows no symbolic link.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(NO_LINK_NO_WAIT)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other("longer than any file Tartan writes here"));
    }
    Ok(bytes)
}

fn temporary_for(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("a path without a file name"))?;
    let mut temporary = std::ffi::OsString::from(format!(".{}.", std::process::id()));
    temporary.push(name);
    Ok(path.with_file_name(temporary))
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Longest file read back, in bytes.
const LONGEST: u64 = 256 * 1024;

/// Refuse a symbolic link, and do not hang on a pipe that somebody left.
const NO_LINK_NO_WAIT: i32 =
    (rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits()) as i32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_write_is_private_whole_and_leaves_no_temporary() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(read(&path).unwrap(), b"two");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_leaves_no_temporary() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::create_dir(&path).unwrap();
        write(&path, b"one").unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_directories_and_huge_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        read(&link).unwrap_err();
        read(dir.path()).unwrap_err();
        let huge = dir.path().join("huge");
        fs::write(&huge, vec![0; LONGEST as usize + 1]).unwrap();
        read(&huge).unwrap_err();
        fs::write(&huge, vec![0; LONGEST as usize]).unwrap();
        read(&huge).unwrap();
    }
}
