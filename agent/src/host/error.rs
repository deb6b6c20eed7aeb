//! Why the kernel could not be read or made to agree.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use rustix::io::Errno;

use super::firewall::nft::NftError;

/// Why host set-up failed. Each sentence names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No rtnetlink socket could be opened.
    #[error(
        "cannot open a netlink socket: check that the sandbox (seccomp, AppArmor) allows AF_NETLINK"
    )]
    Socket {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refuses for want of a capability.
    #[error("not permitted to {doing} {subject}: run as root, or with CAP_NET_ADMIN")]
    NotPermitted {
        /// The deed, as a verb.
        doing: &'static str,
        /// What it was to be done to.
        subject: String,
        /// What the kernel said.
        source: rtnetlink::Error,
    },
    /// The kernel refuses for any other reason.
    #[error("cannot {doing} {subject}: {source}; the next repair tries again")]
    Netlink {
        /// The deed, as a verb.
        doing: &'static str,
        /// What it was to be done to.
        subject: String,
        /// What the kernel said.
        source: rtnetlink::Error,
    },
    /// A part of the kernel that limits of pods need is missing.
    #[error(
        "cannot limit a pod at {subject}: load the kernel's {module} (`modprobe -a {module}`), or take the bandwidth limit off the pod"
    )]
    NoShaper {
        /// The interface that was to be limited.
        subject: String,
        /// The kernel's name for the part.
        module: &'static str,
        /// What the kernel said.
        source: rtnetlink::Error,
    },
    /// A device name that no Linux interface can have.
    #[error(
        "{name:?} is no interface name: set `device-name` to 1 to 15 characters without '/', ':' or blanks"
    )]
    DeviceName {
        /// The name asked for.
        name: String,
    },
    /// Our device does not exist.
    #[error("there is no device {name}: restart Tartan, which creates it")]
    NoDevice {
        /// Its name.
        name: String,
    },
    /// Something else bears our device's name.
    #[error(
        "{name} exists and is {found}, not a TUN: remove it (`ip link delete {name}`) or set `device-name` to another name"
    )]
    NotATun {
        /// Its name.
        name: String,
        /// What it is, in words.
        found: String,
    },
    /// Somebody else routes a cluster network with a metric no worse than ours.
    #[error(
        "the cluster network {prefix} is already routed {via} (protocol {protocol}, metric {metric}): stop what set it up (flanneld?) and delete it (`ip route delete {prefix} metric {metric}`, or `ip link delete` of its device)"
    )]
    NetworkHeld {
        /// The cluster network.
        prefix: IpNet,
        /// Where it goes: "to dev flannel0", "nowhere (blackhole)".
        via: String,
        /// The other route's protocol (`/etc/iproute2/rt_protos`).
        protocol: u8,
        /// The other route's metric.
        metric: u32,
    },
    /// IPv6 needs a larger device MTU than we have.
    #[error(
        "an MTU of {mtu} is too small for the IPv6 cluster network on {device}: IPv6 needs 1280 (RFC 8200 section 5), so raise the underlay's MTU or drop IPv6Network from the net-conf"
    )]
    MtuBelowIpv6 {
        /// Our device.
        device: String,
        /// The MTU wanted, in bytes.
        mtu: u16,
    },
    /// An IPv6 cluster network on a kernel without IPv6.
    #[error(
        "this kernel runs without IPv6, and the cluster has an IPv6 network: boot without `ipv6.disable=1`, or drop IPv6Network from the net-conf"
    )]
    NoIpv6,
    /// The public address is not on this node.
    #[error("no interface of this node holds {address}: set `{key}` to one of {held}")]
    NoUnderlay {
        /// The key of the address looked for.
        key: &'static str,
        /// The public address looked for.
        address: IpAddr,
        /// The addresses the node does hold, for the sentence.
        held: String,
    },
    /// A kernel setting could not be read.
    #[error("cannot read the setting {key}: check that /proc/sys is mounted")]
    ReadSetting {
        /// Its name, as sysctl(8) writes it.
        key: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A kernel setting could not be changed.
    #[error(
        "cannot set {key} to {value}: make /proc/sys/net writable (in a container: privileged), or run `sysctl -w {key}={value}` on the host"
    )]
    WriteSetting {
        /// Its name, as sysctl(8) writes it.
        key: String,
        /// The value wanted.
        value: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The identity of this boot or namespace could not be read.
    #[error("cannot read {path}: check that /proc is mounted")]
    Identity {
        /// The file in question.
        path: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The memory of what was changed could not be written.
    #[error(
        "cannot write {path}, so after a crash `tartan cleanup` could not restore kernel settings: check that the state directory is writable by root and its disk not full"
    )]
    WriteRecord {
        /// The file in question.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The node's packet filter could not be read or changed.
    #[error("cannot {doing}: {source}")]
    Rules {
        /// The deed, and what it was to be done to.
        doing: String,
        /// Why not, with the remedy.
        source: NftError,
    },
    /// Somebody else's packet filter cuts pods off from each other.
    #[error("{rule} cuts pods off, and Tartan puts no accept rules before it ({why}): {remedy}")]
    CutOff {
        /// The rule, or the policy.
        rule: String,
        /// Why no accept rules stand before it.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// `subnet.env` could not be written.
    #[error(
        "cannot write {path}: make its directory writable by root, or set `subnet-file` to another path"
    )]
    WriteSubnetFile {
        /// The file in question.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The memory of changed settings could not be read.
    #[error(
        "cannot read {path}: {source}; delete it to forget which kernel settings Tartan changed"
    )]
    ReadRecord {
        /// The file in question.
        path: PathBuf,
        /// What the kernel said, or why the contents are refused.
        source: io::Error,
    },
    /// The traces are another network namespace's.
    #[error(
        "{path} tells of the network namespace {namespace}: run this there (ip netns exec, nsenter), or delete that file if the namespace is no more"
    )]
    OtherNamespace {
        /// The memory of changed settings.
        path: PathBuf,
        /// The namespace, as `/proc` names it.
        namespace: String,
    },
    /// A file or directory of ours could not be removed.
    #[error("cannot remove {path}: remove it by hand")]
    RemoveFile {
        /// The file in question.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl HostError {
    /// The error of one netlink request; a missing capability gets its own sentence.
    pub(super) fn netlink(
        doing: &'static str,
        subject: impl Into<String>,
        source: rtnetlink::Error,
    ) -> HostError {
        let subject = subject.into();
        match errno(&source) {
            Some(Errno::PERM | Errno::ACCESS) => HostError::NotPermitted {
                doing,
                subject,
                source,
            },
            _ => HostError::Netlink {
                doing,
                subject,
                source,
            },
        }
    }

    /// The same of a request that needs a part of the kernel which may be missing.
    pub(super) fn shaping(
        doing: &'static str,
        subject: &str,
        module: &'static str,
        source: rtnetlink::Error,
    ) -> HostError {
        match errno(&source) {
            Some(Errno::OPNOTSUPP | Errno::NOENT) => HostError::NoShaper {
                subject: subject.to_owned(),
                module,
                source,
            },
            _ => HostError::netlink(doing, subject, source),
        }
    }
}

/// The errno the kernel answered with, if it answered at all.
pub(super) fn errno(error: &rtnetlink::Error) -> Option<Errno> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message
            .code
            .map(|code| Errno::from_raw_os_error(code.get().abs())),
        _ => None,
    }
}
