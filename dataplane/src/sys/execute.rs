//! Another program in the place of this one, in the same process (execve(2)).
//!
//! Between the end of this program's signal handlers and the beginning of the next one's a signal would end the process. So all are
//! blocked meanwhile: the next program calls [`take_signals`] once it has handlers, and gets then what was sent. What this program's
//! handlers have been given before is lost with it: [`block_signals`] lets it look for that first.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;

/// Executes `program`, whose first argument is its name, with `environment`. Of the descriptors those stay open that are not
/// close-on-exec.
///
/// # Errors
/// Why this program goes on: what execve(2) says, or `InvalidInput` for a word with a NUL in it.
pub fn execute(
    program: &OsStr,
    arguments: Vec<OsString>,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> io::Result<Infallible> {
    let word = |word: Vec<u8>| CString::new(word).map_err(|_| io::ErrorKind::InvalidInput.into());
    let program = word(program.as_bytes().to_vec())?;
    let arguments = arguments.into_iter().map(|text| word(text.into_vec()));
    let arguments = arguments.collect::<io::Result<Vec<_>>>()?;
    let environment = environment.map(|(name, value)| {
        let mut text = name.into_vec();
        text.push(b'=');
        text.extend(value.into_vec());
        word(text)
    });
    let environment = environment.collect::<io::Result<Vec<_>>>()?;
    let pointers = |words: &[CString]| -> Vec<*const libc::c_char> {
        let words = words.iter().map(|word| word.as_ptr());
        words.chain([ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&arguments), pointers(&environment));
    let before = set_mask(libc::SIG_BLOCK, &all())?;
    // WHY: the standard library unblocks all signals before it executes a program.
    // SAFETY: the three are NUL-terminated strings and arrays of such that end with a null pointer, and live until it returns.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    let error = io::Error::last_os_error();
    set_mask(libc::SIG_SETMASK, &before)?;
    Err(error)
}

/// Signals of this thread that wait, until it is dropped.
#[derive(Debug)]
pub struct Blocked {
    before: libc::sigset_t,
    /// A mask is of one thread.
    of_thread: PhantomData<*const ()>,
}

/// Has all signals wait from now on. In a process of one thread none comes to a handler until that ends; a program that is
/// executed meanwhile gets them.
///
/// # Errors
/// None that is known.
pub fn block_signals() -> io::Result<Blocked> {
    Ok(Blocked {
        before: set_mask(libc::SIG_BLOCK, &all())?,
        of_thread: PhantomData,
    })
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // Refused for no mask that was read.
        let _ = set_mask(libc::SIG_SETMASK, &self.before);
    }
}

/// Lets signals come that were blocked while this program took the place of another.
///
/// # Errors
/// None that is known.
pub fn take_signals() -> io::Result<()> {
    set_mask(libc::SIG_UNBLOCK, &all()).map(drop)
}

fn all() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // WHY: no safe crate of ours makes a set of signals.
    // SAFETY: sigfillset(3) writes the whole set; it fails for no valid pointer.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // WHY: as above.
    // SAFETY: it was written just now.
    unsafe { set.assume_init() }
}

/// Changes this thread's mask and returns the one before.
fn set_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // WHY: no safe crate of ours changes the mask.
    // SAFETY: both point to sets that live until it returns; the second is written where it succeeds.
    let error = unsafe { libc::pthread_sigmask(how, set, before.as_mut_ptr()) };
    match error {
        // WHY: as above.
        // SAFETY: it was written just now.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("SigBlk:"));
        line.unwrap().to_owned()
    }

    #[test]
    fn a_program_that_cannot_be_executed_changes_nothing() {
        let before = blocked();
        let of = |program: &str| {
            let executed = execute(OsStr::new(program), vec!["x".into()], std::env::vars_os());
            executed.unwrap_err().kind()
        };
        assert_eq!(of("/no/such/program"), io::ErrorKind::NotFound);
        assert_eq!(of("/dev/null"), io::ErrorKind::PermissionDenied);
        assert_eq!(of("a\0b"), io::ErrorKind::InvalidInput);
        assert_eq!(blocked(), before);
    }

    #[test]
    fn signals_wait_as_long_as_they_are_blocked_and_a_failed_execution_keeps_that() {
        let before = blocked();
        let held = block_signals().unwrap();
        let all = blocked();
        assert_ne!(all, before);
        assert!(execute(OsStr::new("/dev/null"), Vec::new(), std::env::vars_os()).is_err());
        assert_eq!(blocked(), all);
        drop(held);
        assert_eq!(blocked(), before);
    }

    #[test]
    fn what_was_blocked_comes_again() {
        set_mask(libc::SIG_BLOCK, &all()).unwrap();
        assert_ne!(blocked(), "SigBlk:\t0000000000000000");
        take_signals().unwrap();
        assert_eq!(blocked(), "SigBlk:\t0000000000000000");
    }
}
