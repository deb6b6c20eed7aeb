//! The keys of leases: `10.5.52.0-24`, and with both families `10.5.52.0-24&fd00:12:13::-56` (flannel
//! `pkg/subnet/subnet.go`, `MakeSubnetKey` and `ParseSubnetKey`).
//!
//! flannel's expression is not anchored at the start, does not check dots and cuts long prefix lengths; here the key as a
//! whole must have the form. A node without IPv4 has `0.0.0.0-0` in its place.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The subnets of one lease; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubnetKey {
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
}

/// A key that has not the form of a lease's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key has not the form 10.244.1.0-24 or 10.244.1.0-24&fd00:10:244:1::-64: delete it (etcdctl del)"
)]
pub(super) struct NotASubnetKey;

impl SubnetKey {
    /// The key of `subnets`, the first of each family; `None` where there is none.
    pub(super) fn of(subnets: &[IpNet]) -> Option<SubnetKey> {
        let v4 = subnets.iter().find_map(|subnet| match subnet {
            IpNet::V4(v4) => Some(*v4),
            IpNet::V6(_) => None,
        });
        let v6 = subnets.iter().find_map(|subnet| match subnet {
            IpNet::V4(_) => None,
            IpNet::V6(v6) => Some(*v6),
        });
        (v4.is_some() || v6.is_some()).then_some(SubnetKey { v4, v6 })
    }

    /// The subnets, IPv4's first. Host bits may be set.
    pub(super) fn subnets(&self) -> Vec<IpNet> {
        let v6 = self.v6.map(IpNet::V6);
        self.v4.map(IpNet::V4).into_iter().chain(v6).collect()
    }

    /// The name under which its node is listed: the part of the key that names one subnet, with a hyphen for each colon.
    pub(super) fn name(&self) -> String {
        match (self.v4, self.v6) {
            (None, Some(v6)) => {
                let base = v6.addr().to_string().replace(':', "-");
                format!("{base}-{}", v6.prefix_len())
            }
            (v4, _) => v4_part(v4),
        }
    }
}

impl fmt::Display for SubnetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&v4_part(self.v4))?;
        match self.v6 {
            Some(v6) => write!(f, "&{}-{}", v6.addr(), v6.prefix_len()),
            None => Ok(()),
        }
    }
}

impl FromStr for SubnetKey {
    type Err = NotASubnetKey;

    fn from_str(text: &str) -> Result<SubnetKey, NotASubnetKey> {
        let (v4, v6) = match text.split_once('&') {
            Some((v4, v6)) => (v4, Some(v6)),
            None => (text, None),
        };
        let (address, len) = prefix::<Ipv4Addr>(v4)?;
        let v4 = match (address, len, v6) {
            (Ipv4Addr::UNSPECIFIED, 0, Some(_)) => None,
            _ => Some(Ipv4Net::new(address, len).map_err(|_| NotASubnetKey)?),
        };
        let v6 = v6.map(|v6| {
            let in_set = |b: u8| matches!(b, b'a'..=b'f' | b'0'..=b'9' | b':' | b'-');
            if !v6.bytes().all(in_set) {
                return Err(NotASubnetKey);
            }
            let (address, len) = prefix::<Ipv6Addr>(v6)?;
            Ipv6Net::new(address, len).map_err(|_| NotASubnetKey)
        });
        Ok(SubnetKey {
            v4,
            v6: v6.transpose()?,
        })
    }
}

fn v4_part(v4: Option<Ipv4Net>) -> String {
    let (address, len) = v4.map_or((Ipv4Addr::UNSPECIFIED, 0), |v4| {
        (v4.addr(), v4.prefix_len())
    });
    format!("{address}-{len}")
}

/// `ADDRESS-LENGTH`, the length without sign and leading zeros.
fn prefix<A: FromStr>(text: &str) -> Result<(A, u8), NotASubnetKey> {
    let (address, written) = text.split_once('-').ok_or(NotASubnetKey)?;
    let len: u8 = written.parse().map_err(|_| NotASubnetKey)?;
    if len.to_string() != written {
        return Err(NotASubnetKey);
    }
    Ok((address.parse().map_err(|_| NotASubnetKey)?, len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subnets(text: &str) -> Vec<String> {
        let key: SubnetKey = text.parse().unwrap();
        assert_eq!(key.to_string(), text);
        key.subnets().iter().map(IpNet::to_string).collect()
    }

    /// flannel `pkg/subnet/subnet_test.go`.
    #[test]
    fn the_keys_of_flannels_tests_are_read() {
        assert_eq!(subnets("10.12.13.0-24"), ["10.12.13.0/24"]);
        assert_eq!(
            subnets("10.12.13.0-24&fd00:12:13::-56"),
            ["10.12.13.0/24", "fd00:12:13::/56"]
        );
        assert_eq!(
            subnets("10.12.13.0-24&2001:db8::-64"),
            ["10.12.13.0/24", "2001:db8::/64"]
        );
    }

    #[test]
    fn a_node_without_ipv4_has_zeros_in_its_place() {
        assert_eq!(subnets("0.0.0.0-0&fd00:12:13::-56"), ["fd00:12:13::/56"]);
        let key: SubnetKey = "0.0.0.0-0&fd00:12:13::-56".parse().unwrap();
        assert_eq!(key.name(), "fd00-12-13---56");
        let key: SubnetKey = "10.5.52.0-24&fd00:12:13::-56".parse().unwrap();
        assert_eq!(key.name(), "10.5.52.0-24");
    }

    #[test]
    fn other_keys_are_refused() {
        for bad in [
            "",
            // Those of flannel's test.
            "10",
            "10.12.13-24",
            "10.12.13.300-24",
            "&2001::-56",
            "10.12.13.0-24&:12:13:-56",
            "10.12.13.0-24&20011::-56",
            "10.12.13.0-24&2001-56",
            "10.12.13.0-24&2001::",
            "10.12.13.0-24&2001::-56hi",
            // More.
            "10.12.13.0-24hi",
            "hi10.12.13.0-24",
            "10.12-13-24",
            "10.12.13.0",
            "10.12.13.0-",
            "10.12.13.0-33",
            "10.12.13.0-256",
            "10.12.13.0-024",
            "10.12.13.0-+24",
            "010.12.13.0-24",
            "10x12x13x0-24",
            "10.12.13.0-24&",
            "10.12.13.0-24&fd00:12:13::",
            "10.12.13.0-24&fd00:12:13::-129",
            "10.12.13.0-24&FD00:12:13::-56",
            "10.12.13.0-24&::ffff:1.2.3.4-120",
            "10.12.13.0-24&fd00:12:13::-56hi",
            "10.12.13.0-24&fd00::-56&fd01::-56",
            "10.12.13.0-24/extra",
            "fd00:12:13::-56",
            "10.12.13.0/24",
            "10.12.13.0-24\n",
        ] {
            assert_eq!(bad.parse::<SubnetKey>(), Err(NotASubnetKey), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn every_key_is_read_as_it_was_written(v4 in any::<u32>(), len in 1u8..=32, v6 in prop::option::of((any::<[u16; 8]>(), 0u8..=128))) {
            let v6 = v6.map(|(parts, len)| Ipv6Net::new(parts.into(), len).unwrap());
            prop_assume!(v6.is_none_or(|v6| v6.addr().to_ipv4().is_none()));
            let v4 = Some(Ipv4Net::new(v4.into(), len).unwrap());
            let key = SubnetKey { v4, v6 };
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9a-f.:&-]{0,40}|.{0,40}") {
            if let Ok(key) = text.parse::<SubnetKey>() {
                prop_assert_eq!(key.to_string().parse(), Ok(key));
            }
        }
    }
}
