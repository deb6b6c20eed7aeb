//! What there is once per IP version: addresses, ports and ways of a dual-stack node.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use encap::Family;

/// One value for each IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerFamily<T> {
    /// The value for IPv4.
    pub v4: T,
    /// The value for IPv6.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// What `of` makes of each family.
    pub fn each(mut of: impl FnMut(Family) -> T) -> PerFamily<T> {
        PerFamily {
            v4: of(Family::V4),
            v6: of(Family::V6),
        }
    }

    /// The value for `family`.
    pub fn of(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// Both values, IPv4's first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.v4, &self.v6].into_iter()
    }
}

/// The addresses by which a node is reached on the underlay: one, or one of each family (flannel: `PublicIP` and
/// `PublicIPv6`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublicAddresses {
    /// IPv4 alone.
    V4(Ipv4Addr),
    /// IPv6 alone.
    V6(Ipv6Addr),
    /// Both.
    Dual(Ipv4Addr, Ipv6Addr),
}

impl PublicAddresses {
    /// The first address of each family among `addresses`; `None` where there is none at all.
    pub fn collect(addresses: impl IntoIterator<Item = IpAddr>) -> Option<PublicAddresses> {
        let (mut first4, mut first6) = (None, None);
        for address in addresses {
            match address {
                IpAddr::V4(v4) => drop(first4.get_or_insert(v4)),
                IpAddr::V6(v6) => drop(first6.get_or_insert(v6)),
            }
        }
        match (first4, first6) {
            (Some(v4), Some(v6)) => Some(PublicAddresses::Dual(v4, v6)),
            (Some(v4), None) => Some(PublicAddresses::V4(v4)),
            (None, Some(v6)) => Some(PublicAddresses::V6(v6)),
            (None, None) => None,
        }
    }

    /// The address of `family`, if there is one.
    pub fn of(self, family: Family) -> Option<IpAddr> {
        match (self, family) {
            (PublicAddresses::V4(v4) | PublicAddresses::Dual(v4, _), Family::V4) => Some(v4.into()),
            (PublicAddresses::V6(v6) | PublicAddresses::Dual(_, v6), Family::V6) => Some(v6.into()),
            (PublicAddresses::V4(_), Family::V6) | (PublicAddresses::V6(_), Family::V4) => None,
        }
    }

    /// The address that names the node: the IPv4 one where there is one.
    pub fn first(self) -> IpAddr {
        match self {
            PublicAddresses::V4(v4) | PublicAddresses::Dual(v4, _) => v4.into(),
            PublicAddresses::V6(v6) => v6.into(),
        }
    }

    /// Each address, the IPv4 one first.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter_map(move |family| self.of(family))
    }

    /// Where a node at these addresses sends inner packets of family `inner` for a node at `peer`. flannel's way: inner
    /// IPv4 over IPv4, inner IPv6 over IPv6. Where the two do not have that family in common, by the one that they
    /// have; `None` where they have none.
    pub fn way_to(self, peer: PublicAddresses, inner: Family) -> Option<IpAddr> {
        let other = match inner {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        };
        let common = |family| self.of(family).and(peer.of(family));
        common(inner).or_else(|| common(other))
    }

    /// Whether `address` is one of them.
    pub fn contains(self, address: IpAddr) -> bool {
        self.of(Family::of(address)) == Some(address)
    }
}

impl From<IpAddr> for PublicAddresses {
    fn from(address: IpAddr) -> PublicAddresses {
        match address {
            IpAddr::V4(v4) => PublicAddresses::V4(v4),
            IpAddr::V6(v6) => PublicAddresses::V6(v6),
        }
    }
}

impl fmt::Display for PublicAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublicAddresses::V4(v4) => write!(f, "{v4}"),
            PublicAddresses::V6(v6) => write!(f, "{v6}"),
            PublicAddresses::Dual(v4, v6) => write!(f, "{v4}, {v6}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_address_or_one_of_each_family() {
        let (v4, v6): (Ipv4Addr, Ipv6Addr) =
            ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        let rows = [
            (
                PublicAddresses::from(IpAddr::from(v4)),
                vec![v4.into()],
                "192.0.2.1",
            ),
            (
                PublicAddresses::from(IpAddr::from(v6)),
                vec![v6.into()],
                "2001:db8::1",
            ),
            (
                PublicAddresses::Dual(v4, v6),
                vec![v4.into(), v6.into()],
                "192.0.2.1, 2001:db8::1",
            ),
        ];
        assert_eq!(PublicAddresses::collect([]), None);
        for (public, all, text) in rows {
            let second: IpAddr = "192.0.2.7".parse().unwrap();
            let again = all.iter().rev().chain(all.iter()).copied();
            assert_eq!(PublicAddresses::collect(again.clone()), Some(public));
            let more = again.chain([second]);
            assert_eq!(
                PublicAddresses::collect(more).unwrap().of(Family::V6),
                public.of(Family::V6)
            );
            assert_eq!(public.iter().collect::<Vec<IpAddr>>(), all);
            assert_eq!(public.first(), all[0]);
            assert_eq!(public.to_string(), text);
            for address in [IpAddr::from(v4), v6.into()] {
                assert_eq!(public.contains(address), all.contains(&address));
                let of = public.of(Family::of(address));
                assert_eq!(of, all.contains(&address).then_some(address));
            }
            assert!(!public.contains("192.0.2.9".parse().unwrap()));
        }
    }
}
