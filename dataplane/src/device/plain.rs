//! The plain TUN device: a single queue, one packet per call, no offload. What every kernel and sandbox offers.
//!
//! Opened with the crate `tun-tap`. That crate can neither adopt a descriptor nor gather, so from then on the
//! descriptor is ours. The device is not persistent: it lives as long as somebody, here the service and the keeper,
//! holds the queue.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::{Device, Offload, Read};
use crate::limits::FRAME;
use crate::sys::tun;

/// A queue of a plain TUN device.
pub struct Plain {
    queue: OwnedFd,
}

/// Why the device cannot be had.
#[derive(Debug)]
pub enum DeviceError {
    /// The name is empty, too long for the kernel (15 bytes), or holds a slash, a blank or a percent sign.
    Name(String),
    /// `/dev/net/tun` is not there.
    NoTun(io::Error),
    /// Not allowed to create the device.
    Denied(io::Error),
    /// Somebody holds a device of this name.
    Busy(String),
    /// The descriptor is not what its name says.
    Foreign {
        /// What it should be a queue of.
        wanted: String,
        /// What the kernel says it is.
        found: String,
    },
    /// Anything else the kernel says.
    Kernel(io::Error),
}

/// Creates the device `name` and returns its only queue. The network namespace is that of the calling thread.
///
/// # Errors
/// See [`DeviceError`]; each sentence names the remedy.
pub fn open(name: &str) -> Result<OwnedFd, DeviceError> {
    let bad = |c: char| c == '/' || c == '%' || c.is_whitespace();
    if name.is_empty() || name.len() > 15 || name.contains(bad) {
        return Err(DeviceError::Name(name.to_owned()));
    }
    let interface =
        tun_tap::Iface::without_packet_info(name, tun_tap::Mode::Tun).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => DeviceError::NoTun(error),
                Some(libc::EPERM | libc::EACCES) => DeviceError::Denied(error),
                // EINVAL: a device of that name exists and is no plain TUN (tun.c, tun_set_iff).
                Some(libc::EBUSY | libc::EINVAL) => DeviceError::Busy(name.to_owned()),
                _ => DeviceError::Kernel(error),
            }
        })?;
    Ok(tun::into_owned(interface))
}

impl Plain {
    /// Makes a device of a queue that was opened here or by an earlier service.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] if it is no plain TUN queue of `name`.
    pub fn adopt(queue: OwnedFd, name: &str) -> Result<Plain, DeviceError> {
        let found = tun::interface(&queue).map_err(|error| DeviceError::Foreign {
            wanted: name.to_owned(),
            found: error.to_string(),
        })?;
        let plain = found.flags & (tun::IFF_TUN | tun::IFF_NO_PI | tun::IFF_VNET_HDR)
            == tun::IFF_TUN | tun::IFF_NO_PI;
        if found.name != name || !plain {
            return Err(DeviceError::Foreign {
                wanted: name.to_owned(),
                found: format!("{found:?}"),
            });
        }
        let kernel = |error: rustix::io::Errno| DeviceError::Kernel(error.into());
        let flags = fcntl_getfl(&queue).map_err(kernel)?;
        fcntl_setfl(&queue, flags | OFlags::NONBLOCK).map_err(kernel)?;
        Ok(Plain { queue })
    }
}

impl Device for Plain {
    fn read(&mut self, frame: &mut [u8; FRAME]) -> io::Result<Read> {
        Ok(Read::whole(rustix::io::read(
            &self.queue,
            frame.as_mut_slice(),
        )?))
    }

    fn write(&mut self, _offload: Offload, parts: &[IoSlice<'_>]) -> io::Result<()> {
        Ok(rustix::io::writev(&self.queue, parts).map(drop)?)
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.queue.as_raw_fd())
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl std::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceError::Name(name) => {
                write!(
                    f,
                    "{name:?} is no interface name: 1 to 15 bytes without '/', '%' and blanks"
                )
            }
            DeviceError::NoTun(error) => write!(
                f,
                "/dev/net/tun cannot be opened ({error}): load the module tun, or create the node with \
                 'mkdir -p /dev/net && mknod /dev/net/tun c 10 200'"
            ),
            DeviceError::Denied(error) => write!(
                f,
                "not allowed to create a TUN device ({error}): run as root or with CAP_NET_ADMIN, and in a container \
                 allow the device /dev/net/tun"
            ),
            DeviceError::Busy(name) => write!(
                f,
                "an interface {name} exists already: another agent runs in this network namespace, or 'ip link del \
                 {name}' removes what is left"
            ),
            DeviceError::Foreign { wanted, found } => {
                write!(
                    f,
                    "a descriptor handed over as queue of {wanted} is something else: {found}"
                )
            }
            DeviceError::Kernel(error) => write!(f, "the kernel refuses the TUN device: {error}"),
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DeviceError::NoTun(error) | DeviceError::Denied(error) | DeviceError::Kernel(error) => {
                Some(error)
            }
            DeviceError::Name(_) | DeviceError::Busy(_) | DeviceError::Foreign { .. } => None,
        }
    }
}
