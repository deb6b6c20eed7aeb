//! TUN descriptors: the ioctls of `linux/if_tun.h` that `tun-tap` does not make.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

/// What `TUNGETIFF` tells about a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The device's name.
    pub(crate) name: String,
    /// `IFF_*` flags of `linux/if_tun.h`.
    pub(crate) flags: i16,
}

/// `IFF_TUN`: packets without link-layer header.
pub(crate) const IFF_TUN: i16 = 0x0001;
/// `IFF_NO_PI`: no packet-information header in front.
pub(crate) const IFF_NO_PI: i16 = 0x1000;
/// `IFF_VNET_HDR`: a virtio header in front.
pub(crate) const IFF_VNET_HDR: i16 = 0x4000;

/// Takes the descriptor out of a `tun-tap` interface.
pub(crate) fn into_owned(interface: tun_tap::Iface) -> OwnedFd {
    let raw = interface.into_raw_fd();
    // WHY: tun-tap predates `OwnedFd`.
    // SAFETY: `into_raw_fd` gives up ownership of an open descriptor, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// Asks the kernel which interface the descriptor is a queue of.
///
/// # Errors
/// `EBADFD` if it is a TUN descriptor without interface, `ENOTTY` if it is none at all.
pub(crate) fn interface(descriptor: impl AsFd) -> io::Result<Interface> {
    // WHY: `ifreq` holds a union, so it cannot be written as a literal.
    // SAFETY: an all-zero `ifreq` is a valid value of that plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // WHY: no crate wraps TUNGETIFF.
    // SAFETY: `TUNGETIFF` writes one `struct ifreq` (tun.c: copy_to_user of ifreq_len bytes), and `request` is one.
    let result =
        unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), TUNGETIFF, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = request.ifr_name.map(|c| c as u8);
    let name = CStr::from_bytes_until_nul(&bytes)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    // WHY: a field of a union.
    // SAFETY: `TUNGETIFF` fills the `ifru_flags` member of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(Interface { name, flags })
}

/// `_IOR('T', 210, unsigned int)`
const TUNGETIFF: libc::c_ulong = 0x8004_54d2;
