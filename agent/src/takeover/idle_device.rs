//! The tunnel device that an agent before left.
//!
//! Theory of operation: the device outlives the agent ([`stay`]), so that connections which the kernel masquerades to it
//! outlive a stop. The next start attaches to it ([`reopen`]) where it has the shape wanted, and makes it anew where it has
//! not, or where it was given to a user. One of another name, from before `device-name` was changed, is deleted: its routes
//! are in the way ([`delete_others`]). A network namespace has one agent, so it is no other one's. The host's side is in `host/idle_device.rs`.

use std::time::Instant;

use dataplane::device::tunnel::Tunnel;
use dataplane::device::{self, plain, tun};
use tokio::time::sleep;
use tracing::{info, warn};

use super::device::{ObtainError, STEP, Shares, Wanted, link_in_force, of_name, type_name};
use crate::causes::causes;
use crate::config::DeviceKind;
use crate::host::{Host, HostError, IdleDevice};

/// The idle device of that name, attached to. One that is not as wanted is deleted.
pub(super) async fn reopen(
    host: &Host,
    wanted: &Wanted<'_>,
) -> Result<Option<Shares>, ObtainError> {
    let name = &wanted.config.device_name;
    let Some(idle) = host.idle_device(name).await else {
        return Ok(None);
    };
    let reason = match reopened(&idle, wanted) {
        Ok(shares) => {
            let r#type = type_name(shares.link());
            info!(name, r#type, "the device that is there is taken over");
            return Ok(Some(shares));
        }
        Err(reason) => reason,
    };
    warn!(
        name,
        "the device that is there is made anew, and connections that are masqueraded to it end: {reason}"
    );
    host.delete_idle(&idle)
        .await
        .map_err(|error| of_name(&error))?;
    Ok(None)
}

/// Attaches to an idle device, if the configuration allows that.
fn reopened(idle: &IdleDevice, wanted: &Wanted<'_>) -> Result<Shares, String> {
    if idle.is_given_away {
        return Err("it belongs to a user or a group".to_owned());
    }
    let name = idle.name();
    let shares = match wanted.config.device {
        DeviceKind::Plain if idle.has_queues || idle.is_tap => {
            return Err("it is one with offloads, and device is \"plain\"".to_owned());
        }
        DeviceKind::Plain => plain::open(name).map(Shares::Plain),
        DeviceKind::Auto | DeviceKind::Offload if !idle.has_queues => {
            return Err("it is one without offloads".to_owned());
        }
        DeviceKind::Auto | DeviceKind::Offload => {
            let link = link_in_force(idle.is_tap, wanted)?;
            tun::reopen(name, link, wanted.workers).map(Shares::Fast)
        }
    };
    let shares = shares.map_err(|error| error.to_string())?;
    // Queried again when the descriptors are deposited with the keeper; here it may still be given up.
    shares.tunnels(name).map_err(|error| error.to_string())?;
    Ok(shares)
}

/// Deletes the device that had the `other` name, once the keeper has closed it, and those that agents before left.
pub(super) async fn delete_others(
    host: &Host,
    name: &str,
    other: Option<String>,
    deadline: Instant,
) {
    while let Some(other) = &other
        && host.is_device_held(other).await
        && Instant::now() < deadline
    {
        sleep(STEP).await;
    }
    let found = host.idle_devices_beside(name).await;
    let deleted = async {
        for idle in found? {
            host.delete_idle(&idle).await?;
            info!("deleted {}, the device of an agent before", idle.name());
        }
        Ok::<(), HostError>(())
    };
    if let Err(error) = deleted.await {
        warn!(
            "the device of an agent before may still be there: {}",
            causes(&error)
        );
    }
}

/// Has the device outlive the agent, once it is marked as ours: a clean-up must know it.
pub(super) async fn stay(host: &Host, name: &str, tunnels: &[Tunnel]) {
    let Some(tunnel) = tunnels.first() else {
        return;
    };
    let reason = match host.mark_device(name).await {
        Err(error) => causes(&error),
        Ok(()) => match device::make_persistent(tunnel) {
            Ok(()) => return,
            Err(error) => error.to_string(),
        },
    };
    warn!(
        name,
        "a stop will delete the device, and end connections that are masqueraded to it: {reason}"
    );
}
