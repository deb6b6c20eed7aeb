//! Where pod packets come from and go to.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, RawFd};

use encap::Mac;

use crate::limits::FRAME;
use crate::now::Now;

mod error;
mod ethernet;
pub mod file;
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
pub fn name_of(queue: &impl AsFd) -> Option<String> {
    let interface = crate::sys::tun::interface(queue).ok()?;
    Some(interface.name)
}

/// The owner that devices have which were opened here: a process needs CAP_NET_ADMIN to attach to one. In a user namespace
/// without that number it is 0.
pub const OWNER: u32 = crate::sys::tun::NO_USER;

/// Has the device of a queue outlive all descriptors of it: it keeps addresses, routes and what the kernel remembers of
/// connections through it, and has no carrier while no process holds a queue. It goes when it is deleted.
///
/// # Errors
/// Whatever the kernel says; the device goes with its last descriptor then.
pub fn make_persistent(queue: &impl AsFd) -> io::Result<()> {
    crate::sys::tun::make_persistent(queue)
}

/// A layer-3 device: one IP packet per read and write, or a super-packet where the device has offloads. Never blocks.
///
/// A device with a link layer ([`Device::mac`]) takes the Ethernet header off what is read and writes one before what is
/// written, so all other code sees layer 3; beside IP packets it reads ARP and other frames ([`Content`]).
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

    /// The Ethernet address of a device with a link layer, where requests for the addresses of neighbours are to be
    /// answered; `None` of a device without.
    fn mac(&self) -> Option<Mac> {
        None
    }

    /// Writes an ARP packet.
    ///
    /// # Errors
    /// `Unsupported` of a device without a link layer, else whatever the device says; the packet is lost then.
    fn write_arp(&mut self, _packet: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

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
    /// What its link-layer header says that it is.
    pub content: Content,
}

/// What a frame carries, by its EtherType. A device without a link layer reads nothing but IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// IPv4 or IPv6.
    Ip,
    /// ARP.
    Arp,
    /// Anything else, or something else than the EtherType says.
    Other,
}

impl Read {
    /// A finished wire packet of `len` bytes.
    pub fn whole(len: usize) -> Read {
        Read {
            len,
            offload: Offload::NONE,
            content: Content::Ip,
        }
    }
}
