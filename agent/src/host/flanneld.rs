//! A flanneld that runs beside Tartan, found in `/proc`.
//!
//! Both want the same device, ports, routes and lease, and flanneld takes them without asking: it deletes a device of its
//! name that is none of its own, and overwrites the node's lease before it notices that its port is taken. Only processes
//! of this network namespace count, and only those that this process may see: in a container without the host's process
//! ids, `/proc` shows none of them.
//!
//! With CAP_NET_ADMIN alone the program and the namespace of a process with more capabilities cannot be read (ptrace(2)).
//! Its name and its network's statistics can: the file `net/dev` is one in a namespace, whichever process it is reached by.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process of flannel's daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flanneld {
    /// Its process id.
    pub pid: u32,
    /// Its command line, control characters escaped; cut after 200 bytes.
    pub command: String,
}

impl fmt::Display for Flanneld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (`{}`)", self.pid, self.command)
    }
}

impl Flanneld {
    /// The first in this network namespace. Never this program itself, which may be run by the name `flanneld`, nor the
    /// keeper that started this service.
    pub fn running() -> Option<Flanneld> {
        let (pid, command) = process_named(&[NAME])?;
        Some(Flanneld { pid, command })
    }
}

/// The first process of one of these names in this network namespace, and its command line. Never this program itself, nor
/// the keeper that started this service.
pub(super) fn process_named(names: &[&str]) -> Option<(u32, String)> {
    process_with(names, |_| true)
}

/// As [`process_named`], of those whose arguments are `accepted`: the words of the command line, the program's name first.
/// Where they cannot be read there is none.
pub(super) fn process_with(
    names: &[&str],
    accepted: impl Fn(&[String]) -> bool,
) -> Option<(u32, String)> {
    let here = identity(fs::metadata("/proc/thread-self/net/dev").ok()?);
    let ourselves = identity(fs::metadata("/proc/self/exe").ok()?);
    let keeper = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find_map(|pid| {
        let process = Path::new("/proc").join(pid.to_string());
        let name = beginning(&process.join("comm"), SHOWN);
        let program = fs::read_link(process.join("exe")).ok();
        let file = program.as_deref().and_then(Path::file_name);
        let file = file.and_then(|file| file.to_str()).unwrap_or_default();
        // The kernel marks a program whose file was replaced since.
        let file = file.strip_suffix(DELETED).unwrap_or(file);
        let found = names
            .iter()
            .find(|wanted| **wanted == file || **wanted == name.trim_end())?;
        if pid == std::process::id() || i32::try_from(pid).ok() == keeper {
            return None;
        }
        let space = identity(fs::metadata(process.join("net/dev")).ok()?);
        let is_our_program =
            fs::metadata(process.join("exe")).is_ok_and(|program| identity(program) == ourselves);
        (space == here && !is_our_program && accepted(&arguments(&process)))
            .then(|| (pid, command(&process, found)))
    })
}

fn identity(file: Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn arguments(process: &Path) -> Vec<String> {
    let line = beginning(&process.join("cmdline"), LONGEST_LINE);
    let words = line.split('\0').filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

fn command(process: &Path, name: &str) -> String {
    let words = beginning(&process.join("cmdline"), SHOWN);
    let words = words.trim_end_matches('\0').replace('\0', " ");
    match words.is_empty() {
        true => name.to_owned(),
        false => words.escape_debug().to_string().replace("\\\"", "\""),
    }
}

/// The first bytes of a file of `/proc`; nothing where the process is gone.
fn beginning(path: &Path, most: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // What was read before an error is as good.
        let _ = file.take(most).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

const NAME: &str = "flanneld";
const DELETED: &str = " (deleted)";
/// Bytes of a command line.
const SHOWN: u64 = 200;
/// Bytes of a command line whose arguments are looked at.
const LONGEST_LINE: u64 = 64 * 1024;
