//! One kernel setting under `/proc/sys/net`, as the calling thread's network namespace sees it.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::features;
use crate::host::error::HostError;

/// A setting of the node, beyond our own device, that Tartan may change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::host) enum Setting {
    /// `net.ipv4.ip_forward`
    Forward4,
    /// `net.ipv6.conf.all.forwarding`
    Forward6,
    /// `net.ipv6.conf.NAME.accept_ra` of an uplink.
    AcceptRa(Interface),
    /// `net.ipv4.conf.NAME.proxy_arp` of a bridge with pods of another plugin.
    ProxyArp(Interface),
    /// `rx-gro` of a host's end of a pod of another plugin, as ethtool(8) names it.
    Gro(Interface),
    /// `rx-udp-gro-forwarding` of such an end.
    UdpGroForwarding(Interface),
}

/// The name of an interface, safe as one component of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::host) struct Interface(String);

impl Interface {
    /// Takes what the kernel takes (`dev_valid_name`): 1 to 15 bytes, not "."
    /// or "..", no '/', ':' or white space. "all" and "default" are settings'
    /// names, not interfaces'.
    pub(in crate::host) fn parse(name: &str) -> Option<Interface> {
        let fits = (1..=LONGEST_NAME).contains(&name.len());
        let reserved = matches!(name, "." | ".." | "all" | "default");
        let clean = !name.bytes().any(|byte| {
            matches!(byte, b'/' | b':' | 0x0b) || byte.is_ascii_whitespace() || byte == 0
        });
        (fits && !reserved && clean).then(|| Interface(name.to_owned()))
    }

    pub(in crate::host) fn name(&self) -> &str {
        &self.0
    }
}

impl Setting {
    /// Its path below `/proc/sys`, or that of a feature, which is in no file; also its name in the record.
    pub(in crate::host) fn path(&self) -> String {
        match self {
            Setting::Forward4 => FORWARD4.to_owned(),
            Setting::Forward6 => FORWARD6.to_owned(),
            Setting::AcceptRa(interface) => {
                format!("{CONF6}{}{ACCEPT_RA}", interface.name())
            }
            Setting::ProxyArp(interface) => {
                format!("{CONF4}{}{PROXY_ARP}", interface.name())
            }
            Setting::Gro(interface) => format!("{ETHTOOL}{}{GRO}", interface.name()),
            Setting::UdpGroForwarding(interface) => {
                format!("{ETHTOOL}{}{UDP_GRO_FORWARDING}", interface.name())
            }
        }
    }

    /// The setting of that path, if it is one that Tartan ever changes.
    pub(in crate::host) fn parse(path: &str) -> Option<Setting> {
        match path {
            FORWARD4 => Some(Setting::Forward4),
            FORWARD6 => Some(Setting::Forward6),
            other => {
                let of = |before, after| {
                    let name = other.strip_prefix(before)?.strip_suffix(after)?;
                    Interface::parse(name)
                };
                let accept_ra = || of(CONF6, ACCEPT_RA).map(Setting::AcceptRa);
                let gro = || of(ETHTOOL, GRO).map(Setting::Gro);
                let udp = || of(ETHTOOL, UDP_GRO_FORWARDING).map(Setting::UdpGroForwarding);
                let proxy_arp = || of(CONF4, PROXY_ARP).map(Setting::ProxyArp);
                accept_ra().or_else(proxy_arp).or_else(gro).or_else(udp)
            }
        }
    }

    /// Whether it makes the node a router, or keeps one its default route.
    pub(in crate::host) fn is_of_forwarding(&self) -> bool {
        match self {
            Setting::Forward4 | Setting::Forward6 | Setting::AcceptRa(_) => true,
            Setting::ProxyArp(_) | Setting::Gro(_) | Setting::UdpGroForwarding(_) => false,
        }
    }

    /// Its value; none where the kernel has no such setting.
    pub(in crate::host) fn read(&self) -> Result<Option<i32>, HostError> {
        match self {
            Setting::Gro(interface) => {
                let found = features::read(interface).map_err(|source| self.unread(source))?;
                Ok(found.map(|found| i32::from(found.gro)))
            }
            Setting::UdpGroForwarding(interface) => {
                let found = features::read(interface).map_err(|source| self.unread(source))?;
                Ok(found.map(|found| i32::from(found.udp_forwarding)))
            }
            _ => read(&self.path()),
        }
    }

    pub(in crate::host) fn write(&self, value: i32) -> Result<(), HostError> {
        let unwritten = |source| HostError::WriteSetting {
            key: self.to_string(),
            value,
            source,
        };
        match self {
            Setting::Gro(interface) => {
                features::alter(interface, |now| now.gro = value != 0).map_err(unwritten)
            }
            Setting::UdpGroForwarding(interface) => {
                features::alter(interface, |now| now.udp_forwarding = value != 0).map_err(unwritten)
            }
            _ => write(&self.path(), value),
        }
    }

    fn unread(&self, source: io::Error) -> HostError {
        HostError::ReadSetting {
            key: self.to_string(),
            source,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Gro(interface) => write!(f, "rx-gro of {}", interface.name()),
            Setting::UdpGroForwarding(interface) => {
                write!(f, "rx-udp-gro-forwarding of {}", interface.name())
            }
            _ => f.write_str(&dotted(&self.path())),
        }
    }
}

pub(in crate::host) fn read(path: &str) -> Result<Option<i32>, HostError> {
    let failed = |source| HostError::ReadSetting {
        key: dotted(path),
        source,
    };
    let mut text = [0; LONGEST_VALUE];
    let read = fs::File::open(root().join(path)).and_then(|mut file| file.read(&mut text));
    match read {
        Ok(length) => text
            .get(..length)
            .and_then(|value| std::str::from_utf8(value).ok()?.trim().parse().ok())
            .map(Some)
            .ok_or_else(|| failed(io::ErrorKind::InvalidData.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(source)),
    }
}

pub(in crate::host) fn write(path: &str, value: i32) -> Result<(), HostError> {
    fs::write(root().join(path), format!("{value}\n")).map_err(|source| HostError::WriteSetting {
        key: dotted(path),
        value,
        source,
    })
}

/// A path as sysctl(8) writes it: dots for slashes, and slashes for the dots of
/// a name such as `eth0.100`.
pub(in crate::host) fn dotted(path: &str) -> String {
    path.chars()
        .map(|c| match c {
            '/' => '.',
            '.' => '/',
            other => other,
        })
        .collect()
}

/// The directory of all settings: `/proc/sys`; or, where a container may only read that, `/host/proc/sys`, if `net` of the
/// host's is mounted there. Both show the network namespace of the thread that opens a file.
pub(in crate::host) fn root() -> &'static Path {
    static CHOSEN: OnceLock<&'static str> = OnceLock::new();
    Path::new(CHOSEN.get_or_init(|| {
        let is_read_only = statvfs(Path::new(OWN).join("net"))
            .is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
        choose(is_read_only, Path::new(MOUNTED).join("net").is_dir())
    }))
}

fn choose(is_read_only: bool, is_mounted: bool) -> &'static str {
    if is_read_only && is_mounted {
        MOUNTED
    } else {
        OWN
    }
}

const OWN: &str = "/proc/sys";
/// A runtime mounts nothing below a container's /proc.
const MOUNTED: &str = "/host/proc/sys";
pub(in crate::host) const CONF4: &str = "net/ipv4/conf/";
pub(in crate::host) const CONF6: &str = "net/ipv6/conf/";
/// No file: how the record names a feature of an interface.
const ETHTOOL: &str = "ethtool/";
const GRO: &str = "/rx-gro";
const UDP_GRO_FORWARDING: &str = "/rx-udp-gro-forwarding";
const PROXY_ARP: &str = "/proxy_arp";
const FORWARD4: &str = "net/ipv4/ip_forward";
const FORWARD6: &str = "net/ipv6/conf/all/forwarding";
const ACCEPT_RA: &str = "/accept_ra";
/// More than a number takes, in bytes. The kernel gives a setting whole at the first read.
const LONGEST_VALUE: usize = 32;
/// Longest interface name, in bytes (`IFNAMSIZ` without the terminator).
const LONGEST_NAME: usize = 15;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn settings_are_named_as_sysctl_names_them() {
        let uplink = Setting::AcceptRa(Interface::parse("eth0.100").unwrap());
        assert_eq!(uplink.path(), "net/ipv6/conf/eth0.100/accept_ra");
        assert_eq!(uplink.to_string(), "net.ipv6.conf.eth0/100.accept_ra");
        assert_eq!(Setting::Forward4.to_string(), "net.ipv4.ip_forward");
    }

    #[test]
    fn only_settings_of_ours_are_accepted() {
        for path in [
            "kernel/core_pattern",
            "net/ipv6/conf/../../../kernel/core_pattern",
            "net/ipv6/conf/../accept_ra",
            "net/ipv6/conf/all/accept_ra",
            "net/ipv6/conf/default/accept_ra",
            "net/ipv6/conf//accept_ra",
            "net/ipv6/conf/a/b/accept_ra",
            "net/ipv6/conf/sixteen-letters-/accept_ra",
            "net/ipv4/conf/eth0/accept_ra",
            "ethtool/eth0/tx-checksumming",
            "ethtool/../rx-gro",
            "",
        ] {
            assert_eq!(Setting::parse(path), None, "{path:?}");
        }
    }

    #[test]
    fn the_hosts_settings_count_where_ours_cannot_be_written() {
        assert_eq!(choose(true, true), MOUNTED);
        for (is_read_only, is_mounted) in [(true, false), (false, true), (false, false)] {
            assert_eq!(choose(is_read_only, is_mounted), OWN);
        }
    }

    #[test]
    fn a_missing_setting_is_none() {
        let missing = Setting::AcceptRa(Interface::parse("no-such-dev-0").unwrap());
        assert_eq!(missing.read().unwrap(), None);
    }

    proptest! {
        #[test]
        fn a_path_parses_back(name in "[ -~]{0,20}") {
            if let Some(interface) = Interface::parse(&name) {
                for setting in [
                    Setting::AcceptRa(interface.clone()),
                    Setting::ProxyArp(interface.clone()),
                    Setting::Gro(interface.clone()),
                    Setting::UdpGroForwarding(interface),
                ] {
                    prop_assert_eq!(Setting::parse(&setting.path()), Some(setting));
                }
            } else {
                prop_assert_eq!(Setting::parse(&format!("net/ipv6/conf/{name}/accept_ra")), None);
            }
        }

        #[test]
        fn no_interface_escapes_its_directory(name in ".{0,20}") {
            if Interface::parse(&name).is_some() {
                let mut parts = Path::new(&name).components();
                prop_assert!(matches!(parts.next(), Some(std::path::Component::Normal(_))));
                prop_assert_eq!(parts.next(), None);
            }
        }
    }
}
