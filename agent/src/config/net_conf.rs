//! The cluster's configuration: flannel's `net-conf.json` (flannel `pkg/subnet/config.go`).
//!
//! Keys are matched as Go matches them (in any case, the last of several counts), defaults and checks are those
//! of flannel's etcd mode, and so are the sentences that refuse a file, so that what people find on the net
//! about them applies.

use std::path::Path;

use cni_shim::Json;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::backend::Backend;
use super::net_conf_error::NetConfError;
use super::subnet_range::{self, IPV4, IPV6, SubnetRange};
use super::text_file;
use super::unknown_key::UnknownKey;

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
        let fields = Json::parse(text.as_bytes()).map_err(NetConfError::Json)?;
        if !matches!(fields, Json::Object(_)) {
            return Err(NetConfError::NotAnObject);
        }
        let unknown = fields.unknown_keys(&KEYS);
        let mut unknown: Vec<_> = unknown
            .map(|key| UnknownKey::new("", key, KEYS.into_iter()))
            .collect();
        let backend = Backend::parse(fields.last("Backend"), &mut unknown)?;
        // Both families are read before the switches count: flannel refuses a malformed network that is off.
        let v4 = subnet_range::read(&fields, &IPV4)?;
        let v6 = subnet_range::read(&fields, &IPV6)?;
        fields.flag_of("EnableNFTables")?;
        let v4 = fields.flag_of("EnableIPv4")?.unwrap_or(true).then_some(v4);
        let v6 = fields.flag_of("EnableIPv6")?.unwrap_or(false).then_some(v6);
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
