//! A host's end of a pod in sysfs: its counters, and whether its NAPI has a thread of its own.
//!
//! What `/sys/class/net` shows is bound to the network namespace of the process that mounted it, not to the reader's. So
//! an end is opened only where the interface of its name has its index there: one of another namespace would have to agree
//! in both by chance, and is then as likely a pod's of another node on this host.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use super::flood::Sample;
use crate::host::GatheredEnd;

/// An end whose counters can be read often.
#[derive(Debug)]
pub(super) struct OpenEnd {
    packets: File,
    bytes: File,
    back: File,
}

impl OpenEnd {
    /// Opens its counters.
    ///
    /// # Errors
    /// NotFound where sysfs shows no such interface, and as of open(2).
    pub(super) fn open(end: &GatheredEnd) -> io::Result<OpenEnd> {
        let statistics = directory(end)?.join("statistics");
        Ok(OpenEnd {
            packets: File::open(statistics.join("rx_packets"))?,
            bytes: File::open(statistics.join("rx_bytes"))?,
            back: File::open(statistics.join("tx_packets"))?,
        })
    }

    /// Its counters now.
    ///
    /// # Errors
    /// When the interface is gone.
    pub(super) fn sample(&self, at: Duration) -> io::Result<Sample> {
        Ok(Sample {
            at,
            packets: number(&self.packets)?,
            bytes: number(&self.bytes)?,
            back: number(&self.back)?,
        })
    }
}

/// Whether its NAPI runs in a thread of its own.
///
/// # Errors
/// NotFound where the kernel has no such threads (Linux 5.12), or sysfs shows no such interface.
pub(crate) fn is_threaded(end: &GatheredEnd) -> io::Result<bool> {
    Ok(number(&File::open(directory(end)?.join(THREADED))?)? != 0)
}

/// Gives its NAPI a thread of its own, or takes it away.
///
/// # Errors
/// As of [`is_threaded`], and whatever keeps the file from being written.
pub(crate) fn set_threaded(end: &GatheredEnd, is_on: bool) -> io::Result<()> {
    let value = if is_on { "1" } else { "0" };
    fs::write(directory(end)?.join(THREADED), value)
}

/// Its directory in sysfs, once that is known to be of the interface.
fn directory(end: &GatheredEnd) -> io::Result<PathBuf> {
    let directory = PathBuf::from(CLASS).join(&end.name);
    let index = number(&File::open(directory.join("ifindex"))?)?;
    match index == u64::from(end.index) {
        true => Ok(directory),
        false => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{CLASS} is of another network namespace"),
        )),
    }
}

/// The number in a file of sysfs, which gives it whole at a read of its beginning.
fn number(file: &File) -> io::Result<u64> {
    let mut text = [0; LONGEST_NUMBER];
    let length = file.read_at(&mut text, 0)?;
    let text = text
        .get(..length)
        .and_then(|text| std::str::from_utf8(text).ok());
    let number = text.and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

const CLASS: &str = "/sys/class/net";
const THREADED: &str = "threaded";
/// More than a number takes, in bytes.
const LONGEST_NUMBER: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_of_another_index_is_not_opened() {
        let index = fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
        let index: u32 = index.trim().parse().unwrap();
        let name = "lo".to_owned();
        let lo = GatheredEnd { index, name };
        let open = OpenEnd::open(&lo).unwrap();
        let [first, later] = [0, 1].map(|at| open.sample(Duration::from_secs(at)).unwrap());
        assert!(later.packets >= first.packets);
        let index = index + 1;
        let other = GatheredEnd { index, ..lo };
        let refused = OpenEnd::open(&other).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound, "{refused}");
        assert!(is_threaded(&other).is_err() && set_threaded(&other, false).is_err());
    }
}
