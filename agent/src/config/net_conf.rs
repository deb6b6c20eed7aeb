//! The cluster's configuration: flannel's `net-conf.json` (flannel `pkg/subnet/config.go`).
//!
//! Keys match as in Go: upper and lower case are equal, and the last of several counts. Defaults, checks and error
//! sentences are those of flannel's etcd mode, so that flannel's documentation applies to them.

use std::path::Path;

use cni_shim::Json;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::backend::Backend;
use super::net_conf_error::NetConfError;
use super::subnet_range::{self, IPV4, IPV6, SubnetRange};
use super::text_file;
use super::unknown_key::UnknownKey;

/// flannel's network configuration with flannel's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConf {
    /// `Network`: the IPv4 cluster network, host bits zero; `None` with `EnableIPv4: false`.
    pub network: Option<Ipv4Net>,
    /// `IPv6Network`: the IPv6 cluster network, host bits zero; `None` without `EnableIPv6: true`.
    pub ipv6_network: Option<Ipv6Net>,
    /// `SubnetLen`, `SubnetMin`, `SubnetMax`: the range of IPv4 subnets to lease; present with `network`.
    pub subnets: Option<SubnetRange>,
    /// `IPv6SubnetLen`, `IPv6SubnetMin`, `IPv6SubnetMax`: present with `ipv6_network`.
    pub ipv6_subnets: Option<SubnetRange>,
    /// `Backend`.
    pub backend: Backend,
    pub(super) unknown: Vec<UnknownKey>,
}

impl NetConf {
    /// Reads the file at `path`. Returns its text too.
    ///
    /// # Errors
    /// [`NetConfError`]: the file cannot be read, or its first fault.
    pub fn load(path: &Path) -> Result<(NetConf, String), NetConfError> {
        let text = text_file::read(path, MOST_BYTES)?;
        Ok((NetConf::parse(&text)?, text))
    }

    /// Reads a `net-conf.json`.
    ///
    /// A null counts as a missing key, except for `Backend`. A bound of all zeros counts as missing too.
    ///
    /// # Errors
    /// [`NetConfError`] with the first fault.
    pub fn parse(text: &str) -> Result<NetConf, NetConfError> {
        let fields = Json::parse(text.as_bytes()).map_err(NetConfError::Json)?;
        if !matches!(fields, Json::Object(_)) {
            return Err(NetConfError::NotAnObject);
        }
        let unknown = fields.unknown_keys(&KEYS);
        let mut unknown: Vec<_> = unknown
            .map(|key| UnknownKey::new("", key, KEYS.into_iter()))
            .collect();
        let backend = Backend::parse(fields.last("Backend"), &mut unknown)?;
        // Both families are read before the switches: flannel refuses a malformed network even if its family is off.
        let v4 = subnet_range::read(&fields, &IPV4)?;
        let v6 = subnet_range::read(&fields, &IPV6)?;
        fields.flag_of("EnableNFTables")?;
        let v4 = fields.flag_of("EnableIPv4")?.unwrap_or(true).then_some(v4);
        let v6 = fields.flag_of("EnableIPv6")?.unwrap_or(false).then_some(v6);
        if v4.is_none() && v6.is_none() {
            return Err(NetConfError::NoFamily);
        }
        let meant = |error| match error {
            NetConfError::MissingNetwork { key, .. } => {
                let similar = unknown.iter().find(|found| found.nearest == Some(key));
                let written = similar.map(|found| found.key.clone());
                NetConfError::MissingNetwork { key, written }
            }
            error => error,
        };
        let v4 = v4.map(|written| written.complete(&IPV4)).transpose();
        let v6 = v6.map(|written| written.complete(&IPV6)).transpose();
        let (v4, v6) = (v4.map_err(meant)?, v6.map_err(meant)?);
        backend.check_ports()?;
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

    /// Unknown keys. flannel ignores them, and so does Tartan; the caller warns of each.
    pub fn unknown_keys(&self) -> &[UnknownKey] {
        &self.unknown
    }
}

/// About a thousand times the size of such a file.
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
