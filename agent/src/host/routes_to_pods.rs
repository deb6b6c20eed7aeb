//! Which routes to pods there ought to be, and what is in their place.
//!
//! A route goes where its record says, and a record can be damaged: one to the uplink's router, or to everything, would
//! take the node off its network. So routes are only made to addresses that ADD gives pods of this node, and to allowed
//! sources that ADD takes and that hold no address of the host and no gateway.
//!
//! And only where nothing else is: a route of another program, of the metric that ours would have or a lesser one, stays and
//! is told. To take its place would lose it for good, or begin a duel with a program that repairs as well.

use std::collections::HashMap;
use std::net::IpAddr;

use cni_shim::Attachment;
use cni_shim::pod_link::{self, PodNetworks, PodRoute};
use ipnet::IpNet;

use super::net::links::Link;
use super::net::prefixes;
use super::net::routes::{self, Route};
use super::picture::Picture;

/// The routes of a picture, as far as those to pods ask for them.
pub(super) struct RoutesToPods<'a> {
    networks: &'a PodNetworks,
    /// Routes of the main table that nothing narrows, in the kernel's order.
    routed: HashMap<IpNet, Vec<&'a Route>>,
    /// What the node itself needs: addresses of the host, and gateways.
    kept: Vec<IpAddr>,
    links: &'a [Link],
}

/// What of the routes to one pod differs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RouteFaults {
    /// To be made; nothing is in their place.
    pub(super) missing: Vec<PodRoute>,
    /// What cannot be put right, in words.
    pub(super) reason: Option<String>,
}

impl<'a> RoutesToPods<'a> {
    pub(super) fn of(picture: &'a Picture, networks: &'a PodNetworks) -> RoutesToPods<'a> {
        let held = picture.held.iter().map(|held| held.address.addr());
        RoutesToPods::new(&picture.routes, held, &picture.links, networks)
    }

    fn new(
        routes: &'a [Route],
        held: impl Iterator<Item = IpAddr>,
        links: &'a [Link],
        networks: &'a PodNetworks,
    ) -> RoutesToPods<'a> {
        let mut routed: HashMap<IpNet, Vec<&Route>> = HashMap::new();
        for route in routes {
            if route.table == routes::MAIN && !route.narrowed {
                routed.entry(route.prefix).or_default().push(route);
            }
        }
        let gateways = routes.iter().filter_map(|route| route.gateway);
        RoutesToPods {
            networks,
            routed,
            kept: held.chain(gateways).collect(),
            links,
        }
    }

    /// The routes that an attachment is to have.
    pub(super) fn wanted(&self, attachment: &Attachment) -> Vec<PodRoute> {
        let addresses = attachment.addresses.iter().map(IpNet::addr);
        let addresses: Vec<IpAddr> = addresses
            .filter(|address| self.networks.has_for_pod(*address))
            .collect();
        let sources = attachment.allowed_sources.iter().copied();
        let sources: Vec<IpNet> = sources.filter(|source| self.may_lead(source)).collect();
        pod_link::routes(&addresses, &sources)
    }

    /// What differs of the routes of an attachment whose end has that index.
    pub(super) fn faults(&self, attachment: &Attachment, index: u32) -> RouteFaults {
        let mut faults = RouteFaults::default();
        for wanted in self.wanted(attachment) {
            let found = self.at(&wanted.prefix);
            // The kernel takes the first of equal ones.
            let first = found.iter().min_by_key(|route| route.metric);
            let ours = found.iter().filter(|route| route.leads_to(index));
            let ours = ours.map(|route| route.metric).min();
            let metric = routes::metric_to_pod(&wanted.prefix);
            let limit = ours.unwrap_or(metric);
            let before = first.filter(|first| first.metric <= limit && !first.leads_to(index));
            if let Some(other) = before {
                let reason = self.in_words(other);
                faults.reason.get_or_insert(reason);
            }
            if ours.is_none() && !found.iter().any(|route| route.metric == metric) {
                faults.missing.push(wanted);
            }
        }
        let is_there = |prefix: &IpNet| self.at(prefix).iter().any(|route| route.leads_to(index));
        let mut sources = attachment.allowed_sources.iter();
        if let Some(source) = sources.find(|source| !self.may_lead(source) && !is_there(source)) {
            faults.reason.get_or_insert_with(|| {
                format!(
                    "its record allows the source {source}, which is not routed to a pod: it is too wide, or pods, an address of this node or a gateway lie in it"
                )
            });
        }
        faults
    }

    /// Whether `source` may be routed to a pod.
    fn may_lead(&self, source: &IpNet) -> bool {
        self.networks.is_source(source) && !self.kept.iter().any(|kept| source.contains(kept))
    }

    fn at(&self, prefix: &IpNet) -> &[&Route] {
        self.routed.get(prefix).map_or(&[], Vec::as_slice)
    }

    fn in_words(&self, other: &Route) -> String {
        let device = prefixes::leads_to(other, self.links);
        let to = device.unwrap_or_else(|| "nowhere".to_owned());
        format!(
            "another program routes {} to {to} (metric {})",
            other.prefix, other.metric
        )
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteType;

    use super::*;

    const POD: u32 = 7;
    const OTHER: u32 = 2;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn networks() -> PodNetworks {
        PodNetworks {
            own: vec![net("10.244.1.0/24"), net("fd00:1::/64")],
            cluster: vec![net("10.244.0.0/16"), net("fd00::/16")],
        }
    }

    fn record(addresses: &[&str], sources: &[&str]) -> Attachment {
        Attachment {
            addresses: addresses.iter().map(|text| net(text)).collect(),
            allowed_sources: sources.iter().map(|text| net(text)).collect(),
            ..Attachment::default()
        }
    }

    fn route(prefix: &str, device: u32, metric: u32) -> Route {
        Route {
            prefix: net(prefix),
            kind: RouteType::Unicast,
            protocol: 4,
            table: routes::MAIN,
            metric,
            devices: vec![device],
            gateway: None,
            source: None,
            mtu: None,
            narrowed: false,
        }
    }

    /// What is missing, and whether something is told, on a node at 192.0.2.1 with its router at 192.0.2.254.
    fn judged(record: &Attachment, mut routes: Vec<Route>) -> (Vec<String>, Option<String>) {
        let mut default = route("0.0.0.0/0", OTHER, 0);
        default.gateway = Some("192.0.2.254".parse().unwrap());
        routes.push(default);
        let networks = networks();
        let held = ["192.0.2.1".parse().unwrap()].into_iter();
        let faults = RoutesToPods::new(&routes, held, &[], &networks).faults(record, POD);
        let missing = faults.missing.into_iter();
        let missing = missing.map(|route| route.prefix.to_string()).collect();
        (missing, faults.reason)
    }

    #[test]
    fn a_damaged_record_leads_nothing_to_its_pod_that_is_not_a_pods() {
        for address in [
            "192.0.2.254/32",
            "10.244.2.7/32",
            "10.244.1.0/32",
            "2001:db8::1/128",
        ] {
            let (missing, _) = judged(&record(&[address], &[]), vec![]);
            assert!(missing.is_empty(), "{address}: {missing:?}");
        }
        for source in [
            "0.0.0.0/0",
            "128.0.0.0/1",
            "10.244.2.0/24",
            "192.0.2.0/24",
            "192.0.2.254/32",
            "192.0.2.1/32",
        ] {
            let (missing, reason) = judged(&record(&["10.244.1.7/32"], &[source]), vec![]);
            assert_eq!(missing, ["10.244.1.7/32"], "{source}");
            let reason = reason.unwrap_or_default();
            assert!(
                reason.contains(&format!("the source {source},")),
                "{reason}"
            );
        }
        let whole = record(&["10.244.1.7/32", "fd00:1::7/128"], &["203.0.113.0/24"]);
        let (missing, reason) = judged(&whole, vec![]);
        assert_eq!(
            missing,
            ["10.244.1.7/32", "fd00:1::7/128", "203.0.113.0/24"]
        );
        assert_eq!(reason, None);
    }

    #[test]
    fn another_programs_route_of_equal_or_lesser_metric_stays_and_is_told() {
        for (prefix, default) in [("10.244.1.7/32", 0), ("fd00:1::7/128", 1024)] {
            let pod = record(&[prefix], &[]);
            let ours = || route(prefix, POD, default);
            assert_eq!(judged(&pod, vec![ours()]), (vec![], None));
            // In its place.
            let (missing, reason) = judged(&pod, vec![route(prefix, OTHER, default)]);
            assert!(
                missing.is_empty() && reason.is_some(),
                "{prefix}: {missing:?}"
            );
            let mut nowhere = route(prefix, OTHER, default);
            nowhere.kind = RouteType::BlackHole;
            let (missing, reason) = judged(&pod, vec![nowhere]);
            assert!(
                missing.is_empty() && reason.is_some(),
                "{prefix}: {missing:?}"
            );
            // The kernel takes the first of two that are equal.
            let (_, reason) = judged(&pod, vec![route(prefix, OTHER, default), ours()]);
            assert!(reason.is_some(), "{prefix}");
            let (_, reason) = judged(&pod, vec![ours(), route(prefix, OTHER, default)]);
            assert_eq!(reason, None);
            // Behind it.
            let behind = route(prefix, OTHER, default + 1);
            let (missing, reason) = judged(&pod, vec![behind]);
            assert_eq!((&*missing, reason), (&[prefix.to_owned()][..], None));
        }
        // In front of it: ours is made behind.
        let v6 = "fd00:1::7/128";
        let (missing, reason) = judged(&record(&[v6], &[]), vec![route(v6, OTHER, 1)]);
        assert!(missing == [v6] && reason.is_some(), "{missing:?}");
    }
}
