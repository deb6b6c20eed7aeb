//! The keys of one family in a `net-conf.json`: its cluster network and the subnets to lease from it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_shim::Json;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::net_conf_error::NetConfError;

/// The subnets that a registry may lease to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetRange {
    /// Prefix length of each subnet.
    pub len: u8,
    /// Base address of the first subnet.
    pub min: IpAddr,
    /// Base address of the last subnet.
    pub max: IpAddr,
}

/// The keys and limits of one family.
pub(super) struct FamilyRules {
    bits: u8,
    network: &'static str,
    len: &'static str,
    min: &'static str,
    max: &'static str,
    /// The default length, if the network has room for four subnets of it.
    usual_len: u8,
    /// The longest prefix with room for a tunnel address, a bridge and a pod.
    longest_len: u8,
    /// The longest network prefix with room for four subnets of `longest_len`.
    longest_network: u8,
    example: &'static str,
    /// Prefixes that pods cannot use.
    reserved: &'static [IpNet],
}

/// The values of one family's keys.
#[derive(Clone, Copy)]
pub(super) struct FamilyKeys {
    network: Option<IpNet>,
    len: Option<i64>,
    min: Option<IpAddr>,
    max: Option<IpAddr>,
}

/// Reads the keys of one family. [`FamilyKeys::complete`] checks them against each other.
pub(super) fn read(fields: &Json, rules: &FamilyRules) -> Result<FamilyKeys, NetConfError> {
    Ok(FamilyKeys {
        network: read_network(fields, rules)?,
        len: read_len(fields, rules)?,
        min: read_bound(fields, rules.min, rules)?,
        max: read_bound(fields, rules.max, rules)?,
    })
}

impl FamilyKeys {
    /// Applies flannel's checks and defaults (`CheckNetworkConfig`). Returns the network and its range of subnets.
    pub(super) fn complete(
        &self,
        rules: &FamilyRules,
    ) -> Result<(IpNet, SubnetRange), NetConfError> {
        // flannel treats a network of all zeros as missing.
        let network = self.network.filter(|net| net.prefix_len() > 0).ok_or(
            NetConfError::MissingNetwork {
                key: rules.network,
                written: None,
            },
        )?;
        for reserved in rules.reserved {
            if reserved.contains(&network) || network.contains(reserved) {
                return Err(NetConfError::Reserved {
                    key: rules.network,
                    network,
                    reserved: *reserved,
                });
            }
        }
        let len = self.subnet_len(network, rules)?;
        let size = 1u128 << (rules.bits - len);
        let first = number(network.network());
        let last = first | ((1u128 << (rules.bits - network.prefix_len())) - size);
        let bound = |written: Option<IpAddr>, key, default| match written {
            None => Ok(default),
            Some(address) if !network.contains(&address) => Err(NetConfError::Outside {
                key,
                network: rules.network,
            }),
            Some(address) if !number(address).is_multiple_of(size) => {
                Err(NetConfError::Boundary { key, address })
            }
            Some(address) => Ok(address),
        };
        // flannel skips the first subnet: its base is the network's own address.
        let min = bound(self.min, rules.min, address(first + size, rules))?;
        let max = bound(self.max, rules.max, address(last, rules))?;
        Ok((network, SubnetRange { len, min, max }))
    }

    fn subnet_len(&self, network: IpNet, rules: &FamilyRules) -> Result<u8, NetConfError> {
        let least = network.prefix_len().saturating_add(2);
        let Some(written) = self.len else {
            return if network.prefix_len() > rules.longest_network {
                Err(NetConfError::TooSmall {
                    key: rules.network,
                    least: rules.longest_network,
                })
            } else {
                Ok(least.max(rules.usual_len))
            };
        };
        let len = u8::try_from(written)
            .ok()
            .filter(|len| *len <= rules.longest_len)
            .ok_or(NetConfError::SubnetLen {
                key: rules.len,
                limit: rules.longest_len + 1,
            })?;
        if len < least {
            Err(NetConfError::FourSubnets {
                key: rules.len,
                least,
            })
        } else {
            Ok(len)
        }
    }
}

fn read_network(fields: &Json, rules: &FamilyRules) -> Result<Option<IpNet>, NetConfError> {
    let Some(text) = fields.text_of(rules.network)? else {
        return Ok(None);
    };
    let prefix = parse_prefix(text).filter(|net| net.max_prefix_len() == rules.bits);
    match prefix {
        Some(net) => Ok(Some(net.trunc())),
        None => Err(NetConfError::Prefix {
            key: rules.network,
            value: text.to_owned(),
            example: rules.example,
        }),
    }
}

/// As in flannel, 0 counts as missing, and a negative length is not a `uint`.
fn read_len(fields: &Json, rules: &FamilyRules) -> Result<Option<i64>, NetConfError> {
    match fields.whole_of(rules.len)? {
        Some(len) if len < 0 => Err(NetConfError::Type {
            key: rules.len,
            expected: "a whole number from 0",
        }),
        len => Ok(len.filter(|len| *len != 0)),
    }
}

fn read_bound(
    fields: &Json,
    key: &'static str,
    rules: &FamilyRules,
) -> Result<Option<IpAddr>, NetConfError> {
    let Some(text) = fields.text_of(key)? else {
        return Ok(None);
    };
    let address: Option<IpAddr> = text.parse().ok();
    match address.filter(|address| address.is_ipv4() == (rules.bits == 32)) {
        Some(address) => Ok(Some(address).filter(|address| !address.is_unspecified())),
        None => Err(NetConfError::Address {
            key,
            value: text.to_owned(),
        }),
    }
}

/// Parses `ADDRESS/LENGTH` and keeps host bits. Stricter than `IpNet`'s parser, which accepts `010.1.1.1`.
pub(crate) fn parse_prefix(text: &str) -> Option<IpNet> {
    let (address, len) = text.split_once('/')?;
    let digits = len.bytes().all(|b| b.is_ascii_digit());
    IpNet::new(address.parse().ok()?, len.parse().ok().filter(|_| digits)?).ok()
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn address(number: u128, rules: &FamilyRules) -> IpAddr {
    match (rules.bits, u32::try_from(number)) {
        (32, Ok(number)) => IpAddr::V4(Ipv4Addr::from_bits(number)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

pub(super) const IPV4: FamilyRules = FamilyRules {
    bits: 32,
    network: "Network",
    len: "SubnetLen",
    min: "SubnetMin",
    max: "SubnetMax",
    usual_len: 24,
    longest_len: 30,
    longest_network: 28,
    example: "10.244.0.0/16",
    reserved: &[
        v4([0, 0, 0, 0], 8),
        v4([127, 0, 0, 0], 8),
        v4([169, 254, 0, 0], 16),
        v4([224, 0, 0, 0], 4),
        v4([255, 255, 255, 255], 32),
    ],
};

pub(super) const IPV6: FamilyRules = FamilyRules {
    bits: 128,
    network: "IPv6Network",
    len: "IPv6SubnetLen",
    min: "IPv6SubnetMin",
    max: "IPv6SubnetMax",
    usual_len: 64,
    longest_len: 126,
    longest_network: 124,
    example: "fd00:10:244::/48",
    // The unspecified and the loopback address, IPv4-mapped, link-local, multicast.
    reserved: &[
        v6([0, 0, 0, 0, 0, 0, 0, 0], 127),
        v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96),
        v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
        v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8),
    ],
};

const fn v4([a, b, c, d]: [u8; 4], len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len))
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8], len: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(a, b, c, d, e, f, g, h),
        len,
    ))
}
