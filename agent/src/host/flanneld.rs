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
        let here = identity(fs::metadata("/proc/thread-self/net/dev").ok()?);
        let ourselves = identity(fs::metadata("/proc/self/exe").ok()?);
        let keeper = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
        let entries = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find_map(|pid| {
            let process = Path::new("/proc").join(pid.to_string());
            let name = beginning(&process.join("comm"));
            let program = fs::read_link(process.join("exe")).ok();
            let file = program.as_deref().and_then(Path::file_name);
            // The kernel marks a program whose file was replaced since.
            let is_file = file.is_some_and(|file| file == NAME || file == DELETED);
            let is_flanneld = is_file || name.trim_end() == NAME;
            let is_ours = pid == std::process::id() || i32::try_from(pid).ok() == keeper;
            if !is_flanneld || is_ours {
                return None;
            }
            let space = identity(fs::metadata(process.join("net/dev")).ok()?);
            let is_our_program = fs::metadata(process.join("exe"))
                .is_ok_and(|program| identity(program) == ourselves);
            (space == here && !is_our_program).then(|| Flanneld {
                pid,
                command: command(&process),
            })
        })
    }
}

fn identity(file: Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn command(process: &Path) -> String {
    let words = beginning(&process.join("cmdline"));
    let words = words.trim_end_matches('\0').replace('\0', " ");
    match words.is_empty() {
        true => NAME.to_owned(),
        false => words.escape_debug().to_string().replace("\\\"", "\""),
    }
}

/// The first bytes of a file of `/proc`; nothing where the process is gone.
fn beginning(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // What was read before an error is as good.
        let _ = file.take(SHOWN).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

const NAME: &str = "flanneld";
const DELETED: &str = "flanneld (deleted)";
/// Bytes of a command line.
const SHOWN: u64 = 200;
