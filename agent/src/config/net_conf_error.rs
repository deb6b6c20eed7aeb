//! The faults of a `net-conf.json`. The sentences are flannel's where flannel has one.

use std::net::IpAddr;

use cni_shim::json::Mismatch;
use ipnet::IpNet;

use super::text_file::TextFileError;

/// Why a `net-conf.json` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetConfError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] TextFileError),
    /// Not JSON.
    #[error("the network configuration is not JSON: correct the error that the parser names")]
    Json(#[source] serde_json::Error),
    /// JSON, but not an object.
    #[error(
        "the network configuration must be one JSON object, as in {{\"Network\": \"10.244.0.0/16\"}}"
    )]
    NotAnObject,
    /// A value of the wrong type.
    #[error("the value of {key} must be {expected}")]
    Type {
        /// The key.
        key: &'static str,
        /// The type it must have.
        expected: &'static str,
    },
    /// A network that is not a prefix of its family.
    #[error("{key}: invalid CIDR address: {value:?}; write it as in {example}")]
    Prefix {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// A valid prefix.
        example: &'static str,
    },
    /// A bound that is not an address of its family.
    #[error("{key}: invalid IP address: {value:?}; write the first address of a subnet")]
    Address {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// Both families are off.
    #[error("none defined stack: set EnableIPv4 or EnableIPv6 to true")]
    NoFamily,
    /// A family is on but has no network.
    #[error("please define a correct {key} parameter in the flannel config{}", meant(.written, .key))]
    MissingNetwork {
        /// `Network` or `IPv6Network`.
        key: &'static str,
        /// A key that is none, and is similar to this one.
        written: Option<String>,
    },
    /// A port that the other format has on every node.
    #[error(
        "Backend.Port {port} of {format} is taken on every node by Backend.Port of {other}, the other format, which is received too ({port} by default): choose another port"
    )]
    PortOfOther {
        /// The port.
        port: u16,
        /// The format of the backend.
        format: encap::Format,
        /// The other one.
        other: encap::Format,
    },
    /// A network that pods cannot have.
    #[error("{key} {network} overlaps {reserved}, which pods cannot use: choose a private range")]
    Reserved {
        /// `Network` or `IPv6Network`.
        key: &'static str,
        /// The value.
        network: IpNet,
        /// The reserved prefix.
        reserved: IpNet,
    },
    /// A subnet too small for a tunnel address, a bridge and a pod.
    #[error("{key} must be less than /{limit}")]
    SubnetLen {
        /// `SubnetLen` or `IPv6SubnetLen`.
        key: &'static str,
        /// The shortest length that is too long.
        limit: u8,
    },
    /// Subnets too large for the network.
    #[error(
        "network must be able to accommodate at least four subnets: {key} must be at least {least}"
    )]
    FourSubnets {
        /// `SubnetLen` or `IPv6SubnetLen`.
        key: &'static str,
        /// The least length accepted.
        least: u8,
    },
    /// A network that cannot be cut into four useful subnets.
    #[error("{key} is too small. Minimum useful network prefix is /{least}")]
    TooSmall {
        /// `network` or `IPv6Network`.
        key: &'static str,
        /// The longest prefix accepted.
        least: u8,
    },
    /// A bound outside the network.
    #[error("{key} is not in the range of the {network}")]
    Outside {
        /// The bound.
        key: &'static str,
        /// `Network` or `IPv6Network`.
        network: &'static str,
    },
    /// A bound inside a subnet instead of at its start.
    #[error("{key} is not on a SubnetLen boundary: {address}")]
    Boundary {
        /// The bound.
        key: &'static str,
        /// The value.
        address: IpAddr,
    },
    /// An unknown backend, or one that only flannel has.
    #[error("unknown backend type: {0}; Tartan supports udp and vxlan")]
    UnknownBackend(String),
    /// A number out of range.
    #[error("{key} is {value}, but must be {least} to {most}")]
    Range {
        /// The key.
        key: &'static str,
        /// The value.
        value: i64,
        /// Least value accepted.
        least: i64,
        /// Greatest value accepted.
        most: i64,
    },
}

fn meant(written: &Option<String>, key: &str) -> String {
    match written {
        Some(written) => format!(": {written:?} is no key, did you mean {key:?}?"),
        None => String::new(),
    }
}

impl From<Mismatch> for NetConfError {
    fn from(mismatch: Mismatch) -> NetConfError {
        NetConfError::Type {
            key: mismatch.key,
            expected: mismatch.expected,
        }
    }
}
