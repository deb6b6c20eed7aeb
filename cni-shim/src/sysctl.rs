//! The interface settings of IPv6, all made in /proc/sys: most are offered
//! nowhere else. (netlink has `addr_gen_mode` too, IFLA_INET6_ADDR_GEN_MODE.)

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cni_shim::pod_link::{self, Setting6};

use crate::netlink::Netlink;

/// Why a setting could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot set {path} to {value}")]
    Set {
        path: PathBuf,
        value: u8,
        source: io::Error,
    },
}

/// The settings of IPv6, as `veth` makes those of IPv4.
pub(crate) fn set_host_side(
    netlink: &mut Netlink,
    ifname: &str,
    speaks_v6: bool,
) -> Result<(), Error> {
    let values = pod_link::SETTINGS6.map(|setting| (setting.name, setting.value));
    set_all(netlink, ifname, speaks_v6, &values)
}

/// Runs inside the pod's namespace: /proc/sys/net shows the caller's.
pub(crate) fn set_pod_side(
    netlink: &mut Netlink,
    ifname: &str,
    speaks_v6: bool,
) -> Result<(), Error> {
    let values = [
        ("accept_ra", 0),
        ("accept_redirects", 0),
        ("disable_ipv6", 0),
    ];
    set_all(netlink, ifname, speaks_v6, &values)
}

/// Without an IPv6 address an interface speaks no IPv6, so that no
/// other host can reach it by a link-local address past the IPv4 rules.
fn set_all(
    netlink: &mut Netlink,
    ifname: &str,
    speaks_v6: bool,
    values: &[(&str, u8)],
) -> Result<(), Error> {
    if speaks_v6 {
        return set(netlink, ifname, values);
    }
    let Setting6 { name, value } = pod_link::WITHOUT6;
    match set(netlink, ifname, &[(name, value)]) {
        // A kernel without IPv6 speaks none.
        Err(Error::Set { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// /proc/sys may be read-only and right already. One that is read-only and
/// wrong stops nothing that works without the setting.
fn set(netlink: &mut Netlink, ifname: &str, values: &[(&str, u8)]) -> Result<(), Error> {
    for &(key, value) in values {
        // Path components, not dots: an interface name may hold a dot.
        let path: PathBuf = ["/proc/sys/net/ipv6/conf", ifname, key].iter().collect();
        let text = value.to_string();
        match write(netlink, key, &path, &text) {
            Err(error) if error.kind() != io::ErrorKind::NotFound && is(&path, &text) => {}
            Err(source)
                if source.kind() == io::ErrorKind::ReadOnlyFilesystem && !needed(key, value) =>
            {
                eprintln!(
                    "tartan-cni: /proc/sys is read-only: {} is not {value}",
                    path.display()
                );
            }
            written => written.map_err(|source| Error::Set {
                path: path.clone(),
                value,
                source,
            })?,
        }
    }
    Ok(())
}

/// Writes one setting, and where the kernel takes its lock of interfaces for
/// it, when it is our turn.
fn write(netlink: &mut Netlink, key: &str, path: &Path, value: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let mut write = || file.write_all(value.as_bytes());
    if takes_the_lock(key) {
        netlink.in_turn(write)
    } else {
        write()
    }
}

/// Whether the kernel tries for that lock (net/ipv6/addrconf.c,
/// `addrconf_fixup_forwarding`, `addrconf_disable_ipv6`,
/// `addrconf_sysctl_addr_gen_mode`, Linux 6.8); `accept_ra` and
/// `accept_redirects` are numbers and no more (`proc_dointvec`).
fn takes_the_lock(key: &str) -> bool {
    matches!(key, "addr_gen_mode" | "disable_ipv6" | "forwarding")
}

fn is(path: &Path, value: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|now| now.trim_end() == value)
}

/// Whether no packet passes without it; the others make the pod's interface
/// harder to deceive.
fn needed(key: &str, value: u8) -> bool {
    matches!((key, value), ("forwarding", 1) | ("disable_ipv6", 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_that_cannot_be_set_is_named() {
        let mut netlink = Netlink::open().unwrap();
        let refused = set(&mut netlink, "cs-none", &[("forwarding", 1)]).unwrap_err();
        assert!(
            refused.to_string().contains("/cs-none/forwarding"),
            "{refused}"
        );
    }

    #[test]
    fn what_takes_no_lock_does_not_wait() {
        let mut netlink = Netlink::open().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        for (key, requests) in [
            ("accept_ra", 0),
            ("accept_redirects", 0),
            ("addr_gen_mode", 1),
            ("forwarding", 1),
            ("disable_ipv6", 1),
        ] {
            let before = netlink.requests();
            write(&mut netlink, key, file.path(), key).unwrap();
            assert_eq!(netlink.requests() - before, requests, "{key}");
            let written = std::fs::read_to_string(file.path()).unwrap();
            assert!(written.starts_with(key), "{written}");
        }
    }
}
