//! Files that a thread renounces (landlock(7)), whatever its user may open.
//!
//! What is renounced has no exceptions: no rule names a file, so nothing depends on a path. Descriptors that are open stay as they
//! are. A thread in such a domain cannot look into processes outside of it either (ptrace(2)), those of its own process's other
//! threads excepted: so the thread that names who holds a port is in none.

use std::io;

/// What a thread renounces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renounced {
    /// To open any file or directory, and to execute.
    AllFiles,
    /// To write, make, rename or remove, and to execute.
    Changes,
}

/// Has the calling thread, and those that it starts from now on, renounce that for good. Returns whether the kernel knows how:
/// from 5.13 on, built and started with Landlock. New privileges must have been renounced before (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// Of the kernel: EPERM where new privileges are possible, E2BIG in too many domains.
pub fn renounce(what: Renounced) -> io::Result<bool> {
    let Some(version) = version() else {
        return Ok(false);
    };
    let attribute = handled(what, version);
    // WHY: no crate that is used here wraps the calls of Landlock, of which no rule is needed.
    // SAFETY: the kernel reads as many bytes as it is told, which are those of the attribute, and it lives longer than the call.
    let ruleset = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attribute,
            size_of_val(&attribute),
            0_u32,
        )
    };
    let ruleset = libc::c_int::try_from(ruleset).map_err(io::Error::other)?;
    if ruleset < 0 {
        return Err(io::Error::last_os_error());
    }
    // WHY: as above.
    // SAFETY: takes two numbers; the descriptor is that of the call above.
    let restricted = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0_u32) };
    let outcome = match restricted {
        0 => Ok(true),
        _ => Err(io::Error::last_os_error()),
    };
    // WHY: an OwnedFd of a number needs a promise as this does.
    // SAFETY: the descriptor is that of the call above, and nothing else knows it.
    unsafe { libc::close(ruleset) };
    outcome
}

/// The version of Landlock's interface; `None` where there is none, or where a filter of system calls around the program, as of an
/// older container runtime, refuses to say it.
fn version() -> Option<u32> {
    // WHY: as above.
    // SAFETY: with this flag the kernel takes no attribute, and says a number (landlock_create_ruleset(2)).
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u64>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// `handled_access_fs` of `struct landlock_ruleset_attr`, its first field: as many rights as that version knows.
fn handled(what: Renounced, version: u32) -> u64 {
    let known = match version {
        1 => FIRST_OF_VERSION_2 - 1,
        2 => FIRST_OF_VERSION_3 - 1,
        _ => 2 * FIRST_OF_VERSION_3 - 1,
    };
    match what {
        Renounced::AllFiles => known,
        Renounced::Changes => known & !(READ_FILE | READ_DIR),
    }
}

/// linux/include/uapi/linux/landlock.h.
const CREATE_RULESET_VERSION: libc::c_uint = 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// REFER: links and renames between directories.
const FIRST_OF_VERSION_2: u64 = 1 << 13;
/// TRUNCATE.
const FIRST_OF_VERSION_3: u64 = 1 << 14;

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::thread;

    use rustix::thread::set_no_new_privs;

    use super::*;

    /// In a thread of its own, which a child has the same limits as; `None` where the kernel has no Landlock.
    fn renounced<T: Send + 'static>(
        what: Renounced,
        run: impl Fn() -> T + Send + Sync + 'static,
    ) -> Option<[T; 2]> {
        let thread = thread::spawn(move || {
            set_no_new_privs(true).unwrap();
            let is_known = renounce(what).unwrap();
            is_known.then(|| {
                let child = thread::scope(|scope| scope.spawn(&run).join().unwrap());
                [run(), child]
            })
        });
        thread.join().unwrap()
    }

    fn is_refused<T>(result: &io::Result<T>) -> bool {
        let code = result.as_ref().err().and_then(io::Error::raw_os_error);
        code == Some(libc::EACCES)
    }

    #[test]
    fn no_file_is_opened() {
        let open = || {
            (
                File::open("/etc/hosts").map(drop),
                fs::read_dir("/etc").map(drop),
                fs::write("/dev/null", "text"),
            )
        };
        for (file, directory, written) in renounced(Renounced::AllFiles, open).into_iter().flatten()
        {
            assert!(is_refused(&file) && is_refused(&directory) && is_refused(&written));
        }
    }

    #[test]
    fn files_are_read_and_none_is_changed() {
        let directory = tempfile::tempdir().unwrap();
        let (there, new) = (directory.path().join("there"), directory.path().join("new"));
        fs::write(&there, "text").unwrap();
        let change = {
            let (there, new) = (there.clone(), new.clone());
            move || {
                (
                    fs::read_to_string(&there).unwrap(),
                    [
                        fs::write(&there, "other"),
                        fs::write(&new, ""),
                        fs::create_dir(&new),
                        fs::rename(&there, &new),
                        fs::remove_file(&there),
                    ],
                )
            }
        };
        for (text, changes) in renounced(Renounced::Changes, change).into_iter().flatten() {
            assert_eq!(text, "text");
            assert!(changes.iter().all(is_refused), "{changes:?}");
        }
        assert_eq!(fs::read_to_string(there).unwrap(), "text");
        assert!(!new.exists());
    }

    #[test]
    fn a_version_is_asked_for_the_rights_that_it_knows() {
        assert_eq!(handled(Renounced::AllFiles, 1), 0x1fff);
        assert_eq!(handled(Renounced::AllFiles, 2), 0x3fff);
        assert_eq!(handled(Renounced::AllFiles, 3), 0x7fff);
        assert_eq!(handled(Renounced::AllFiles, 9), 0x7fff);
        assert_eq!(handled(Renounced::Changes, 9), 0x7ff3);
    }
}
