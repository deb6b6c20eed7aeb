//! The tunnel device: taken over from the service before, or made anew.
//!
//! All descriptors of a device are taken over or none: a queue that is missing would take its share of the flows along,
//! and one too many takes some away. The old device goes with the last of them, and only then is its name free.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use dataplane::device::DeviceError;
use dataplane::device::plain::{self, Plain};
use dataplane::device::tun::{self, Tun};
use dataplane::device::tunnel::Tunnel;
use rustix::io::Errno;
use tokio::time::sleep;
use tracing::{info, warn};

use super::descriptors::{Descriptors, DescriptorsError};
use crate::config::{Device, NodeConfig};

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum ObtainError {
    /// The keeper is gone.
    #[error(transparent)]
    Keeper(#[from] DescriptorsError),
    /// It cannot be opened.
    #[error("{QUEUE}: {0}")]
    Device(DeviceError),
}

/// The device that the configuration asks for.
///
/// # Errors
/// See [`ObtainError`].
pub(super) async fn obtain(
    table: &mut Descriptors,
    config: &NodeConfig,
) -> Result<Tunnel, ObtainError> {
    let name = &config.device_name;
    let inherited = table.take_all(|entry| entry.starts_with("tun-"));
    let made_before = !inherited.is_empty();
    if made_before {
        let names: Vec<String> = inherited.iter().map(|(name, _)| name.clone()).collect();
        match adopt(inherited, name, config.device) {
            Ok(tunnel) => return Ok(tunnel),
            Err(reason) => warn!("the device is not taken over but made anew: {reason}"),
        }
        for name in &names {
            table.withdraw(name).await?;
        }
    }
    let patience = if made_before {
        PATIENCE
    } else {
        Duration::ZERO
    };
    let (queue, tunnel) = open(name, config.device, Instant::now() + patience)
        .await
        .map_err(ObtainError::Device)?;
    table.deposit(QUEUE, queue.as_fd()).await?;
    match &tunnel {
        Tunnel::Fast(device) => info!(name, offloads = ?device.granted(), "opened"),
        Tunnel::Plain(_) => info!(
            name,
            "opened without offloads: one worker, packet by packet"
        ),
    }
    Ok(tunnel)
}

/// Makes a device of what an earlier service left.
fn adopt(inherited: Vec<(String, OwnedFd)>, name: &str, wanted: Device) -> Result<Tunnel, String> {
    let [(place, queue)] = &inherited[..] else {
        return Err(format!("it has {} descriptors, not one", inherited.len()));
    };
    if place != QUEUE {
        return Err(format!("it has no {QUEUE}"));
    }
    let adopted = match wanted {
        Device::Offload => fast(queue, name),
        Device::Plain => plain(queue, name),
        // A service before may have found no other than the plain one.
        Device::Auto => fast(queue, name).or_else(|_| plain(queue, name)),
    };
    adopted.map_err(|error| error.to_string())
}

/// A new device and its queue. Until `deadline` it waits for an old one of that name to go.
async fn open(
    name: &str,
    wanted: Device,
    deadline: Instant,
) -> Result<(OwnedFd, Tunnel), DeviceError> {
    loop {
        match open_now(name, wanted) {
            Err(DeviceError::Busy(_)) if Instant::now() < deadline => sleep(STEP).await,
            result => return result,
        }
    }
}

fn open_now(name: &str, wanted: Device) -> Result<(OwnedFd, Tunnel), DeviceError> {
    let open_fast = || {
        let opened = tun::open(name, 1)?;
        // A device has one queue at least.
        let queue = opened.queues.into_iter().next();
        let queue = queue.ok_or(DeviceError::Kernel(Errno::NODEV.into()))?;
        let tunnel = fast(&queue, name)?;
        Ok((queue, tunnel))
    };
    let open_plain = || {
        let queue = plain::open(name)?;
        let tunnel = plain(&queue, name)?;
        Ok((queue, tunnel))
    };
    match wanted {
        Device::Plain => open_plain(),
        Device::Auto => match open_fast() {
            Err(DeviceError::NoOffloads(error)) => {
                info!("this kernel offers no TUN device with offloads: {error}");
                open_plain()
            }
            result => result,
        },
        Device::Offload => match open_fast()? {
            (_, Tunnel::Fast(device)) if !device.granted().tcp => {
                Err(DeviceError::NoOffloads(Errno::OPNOTSUPP.into()))
            }
            opened => Ok(opened),
        },
    }
}

fn fast(queue: &OwnedFd, name: &str) -> Result<Tunnel, DeviceError> {
    let queue = queue.try_clone().map_err(DeviceError::Kernel)?;
    Tun::adopt(queue, None, name).map(Tunnel::Fast)
}

fn plain(queue: &OwnedFd, name: &str) -> Result<Tunnel, DeviceError> {
    let queue = queue.try_clone().map_err(DeviceError::Kernel)?;
    Plain::adopt(queue, name).map(Tunnel::Plain)
}

/// Name of the only queue in the keeper's table.
const QUEUE: &str = "tun-queue-0";
/// The keeper closes its duplicate of an old device's queue when it reads so, a moment later.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(5);
