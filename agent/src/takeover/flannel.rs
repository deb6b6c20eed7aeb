//! Taking the place of a stopped flanneld, as far as a start does it (`replace-flannel`).
//!
//! Theory of operation. The kernel's VXLAN devices forward until they are brought down, and Tartan can take their name and
//! port only then. So everything that may be refused is checked while they forward ([`check`]), and they are set aside
//! right before the device and the sockets are opened ([`take_place`]): packets are lost from there until the kernel has
//! the route to the new device. What arrives once the sockets are bound waits in them until the workers read. The devices
//! are deleted when these do ([`finish`]).
//!
//! Nothing is touched while a flanneld runs: it would make its devices anew.

use std::fs::OpenOptions;
use std::net::SocketAddr;

use dataplane::underlay::socket::SocketSpec;
use encap::Format;
use tracing::{info, warn};

use super::start_error::StartError;
use crate::config::NodeConfig;
use crate::config::node::registry::RegistryKind;
use crate::control::model::Known;
use crate::host::{Flanneld, Host, HostError, Leftovers};
use crate::problems::{Problem, UnderlayFault};

/// A flanneld that this node's configuration cannot live beside: both would have the same device, or the same lease.
pub(crate) fn running(config: &NodeConfig) -> Option<Problem> {
    let is_at_odds = config.replace_flannel || config.registry.kind != RegistryKind::File;
    let running = is_at_odds.then(Flanneld::running).flatten();
    running.map(Problem::FlanneldRunning)
}

/// What flannel left of devices; nothing where the configuration does not ask for flannel's place.
///
/// A start that takes over from another service leaves them where a flanneld runs: it goes on and reports that.
pub(super) async fn leftovers(
    config: &NodeConfig,
    host: &Host,
    is_take_over: bool,
) -> Result<Leftovers, StartError> {
    if !config.replace_flannel {
        return Ok(Leftovers::default());
    }
    let found = host.leftovers(&config.device_name).await?;
    match unless_flanneld_runs(config, &found) {
        Ok(()) => Ok(found),
        Err(_) if is_take_over => Ok(Leftovers::default()),
        Err(error) => Err(error),
    }
}

/// A flanneld would make the devices anew.
fn unless_flanneld_runs(config: &NodeConfig, leftovers: &Leftovers) -> Result<(), StartError> {
    match running(config).filter(|_| !leftovers.is_empty()) {
        Some(problem) => Err(problem.into()),
        None => Ok(()),
    }
}

/// Whether the devices can go, and Tartan forward in their place.
pub(super) async fn check(
    known: &Known,
    host: &Host,
    leftovers: &Leftovers,
) -> Result<(), StartError> {
    if leftovers.is_empty() {
        return Ok(());
    }
    // The registry may have been waited for, for long.
    unless_flanneld_runs(&known.config, leftovers)?;
    let (cluster, subnets) = (known.net_conf.cluster(), &known.own.subnets);
    host.check_replacement(&cluster, subnets).await?;
    let tun = OpenOptions::new().read(true).write(true).open(TUN);
    tun.map_err(|error| StartError::Descriptor {
        name: TUN.to_owned(),
        reason: format!(
            "{error}: load the kernel's tun module, or let this container have the device; until then flannel's device stays"
        ),
    })?;
    let port = known.net_conf.backend.vxlan_port();
    for address in known.wanted().iter() {
        let wanted = SocketSpec {
            address,
            port,
            format: Format::Vxlan,
            lane: None,
        };
        let fault = match known.facts.addresses.contains(&address) {
            false => UnderlayFault::NotOnHost,
            true => match host
                .other_holder(SocketAddr::new(address, port), leftovers)
                .await
            {
                Some(holder) => UnderlayFault::PortTaken(Some(holder)),
                None => continue,
            },
        };
        let problem = Problem::UnderlaySocket {
            wanted,
            fault,
            kept: None,
            kept_is_of: None,
        };
        return Err(problem.into());
    }
    let listed = &known.own.vtep_mac;
    let found = &leftovers.vtep_mac;
    for (family, found, listed) in [("IPv4", found.v4, listed.v4), ("IPv6", found.v6, listed.v6)] {
        if let Some(found) = found.filter(|found| *found != listed) {
            warn!(
                "this node's VTEP MAC for {family} was {found} and is {listed} from now on, as the registry has it: peers that do not learn that lose their packets to this node"
            );
        }
    }
    Ok(())
}

/// Takes name and port from the devices. From here on nothing is forwarded until Tartan does it.
pub(super) async fn take_place(
    known: &Known,
    host: &Host,
    leftovers: &Leftovers,
) -> Result<(), StartError> {
    let (cluster, subnets) = (known.net_conf.cluster(), &known.own.subnets);
    let device = &known.config.device_name;
    let changes = host
        .set_leftovers_aside(leftovers, device, &cluster, subnets)
        .await?;
    changes.iter().for_each(|change| info!("set up: {change}"));
    Ok(())
}

/// Deletes the devices, once the workers forward.
pub(super) async fn finish(
    config: &NodeConfig,
    host: &Host,
    leftovers: &Leftovers,
) -> Option<HostError> {
    if leftovers.is_empty() {
        return None;
    }
    match host.delete_leftovers(leftovers, &config.device_name).await {
        Ok(changes) => {
            changes.iter().for_each(|change| info!("set up: {change}"));
            None
        }
        Err(error) => Some(error),
    }
}

const TUN: &str = "/dev/net/tun";
