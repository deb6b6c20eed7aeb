//! One agent per run directory: a second `TUNSETIFF` or `SO_REUSEPORT` bind would silently take half the flows.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why the lock was not taken.
#[derive(Debug, Error)]
pub enum LockError {
    /// The file or its directory cannot be made.
    #[error("cannot open the lock {path}; run as root, or choose another directory with --root")]
    Open {
        /// The lock file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another agent holds it.
    #[error(
        "another agent (process {holder}) runs on {path}; stop it, or give this one a --root of its own"
    )]
    Held {
        /// The lock file.
        path: PathBuf,
        /// What the holder wrote into the file.
        holder: String,
    },
}

/// Held as long as it lives; the kernel releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock at once or names the process that has it. The file then holds our process id. A clean-up removes the
    /// file whose lock it holds: a lock on a file that is no longer at its path keeps no process out, and is taken anew.
    ///
    /// # Errors
    /// `Held` with the other process, `Open` when the directory cannot be made or written.
    pub fn take(path: &Path) -> Result<Lock, LockError> {
        let failed = |source: io::Error| LockError::Open {
            path: path.to_owned(),
            source,
        };
        for _ in 0..TRIES {
            let mut file = open(path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, path) => {
                    // The process id is for error messages: a full or read-only directory must not keep a service down.
                    let _ = sign(&mut file);
                    let path = path.to_owned();
                    return Ok(Lock { file, path });
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(LockError::Held {
                        path: path.to_owned(),
                        holder: holder(&mut file),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Err(failed(io::ErrorKind::StaleNetworkFileHandle.into()))
    }

    /// A lock that the program before this one took in this process.
    pub(super) fn adopt(file: OwnedFd, path: &Path) -> Lock {
        Lock {
            file: file.into(),
            path: path.to_owned(),
        }
    }

    /// A lock that another keeper took, and has handed over. The file holds our process id from now on.
    pub(super) fn adopt_from_another(file: OwnedFd, path: &Path) -> Lock {
        let mut lock = Lock::adopt(file, path);
        // Nothing else is written to, whatever came.
        if lock.is_in_force() {
            // As in `take`.
            let _ = sign(&mut lock.file);
        }
        lock
    }

    /// The file, for the program that is executed in this one's place, or for the agent that takes over.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether it keeps the next agent out: no, once the file has been removed or replaced.
    pub fn is_in_force(&self) -> bool {
        is_at(&self.file, &self.path)
    }
}

/// Whether the process that has signed the file at `path` last runs, and is an agent. It takes no lock, so that it keeps no
/// agent from starting.
pub fn is_signed_by_an_agent(path: &Path) -> bool {
    File::open(path).is_ok_and(|mut file| holder(&mut file) != UNKNOWN)
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
    }
    let writable = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    match writable {
        // A lock needs no writing.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        other => other,
    }
}

/// Whether the file is the one that the next taker will find.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.take(HOLDER_LIMIT).read_to_string(&mut text);
    match text.trim() {
        pid if read.is_ok() && is_agent(pid) => pid.to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}

/// Whether the process runs a program of our name. The file may hold the id of an earlier holder, where the present one
/// could not write its own, and the kernel may have given that id to another process since, which must not be stopped.
fn is_agent(pid: &str) -> bool {
    let program = |process: &str| fs::read_link(Path::new("/proc").join(process).join("exe")).ok();
    let name = |path: PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        // So the kernel names a program that was replaced since it started (proc_pid_exe(5)).
        Some(name.trim_end_matches(" (deleted)").to_owned())
    };
    let ours = program("self").and_then(name);
    let theirs = || program(pid).and_then(name);
    // A copy of the program may have flannel's name.
    let is_ours = |name: String| Some(&name) == ours.as_ref() || name == "flanneld";
    pid.parse::<u32>().is_ok() && ours.is_some() && theirs().is_some_and(is_ours)
}

/// In place of a process id.
const UNKNOWN: &str = "unknown";
const HOLDER_LIMIT: u64 = 32;
/// Each removal takes a whole clean-up: even two in a row are unlikely.
const TRIES: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_second_is_refused_by_name_and_the_next_gets_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/tartan/lock");
        let first = Lock::take(&path).unwrap();
        let refused = Lock::take(&path).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("process {}", std::process::id())),
            "{refused}"
        );
        drop(first);
        Lock::take(&path).unwrap();
    }

    /// A lock belongs to the open file (flock(2)): it is held as long as any duplicate is open.
    #[test]
    fn a_lock_that_is_handed_over_is_never_free_between() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = Lock::take(&path).unwrap();
        let handed = first.descriptor().try_clone_to_owned().unwrap();
        std::fs::write(&path, "1\n").unwrap();
        drop(first);
        assert!(matches!(Lock::take(&path), Err(LockError::Held { .. })));
        let second = Lock::adopt_from_another(handed, &path);
        let refused = Lock::take(&path).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("process {}", std::process::id())),
            "{refused}"
        );
        drop(second);
        Lock::take(&path).unwrap();
    }

    #[test]
    fn a_lock_whose_file_is_gone_is_in_force_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = Lock::take(&path).unwrap();
        assert!(first.is_in_force());
        std::fs::remove_file(&path).unwrap();
        assert!(!first.is_in_force());
        let second = Lock::take(&path).unwrap();
        assert_eq!((first.is_in_force(), second.is_in_force()), (false, true));
    }

    #[test]
    fn a_holder_that_removes_the_file_never_makes_two() {
        let directory = tempfile::tempdir().unwrap();
        let path = &directory.path().join("run/lock");
        let holders = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        if let Ok(lock) = Lock::take(path) {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                            std::thread::yield_now();
                            holders.fetch_sub(1, Ordering::SeqCst);
                            // The last action of a clean-up.
                            std::fs::remove_file(path).unwrap();
                            drop(lock);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_full_file_is_locked_all_the_same() {
        // Whatever is written to this one is refused with ENOSPC.
        sign(&mut OpenOptions::new().write(true).open("/dev/full").unwrap()).unwrap_err();
        drop(Lock::take(Path::new("/dev/full")).unwrap());
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("run"), "a file").unwrap();
        let refused = Lock::take(&directory.path().join("run/tartan/lock"));
        assert!(matches!(refused, Err(LockError::Open { .. })));
    }
}
