//! Which released addresses rest, and since when: lines of `ADDRESS SECONDS`
//! in `attachments/.resting`. A release appends, without any lock; an
//! allocation, under the range's lock, leaves out what has rested when the file
//! has grown. A line lost between the two costs that address its rest.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::run_dir::LONGEST_FILE;
use crate::{RunDir, atomic_file};

/// How long a released address is passed over while others are free: as long
/// as a neighbour's entry goes unquestioned (`gc_stale_time`, 60 s), and longer
/// than a UDP flow that is not answered stays in connection tracking (30 s).
pub const REST: Duration = Duration::from_secs(60);

/// The addresses that rest at one moment, each with the Unix second of its
/// release.
#[derive(Debug, Default)]
pub(super) struct Resting {
    since: HashMap<IpAddr, u64>,
    /// Lines read, live or not.
    lines: usize,
}

impl Resting {
    /// Those that rest at `now`. A file that is absent or nonsense holds none.
    pub(super) fn read(run: &RunDir, now: u64) -> Resting {
        let mut resting = Resting::default();
        let bytes = atomic_file::read(&path(run), LONGEST_FILE).unwrap_or_else(|_| {
            // What cannot be read, too long as it may be, is written anew.
            resting.lines = MOST_LINES;
            Vec::new()
        });
        for line in bytes.split(|byte| *byte == b'\n') {
            resting.lines += 1;
            let Some((address, since)) = entry(line) else {
                continue;
            };
            // A clock that was set back makes it rest longer, no more.
            if since + REST.as_secs() > now {
                let latest = resting.since.entry(address).or_default();
                *latest = since.max(*latest);
            }
        }
        resting
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.since.contains_key(&address)
    }

    pub(super) fn len(&self) -> usize {
        self.since.len()
    }

    /// How many of those that are `free`.
    pub(super) fn count(&self, free: impl Fn(&IpAddr) -> bool) -> u128 {
        self.since.keys().filter(|address| free(address)).count() as u128
    }

    /// Of those that are `free`, the one that was released first.
    pub(super) fn oldest(&self, free: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
        let free = self.since.iter().filter(|(address, _)| free(address));
        free.min_by_key(|(address, since)| (**since, **address))
            .map(|(address, _)| *address)
    }

    /// Rewrites the file once it holds many more lines than addresses rest, or
    /// more than it may. A failure is left to the next.
    pub(super) fn compact(&self, run: &RunDir) {
        if self.lines < MOST_LINES && self.lines < 64 + 2 * self.since.len() {
            return;
        }
        let mut entries: Vec<_> = self.since.iter().collect();
        entries.sort_by_key(|(address, since)| (std::cmp::Reverse(**since), **address));
        entries.truncate(MOST_KEPT);
        entries.reverse();
        let text: String = entries
            .iter()
            .map(|(address, since)| format!("{address} {since}\n"))
            .collect();
        let _ = super::write_hint(&path(run), text.as_bytes());
    }
}

/// Appends one line for each address, in one write.
pub(super) fn note(run: &RunDir, addresses: &[IpNet], now: u64) {
    let text: String = addresses
        .iter()
        .map(|prefix| format!("{} {now}\n", prefix.addr()))
        .collect();
    // See the caller: what cannot be noted does not rest.
    let _ = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path(run))
        .and_then(|mut file| file.write_all(text.as_bytes()));
}

fn entry(line: &[u8]) -> Option<(IpAddr, u64)> {
    let (address, since) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let since: u64 = since.parse().ok()?;
    // Seconds that no addition makes overflow.
    Some((address.parse().ok()?, since)).filter(|_| since < u64::MAX / 2)
}

fn path(run: &RunDir) -> PathBuf {
    run.attachments().join(".resting")
}

/// Lines at which the file is rewritten in any case: what is longer than the
/// longest file we read counts as nothing.
const MOST_LINES: usize = 1024;

/// Addresses kept then, the latest released.
const MOST_KEPT: usize = 512;
