//! Routes and addresses in the cluster network that are not ours: prefixes that
//! the kernel serves itself, and prefixes that bypass Tartan.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::route::RouteType;

use super::addresses::InterfaceAddress;
use super::links::Link;
use super::routes::{LOCAL, MAIN, Route};

/// A route inside a cluster network that takes packets past Tartan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    /// The prefix that goes elsewhere.
    pub prefix: IpNet,
    /// The interface it goes to; none for a route that refuses or discards.
    pub device: Option<String>,
    /// The gateway, if it has one.
    pub gateway: Option<IpAddr>,
    /// The route's protocol number (`/etc/iproute2/rt_protos`).
    pub protocol: u8,
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bypasses Tartan:", self.prefix)?;
        match (&self.device, self.gateway) {
            (Some(device), Some(gateway)) => write!(f, " via {gateway} dev {device}")?,
            (Some(device), None) => write!(f, " dev {device}")?,
            (None, _) => write!(f, " refused or discarded")?,
        }
        write!(f, " (protocol {})", self.protocol)
    }
}

/// Prefixes inside our own subnets that the kernel routes to, or holds on,
/// another device than ours; sorted, each once. A device address counts as a
/// host prefix.
pub(in crate::host) fn kernel_prefixes(
    routes: &[Route],
    held: &[InterfaceAddress],
    own: &[IpNet],
    device: Option<u32>,
) -> Vec<IpNet> {
    let elsewhere = |index: &u32| Some(*index) != device;
    let routed = routes
        .iter()
        // The local table repeats the addresses, and adds broadcast ones.
        .filter(|route| route.table != LOCAL && route.kind == RouteType::Unicast)
        .filter(|route| route.devices.iter().any(elsewhere))
        .map(|route| route.prefix);
    let addresses = held
        .iter()
        .filter(|held| elsewhere(&held.index))
        .map(|held| IpNet::from(held.address.addr()));
    let mut prefixes: Vec<IpNet> = routed
        .chain(addresses)
        .filter(|prefix| own.iter().any(|subnet| subnet.contains(prefix)))
        .collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes
}

/// The indices of the interfaces that these prefixes lead to or are held on.
pub(in crate::host) fn pod_interfaces(
    routes: &[Route],
    held: &[InterfaceAddress],
    own: &[IpNet],
    device: Option<u32>,
) -> BTreeSet<u32> {
    let inside = |prefix: &IpNet| own.iter().any(|subnet| subnet.contains(prefix));
    let routed = routes
        .iter()
        .filter(|route| route.table != LOCAL && route.kind == RouteType::Unicast)
        .filter(|route| inside(&route.prefix))
        .flat_map(|route| route.devices.iter().copied());
    let holding = held
        .iter()
        .filter(|held| inside(&IpNet::from(held.address.addr())))
        .map(|held| held.index);
    let elsewhere = |index: &u32| Some(*index) != device;
    routed.chain(holding).filter(elsewhere).collect()
}

/// Routes of the main table more specific than a cluster network that are
/// neither ours nor inside our own subnets, with the interface index they
/// lead to.
pub(in crate::host) fn bypassing<'a>(
    routes: &'a [Route],
    cluster: &'a [IpNet],
    own: &'a [IpNet],
    device: Option<u32>,
) -> impl Iterator<Item = &'a Route> {
    routes.iter().filter(move |route| {
        route.table == MAIN
            && !route.is_ours(device)
            && device.is_none_or(|ours| route.devices != [ours])
            && !matches!(route.kind, RouteType::Multicast | RouteType::Throw)
            && cluster
                .iter()
                .any(|network| network.contains(&route.prefix) && *network != route.prefix)
            && !own.iter().any(|subnet| subnet.contains(&route.prefix))
    })
}

/// The interface a route leads to, if it leads anywhere.
pub(in crate::host) fn leads_to(route: &Route, links: &[Link]) -> Option<String> {
    // An IPv6 route that refuses names the loopback device.
    if route.kind != RouteType::Unicast {
        return None;
    }
    let device = route.devices.first()?;
    let link = links.iter().find(|link| link.index == *device)?;
    Some(link.name.clone())
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressFlags;

    use super::*;
    use crate::host::net::routes::PROTOCOL;

    const OURS: u32 = 3;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn route(prefix: &str, device: u32) -> Route {
        Route {
            prefix: net(prefix),
            kind: RouteType::Unicast,
            protocol: 2,
            table: MAIN,
            metric: 0,
            devices: vec![device],
            gateway: None,
            source: None,
            mtu: None,
            narrowed: false,
        }
    }

    #[test]
    fn a_bridge_and_a_pod_route_are_served() {
        let routes = [
            route("10.244.1.0/24", 5),
            route("10.244.1.7/32", 6),
            route("10.244.1.8/32", OURS),
            route("10.244.2.0/24", 5),
            route("0.0.0.0/0", 2),
            Route {
                kind: RouteType::Unreachable,
                devices: vec![],
                ..route("10.244.1.128/25", 0)
            },
            Route {
                table: LOCAL,
                ..route("10.244.1.255/32", 5)
            },
        ];
        let held = [
            InterfaceAddress {
                index: 5,
                address: net("10.244.1.1/24"),
                flags: AddressFlags::Permanent,
            },
            InterfaceAddress {
                index: OURS,
                address: net("10.244.1.0/32"),
                flags: AddressFlags::Permanent,
            },
            InterfaceAddress {
                index: 2,
                address: net("192.0.2.1/24"),
                flags: AddressFlags::Permanent,
            },
        ];
        assert_eq!(
            kernel_prefixes(&routes, &held, &[net("10.244.1.0/24")], Some(OURS)),
            [
                net("10.244.1.0/24"),
                net("10.244.1.1/32"),
                net("10.244.1.7/32")
            ]
        );
    }

    #[test]
    fn one_hop_of_several_elsewhere_is_enough() {
        let mut both = route("10.244.1.0/25", OURS);
        both.devices.push(9);
        assert_eq!(
            kernel_prefixes(&[both], &[], &[net("10.244.1.0/24")], Some(OURS)),
            [net("10.244.1.0/25")]
        );
    }

    #[test]
    fn strays_are_the_more_specific_routes_of_others() {
        let gone = Route {
            kind: RouteType::BlackHole,
            devices: vec![],
            ..route("10.244.4.0/24", 0)
        };
        let routes = [
            route("10.244.2.0/24", 7),
            route("10.244.0.0/17", 7),
            route("10.244.0.0/16", 7),
            route("10.0.0.0/8", 7),
            route("10.244.1.0/24", 5),
            route("10.244.3.0/24", OURS),
            Route {
                protocol: PROTOCOL,
                ..route("10.244.3.0/24", OURS)
            },
            gone.clone(),
        ];
        let cluster = [net("10.244.0.0/16")];
        let own = [net("10.244.1.0/24")];
        let found: Vec<IpNet> = bypassing(&routes, &cluster, &own, Some(OURS))
            .map(|route| route.prefix)
            .collect();
        assert_eq!(
            found,
            [net("10.244.2.0/24"), net("10.244.0.0/17"), gone.prefix]
        );
    }

    #[test]
    fn a_bypass_says_where_it_goes() {
        let text = Bypass {
            prefix: net("10.244.2.0/24"),
            device: Some("flannel.1".to_owned()),
            gateway: Some("10.244.2.0".parse().unwrap()),
            protocol: 3,
        }
        .to_string();
        assert_eq!(
            text,
            "10.244.2.0/24 bypasses Tartan: via 10.244.2.0 dev flannel.1 (protocol 3)"
        );
    }
}
