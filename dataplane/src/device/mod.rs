//! Where pod packets come from and go to.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;

use crate::limits::FRAME;

pub mod memory;
pub mod plain;

/// A layer-3 device: one IP packet per read and write. Never blocks.
pub trait Device {
    /// Reads the next packet into `frame` and returns its length.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is queued. Any other error is the device's own, no packet's.
    fn read(&mut self, frame: &mut [u8; FRAME]) -> io::Result<usize>;

    /// Writes one packet, gathered from `parts`.
    ///
    /// # Errors
    /// Whatever the device says; the packet is lost then, and never tried again.
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// The descriptor that becomes readable, if there is one.
    fn descriptor(&self) -> Option<RawFd>;
}
