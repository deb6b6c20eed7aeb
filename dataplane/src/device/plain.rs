//! The plain TUN device: a single queue, one packet per call, no offload. What every kernel and sandbox offers.
//!
//! Opened with the crate `tun-tap`. That crate can neither adopt a descriptor nor gather, so from then on the
//! descriptor is ours. The device lives as long as the service or the keeper holds the queue, and beyond that once it was
//! made persistent ([`super::make_persistent`]): [`open`] then attaches to it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::{Device, DeviceError, Offload, Read, error};
use crate::limits::FRAME;
use crate::sys::tun;

/// A queue of a plain TUN device.
pub struct Plain {
    queue: OwnedFd,
}

/// Creates the device `name`, or attaches to a persistent one that no process holds, and returns its only queue. The network namespace is that of the calling thread.
///
/// # Errors
/// See [`DeviceError`]; each sentence names the remedy.
pub fn open(name: &str) -> Result<OwnedFd, DeviceError> {
    error::check_name(name)?;
    let interface =
        tun_tap::Iface::without_packet_info(name, tun_tap::Mode::Tun).map_err(|error| {
            match error.raw_os_error() {
                // EINVAL: a device of that name exists and is no plain TUN (tun.c, tun_set_iff).
                Some(libc::EBUSY | libc::EINVAL) => DeviceError::Busy(name.to_owned()),
                _ => DeviceError::opening(error),
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
        // A sandbox may have plain devices and no owners of them.
        if let Err(error) = tun::refuse_others(&queue)
            && error.raw_os_error() != Some(libc::EINVAL)
        {
            return Err(DeviceError::Kernel(error));
        }
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
