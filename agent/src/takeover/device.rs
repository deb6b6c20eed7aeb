//! The tunnel device: taken over from the service before, or made anew.
//!
//! Theory of operation: a service that takes a device over takes all of its descriptors, a queue for each worker and,
//! where there are several, a writer for each ([`tun`]). With another number of workers than before, queues are
//! attached to the device or closed, before any worker reads: it keeps addresses, routes and carrier, and a flow that
//! runs comes to its new queue. What has no place in that, after a service that died halfway, is closed; where there is
//! no first queue of the right kind, or the device is of another type than the configuration asks for (TUN, TAP), it goes
//! as a whole: its descriptors are closed, here and in the keeper, and then it is deleted.
//!
//! The device outlives the agent, so a first start may find the one that an agent before left ([`super::idle_device`]).
//!
//! A plain device has one queue. Where the kernel refuses writers, a fast one has one too: written through a queue that
//! is read, packets of one direction would move the other to another queue, and two nodes would chase each other.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dataplane::device::plain::Plain;
use dataplane::device::tun::{self, Fewer, LinkLayer, Opened, Tun};
use dataplane::device::tunnel::Tunnel;
use dataplane::device::{self, DeviceError};
use encap::Mac;
use tracing::{info, warn};

use super::{idle_device, new_device};
use crate::config::{DeviceKind, DeviceType, NodeConfig};
use crate::host::{Host, HostError};
use crate::keeper::descriptors::{Descriptors, DescriptorsError};
use crate::problems::{HostProblem, Problem};

/// What is asked for.
pub(crate) struct Wanted<'a> {
    /// Name, kind and type of the device.
    pub(crate) config: &'a NodeConfig,
    /// The Ethernet address of a TAP.
    pub(crate) mac: Mac,
    /// How many shares.
    pub(crate) workers: usize,
}

/// The device as its workers get it.
pub(crate) struct Obtained {
    /// A share for each worker.
    pub(crate) tunnels: Vec<Tunnel>,
    /// What it is: `offload` or `plain`.
    pub(crate) kind: &'static str,
    /// The reason why there are fewer than were asked for.
    pub(crate) fewer: Option<String>,
}

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum ObtainError {
    /// The keeper is gone.
    #[error(transparent)]
    Keeper(#[from] DescriptorsError),
    /// Another interface has its name.
    #[error("{0}")]
    Name(Box<Problem>),
    /// It cannot be opened.
    #[error("{QUEUE}0: {0}")]
    Device(DeviceError),
}

/// The device that the configuration asks for, with a share for each worker if it can be had.
///
/// # Errors
/// See [`ObtainError`].
pub(crate) async fn obtain(
    table: &mut Descriptors,
    host: &Host,
    wanted: &Wanted<'_>,
) -> Result<Obtained, ObtainError> {
    let name = &wanted.config.device_name;
    let inherited: BTreeMap<_, _> = table
        .take_all(|entry| entry.starts_with("tun-"))
        .into_iter()
        .collect();
    let held: Vec<String> = inherited.keys().cloned().collect();
    let held_name = inherited.values().find_map(device::name_of);
    let other_name = held_name.clone().filter(|held| held != name);
    let mut shares = None;
    if !held.is_empty() {
        match adopt(inherited, wanted) {
            Ok(adopted) => shares = Some(adopted),
            Err(reason) => {
                // The device that is held goes only where another can come: until then packets wait in it.
                if other_name.is_some()
                    && let Some(taken) = host.name_taken(name).await
                {
                    return Err(of_name(&taken));
                }
                warn!("the device is not taken over but made anew: {reason}");
                for name in last_first(&held) {
                    table.withdraw(name).await?;
                }
            }
        }
    }
    let (before, shares) = match shares {
        Some(shares) => (held, shares),
        None => {
            // A service manager that kept the descriptors may close them a moment late.
            let deadline = Instant::now() + PATIENCE;
            let shares = new_device::open(host, wanted, deadline).await?;
            idle_device::delete_others(host, name, other_name, deadline).await;
            (Vec::new(), shares)
        }
    };
    report(&shares, &before, table).await?;
    let tunnels = shares.tunnels(name).map_err(ObtainError::Device)?;
    let fewer = shares.fewer(wanted.workers);
    if let Some(reason) = &fewer {
        info!(
            name,
            asked = wanted.workers,
            workers = tunnels.len(),
            "fewer workers: {reason}"
        );
    }
    let kind = match shares {
        Shares::Fast(_) => "offload",
        Shares::Plain(_) => "plain",
    };
    Ok(Obtained {
        tunnels,
        kind,
        fewer,
    })
}

/// Gives the keeper what it has not, and takes back what is used no more: the last of a kind first, so that whenever
/// this ends, what the keeper has is numbered without a gap.
async fn report(
    shares: &Shares,
    before: &[String],
    table: &Descriptors,
) -> Result<(), DescriptorsError> {
    let named = shares.named();
    for (name, descriptor) in &named {
        if !before.contains(name) {
            table.deposit(name, *descriptor).await?;
        }
    }
    for name in last_first(before) {
        if !named.iter().any(|(used, _)| used == name) {
            info!(name, "closed");
            table.withdraw(name).await?;
        }
    }
    Ok(())
}

/// Why a service with so many workers would change the queues of the table.
pub(super) fn differs(table: &Descriptors, config: &NodeConfig, workers: usize) -> Option<String> {
    let held = table.peek(&format!("{QUEUE}0"));
    let name = held.and_then(|queue| device::name_of(&queue));
    let Some(name) = name.filter(|name| *name == config.device_name) else {
        return Some(format!(
            "the service that runs has no device {}",
            config.device_name
        ));
    };
    let queue = held.and_then(|queue| queue.try_clone_to_owned().ok())?;
    let is_tap = tun::is_tap(&queue);
    let wants_plain = config.device == DeviceKind::Plain;
    let is_plain = Plain::adopt(queue, &name).is_ok();
    let queues = table.names().filter(|name| name.starts_with(QUEUE)).count();
    match (is_tap, config.device_type) {
        _ if is_plain && config.device != DeviceKind::Offload => None,
        _ if is_plain || wants_plain => Some(format!("{name} is of another kind")),
        (true, DeviceType::Tun) | (false, DeviceType::Tap) => {
            Some(format!("{name} is of another type"))
        }
        // The kernel may have refused the rest at each start so far, and would do so again.
        _ if queues < workers => Some(format!(
            "the service that runs has {queues} workers, and the new one would have {workers}: set workers = {queues} in tartan.toml and upgrade again; where it can have more by now"
        )),
        _ if queues != workers => Some(format!(
            "the service that runs has {queues} workers, and the new one would have {workers}"
        )),
        _ => None,
    }
}

/// The names of the keeper's table by falling numbers.
fn last_first(names: &[String]) -> Vec<&String> {
    let number = |name: &str| -> Option<usize> { name.rsplit('-').next()?.parse().ok() };
    let mut names: Vec<&String> = names.iter().collect();
    names.sort_by_key(|name| Reverse(number(name)));
    names
}

/// The descriptors of a device.
pub(super) enum Shares {
    Fast(Opened),
    Plain(OwnedFd),
}

impl Shares {
    pub(super) fn link(&self) -> LinkLayer {
        match self {
            Shares::Fast(opened) => opened.link,
            Shares::Plain(_) => LinkLayer::None,
        }
    }

    /// Each with its name in the keeper's table.
    fn named(&self) -> Vec<(String, BorrowedFd<'_>)> {
        fn numbered<'a>(
            kind: &str,
            descriptors: &'a [OwnedFd],
        ) -> impl Iterator<Item = (String, BorrowedFd<'a>)> {
            let name = move |(i, fd): (usize, &'a OwnedFd)| (format!("{kind}{i}"), fd.as_fd());
            descriptors.iter().enumerate().map(name)
        }
        match self {
            Shares::Fast(opened) => numbered(QUEUE, &opened.queues)
                .chain(numbered(WRITER, &opened.writers))
                .collect(),
            Shares::Plain(queue) => numbered(QUEUE, std::slice::from_ref(queue)).collect(),
        }
    }

    pub(super) fn tunnels(&self, name: &str) -> Result<Vec<Tunnel>, DeviceError> {
        let duplicate = |fd: &OwnedFd| fd.try_clone().map_err(DeviceError::Kernel);
        match self {
            Shares::Plain(queue) => Ok(vec![Tunnel::Plain(Plain::adopt(duplicate(queue)?, name)?)]),
            Shares::Fast(opened) => {
                let mut writers = opened.writers.iter();
                let share = |queue| {
                    let writer = writers.next().map(duplicate).transpose()?;
                    Tun::adopt(duplicate(queue)?, writer, name).map(Tunnel::Fast)
                };
                opened.queues.iter().map(share).collect()
            }
        }
    }

    /// Why there are fewer than `workers`.
    fn fewer(&self, workers: usize) -> Option<String> {
        match self {
            Shares::Plain(_) if workers > 1 => Some("the plain device has one queue".to_owned()),
            Shares::Plain(_) => None,
            Shares::Fast(opened) => opened.fewer.as_ref().map(|fewer| match fewer {
                Fewer::Writes => {
                    "this kernel refuses writes through a detached queue of the device".to_owned()
                }
                Fewer::Growth(error) => {
                    format!("the kernel refuses further queues of the device: {error}")
                }
            }),
        }
    }
}

/// Makes a device of what an earlier service left.
fn adopt(mut inherited: BTreeMap<String, OwnedFd>, wanted: &Wanted<'_>) -> Result<Shares, String> {
    let config = wanted.config;
    let mut numbered = |kind: &str| -> Vec<OwnedFd> {
        let names = (0..).map(|i| format!("{kind}{i}"));
        names.map_while(|name| inherited.remove(&name)).collect()
    };
    let (queues, writers) = (numbered(QUEUE), numbered(WRITER));
    for name in inherited.into_keys() {
        warn!(
            name,
            "inherited descriptor does not belong to this device; closed"
        );
    }
    let name = &config.device_name;
    let is_plain = |queue: &OwnedFd| {
        queue
            .try_clone()
            .is_ok_and(|q| Plain::adopt(q, name).is_ok())
    };
    let plain = queues.len() == 1 && queues.iter().all(is_plain);
    let shares = match config.device {
        // A service before may have found no other than the plain one.
        DeviceKind::Plain | DeviceKind::Auto if plain => {
            queues.into_iter().next().map(Shares::Plain)
        }
        DeviceKind::Plain => None,
        DeviceKind::Auto | DeviceKind::Offload => {
            let held = Opened {
                link: adopted_link(&queues, wanted)?,
                queues,
                writers,
                fewer: None,
            };
            Some(grown(name, held, wanted.workers).map_err(|error| error.to_string())?)
        }
    };
    let shares = shares.ok_or("it is none without offloads")?;
    // Queried again when the descriptors are deposited with the keeper; here it may still be given up.
    shares.tunnels(name).map_err(|error| error.to_string())?;
    Ok(shares)
}

/// What the device of these queues is, if the configuration allows that.
fn adopted_link(queues: &[OwnedFd], wanted: &Wanted<'_>) -> Result<LinkLayer, &'static str> {
    link_in_force(queues.first().is_some_and(tun::is_tap), wanted)
}

pub(super) fn link_in_force(is_tap: bool, wanted: &Wanted<'_>) -> Result<LinkLayer, &'static str> {
    match (is_tap, wanted.config.device_type) {
        (true, DeviceType::Tun) => Err("it is a TAP, and device-type is \"tun\""),
        (false, DeviceType::Tap) => Err("it is a TUN, and device-type is \"tap\""),
        (true, _) => Ok(LinkLayer::Ethernet(wanted.mac)),
        (false, _) => Ok(LinkLayer::None),
    }
}

pub(super) fn type_name(link: LinkLayer) -> &'static str {
    match link {
        LinkLayer::None => "tun",
        LinkLayer::Ethernet(_) => "tap",
    }
}

/// The device `name` for `workers`, or for as many as it served, where there are no descriptors left for more to be used.
fn grown(name: &str, held: Opened, workers: usize) -> Result<Shares, DeviceError> {
    let served = held.queues.len();
    let opened = tun::resize(name, held, workers)?;
    let larger = opened.queues.len() > served;
    let shares = Shares::Fast(opened);
    match (shares.tunnels(name), shares) {
        (Err(DeviceError::Kernel(error)), Shares::Fast(opened)) if larger => {
            let mut opened = tun::resize(name, opened, served)?;
            opened.fewer = Some(Fewer::Growth(error));
            Ok(Shares::Fast(opened))
        }
        (_, shares) => Ok(shares),
    }
}

pub(super) fn of_name(taken: &HostError) -> ObtainError {
    ObtainError::Name(Box::new(Problem::Host(HostProblem::of(taken))))
}

/// The keeper's names, before the worker's number.
pub(super) const QUEUE: &str = "tun-queue-";
const WRITER: &str = "tun-writer-";
/// The keeper closes its duplicate of an old device's queue when it reads so, a moment later.
const PATIENCE: Duration = Duration::from_secs(1);
pub(super) const STEP: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever a service dies that closes what it needs no more, its successor finds numbers without a gap.
    #[test]
    fn what_is_taken_back_leaves_no_gap() {
        let kinds = [QUEUE, WRITER];
        let mut left: Vec<String> = kinds
            .iter()
            .flat_map(|kind| (0..12).map(move |i| format!("{kind}{i}")))
            .collect();
        // As the keeper's table lists them: 10 and 11 before 2.
        left.sort();
        for name in last_first(&left.clone()) {
            left.retain(|other| other != name);
            for kind in kinds {
                let count = left.iter().filter(|name| name.starts_with(kind)).count();
                let follows = |i: usize| left.contains(&format!("{kind}{i}"));
                assert!((0..count).all(follows), "{left:?}");
            }
        }
        assert!(left.is_empty());
    }
}
