//! What can be wrong with a `net-conf.json`, in flannel's words where it has any.

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
    #[error("the network configuration is not JSON: correct it as the parser says")]
    Json(#[source] serde_json::Error),
    /// JSON, but no object.
    #[error(
        "the network configuration must be one JSON object, as in {{\"Network\": \"10.244.0.0/16\"}}"
    )]
    NotAnObject,
    /// A value of another type than the key's.
    #[error("the value of {key} must be {expected}")]
    Type {
        /// The key.
        key: &'static str,
        /// What its value must be.
        expected: &'static str,
    },
    /// A network that is no prefix of its family.
    #[error("{key}: invalid CIDR address: {value:?}; write it as in {example}")]
    Prefix {
        /// The key.
        key: &'static str,
        /// What it says.
        value: String,
        /// A right one.
        example: &'static str,
    },
    /// A bound that is no address of its family.
    #[error("{key}: invalid IP address: {value:?}; write the first address of a subnet")]
    Address {
        /// The key.
        key: &'static str,
        /// What it says.
        value: String,
    },
    /// Neither family is switched on.
    #[error("none defined stack: set EnableIPv4 or EnableIPv6 to true")]
    NoFamily,
    /// A family is switched on without a network.
    #[error("please define a correct {key} parameter in the flannel config")]
    MissingNetwork {
        /// `Network` or `IPv6Network`.
        key: &'static str,
    },
    /// Addresses that never are pods'.
    #[error(
        "{key} {network} overlaps {reserved}, whose addresses cannot be pods': choose a private range"
    )]
    Reserved {
        /// `Network` or `IPv6Network`.
        key: &'static str,
        /// What it says.
        network: IpNet,
        /// What is in the way.
        reserved: IpNet,
    },
    /// A subnet too small for a tunnel address, a bridge and a pod.
    #[error("{key} must be less than /{limit}")]
    SubnetLen {
        /// `SubnetLen` or `IPv6SubnetLen`.
        key: &'static str,
        /// The first length that is too long.
        limit: u8,
    },
    /// Subnets too large for the network.
    #[error(
        "network must be able to accommodate at least four subnets: {key} must be at least {least}"
    )]
    FourSubnets {
        /// `SubnetLen` or `IPv6SubnetLen`.
        key: &'static str,
        /// The least length that works.
        least: u8,
    },
    /// A network that cannot be cut into four useful subnets.
    #[error("{key} is too small. Minimum useful network prefix is /{least}")]
    TooSmall {
        /// `network` or `IPv6Network`.
        key: &'static str,
        /// The longest prefix that works.
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
        /// What it says.
        address: IpAddr,
    },
    /// A backend that does not exist, or that only flannel has.
    #[error("unknown backend type: {0}; this node speaks udp and vxlan")]
    UnknownBackend(String),
    /// A number out of range.
    #[error("{key} is {value}, but must be {least} to {most}")]
    Range {
        /// The key.
        key: &'static str,
        /// What it says.
        value: i64,
        /// Least value taken.
        least: i64,
        /// Greatest value taken.
        most: i64,
    },
}

impl From<Mismatch> for NetConfError {
    fn from(mismatch: Mismatch) -> NetConfError {
        NetConfError::Type {
            key: mismatch.key,
            expected: mismatch.expected,
        }
    }
}
