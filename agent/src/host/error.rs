//! Why the kernel could not be read or changed.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use rustix::io::Errno;

use super::firewall::nft::NftError;

/// Why host set-up failed. [`crate::problems`] has the remedy of each.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No rtnetlink socket could be opened.
    #[error("cannot open a netlink socket")]
    Socket {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refuses for want of a capability.
    #[error("not permitted to {doing} {subject}")]
    NotPermitted {
        /// The action, as a verb.
        doing: &'static str,
        /// What it was to be done to.
        subject: String,
        /// What the kernel said.
        source: rtnetlink::Error,
    },
    /// The kernel refuses for any other reason.
    #[error("cannot {doing} {subject}: {source}")]
    Netlink {
        /// The action, as a verb.
        doing: &'static str,
        /// What it was to be done to.
        subject: String,
        /// What the kernel said.
        source: rtnetlink::Error,
    },
    /// A part of the kernel that limits of pods need is missing.
    #[error("cannot limit a pod at {subject}, for want of the kernel's {module}")]
    NoShaper {
        /// The interface that was to be limited.
        subject: String,
        /// The kernel's name for the part.
        module: &'static str,
        /// What the kernel said.
        source: rtnetlink::Error,
    },
    /// A device name that no Linux interface can have.
    #[error("{name:?} is not an interface name")]
    DeviceName {
        /// The name asked for.
        name: String,
    },
    /// A queueing discipline of another program leaves no place for ours.
    #[error("{device} has an ingress queueing discipline, which has no filters for what leaves")]
    ForeignQdisc {
        /// The device.
        device: String,
    },
    /// Another VXLAN device or a process has the port.
    #[error("{device} cannot have UDP port {port}: another VXLAN device or a process has it")]
    VxlanPort {
        /// Our VXLAN device.
        device: String,
        /// The port.
        port: u16,
    },
    /// The kernel does not tell whether it has IPsec policies.
    #[error("cannot ask the kernel for its IPsec policies")]
    Ipsec {
        /// What the kernel said.
        source: io::Error,
    },
    /// Our device does not exist.
    #[error("there is no device {name}")]
    NoDevice {
        /// Its name.
        name: String,
    },
    /// Another program's device has the name of ours.
    #[error("{name} exists already and is {found}")]
    ForeignDevice {
        /// Its name.
        name: String,
        /// What it is, in words.
        found: String,
    },
    /// Another agent's device has the name of ours.
    #[error("{name} is the device of another agent in this network namespace")]
    DeviceInUse {
        /// Its name.
        name: String,
    },
    /// Another program routes a cluster network with a metric no worse than ours.
    #[error(
        "the cluster network {prefix} is already routed {via} (protocol {protocol}, metric {metric})"
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
        "an MTU of {mtu} is too small for the IPv6 cluster network on {device}, which needs 1280 (RFC 8200 section 5)"
    )]
    MtuBelowIpv6 {
        /// Our device.
        device: String,
        /// The MTU wanted, in bytes.
        mtu: u16,
    },
    /// An IPv6 cluster network on a kernel without IPv6.
    #[error("this kernel runs without IPv6, and the cluster has an IPv6 network")]
    NoIpv6,
    /// The public address is not on this node.
    #[error("no interface of this node holds {address}")]
    NoUnderlay {
        /// The key that names another local address.
        key: &'static str,
        /// The public address looked for.
        address: IpAddr,
        /// The addresses the node does hold, for the sentence.
        held: String,
    },
    /// A kernel setting could not be read.
    #[error("cannot read the setting {key}")]
    ReadSetting {
        /// Its name, as sysctl(8) writes it.
        key: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A kernel setting could not be changed.
    #[error("cannot set {key} to {value}")]
    WriteSetting {
        /// Its name, as sysctl(8) writes it.
        key: String,
        /// The value wanted.
        value: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The identity of this boot or namespace could not be read.
    #[error("cannot read {path}")]
    Identity {
        /// The file in question.
        path: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The record of changed settings could not be written.
    #[error(
        "cannot write {path}, so after a crash `tartan cleanup` could not restore kernel settings"
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
        /// The action, and what it was to be done to.
        doing: String,
        /// Why not.
        source: NftError,
    },
    /// Another program's packet filter cuts pods off from each other.
    #[error("{rule} cuts pods off, and Tartan cannot put accept rules before it ({why})")]
    CutOff {
        /// The rule, or the policy.
        rule: String,
        /// Why no accept rules stand before it.
        why: String,
        /// The networks that must be let through.
        networks: Vec<IpNet>,
    },
    /// A problem of the node's packet filter, on a node with tables of iptables-legacy.
    #[error("{problem}; {legacy}")]
    RulesBesideLegacy {
        /// The problem.
        #[source]
        problem: Box<HostError>,
        /// Which tables there are, and how to look at them.
        legacy: String,
    },
    /// `subnet.env` could not be written.
    #[error("cannot write {path}")]
    WriteSubnetFile {
        /// The file in question.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The record of changed settings could not be read.
    #[error("cannot read {path}: {source}")]
    ReadRecord {
        /// The file in question.
        path: PathBuf,
        /// What the kernel said, or why the contents are refused.
        source: io::Error,
    },
    /// The traces belong to another network namespace.
    #[error("{path} belongs to the network namespace {namespace}")]
    OtherNamespace {
        /// The record of changed settings.
        path: PathBuf,
        /// The namespace, as `/proc` names it.
        namespace: String,
    },
    /// A file or directory of ours could not be removed.
    #[error("cannot remove {path}")]
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

    /// The error of a request that needs a part of the kernel which may be missing.
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
