//! The tunnel device: taken over from the service before, or made anew.
//!
//! Theory of operation: whoever takes a device over takes all of its descriptors, a queue for each worker and, where there
//! are several, a writer for each ([`tun`]). With another number of workers than before, queues are attached to the
//! device or closed, before anybody reads: it keeps addresses, routes and carrier, and a flow that runs comes to its new
//! queue. What cannot be taken over goes as a whole. The old device goes with the last of its descriptors, here and in
//! the keeper, and only then is its name free.
//!
//! A plain device has one queue. Where the kernel refuses writers, a fast one has one too: written through a queue that
//! is read, packets of one direction would move the other to another queue, and two nodes would chase each other.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dataplane::device::DeviceError;
use dataplane::device::plain::{self, Plain};
use dataplane::device::tun::{self, Opened, Tun};
use dataplane::device::tunnel::Tunnel;
use rustix::io::Errno;
use tokio::time::sleep;
use tracing::{info, warn};

use super::descriptors::{Descriptors, DescriptorsError};
use crate::config::{Device, NodeConfig};

/// The device as its workers get it.
pub(super) struct Obtained {
    /// A share for each worker.
    pub(super) tunnels: Vec<Tunnel>,
    /// What it is: `offload` or `plain`.
    pub(super) kind: &'static str,
    /// Why there are fewer than was asked for, in words.
    pub(super) fewer: Option<&'static str>,
}

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum ObtainError {
    /// The keeper is gone.
    #[error(transparent)]
    Keeper(#[from] DescriptorsError),
    /// It cannot be opened.
    #[error("{QUEUE}0: {0}")]
    Device(DeviceError),
}

/// The device that the configuration asks for, with a share for each of `workers` if it can be had.
///
/// # Errors
/// See [`ObtainError`].
pub(super) async fn obtain(
    table: &mut Descriptors,
    config: &NodeConfig,
    workers: usize,
) -> Result<Obtained, ObtainError> {
    let name = &config.device_name;
    let inherited: BTreeMap<_, _> = table
        .take_all(|entry| entry.starts_with("tun-"))
        .into_iter()
        .collect();
    let held: Vec<String> = inherited.keys().cloned().collect();
    let mut shares = None;
    if !held.is_empty() {
        match adopt(inherited, config, workers) {
            Ok(adopted) => shares = Some(adopted),
            Err(reason) => {
                warn!("the device is not taken over but made anew: {reason}");
                for name in &held {
                    table.withdraw(name).await?;
                }
            }
        }
    }
    let (before, shares) = match shares {
        Some(shares) => (held, shares),
        None => {
            let patience = if held.is_empty() {
                Duration::ZERO
            } else {
                PATIENCE
            };
            let opened = open(config, workers, Instant::now() + patience).await;
            let shares = opened.map_err(ObtainError::Device)?;
            match &shares {
                Shares::Fast(_) => info!(name, "opened"),
                Shares::Plain(_) => info!(name, "opened without offloads: packet by packet"),
            }
            (Vec::new(), shares)
        }
    };
    tell(&shares, &before, table).await?;
    let tunnels = shares.tunnels(name).map_err(ObtainError::Device)?;
    let fewer = shares.fewer(workers);
    if let Some(reason) = fewer {
        info!(name, asked = workers, "one worker alone: {reason}");
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

/// Gives the keeper what it has not, and takes back what is used no more.
async fn tell(
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
    for name in before {
        if !named.iter().any(|(used, _)| used == name) {
            info!(name, "closed");
            table.withdraw(name).await?;
        }
    }
    Ok(())
}

/// The descriptors of a device.
enum Shares {
    Fast(Opened),
    Plain(OwnedFd),
}

impl Shares {
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
            Shares::Fast(Opened { queues, writers }) => numbered(QUEUE, queues)
                .chain(numbered(WRITER, writers))
                .collect(),
            Shares::Plain(queue) => numbered(QUEUE, std::slice::from_ref(queue)).collect(),
        }
    }

    fn tunnels(&self, name: &str) -> Result<Vec<Tunnel>, DeviceError> {
        let duplicate = |fd: &OwnedFd| fd.try_clone().map_err(DeviceError::Kernel);
        match self {
            Shares::Plain(queue) => Ok(vec![Tunnel::Plain(Plain::adopt(duplicate(queue)?, name)?)]),
            Shares::Fast(Opened { queues, writers }) => {
                let mut writers = writers.iter();
                let share = |queue| {
                    let writer = writers.next().map(duplicate).transpose()?;
                    Tun::adopt(duplicate(queue)?, writer, name).map(Tunnel::Fast)
                };
                queues.iter().map(share).collect()
            }
        }
    }

    /// Why there are fewer than `workers`.
    fn fewer(&self, workers: usize) -> Option<&'static str> {
        match self {
            Shares::Plain(_) if workers > 1 => Some("the plain device has one queue"),
            Shares::Fast(opened) if opened.queues.len() < workers => {
                Some("this kernel refuses writes through a detached queue of the device")
            }
            _ => None,
        }
    }
}

/// Makes a device of what an earlier service left.
fn adopt(
    mut inherited: BTreeMap<String, OwnedFd>,
    config: &NodeConfig,
    workers: usize,
) -> Result<Shares, String> {
    let mut numbered = |kind: &str| -> Vec<OwnedFd> {
        let names = (0..).map(|i| format!("{kind}{i}"));
        names.map_while(|name| inherited.remove(&name)).collect()
    };
    let (queues, writers) = (numbered(QUEUE), numbered(WRITER));
    if let Some(name) = inherited.keys().next() {
        return Err(format!("{name} does not follow from the others"));
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
        Device::Plain | Device::Auto if plain => queues.into_iter().next().map(Shares::Plain),
        Device::Plain => None,
        Device::Auto | Device::Offload => {
            let resized = tun::resize(name, Opened { queues, writers }, workers);
            Some(Shares::Fast(resized.map_err(|error| error.to_string())?))
        }
    };
    let shares = shares.ok_or("it is none without offloads")?;
    // Asked for once more when all is told to the keeper; here it may still be given up.
    shares.tunnels(name).map_err(|error| error.to_string())?;
    Ok(shares)
}

/// A new device. Until `deadline` it waits for an old one of that name to go.
async fn open(
    config: &NodeConfig,
    workers: usize,
    deadline: Instant,
) -> Result<Shares, DeviceError> {
    loop {
        match open_now(&config.device_name, config.device, workers) {
            Err(DeviceError::Busy(_)) if Instant::now() < deadline => sleep(STEP).await,
            result => return result,
        }
    }
}

fn open_now(name: &str, wanted: Device, workers: usize) -> Result<Shares, DeviceError> {
    let open_plain = || plain::open(name).map(Shares::Plain);
    let open_fast = || tun::open(name, workers).map(Shares::Fast);
    match wanted {
        Device::Plain => open_plain(),
        Device::Auto => match open_fast() {
            Err(DeviceError::NoOffloads(error)) => {
                info!("this kernel offers no TUN device with offloads: {error}");
                open_plain()
            }
            result => result,
        },
        Device::Offload => {
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

/// The keeper's names, before the worker's number.
const QUEUE: &str = "tun-queue-";
const WRITER: &str = "tun-writer-";
/// The keeper closes its duplicate of an old device's queue when it reads so, a moment later.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(5);
