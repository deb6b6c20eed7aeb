//! Descriptors that this process was started with, beyond the three of every program (sd_listen_fds(3)).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes a descriptor that the program which executed this one left open for it. No program that this one executes gets it.
///
/// # Errors
/// `EBADF` where none is open; `InvalidInput` for one of the three standard ones, and for one that this process has opened
/// itself, or has taken already: those are all close-on-exec, and what survived the execution of this program is not.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    if number <= libc::STDERR_FILENO {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // WHY: no safe call asks about a descriptor that has no owner yet.
    // SAFETY: F_GETFD reads a flag of the descriptor; of a number that is not open it says EBADF (fcntl(2)).
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    if flags & libc::FD_CLOEXEC != 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // WHY: as above.
    // SAFETY: F_SETFD sets a flag of the descriptor, which is open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // WHY: the descriptor comes from the program before this one, so no owner of it exists here.
    // SAFETY: it is open, and nothing else of this process owns it: all that the standard library and the crates of this
    // workspace open is close-on-exec, and this was not. From now on it is, so that it cannot be taken twice.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_is_not_left_open_for_this_program_is_not_taken() {
        let file = tempfile::tempfile().unwrap();
        let of = |number| take(number).map_err(|error| error.kind()).unwrap_err();
        assert_eq!(of(file.as_raw_fd()), io::ErrorKind::InvalidInput);
        assert_eq!(of(2), io::ErrorKind::InvalidInput);
        let missing = take(1_000_000).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn what_was_left_open_is_taken_once() {
        let file = tempfile::tempfile().unwrap();
        let left = rustix::io::dup(&file).unwrap();
        rustix::io::fcntl_setfd(&left, rustix::io::FdFlags::empty()).unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(left);
        let taken = take(number).unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert!(take(number).is_err());
    }
}
