//! Why this node's configuration cannot be used, in words.

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
        /// Line and fault.
        error: TomlError,
    },
    /// No name is given and the host has none.
    #[error("this host has no name: set node-name to the name of its entry in the list of nodes")]
    NoNodeName,
    /// A name that no node can have.
    #[error("node-name {0:?} is no node's name: use 1 to 253 letters, digits, '.', '-' and '_'")]
    NodeName(String),
    /// An address that peers cannot send to.
    #[error("{key} {address} is {fault}: name an address of this host that other nodes reach")]
    PublicIp {
        /// The key.
        key: &'static str,
        /// The address.
        address: IpAddr,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// An address under the other family's key.
    #[error("public-ipv6 {0} is an IPv4 address: name it as public-ip")]
    NotIpv6(IpAddr),
    /// Two addresses of one family.
    #[error(
        "public-ip {0} is an IPv6 address already: leave public-ipv6 out, or name an IPv4 address as public-ip"
    )]
    TwoIpv6(IpAddr),
    /// A kind of device that does not exist.
    #[error("device {0:?} does not exist: use \"auto\", \"offload\" or \"plain\"")]
    Device(String),
    /// A name that the kernel refuses for an interface, or that means something else.
    #[error(
        "device-name {0:?} cannot be an interface's: use 1 to 15 letters, digits, '.', '-' and '_', as in tartan0"
    )]
    DeviceName(String),
    /// Directives that say nothing.
    #[error(
        "log {0:?} is no filter: use off, error, warn, info, debug or trace, or PART=LEVEL, between commas"
    )]
    Log(String),
    /// Workers or cores that cannot be.
    #[error(transparent)]
    Workers(#[from] WorkersError),
    /// A spin that is no word and no number of microseconds.
    #[error("spin {0:?} is nothing to wait: use \"auto\", \"off\" or microseconds, 1 to 1000")]
    Spin(String),
    /// A time that is too short for an ADD under way, or longer than anyone waits for an address.
    #[error("reclaim-after is {0}: use 5 to 3600 seconds, or leave it out for 60")]
    ReclaimAfter(u16),
}
