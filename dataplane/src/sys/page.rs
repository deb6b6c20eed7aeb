//! A memfd mapped as words that several processes and threads read while one thread writes each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Shared words behind a memfd. Unmapped when dropped.
pub(crate) struct Page {
    words: NonNull<AtomicU64>,
    count: usize,
    descriptor: OwnedFd,
}

// WHY: a raw pointer is neither by default, and the page is what threads share.
// SAFETY: the mapping is plain shared memory that stays until the last owner drops the page, and the words in it are
// atomics: every access from any thread is a data-race-free atomic access.
unsafe impl Send for Page {}
// WHY: as for `Send`.
// SAFETY: as for `Send`.
unsafe impl Sync for Page {}

impl Page {
    /// A new page of `count` words, all zero, whose size can never change again.
    pub(crate) fn create(name: &str, count: usize) -> io::Result<Page> {
        let descriptor =
            rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&descriptor, (count * WORD) as u64)?;
        rustix::fs::fcntl_add_seals(
            &descriptor,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )?;
        Page::map(descriptor, count)
    }

    /// The page behind a descriptor made by [`Page::create`], here or in another process.
    ///
    /// # Errors
    /// `InvalidData` if the file is no sealed page of `count` words.
    pub(crate) fn adopt(descriptor: OwnedFd, count: usize) -> io::Result<Page> {
        let seals = rustix::fs::fcntl_get_seals(&descriptor).unwrap_or(SealFlags::empty());
        let size = rustix::fs::fstat(&descriptor)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || size != (count * WORD) as i64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a counters page of this version",
            ));
        }
        Page::map(descriptor, count)
    }

    /// The words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // WHY: a mapping has no Rust type of its own.
        // SAFETY: `words` points to a live mapping of `count` words (unmapped only in `drop`), page-aligned, readable
        // and writable. Any bit pattern is a valid `AtomicU64`. The file is sealed against shrinking, so no access
        // can fault.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }

    fn map(descriptor: OwnedFd, count: usize) -> io::Result<Page> {
        // WHY: the counters must outlive this process and be readable by others without a call.
        // SAFETY: a null hint lets the kernel choose an unused range, so no existing mapping is replaced ("If addr is
        // NULL, then the kernel chooses the (page-aligned) address", mmap(2)). The length is that of the sealed file.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                count * WORD,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &descriptor,
                0,
            )
        }?;
        let words = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Page {
            words,
            count,
            descriptor,
        })
    }
}

impl AsFd for Page {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // WHY: what was mapped by hand is unmapped by hand.
        // SAFETY: the range was mapped by `map` with this length and nothing borrows it any more: `words()` ties its
        // slice to `&self`.
        let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.count * WORD) };
    }
}

const WORD: usize = size_of::<AtomicU64>();
