//! Files that belong into a report: Tartan's own, and counters of the kernel.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use std::os::unix::fs::OpenOptionsExt;

use crate::configuration::Configuration;

/// A file and the part that it becomes.
pub(super) struct Listed {
    /// Path within the bundle.
    pub(super) part: String,
    /// The file.
    pub(super) path: PathBuf,
}

/// Files of the kernel and the host, the same on every node.
pub(super) fn of_host() -> Vec<Listed> {
    let each = HOST.iter().map(|(part, path)| Listed {
        part: (*part).to_owned(),
        path: PathBuf::from(path),
    });
    let settings = SETTINGS.iter().map(|key| Listed {
        part: format!("settings/{}", key.replace('/', ".")),
        path: Path::new("/proc/sys/net").join(key),
    });
    each.chain(settings).collect()
}

/// Files of this node's agent.
pub(super) fn of_node(configuration: &Configuration) -> Vec<Listed> {
    let config = &configuration.config;
    let (state, run) = (config.state_dir(), config.run_dir());
    let mut files = vec![
        listed("configuration", configuration.file.path()),
        listed("configuration", &config.net_conf),
        listed("state", &config.subnet_file),
        listed("state", &run.node()),
        listed("state", &run.path().join("start-failure")),
    ];
    if config.node_file.exists() {
        files.push(listed("configuration", &config.node_file));
    }
    files.extend(directory("state", &state));
    files.extend(directory("state/attachments", &run.attachments()));
    files
}

fn listed(folder: &str, path: &Path) -> Listed {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Listed {
        part: format!("{folder}/{name}"),
        path: path.to_owned(),
    }
}

/// The files of a directory by name, a bounded number.
fn directory(folder: &str, path: &Path) -> Vec<Listed> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    paths.sort_unstable();
    paths.truncate(MOST_FILES);
    paths.iter().map(|path| listed(folder, path)).collect()
}

/// The text of a regular file or a file of `/proc`: the first or the last `limit` bytes.
///
/// # Errors
/// The kernel's refusal; a pipe, a device or a directory.
pub(super) fn read(path: &Path, limit: u64, is_log: bool) -> io::Result<String> {
    let mut file = fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if is_log && found.len() > limit {
        file.seek(SeekFrom::Start(found.len() - limit))?;
    }
    text(file, limit)
}

fn text(file: File, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A process's words or variables, which `/proc` separates by zeros, a line each. Of the variables those of Tartan alone.
pub(super) fn words(pid: u32, file: &str, limit: u64) -> io::Result<String> {
    let path = Path::new("/proc").join(pid.to_string()).join(file);
    let text = text(File::open(path)?, limit)?;
    let words = text.split('\0').filter(|word| !word.is_empty());
    let is_shown = |word: &&str| file != "environ" || word.starts_with("TARTAN_");
    let lines = words.filter(is_shown).map(|word| format!("{word}\n"));
    Ok(lines.collect())
}

/// Where a process writes its log, if that is a file.
pub(super) fn log_of(pid: u32) -> Option<PathBuf> {
    let link = Path::new("/proc").join(pid.to_string()).join("fd/2");
    let target = fs::read_link(link).ok()?;
    target.is_file().then_some(target)
}

const HOST: [(&str, &str); 16] = [
    ("host/version", "/proc/version"),
    ("host/os-release", "/etc/os-release"),
    ("host/uptime", "/proc/uptime"),
    ("host/load", "/proc/loadavg"),
    ("host/memory", "/proc/meminfo"),
    ("host/processors", "/proc/cpuinfo"),
    ("host/interrupts", "/proc/interrupts"),
    ("host/misc-devices", "/proc/misc"),
    ("counters/snmp", "/proc/thread-self/net/snmp"),
    ("counters/snmp6", "/proc/thread-self/net/snmp6"),
    ("counters/netstat", "/proc/thread-self/net/netstat"),
    ("counters/softnet", "/proc/thread-self/net/softnet_stat"),
    ("counters/devices", "/proc/thread-self/net/dev"),
    ("counters/udp", "/proc/thread-self/net/udp"),
    ("counters/udp6", "/proc/thread-self/net/udp6"),
    (
        "counters/conntrack",
        "/proc/thread-self/net/stat/nf_conntrack",
    ),
];
const SETTINGS: [&str; 12] = [
    "ipv4/ip_forward",
    "ipv4/conf/all/rp_filter",
    "ipv4/conf/default/rp_filter",
    "ipv4/ip_no_pmtu_disc",
    "ipv4/tcp_mtu_probing",
    "ipv6/conf/all/forwarding",
    "ipv6/conf/all/disable_ipv6",
    "bridge/bridge-nf-call-iptables",
    "bridge/bridge-nf-call-ip6tables",
    "core/rmem_max",
    "core/wmem_max",
    "core/netdev_max_backlog",
];
/// Of a directory.
const MOST_FILES: usize = 300;
