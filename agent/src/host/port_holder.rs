//! The holder of a UDP port that we cannot bind: a VXLAN device of the kernel,
//! found by rtnetlink, or a process, found in `/proc`.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use futures_util::TryStreamExt;
use netlink_packet_route::link::{
    InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use super::Host;
use crate::config::text_file;

/// Who holds a port. Its `Display` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortHolder {
    /// A VXLAN device of the kernel, by name.
    VxlanDevice(String),
    /// A process.
    Process {
        /// Its id.
        pid: u32,
        /// Its name.
        name: String,
    },
}

impl PortHolder {
    /// Whether it is another agent.
    pub fn is_tartan(&self) -> bool {
        matches!(self, PortHolder::Process { name, .. } if name == OUR_NAME)
    }
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortHolder::VxlanDevice(device) => {
                write!(f, "{device}, a VXLAN device of the kernel,")
            }
            PortHolder::Process { pid, .. } if self.is_tartan() => {
                write!(f, "another agent (process {pid})")
            }
            PortHolder::Process { pid, name } => write!(f, "process {pid} ({name})"),
        }
    }
}

impl Host {
    /// The holder of the port that keeps us from binding a UDP socket, if it can be found:
    /// `/proc` shows a process's sockets only to root and with CAP_SYS_PTRACE.
    pub async fn port_holder(&self, wanted: SocketAddr) -> Option<PortHolder> {
        match self.vxlan_device(wanted).await {
            Some(device) => Some(PortHolder::VxlanDevice(device)),
            None => process(inode(wanted, UDP)?),
        }
    }

    async fn vxlan_device(&self, wanted: SocketAddr) -> Option<String> {
        self.vxlan_devices(wanted).await?.into_iter().next()
    }

    /// Names of the VXLAN devices with a socket on that port: several share one. `None` where the kernel cannot be asked.
    pub(super) async fn vxlan_devices(&self, wanted: SocketAddr) -> Option<Vec<String>> {
        let handle = &self.netlink.handle;
        let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await.ok()?;
        let holders = links.iter().filter(|link| is_vxlan_on(link, wanted));
        let name = |link: &LinkMessage| {
            link.attributes
                .iter()
                .find_map(|attribute| match attribute {
                    LinkAttribute::IfName(name) => Some(name.clone()),
                    _ => None,
                })
        };
        Some(holders.filter_map(name).collect())
    }
}

/// Whether a link is a VXLAN device with a socket on the port, which it has
/// while it is up (drivers/net/vxlan/vxlan_core.c, vxlan_open), in the network
/// namespace where it was made.
fn is_vxlan_on(link: &LinkMessage, wanted: SocketAddr) -> bool {
    let moved = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::LinkNetNsId(_));
    if !link.header.flags.contains(LinkFlags::Up) || link.attributes.iter().any(moved) {
        return false;
    }
    let options = link.attributes.iter().find_map(|attribute| {
        let LinkAttribute::LinkInfo(infos) = attribute else {
            return None;
        };
        infos.iter().find_map(|info| match info {
            LinkInfo::Data(InfoData::Vxlan(options)) => Some(options),
            _ => None,
        })
    });
    let Some(options) = options else {
        return false;
    };
    let has = |test: fn(&InfoVxlan) -> bool| options.iter().any(test);
    let v6 = has(|option| matches!(option, InfoVxlan::Group6(_) | InfoVxlan::Local6(_)));
    let both = has(|option| matches!(option, InfoVxlan::CollectMetadata(true)));
    options.contains(&InfoVxlan::Port(wanted.port())) && (both || v6 == wanted.is_ipv6())
}

/// The process that listens on the TCP port, if it can be found. Reads `/proc` of the calling thread's network namespace.
pub fn tcp_port_holder(wanted: SocketAddr) -> Option<PortHolder> {
    process(inode(wanted, TCP)?)
}

/// Whether any process of this network namespace, visible or not, listens on the TCP port.
pub(super) fn is_listened_to(port: u16) -> bool {
    let tables = TCP
        .iter()
        .map(|path| text_file::read(Path::new(path), LONGEST_TABLE));
    tables.flatten().any(|table| listens(&table, port))
}

fn listens(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let is_listening = line.split_whitespace().nth(3) == Some(LISTENING);
        is_listening && socket(line).is_some_and(|(bound, _)| bound.port() == port)
    })
}

/// The inode of the socket that is bound there, or to all addresses. `tables` are the kernel's of IPv4 and IPv6.
fn inode(wanted: SocketAddr, tables: [&str; 2]) -> Option<u64> {
    let [v4, v6] = tables;
    // A socket of IPv6 may hold the port of IPv4 as well.
    let paths = match wanted {
        SocketAddr::V4(_) => &[v4, v6][..],
        SocketAddr::V6(_) => &[v6],
    };
    let tables = paths
        .iter()
        .map(|path| text_file::read(Path::new(path), LONGEST_TABLE));
    let tables: Vec<String> = tables.flatten().collect();
    tables
        .iter()
        .flat_map(|table| table.lines().filter_map(socket))
        .find(|(bound, inode)| {
            let (address, port) = (bound.ip(), bound.port());
            let is_same = address.is_unspecified() || wanted.ip().is_unspecified();
            // A connection of TCP that waits for its end has no socket, and no inode.
            *inode != 0 && port == wanted.port() && (is_same || address == wanted.ip())
        })
        .map(|(_, inode)| inode)
}

/// A line of `/proc/net/udp`: the address that a socket is bound to, and its inode.
fn socket(line: &str) -> Option<(SocketAddr, u64)> {
    let mut fields = line.split_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    let inode = fields.nth(7)?.parse().ok()?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(ip(address)?, port), inode))
}

/// An address as the kernel prints it: words of 32 bits in hexadecimal digits,
/// as the machine reads their bytes.
fn ip(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for word in text.as_bytes().chunks(8) {
        let word = std::str::from_utf8(word).ok()?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
    }
    match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(v4) => Some(Ipv4Addr::from(v4).into()),
        Err(_) => Some(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?).to_canonical()),
    }
}

/// The process that has the socket open.
fn process(inode: u64) -> Option<PortHolder> {
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.into_iter().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let has_it = fs::read_dir(entry.path().join("fd"))
            .ok()?
            .flatten()
            .any(|descriptor| {
                fs::read_link(descriptor.path()).is_ok_and(|it| it == Path::new(&wanted))
            });
        has_it.then(|| PortHolder::Process {
            pid,
            name: name(&entry.path()),
        })
    })
}

fn name(process: &Path) -> String {
    let comm = text_file::read(&process.join("comm"), LONGEST_NAME);
    comm.map_or_else(
        |_| "of unknown name".to_owned(),
        |name| name.trim().to_owned(),
    )
}

/// The agent's own binary.
const OUR_NAME: &str = "tartan";
/// The sockets of this thread's network namespace.
const UDP: [&str; 2] = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];
const TCP: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// TCP_LISTEN (include/net/tcp_states.h), as the tables print it.
const LISTENING: &str = "0A";
const LONGEST_TABLE: u64 = 64 << 20;
const LONGEST_NAME: u64 = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_of_the_kernels_table_is_read() {
        // As a little-endian machine prints them.
        if cfg!(target_endian = "big") {
            return;
        }
        for (line, bound, inode) in [
            (
                " 1129: 010200C0:2118 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 40321 2 ffff888104c8e400 0",
                "192.0.2.1:8472",
                40321,
            ),
            (
                "  5: 00000000000000000000000000000000:205D 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77 2 0 0",
                "[::]:8285",
                77,
            ),
        ] {
            assert_eq!(socket(line), Some((bound.parse().unwrap(), inode)));
        }
        assert_eq!(
            socket("   sl  local_address rem_address   st tx_queue"),
            None
        );
    }

    #[test]
    fn a_connection_from_a_port_is_no_listener() {
        let line = |state| {
            format!(
                "0: 0100007F:1A7F 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 77 1 0 100"
            )
        };
        assert!(listens(&line("0A"), 6783));
        assert!(!listens(&line("0A"), 6784));
        assert!(!listens(&line("01"), 6783));
    }

    proptest! {
        #[test]
        fn any_line_ends(line in any::<String>(), address in "[0-9A-F]{0,40}") {
            let _ = (socket(&line), ip(&address));
        }
    }
}
