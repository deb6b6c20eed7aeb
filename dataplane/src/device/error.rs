//! Errors of opening a tunnel device; each sentence names the remedy.

use std::{fmt, io};

/// Why the device cannot be opened or adopted.
#[derive(Debug)]
pub enum DeviceError {
    /// The name is empty, too long for the kernel (15 bytes), or holds a slash, a blank or a percent sign.
    Name(String),
    /// `/dev/net/tun` is not there.
    NoTun(io::Error),
    /// Not allowed to create the device.
    Denied(io::Error),
    /// Another process holds a device of this name.
    Busy(String),
    /// The descriptor is not what its name says.
    Foreign {
        /// What it should be a queue of.
        wanted: String,
        /// What the kernel says it is.
        found: String,
    },
    /// The kernel does not support TUN devices with offloads.
    NoOffloads(io::Error),
    /// Anything else the kernel says.
    Kernel(io::Error),
}

/// A device's name must be one that the kernel takes as it is.
pub(super) fn check_name(name: &str) -> Result<(), DeviceError> {
    let bad = |c: char| c == '/' || c == '%' || c.is_whitespace();
    if name.is_empty() || name.len() > 15 || name.contains(bad) {
        Err(DeviceError::Name(name.to_owned()))
    } else {
        Ok(())
    }
}

impl DeviceError {
    /// What `refused`, met while opening, means.
    pub(super) fn opening(refused: io::Error) -> DeviceError {
        match refused.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => DeviceError::NoTun(refused),
            Some(libc::EPERM | libc::EACCES) => DeviceError::Denied(refused),
            _ => DeviceError::Kernel(refused),
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
                "an interface {name} exists already: set device-name to a name that no interface has"
            ),
            DeviceError::Foreign { wanted, found } => {
                write!(
                    f,
                    "a descriptor handed over as queue of {wanted} is something else: {found}"
                )
            }
            DeviceError::NoOffloads(error) => write!(
                f,
                "this kernel offers no TUN device with offloads ({error}): set device to \"auto\" or \"plain\", which \
                 forwards packet by packet"
            ),
            DeviceError::Kernel(error) => write!(f, "the kernel refuses the TUN device: {error}"),
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DeviceError::NoTun(error)
            | DeviceError::Denied(error)
            | DeviceError::NoOffloads(error)
            | DeviceError::Kernel(error) => Some(error),
            DeviceError::Name(_) | DeviceError::Busy(_) | DeviceError::Foreign { .. } => None,
        }
    }
}
