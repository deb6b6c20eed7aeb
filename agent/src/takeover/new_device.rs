//! A tunnel device where none is held: made, or attached to where an agent before left it.

use std::time::Instant;

use dataplane::device::tun::{self, LinkLayer};
use dataplane::device::tunnel::Tunnel;
use dataplane::device::{DeviceError, plain};
use rustix::io::Errno;
use tokio::time::sleep;
use tracing::info;

use super::device::{ObtainError, STEP, Shares, Wanted, of_name, type_name};
use super::idle_device;
use crate::config::{DeviceKind, DeviceType};
use crate::host::Host;

/// A new device, or the idle one of that name. Until `deadline` it waits for the descriptors of an old one to be closed.
///
/// An interface that has the name already is looked at before anything is opened: the kernel would give us a persistent
/// device of another program that no process has open at the moment.
pub(super) async fn open(
    host: &Host,
    wanted: &Wanted<'_>,
    deadline: Instant,
) -> Result<Shares, ObtainError> {
    let name = &wanted.config.device_name;
    loop {
        let refused = match host.name_taken(name).await {
            Some(taken) => of_name(&taken),
            None => {
                if let Some(shares) = idle_device::reopen(host, wanted).await? {
                    return Ok(shares);
                }
                match open_now(name, wanted) {
                    Err(error @ DeviceError::Busy(_)) => ObtainError::Device(error),
                    Err(error) => return Err(ObtainError::Device(error)),
                    Ok(shares) => {
                        let r#type = type_name(shares.link());
                        match &shares {
                            Shares::Fast(_) => info!(name, r#type, "opened"),
                            Shares::Plain(_) => {
                                info!(name, "opened without offloads: packet by packet");
                            }
                        }
                        return Ok(shares);
                    }
                }
            }
        };
        if Instant::now() >= deadline {
            return Err(refused);
        }
        sleep(STEP).await;
    }
}

fn open_now(name: &str, wanted: &Wanted<'_>) -> Result<Shares, DeviceError> {
    let link = match wanted.config.device_type {
        DeviceType::Auto | DeviceType::Tun => LinkLayer::None,
        DeviceType::Tap => LinkLayer::Ethernet(wanted.mac),
    };
    let open_plain = || plain::open(name).map(Shares::Plain);
    let open_fast = || tun::open(name, link, wanted.workers).map(Shares::Fast);
    match wanted.config.device {
        DeviceKind::Plain => open_plain(),
        DeviceKind::Auto => match open_fast() {
            Err(DeviceError::NoOffloads(error)) => {
                info!(
                    "this kernel offers no {} device with offloads: {error}",
                    type_name(link).to_uppercase()
                );
                open_plain()
            }
            result => result,
        },
        DeviceKind::Offload => {
            let shares = open_fast()?;
            let tunnels = shares.tunnels(name)?;
            let offloads =
                |tunnel: &Tunnel| matches!(tunnel, Tunnel::Fast(device) if device.granted().tcp);
            if tunnels.iter().all(offloads) {
                Ok(shares)
            } else {
                Err(DeviceError::NoOffloads(Errno::OPNOTSUPP.into()))
            }
        }
    }
}
