//! What the host's side of an attachment's link is: the one table of it. The plugin makes the link by it, the agent
//! repairs the link by it.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{Attachment, range};

/// An IPv4 setting of an interface.
#[derive(Clone, Copy, Debug)]
pub struct Setting4 {
    /// Its name in `/proc/sys/net/ipv4/conf`.
    pub name: &'static str,
    /// Its number in netlink: IPV4_DEVCONF_* of linux/ip.h.
    pub number: u16,
    /// Its value.
    pub value: u8,
}

/// An IPv6 setting of an interface.
#[derive(Clone, Copy, Debug)]
pub struct Setting6 {
    /// Its name in `/proc/sys/net/ipv6/conf`.
    pub name: &'static str,
    /// Its value.
    pub value: u8,
}

/// The queueing discipline of the pod's end: packets wait in one queue, in their order, as many as its `txqueuelen`.
pub const QUEUE: &str = "pfifo";

/// The IPv4 settings of the host's end: forward for pods, trust nothing they advertise, send them nothing but packets.
pub const SETTINGS4: [Setting4; 6] = [
    setting4("forwarding", 1, 1),
    // Only a first line: the kernel takes the larger of this and `all`.
    setting4("rp_filter", 8, 1),
    setting4("accept_redirects", 4, 0),
    setting4("send_redirects", 6, 0),
    setting4("accept_source_route", 9, 0),
    setting4("arp_ignore", 19, 1),
];

/// The IPv6 settings of the host's end where the pod has an IPv6 address, in the order in which they are made: it speaks
/// IPv6 last.
pub const SETTINGS6: [Setting6; 5] = [
    setting6("accept_ra", 0),
    setting6("accept_redirects", 0),
    // IN6_ADDR_GEN_MODE_NONE: no link-local address.
    setting6("addr_gen_mode", 1),
    setting6("forwarding", 1),
    setting6("disable_ipv6", 0),
];

/// The one where it has none: then no other host reaches the end by a link-local address past the IPv4 rules.
pub const WITHOUT6: Setting6 = setting6("disable_ipv6", 1);

const fn setting4(name: &'static str, number: u16, value: u8) -> Setting4 {
    Setting4 {
        name,
        number,
        value,
    }
}

const fn setting6(name: &'static str, value: u8) -> Setting6 {
    Setting6 { name, value }
}

/// A route of the host to a pod, over the host's end of its link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRoute {
    /// Where it leads.
    pub prefix: IpNet,
    /// The pod's address, where the destination is another.
    pub gateway: Option<IpAddr>,
}

/// The node's way to these addresses of a pod, and by the first of each family to what else the pod may send from: the
/// check of sources asks these routes. A source of a family that the pod has no address of has none.
pub fn routes(addresses: &[IpAddr], allowed_sources: &[IpNet]) -> Vec<PodRoute> {
    let own = addresses.iter().map(|address| PodRoute {
        prefix: IpNet::from(*address),
        gateway: None,
    });
    let sources = allowed_sources.iter().filter_map(|source| {
        let of_family = |address: &&IpAddr| address.is_ipv4() == source.addr().is_ipv4();
        Some(PodRoute {
            prefix: source.trunc(),
            gateway: Some(*addresses.iter().find(of_family)?),
        })
    });
    own.chain(sources).collect()
}

/// Those of a record.
pub fn routes_of(record: &Attachment) -> Vec<PodRoute> {
    let addresses: Vec<IpAddr> = record.addresses.iter().map(IpNet::addr).collect();
    routes(&addresses, &record.allowed_sources)
}

/// The networks in which pods live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNetworks {
    /// This node's subnets.
    pub own: Vec<IpNet>,
    /// The networks of the cluster.
    pub cluster: Vec<IpNet>,
}

impl PodNetworks {
    /// Whether ADD may give a pod of this node that address.
    pub fn has_for_pod(&self, address: IpAddr) -> bool {
        range::is_for_pods(&self.own, address)
    }

    /// Whether a pod of the cluster may have an address in `prefix`.
    pub fn may_hold_pods(&self, prefix: &IpNet) -> bool {
        let mut networks = self.cluster.iter().chain(&self.own);
        networks.any(|net| net.contains(prefix) || prefix.contains(net))
    }

    /// Whether ADD takes `prefix` for an allowed source.
    pub fn is_source(&self, prefix: &IpNet) -> bool {
        prefix.prefix_len() >= SHORTEST_SOURCE && !self.may_hold_pods(prefix)
    }
}

/// Bits of the shortest prefix in `allowedSources`.
pub const SHORTEST_SOURCE: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_source_is_routed_by_the_pods_address_of_its_family() {
        let addresses = ["10.244.1.2", "fd00:1::2"].map(|text| text.parse().unwrap());
        let made = routes(&addresses, &[net("203.0.113.0/24"), net("2001:db8::1/128")]);
        let made: Vec<(String, Option<IpAddr>)> = made
            .into_iter()
            .map(|route| (route.prefix.to_string(), route.gateway))
            .collect();
        let [v4, v6] = addresses;
        assert_eq!(
            made,
            [
                ("10.244.1.2/32".to_owned(), None),
                ("fd00:1::2/128".to_owned(), None),
                ("203.0.113.0/24".to_owned(), Some(v4)),
                ("2001:db8::1/128".to_owned(), Some(v6)),
            ]
        );
        assert_eq!(routes(&[v4], &[net("2001:db8::1/128")]).len(), 1);
    }

    #[test]
    fn a_source_is_neither_everything_nor_of_pods() {
        let networks = PodNetworks {
            own: vec![net("10.244.1.0/24")],
            cluster: vec![net("10.244.0.0/16")],
        };
        assert!(networks.is_source(&net("203.0.113.0/24")));
        for refused in ["0.0.0.0/0", "10.244.9.1/32", "10.0.0.0/8", "::/0"] {
            assert!(!networks.is_source(&net(refused)), "{refused}");
        }
        assert!(networks.has_for_pod("10.244.1.7".parse().unwrap()));
        for outside in ["10.244.1.0", "10.244.2.7", "192.0.2.254"] {
            assert!(!networks.has_for_pod(outside.parse().unwrap()), "{outside}");
        }
    }
}
