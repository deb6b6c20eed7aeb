//! System calls by their number, for the tests of what refuses them.

use std::io;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Whether a filter of the calling thread refuses this system call with EPERM. Only for calls that it does refuse: any other
/// is made, with zeros.
pub(crate) fn refused(number: libc::c_long) -> bool {
    // WHY: no crate makes a system call of any number.
    // SAFETY: all arguments are zero: where a call of that number takes a pointer, it is null, and where it takes a size or
    // a count, it is none. The filter answers before the kernel looks at them.
    let result = unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
    result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Maps a page of its own and unmaps it.
pub(crate) fn map(protection: ProtFlags) -> Result<(), Errno> {
    // SAFETY: the kernel chooses the place ("If addr is NULL, then the kernel chooses", mmap(2)), so no memory in use is
    // replaced; nothing but the call below knows the page.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE) }?;
    // SAFETY: the page of the call above, which is mapped and not referred to.
    unsafe { munmap(page, PAGE) }
}

const PAGE: usize = 4096;
