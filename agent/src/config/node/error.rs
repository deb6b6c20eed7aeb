//! The faults of this node's configuration, and the sentences that report them.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::config::document::TomlError;
use crate::config::text_file::TextFileError;
use crate::config::workers::WorkersError;

/// Why this node's configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] TextFileError),
    /// The file has a fault.
    #[error("{path}: {error}")]
    Toml {
        /// The file.
        path: PathBuf,
        /// The fault and its line.
        error: TomlError,
    },
    /// A value has a fault, and this is where it stands.
    #[error("{place}: {error}")]
    Placed {
        /// The flag, the variable, or the file and its line.
        place: String,
        /// The fault.
        error: Box<ConfigError>,
    },
    /// Neither the configuration nor the host has a name.
    #[error("this host has no name: set node-name to the name of its entry in the list of nodes")]
    NoNodeName,
    /// An invalid node name.
    #[error(
        "node-name {0:?} is not a valid node name: use 1 to 253 letters, digits, '.', '-' and '_'"
    )]
    NodeName(String),
    /// An address that peers cannot send to.
    #[error("{key} {address} is {fault}: name an address{} that other nodes reach", of_whom(.key))]
    UnfitAddress {
        /// The key.
        key: &'static str,
        /// The address.
        address: IpAddr,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// An IPv4 address under the key of IPv6.
    #[error("{key} {address} is an IPv4 address: name it as {other}")]
    NotIpv6 {
        /// The key.
        key: &'static str,
        /// The key for it.
        other: &'static str,
        /// The address.
        address: IpAddr,
    },
    /// Two IPv6 addresses.
    #[error(
        "{key} {address} is an IPv6 address already: leave {other} out, or name an IPv4 address as {key}"
    )]
    TwoIpv6 {
        /// The key.
        key: &'static str,
        /// The key of the second address.
        other: &'static str,
        /// The first address.
        address: IpAddr,
    },
    /// A public address where the list of nodes has it.
    #[error(
        "public-ip has no effect with registry \"file\", where the list of nodes names it: leave it out, or name the local address behind a NAT as local-ip"
    )]
    PublicOfFile,
    /// A file in the place of a key of etcd.
    #[error(
        "net-conf has no effect with registry \"etcd\", whose key PREFIX/config has the cluster's configuration: leave it out"
    )]
    NetConfOfEtcd,
    /// An unknown registry.
    #[error("registry {0:?} does not exist: use \"file\", \"etcd\" or \"kubernetes\"")]
    Registry(String),
    /// A URL that is none.
    #[error(
        "etcd-endpoints {0:?} is not the address of a server: use http:// or https://, host and port, as in http://127.0.0.1:2379"
    )]
    Endpoint(String),
    /// A URL with a user in it. It is not repeated: a password may stand there.
    #[error(
        "an address of etcd-endpoints names a user: leave it out, and set etcd-username and etcd-password"
    )]
    EndpointUser,
    /// An empty prefix.
    #[error("etcd-prefix {0:?} is empty: use a path, as in /coreos.com/network")]
    EtcdPrefix(String),
    /// Longer than the lease, or nothing.
    #[error("subnet-lease-renew-margin is {0}: use 1 to 1439 minutes, or leave it out for 60")]
    RenewMargin(u16),
    /// No prefix of annotations.
    #[error(
        "kube-annotation-prefix {0:?} is not a prefix of annotations: use a domain, and behind a slash lower-case letters, digits, '-' and '_', as in flannel.alpha.coreos.com"
    )]
    AnnotationPrefix(String),
    /// No regular expression.
    #[error("iface-regex {regex:?} is not a regular expression: {reason}")]
    IfaceRegex {
        /// The text.
        regex: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A key without another that it needs.
    #[error("{key} needs {lacks}: set both, or neither")]
    Lacks {
        /// The key.
        key: &'static str,
        /// The other.
        lacks: &'static str,
    },
    /// No address and port to answer on.
    #[error(
        "{key} {value:?} is not an address and a port: use ADDRESS:PORT, as in 0.0.0.0:8081, or \"off\""
    )]
    HttpAddress {
        /// The key.
        key: &'static str,
        /// The text.
        value: String,
    },
    /// More series than can be meant.
    #[error(
        "metrics-limit is {0}: use 0 to {most}",
        most = super::MOST_METRICS_LIMIT
    )]
    MetricsLimit(u16),
    /// An unknown kind of device.
    #[error("device {0:?} does not exist: use \"auto\", \"offload\" or \"plain\"")]
    Device(String),
    /// An unknown type of device.
    #[error("device-type {0:?} does not exist: use \"auto\", \"tun\" or \"tap\"")]
    DeviceType(String),
    /// A TAP without offloads.
    #[error(
        "device-type \"tap\" needs offloads, and device \"plain\" has none: leave device out, or set device-type to \"auto\""
    )]
    PlainTap,
    /// A name that the kernel refuses for an interface, or that it uses for another purpose.
    #[error(
        "device-name {0:?} is not a valid interface name: use 1 to 15 letters, digits, '.', '-' and '_', as in tartan0"
    )]
    DeviceName(String),
    /// An invalid log filter.
    #[error(
        "log {0:?} is not a valid filter: use off, error, warn, info, debug or trace, or PART=LEVEL, separated by commas"
    )]
    Log(String),
    /// Invalid `workers` or `cores`.
    #[error(transparent)]
    Workers(#[from] WorkersError),
    /// An invalid `spin`.
    #[error("spin {0:?} is not a valid time: use \"auto\", \"off\" or microseconds, 1 to 1000")]
    Spin(String),
    /// A time shorter than an ADD may take, or uselessly long.
    #[error("reclaim-after is {0}: use 5 to 3600 seconds, or leave it out for 60")]
    ReclaimAfter(u16),
    /// An unknown mode of the kernel path.
    #[error("kernel-path {0:?} does not exist: use \"off\", \"stateless\" or \"auto\"")]
    KernelPath(String),
    /// A port of a well-known service.
    #[error("kernel-path-port is {0}: use 1024 to 65534, or leave it out for 18472")]
    KernelPathPort(u16),
    /// Longer than a mistake needs to be found.
    #[error("shrink-grace is {0}: use 0 to 3600 seconds, or leave it out for 600")]
    ShrinkGrace(u16),
}

/// Packets leave from a local address; a public one may be that of a NAT box.
fn of_whom(key: &str) -> &'static str {
    match key.starts_with("local-") {
        true => " of this host",
        false => "",
    }
}
