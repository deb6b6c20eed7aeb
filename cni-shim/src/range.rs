//! The node's address range: which address the next pod gets.
//!
//! Theory of operation. The records are the truth about what is taken; this
//! module keeps no list of its own. Allocation runs under an exclusive
//! `flock` on `attachments/.lock`, from before the records are listed until
//! the new one is written, so two processes never choose the same address;
//! the kernel drops the lock with the process that held it. No process waits longer
//! than [`LOCK_WAIT`] for a holder that was stopped.
//!
//! A released address rests, so that no peer, no resolver and no connection
//! tracking that remembers the old pod speaks to a new one: it is noted with
//! the time (`attachments/.resting`) and passed over for [`REST`]. The search
//! goes on after the address given last (`attachments/.last`) and wraps at the
//! end. When fewer than a tenth of the subnet's addresses are free and rested,
//! those that rest give way, the oldest first: a node in a hurry runs out of
//! rest, never of addresses. Both files are hints: losing one costs the rest,
//! never correctness.
//!
//! In every subnet the base (.0, the node's tunnel address) and the one after
//! it (.1, a bridge's) are not given out, nor is the IPv4 broadcast address.
//! One address per family is given, from the first subnet that has room.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;

use crate::holder;
use crate::{FileAction, FileError, RunDir, atomic_file, run_dir};

use resting::Resting;

pub use resting::REST;

mod resting;

/// The range of one node, locked. Dropping it unlocks.
#[derive(Debug)]
pub struct Range {
    run: RunDir,
    _lock: File,
}

/// Why no address could be given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run directory could not be made.
    #[error("cannot lock the address range: make its directory first")]
    Directory {
        /// Which directory, and why.
        source: FileError,
    },
    /// The lock could not be taken, or the address given last not be noted.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process holds the lock far longer than an allocation takes.
    #[error(
        "{path} has been locked for more than {} s by {}: see what it waits for, or end it",
        waited.as_secs(),
        holder.as_deref().unwrap_or("a process that cannot be named")
    )]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// Process id and name of the holder, where the kernel says.
        holder: Option<String>,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The node has no subnet yet.
    #[error("the node has no subnet: see `tartan status` for its lease")]
    NoSubnet,
    /// Every address is taken.
    #[error(
        "no free address in {subnet}: {taken} of {capacity} are taken; see `tartan pods`, \
         then delete pods or give the node a larger subnet"
    )]
    Exhausted {
        /// The last subnet that was searched.
        subnet: IpNet,
        /// How many of its addresses are taken.
        taken: u128,
        /// How many it has for pods.
        capacity: u128,
    },
}

impl Range {
    /// Makes the directories if need be and waits for the lock, at most
    /// [`LOCK_WAIT`]. A holder keeps it for a few milliseconds and waits for
    /// nothing in that time.
    ///
    /// # Errors
    /// [`Error::Directory`], [`Error::File`], [`Error::Busy`].
    pub fn lock(run: &RunDir) -> Result<Range, Error> {
        Range::lock_within(run, LOCK_WAIT)
    }

    fn lock_within(run: &RunDir, patience: Duration) -> Result<Range, Error> {
        let (path, lock) = open_lock(run)?;
        match lock.try_lock() {
            Ok(()) => Ok(Range::locked(run, lock)),
            Err(TryLockError::WouldBlock) => match wait_for(lock, patience) {
                Ok(Some(lock)) => Ok(Range::locked(run, lock)),
                Ok(None) => Err(Error::Busy {
                    holder: holder::of(&path),
                    path,
                    waited: patience,
                }),
                Err(source) => Err(FileAction::Lock.failed(&path)(source).into()),
            },
            Err(TryLockError::Error(source)) => Err(FileAction::Lock.failed(&path)(source).into()),
        }
    }

    /// The same for a caller that must not wait, not even for a holder that was
    /// stopped: none while another process has the lock.
    ///
    /// # Errors
    /// As [`Range::lock`].
    pub fn try_lock(run: &RunDir) -> Result<Option<Range>, Error> {
        let (path, lock) = open_lock(run)?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Range::locked(run, lock))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(FileAction::Lock.failed(&path)(source).into()),
        }
    }

    fn locked(run: &RunDir, lock: File) -> Range {
        Range {
            run: run.clone(),
            _lock: lock,
        }
    }

    /// The next address of each family in `subnets` that is not in `taken`,
    /// as host prefixes, IPv4 first. Write the record that takes them before
    /// dropping the range.
    ///
    /// # Errors
    /// [`Error::NoSubnet`], [`Error::Exhausted`], [`Error::File`]; nothing
    /// is given then.
    pub fn take(&self, subnets: &[IpNet], taken: &HashSet<IpAddr>) -> Result<Vec<IpNet>, Error> {
        let path = self.run.attachments().join(".last");
        let mut last = read_cursor(&path);
        let resting = Resting::read(&self.run, unix_seconds());
        let given = choose(subnets, taken, &last, &resting)?;
        last.retain(|subnet, _| subnets.contains(subnet));
        for (subnet, address) in &given {
            last.insert(*subnet, *address);
        }
        serde_json::to_vec(&last)
            .map_err(io::Error::from)
            .and_then(|bytes| write_hint(&path, &bytes))
            .map_err(FileAction::Write.failed(&path))?;
        resting.compact(&self.run);
        Ok(given
            .into_iter()
            .map(|(_, address)| IpNet::from(address))
            .collect())
    }
}

/// flock(2) has no deadline but serves its waiters in turn, so a thread of its own
/// waits in it. After the deadline that thread releases the lock at once, if it ever
/// gets it. None when the time is over.
fn wait_for(lock: File, patience: Duration) -> io::Result<Option<File>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().spawn(move || {
        let locked = lock.lock();
        // Where the caller has stopped waiting, the lock is released with the file.
        let _ = sender.send(locked.map(|()| lock));
    })?;
    receiver.recv_timeout(patience).ok().transpose()
}

fn open_lock(run: &RunDir) -> Result<(PathBuf, File), Error> {
    run.make().map_err(|source| Error::Directory { source })?;
    let path = run.attachments().join(".lock");
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    match opened {
        Ok(lock) => Ok((path, lock)),
        Err(source) => Err(FileAction::Lock.failed(&path)(source).into()),
    }
}

/// Whether [`Range::take`] would find an address of each family now.
///
/// # Errors
/// [`Error::NoSubnet`], [`Error::Exhausted`].
pub fn check_room(subnets: &[IpNet], taken: &HashSet<IpAddr>) -> Result<(), Error> {
    choose(subnets, taken, &BTreeMap::new(), &Resting::default()).map(|_| ())
}

/// Notes that `addresses` rest from now on. Call it before the record that
/// holds them is removed; it needs no lock. A note that cannot be written
/// (a full disk) costs the rest alone, so nothing is reported.
pub fn release(run: &RunDir, addresses: &[IpNet]) {
    resting::note(run, addresses, unix_seconds());
}

/// Whether `address` is one that pods of a node with these subnets may have.
pub fn is_for_pods(subnets: &[IpNet], address: IpAddr) -> bool {
    subnets.iter().any(|subnet| {
        offset_in(subnet, address)
            .zip(last_offset(subnet))
            .is_some_and(|(offset, last)| (FIRST_OFFSET..=last).contains(&offset))
    })
}

/// One (subnet, address) per family that occurs in `subnets`.
fn choose(
    subnets: &[IpNet],
    taken: &HashSet<IpAddr>,
    last: &BTreeMap<IpNet, IpAddr>,
    resting: &Resting,
) -> Result<Vec<(IpNet, IpAddr)>, Error> {
    let mut given = Vec::new();
    for v4 in [true, false] {
        let mut full = None;
        for subnet in subnets.iter().filter(|s| s.addr().is_ipv4() == v4) {
            match next(subnet, last.get(subnet).copied(), taken, resting) {
                Ok(address) => {
                    given.push((*subnet, address));
                    full = None;
                    break;
                }
                Err(error) => full = Some(error),
            }
        }
        if let Some(error) = full {
            return Err(error);
        }
    }
    if given.is_empty() {
        return Err(Error::NoSubnet);
    }
    Ok(given)
}

/// The first free and rested address of `subnet` after `last`, wrapping; the one
/// that rests longest when fewer than a tenth are free and rested. Looks at no
/// more addresses than are taken or rest, plus one.
fn next(
    subnet: &IpNet,
    last: Option<IpAddr>,
    taken: &HashSet<IpAddr>,
    resting: &Resting,
) -> Result<IpAddr, Error> {
    let used = || {
        taken
            .iter()
            .filter(|a| is_for_pods(&[*subnet], **a))
            .count() as u128
    };
    let Some(end) = last_offset(subnet).filter(|end| *end >= FIRST_OFFSET) else {
        return Err(Error::Exhausted {
            subnet: *subnet,
            taken: 0,
            capacity: 0,
        });
    };
    let capacity = end - FIRST_OFFSET + 1;
    let is_free = |a: &IpAddr| is_for_pods(&[*subnet], *a) && !taken.contains(a);
    let rested = capacity.saturating_sub(used() + resting.count(is_free));
    if rested.saturating_mul(10) < capacity
        && let Some(oldest) = resting.oldest(is_free)
    {
        return Ok(oldest);
    }
    let mut offset = last
        .and_then(|address| offset_in(subnet, address))
        .filter(|offset| (FIRST_OFFSET..end).contains(offset))
        .map_or(FIRST_OFFSET, |offset| offset + 1);
    for _ in 0..=taken.len() + resting.len() {
        let address = at_offset(subnet, offset);
        if !taken.contains(&address) && !resting.contains(address) {
            return Ok(address);
        }
        offset = if offset == end {
            FIRST_OFFSET
        } else {
            offset + 1
        };
    }
    Err(Error::Exhausted {
        subnet: *subnet,
        taken: used(),
        capacity,
    })
}

/// The highest offset pods may have: all ones, less one for the IPv4
/// broadcast. None where a subnet has not even a base and a broadcast.
fn last_offset(subnet: &IpNet) -> Option<u128> {
    let host_bits = u32::from(subnet.max_prefix_len() - subnet.prefix_len());
    let all_ones = match host_bits {
        128 => u128::MAX,
        bits => (1u128 << bits) - 1,
    };
    all_ones.checked_sub(u128::from(subnet.addr().is_ipv4()))
}

fn offset_in(subnet: &IpNet, address: IpAddr) -> Option<u128> {
    subnet
        .contains(&address)
        .then(|| bits(address) - bits(subnet.network()))
}

/// `offset` must lie within the subnet; it is cut to the family's width.
fn at_offset(subnet: &IpNet, offset: u128) -> IpAddr {
    let bits = bits(subnet.network()).wrapping_add(offset);
    match subnet {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// In place, without fsync and without a temporary file that a killed plugin
/// could leave: a hint that is torn reads as none.
fn write_hint(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?
        .write_all(bytes)
}

/// Absent, torn or foreign: no cursor, and the search starts at the front.
fn read_cursor(path: &Path) -> BTreeMap<IpNet, IpAddr> {
    atomic_file::read(path, run_dir::LONGEST_FILE)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// How long [`Range::lock`] waits.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);

/// .0 is the node's tunnel address and .1 a bridge's.
const FIRST_OFFSET: u128 = 2;

#[cfg(test)]
mod tests;
