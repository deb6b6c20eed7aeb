//! System calls for the tests of what refuses them.

#[cfg(feature = "faults")]
use std::io;

#[cfg(test)]
use rustix::io::Errno;
#[cfg(test)]
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Has the calling thread traced by its parent (`PTRACE_TRACEME`, ptrace(2)).
#[cfg(feature = "faults")]
pub(crate) fn be_traced() -> io::Result<()> {
    // WHY: no crate that is used here wraps ptrace(2).
    // SAFETY: the request has no argument: "The pid, addr, and data arguments are ignored" (ptrace(2)).
    match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps a page of its own and unmaps it.
#[cfg(test)]
pub(crate) fn map(protection: ProtFlags) -> Result<(), Errno> {
    // SAFETY: the kernel chooses the place ("If addr is NULL, then the kernel chooses", mmap(2)), so no memory in use is
    // replaced; nothing but the call below knows the page.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE) }?;
    // SAFETY: the page of the call above, which is mapped and not referred to.
    unsafe { munmap(page, PAGE) }
}

#[cfg(test)]
const PAGE: usize = 4096;
