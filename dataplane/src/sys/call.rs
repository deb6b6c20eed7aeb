//! System calls for the tests of what refuses them.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

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
