//! Where pod packets come from and go to.

use std::io::{self, IoSlice};
use std::os::fd::{OwnedFd, RawFd};

use crate::limits::FRAME;
use crate::now::Now;

mod error;
pub mod memory;
mod offload;
pub mod plain;
pub mod tun;
pub mod tunnel;
mod vnet;

pub use encap::offload::{Cut, GsoType, Offload, Unfinished};
pub use error::DeviceError;
pub use offload::Offloads;

/// Name of the interface that a TUN descriptor is a queue of; `None` where it is gone or was never one.
pub fn name_of(queue: &OwnedFd) -> Option<String> {
    let interface = crate::sys::tun::interface(queue).ok()?;
    Some(interface.name)
}

/// A layer-3 device: one IP packet per read and write, or a super-packet where the device has offloads. Never blocks.
pub trait Device {
    /// Reads the next packet into `frame`.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is queued. Any other error is the device's own, no packet's.
    fn read(&mut self, frame: &mut [u8; FRAME]) -> io::Result<Read>;

    /// Writes one packet, gathered from `parts`. What `offload` leaves undone must be something that
    /// [`Device::offloads`] takes.
    ///
    /// # Errors
    /// Whatever the device says; the packet is lost then. `EINVAL` and `EIO` for a packet with an offload may be about
    /// the offload: the same bytes may be written once more, finished and cut ([`Device::offload_failed`]).
    fn write(&mut self, offload: Offload, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// What [`Device::write`] takes unfinished at present. Asked once a batch: an offload that was given up is tried
    /// again after its time.
    fn offloads(&mut self, _now: Now) -> Offloads {
        Offloads::NONE
    }

    /// Notes that a packet whose write with an offload was refused was then taken, finished and cut: the offload, not the
    /// packet, was at fault.
    fn offload_failed(&mut self, _refused: Offload, _now: Now) {}

    /// How often an offload was given up.
    fn given_up(&self) -> u64 {
        0
    }

    /// The descriptor that becomes readable, if there is one.
    fn descriptor(&self) -> Option<RawFd>;
}

/// A packet that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Its bytes.
    pub len: usize,
    /// What is left to do for it.
    pub offload: Offload,
}

impl Read {
    /// A finished wire packet of `len` bytes.
    pub fn whole(len: usize) -> Read {
        Read {
            len,
            offload: Offload::NONE,
        }
    }
}
