//! Features of an interface, by its name: as settings that can go on record.

use std::io;

use cni_shim::ethtool::{Device, Error, Ethtool, Gathering};
use rustix::io::Errno;

use super::setting::Interface;

/// The features that the interface has; none where there is no such interface, or the kernel has no such features.
pub(super) fn read(interface: &Interface) -> io::Result<Option<Gathering>> {
    let found = Ethtool::open().and_then(|mut it| it.gathering(Device::Name(interface.name())));
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is(Errno::NODEV) || error.is_lack() => Ok(None),
        Err(error) => Err(io_error(error)),
    }
}

/// Changes one of them.
pub(super) fn alter(interface: &Interface, change: impl FnOnce(&mut Gathering)) -> io::Result<()> {
    let device = Device::Name(interface.name());
    let altered = Ethtool::open().and_then(|mut ethtool| {
        let mut wanted = ethtool.gathering(device)?;
        change(&mut wanted);
        ethtool.set_gathering(device, wanted)
    });
    altered.map_err(io_error)
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::Refused { source, .. } => source,
        other => io::Error::other(other),
    }
}
