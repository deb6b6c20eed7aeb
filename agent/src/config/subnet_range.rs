//! A cluster network and the subnets it is cut into, for either family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_shim::Json;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::net_conf_error::NetConfError;

/// Where a registry that hands out subnets takes them from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetRange {
    /// Prefix length of each subnet.
    pub len: u8,
    /// Base address of the first subnet.
    pub min: IpAddr,
    /// Base address of the last subnet.
    pub max: IpAddr,
}

/// What differs between the families.
pub(super) struct Stack {
    bits: u8,
    network: &'static str,
    len: &'static str,
    min: &'static str,
    max: &'static str,
    /// Subnets get this length where the network has room for four of them.
    usual_len: u8,
    /// A subnet needs a tunnel address, a bridge and a pod.
    longest_len: u8,
    /// The longest network prefix with room for four subnets of `longest_len`.
    longest_network: u8,
    example: &'static str,
    /// Prefixes whose addresses can never be pods'.
    reserved: &'static [IpNet],
}

/// What the file says of one family.
#[derive(Clone, Copy)]
pub(super) struct Written {
    network: Option<IpNet>,
    len: Option<i64>,
    min: Option<IpAddr>,
    max: Option<IpAddr>,
}

/// Reads the keys of one family; nothing is compared with anything yet.
pub(super) fn read(fields: &Json, stack: &Stack) -> Result<Written, NetConfError> {
    Ok(Written {
        network: read_network(fields, stack)?,
        len: read_len(fields, stack)?,
        min: read_bound(fields, stack.min, stack)?,
        max: read_bound(fields, stack.max, stack)?,
    })
}

impl Written {
    /// The network, and its subnets with flannel's defaults and checks (`CheckNetworkConfig`).
    pub(super) fn complete(&self, stack: &Stack) -> Result<(IpNet, SubnetRange), NetConfError> {
        // flannel takes a network of all zeros for none.
        let network = self
            .network
            .filter(|net| net.prefix_len() > 0)
            .ok_or(NetConfError::MissingNetwork { key: stack.network })?;
        for reserved in stack.reserved {
            if reserved.contains(&network) || network.contains(reserved) {
                return Err(NetConfError::Reserved {
                    key: stack.network,
                    network,
                    reserved: *reserved,
                });
            }
        }
        let len = self.subnet_len(network, stack)?;
        let size = 1u128 << (stack.bits - len);
        let first = number(network.network());
        let last = first | ((1u128 << (stack.bits - network.prefix_len())) - size);
        let bound = |written: Option<IpAddr>, key, default| match written {
            None => Ok(default),
            Some(address) if !network.contains(&address) => Err(NetConfError::Outside {
                key,
                network: stack.network,
            }),
            Some(address) if !number(address).is_multiple_of(size) => {
                Err(NetConfError::Boundary { key, address })
            }
            Some(address) => Ok(address),
        };
        // The first subnet is left out: its base is the network's own address.
        let min = bound(self.min, stack.min, address(first + size, stack))?;
        let max = bound(self.max, stack.max, address(last, stack))?;
        Ok((network, SubnetRange { len, min, max }))
    }

    fn subnet_len(&self, network: IpNet, stack: &Stack) -> Result<u8, NetConfError> {
        let least = network.prefix_len().saturating_add(2);
        let Some(written) = self.len else {
            return if network.prefix_len() > stack.longest_network {
                Err(NetConfError::TooSmall {
                    key: stack.network,
                    least: stack.longest_network,
                })
            } else {
                Ok(least.max(stack.usual_len))
            };
        };
        let len = u8::try_from(written)
            .ok()
            .filter(|len| *len <= stack.longest_len)
            .ok_or(NetConfError::SubnetLen {
                key: stack.len,
                limit: stack.longest_len + 1,
            })?;
        if len < least {
            Err(NetConfError::FourSubnets {
                key: stack.len,
                least,
            })
        } else {
            Ok(len)
        }
    }
}

fn read_network(fields: &Json, stack: &Stack) -> Result<Option<IpNet>, NetConfError> {
    let Some(text) = fields.text_of(stack.network)? else {
        return Ok(None);
    };
    let prefix = parse_prefix(text).filter(|net| net.max_prefix_len() == stack.bits);
    match prefix {
        Some(net) => Ok(Some(net.trunc())),
        None => Err(NetConfError::Prefix {
            key: stack.network,
            value: text.to_owned(),
            example: stack.example,
        }),
    }
}

/// 0 is as good as absent, as in flannel; a negative length is no `uint`.
fn read_len(fields: &Json, stack: &Stack) -> Result<Option<i64>, NetConfError> {
    match fields.whole_of(stack.len)? {
        Some(len) if len < 0 => Err(NetConfError::Type {
            key: stack.len,
            expected: "a whole number from 0",
        }),
        len => Ok(len.filter(|len| *len != 0)),
    }
}

fn read_bound(
    fields: &Json,
    key: &'static str,
    stack: &Stack,
) -> Result<Option<IpAddr>, NetConfError> {
    let Some(text) = fields.text_of(key)? else {
        return Ok(None);
    };
    let address: Option<IpAddr> = text.parse().ok();
    match address.filter(|address| address.is_ipv4() == (stack.bits == 32)) {
        Some(address) => Ok(Some(address).filter(|address| !address.is_unspecified())),
        None => Err(NetConfError::Address {
            key,
            value: text.to_owned(),
        }),
    }
}

/// `ADDRESS/LENGTH`, host bits as written. Stricter than `IpNet`'s own parser, which takes `010.1.1.1` for ten.
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

fn address(number: u128, stack: &Stack) -> IpAddr {
    match (stack.bits, u32::try_from(number)) {
        (32, Ok(number)) => IpAddr::V4(Ipv4Addr::from_bits(number)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

pub(super) const IPV4: Stack = Stack {
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

pub(super) const IPV6: Stack = Stack {
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
