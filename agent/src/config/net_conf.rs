//! The cluster's configuration: flannel's `net-conf.json` (flannel `pkg/subnet/config.go`).
//!
//! Keys are matched as Go matches them (in any case, the last of several counts), defaults and checks are those
//! of flannel's etcd mode, and so are the sentences that refuse a file, so that what people find on the net
//! about them applies.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::backend::Backend;
use super::document::nearest;
use super::json::{Json, Mismatch};
use super::subnet_range::{self, IPV4, IPV6, SubnetRange};
use super::text_file::{self, TextFileError};

/// flannel's network configuration, read as flannel reads it and completed with its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConf {
    /// `Network`: the IPv4 cluster network, host bits zero; `None` with `EnableIPv4: false`.
    pub network: Option<Ipv4Net>,
    /// `IPv6Network`: the IPv6 cluster network, host bits zero; `None` without `EnableIPv6: true`.
    pub ipv6_network: Option<Ipv6Net>,
    /// `SubnetLen`, `SubnetMin`, `SubnetMax`: where IPv4 subnets are leased from; there with `network`.
    pub subnets: Option<SubnetRange>,
    /// `IPv6SubnetLen`, `IPv6SubnetMin`, `IPv6SubnetMax`: there with `ipv6_network`.
    pub ipv6_subnets: Option<SubnetRange>,
    /// `Backend`.
    pub backend: Backend,
    unknown: Vec<UnknownKey>,
}

/// A key that flannel ignores, and we with it. Its `Display` is the key, and the one that was probably meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// As written; one inside `Backend` as `Backend.KEY`.
    pub key: String,
    /// The known key nearest to it, where one is near.
    pub nearest: Option<&'static str>,
}

impl UnknownKey {
    pub(super) fn new(
        place: &str,
        key: &str,
        known: impl Iterator<Item = &'static str>,
    ) -> UnknownKey {
        UnknownKey {
            key: format!("{place}{key}"),
            nearest: nearest(key, known),
        }
    }
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        match self.nearest {
            Some(nearest) => write!(f, " (did you mean {nearest:?}?)"),
            None => Ok(()),
        }
    }
}

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

impl NetConf {
    /// Reads the file at `path`; the text with it.
    ///
    /// # Errors
    /// [`NetConfError`]: the file cannot be read, or the first thing that is wrong in it.
    pub fn load(path: &Path) -> Result<(NetConf, String), NetConfError> {
        let text = text_file::read(path, MOST_BYTES)?;
        Ok((NetConf::parse(&text)?, text))
    }

    /// Reads a `net-conf.json`.
    ///
    /// A null is as good as no key, except under `Backend`. A bound of all zeros is as good as none.
    ///
    /// # Errors
    /// [`NetConfError`] with the first thing that is wrong.
    pub fn parse(text: &str) -> Result<NetConf, NetConfError> {
        let fields = match serde_json::from_str(text).map_err(NetConfError::Json)? {
            Json::Object(fields) => fields,
            _ => return Err(NetConfError::NotAnObject),
        };
        let unknown = fields.unknown(&KEYS);
        let mut unknown: Vec<_> = unknown
            .map(|key| UnknownKey::new("", key, KEYS.into_iter()))
            .collect();
        let backend = Backend::parse(fields.last("Backend"), &mut unknown)?;
        // Both families are read before the switches count: flannel refuses a malformed network that is off.
        let v4 = subnet_range::read(&fields, &IPV4)?;
        let v6 = subnet_range::read(&fields, &IPV6)?;
        fields.flag("EnableNFTables")?;
        let v4 = fields.flag("EnableIPv4")?.unwrap_or(true).then_some(v4);
        let v6 = fields.flag("EnableIPv6")?.unwrap_or(false).then_some(v6);
        if v4.is_none() && v6.is_none() {
            return Err(NetConfError::NoFamily);
        }
        let v4 = v4.map(|written| written.complete(&IPV4)).transpose()?;
        let v6 = v6.map(|written| written.complete(&IPV6)).transpose()?;
        Ok(NetConf {
            network: v4.and_then(|(network, _)| match network {
                IpNet::V4(network) => Some(network),
                IpNet::V6(_) => None,
            }),
            ipv6_network: v6.and_then(|(network, _)| match network {
                IpNet::V4(_) => None,
                IpNet::V6(network) => Some(network),
            }),
            subnets: v4.map(|(_, range)| range),
            ipv6_subnets: v6.map(|(_, range)| range),
            backend,
            unknown,
        })
    }

    /// The cluster networks, IPv4 first.
    pub fn cluster(&self) -> Vec<IpNet> {
        let v4 = self.network.map(IpNet::V4);
        v4.into_iter()
            .chain(self.ipv6_network.map(IpNet::V6))
            .collect()
    }

    /// Keys that flannel ignores, and we with it. Worth a warning: the author meant something by them.
    pub fn unknown_keys(&self) -> &[UnknownKey] {
        &self.unknown
    }
}

/// A thousand times what such a file holds.
const MOST_BYTES: u64 = 1 << 20;
const KEYS: [&str; 12] = [
    "EnableIPv4",
    "EnableIPv6",
    "EnableNFTables",
    "Network",
    "IPv6Network",
    "SubnetLen",
    "SubnetMin",
    "SubnetMax",
    "IPv6SubnetLen",
    "IPv6SubnetMin",
    "IPv6SubnetMax",
    "Backend",
];

#[cfg(test)]
mod tests;
