//! One call at a time for each attachment.
//!
//! Theory of operation. ADD, DEL and GC hold an exclusive `flock` on
//! `attachments/.lock-CONTAINER:IFNAME` from before they read the record by
//! which they act until nothing of the attachment is left to do. A runtime never makes two calls for
//! one attachment at once, but one that lost patience kills a plugin and makes
//! the next, while the IPAM plugin that the first one ran lives on.
//!
//! The kernel releases the lock when the last process that has the file open ends: a killed process
//! holds nothing, unless a child has inherited the lock ([`Lock::pass_to_child`]).
//!
//! The file exists only while a call is at work: the holder removes it. So a
//! process that got the lock checks whether the file is still the one of that name.
//! The next holder, or [`sweep`], removes the file of a holder that was killed.
//!
//! A process that has waited long enough may [`Lock::seize`] it: another file
//! replaces the holder's, which then finds its lock void ([`Lock::is_valid`]).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::FdFlags;

use super::Error;
use crate::atomic_file::Replacement;
use crate::{FileAction, RunDir, holder};

/// The lock of one attachment, held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    held: Option<(PathBuf, File)>,
}

impl Lock {
    /// Waits for the lock of (container, ifname), at most `patience`. The
    /// directory of records must exist ([`RunDir::make`]).
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::File`], and [`Error::AtWork`] when the time is
    /// over.
    pub fn take(
        run: &RunDir,
        container: &str,
        ifname: &str,
        patience: Duration,
    ) -> Result<Lock, Error> {
        let path = path(run, container, ifname)?;
        let deadline = Instant::now() + patience;
        loop {
            match open(&path, true).and_then(|file| lock(&path, file)) {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(STEP),
                Ok(None) => {
                    return Err(Error::AtWork {
                        holder: holder::of(&path),
                        path,
                        waited: patience,
                    });
                }
                Err(source) => return Err(FileAction::Lock.failed(&path)(source).into()),
            }
        }
    }

    /// Takes the lock from its holder: replaces the holder's file by another one
    /// that is locked already, so no third process gets the lock in between.
    ///
    /// # Errors
    /// [`Error::Name`] and [`Error::File`].
    pub fn seize(run: &RunDir, container: &str, ifname: &str) -> Result<Lock, Error> {
        let path = path(run, container, ifname)?;
        let file = locked_in_place(&path).map_err(FileAction::Lock.failed(&path))?;
        let held = Some((path, file));
        Ok(Lock { held })
    }

    /// A lock of nothing, for a caller that has to go on without one.
    pub fn none() -> Lock {
        Lock { held: None }
    }

    /// Whether no other process has seized it.
    pub fn is_valid(&self) -> bool {
        let held = self.held.as_ref();
        held.is_none_or(|(path, file)| is_at(path, file).unwrap_or(false))
    }

    /// A descriptor that children inherit while it is open; those then hold the
    /// lock until they end or it is dropped. None of a lock of nothing.
    ///
    /// # Errors
    /// What the system calls give.
    pub fn pass_to_child(&self) -> io::Result<Option<File>> {
        let Some((_, file)) = &self.held else {
            return Ok(None);
        };
        let inherited = file.try_clone()?;
        rustix::io::fcntl_setfd(&inherited, FdFlags::empty())?;
        Ok(Some(inherited))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let is_valid = self.is_valid();
        if let Some((path, file)) = &self.held {
            if is_valid {
                // A process that seizes the lock between the check and this loses its file, and with it the lock: the
                // kernel removes by name alone. It would have to seize in the microseconds in which we end.
                let _ = fs::remove_file(path);
            }
            // A child that has it open holds it no longer.
            let _ = file.unlock();
        }
    }
}

/// Removes the files that killed holders left, and returns how many others
/// there are. A directory that is not there holds none.
///
/// # Errors
/// What the system calls give.
pub fn sweep(run: &RunDir) -> io::Result<usize> {
    let entries = match fs::read_dir(run.attachments()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut left = 0;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            continue;
        }
        let path = entry.path();
        match open(&path, false).and_then(|file| lock(&path, file)) {
            // Dropping it removes its file.
            Ok(Some(unheld)) => drop(unheld),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(None) | Err(_) => left += 1,
        }
    }
    Ok(left)
}

/// Begins neither like a temporary (`.PID.NAME`) nor like a record.
fn path(run: &RunDir, container: &str, ifname: &str) -> Result<PathBuf, Error> {
    super::check_container(container)?;
    super::check_ifname(ifname)?;
    let name = format!("{PREFIX}{container}:{ifname}");
    Ok(run.attachments().join(name))
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(create)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

/// Locked before it gets its name, so no other process can lock it first.
fn locked_in_place(path: &Path) -> io::Result<File> {
    Replacement::of(path).put(|temporary| {
        // A killed process that had our id may have left one, and a child of it may hold its lock.
        let _ = fs::remove_file(temporary);
        let file = open(temporary, true)?;
        file.try_lock()?;
        Ok(file)
    })
}

/// None while another holds it, or when its holder has just removed it.
fn lock(path: &Path, file: File) -> io::Result<Option<Lock>> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    let held = Some((path.to_path_buf(), file));
    Ok(Some(Lock { held }).filter(Lock::is_valid))
}

fn is_at(path: &Path, file: &File) -> io::Result<bool> {
    let (there, ours) = (fs::symlink_metadata(path)?, file.metadata()?);
    Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
}

const PREFIX: &str = ".lock-";

/// How often a waiting process tries again.
const STEP: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests;
