//! The daemon of another CNI, which would put everything back.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::catalogue::Catalogue;
use crate::host::flanneld::{process_named, process_with};
use crate::host::port_holder::is_listened_to;

/// What shows that a daemon runs in this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// Its process.
    Process {
        /// Its process id.
        pid: u32,
        /// Its command line, control characters escaped; cut after 200 bytes.
        command: String,
    },
    /// A port of its own that a hidden process listens on.
    Port {
        /// The TCP port.
        port: u16,
        /// What the daemon has it for.
        purpose: &'static str,
    },
    /// It has no port of its own, and processes outside this container cannot be seen.
    Hidden,
}

impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Daemon::Process { pid, command } => write!(f, "process {pid} (`{command}`)"),
            Daemon::Hidden => f.write_str(
                "it may: the processes of the host cannot be seen from this container (give it the host's process ids, hostPID)",
            ),
            Daemon::Port { port, purpose } => {
                write!(
                    f,
                    "a process that cannot be seen listens on TCP port {port}, which is for {purpose}"
                )
            }
        }
    }
}

/// A port counts only where its process cannot be seen: a visible one of another name is another program.
pub(super) fn running(catalogue: &Catalogue) -> Option<Daemon> {
    if let Some((pid, command)) = process_named(catalogue.daemons) {
        return Some(Daemon::Process { pid, command });
    }
    let has_it = |arguments: &[String]| !is_switched_off(arguments, catalogue.switched_off);
    if let Some((pid, command)) = process_with(catalogue.embedders, has_it) {
        return Some(Daemon::Process { pid, command });
    }
    if catalogue.ports.is_empty() && !sees_the_host() {
        return Some(Daemon::Hidden);
    }
    let found = catalogue.ports.iter().find(|(port, _)| {
        is_listened_to(*port)
            && crate::host::tcp_port_holder(([0, 0, 0, 0], *port).into()).is_none()
    });
    found.map(|(port, purpose)| Daemon::Port {
        port: *port,
        purpose,
    })
}

/// Whether the option has that value, in any of the forms that its program takes.
fn is_switched_off(arguments: &[String], (option, value): (&str, &str)) -> bool {
    let name = |word: &str| word.trim_start_matches('-') == option && word.starts_with('-');
    arguments.iter().enumerate().any(|(place, word)| {
        let given = match word.split_once('=') {
            Some((before, given)) => name(before).then_some(given),
            None => arguments
                .get(place + 1)
                .filter(|_| name(word))
                .map(String::as_str),
        };
        given == Some(value)
    })
}

/// Whether this process is in the first namespace of process ids, from which every process is seen.
fn sees_the_host() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|space| space.ino() == FIRST_PID_NAMESPACE)
}

/// `PROC_PID_INIT_INO`, include/linux/proc_ns.h.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

#[cfg(test)]
mod tests {
    use super::super::flannel;
    use super::*;

    #[test]
    fn k3s_has_flannel_unless_its_arguments_say_none() {
        let off = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            is_switched_off(&words, flannel::CATALOGUE.switched_off)
        };
        for line in [
            "k3s server --flannel-backend=none",
            "k3s server --flannel-backend none --disable traefik",
            "k3s server -flannel-backend=none",
        ] {
            assert!(off(line), "{line}");
        }
        for line in [
            "k3s server",
            "k3s agent",
            "k3s server --flannel-backend=vxlan",
            "k3s server --flannel-backend",
            "k3s server --flannel-backend-x=none",
            "k3s server --node-name flannel-backend=none",
            "k3s server --node-name=none",
        ] {
            assert!(!off(line), "{line}");
        }
    }
}
