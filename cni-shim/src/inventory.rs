//! What the kernel has in one network namespace: addresses, routes,
//! neighbours, rules.

use std::net::IpAddr;

use cni_shim::pod_link;
use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType,
};
use netlink_packet_route::rule::{RuleAttribute, RuleMessage};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::{Error, Netlink};

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenRoute {
    /// Where to.
    pub(crate) destination: IpNet,
    /// In which table.
    pub(crate) table: u32,
    /// Through which interface.
    pub(crate) index: Option<u32>,
    /// Whether it leads anywhere (is no `unreachable`, `blackhole` or the like).
    pub(crate) leads: bool,
}

/// A neighbour that has, or lately had, a hardware address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenNeighbour {
    /// Its address.
    pub(crate) address: IpAddr,
    /// On which interface.
    pub(crate) index: u32,
    /// Whether it is permanent (NUD_PERMANENT).
    pub(crate) permanent: bool,
}

/// The queue of an interface that [`pod_link::QUEUE`] describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenQueue {
    /// Packets that wait.
    pub(crate) waiting: u32,
    /// Packets that have left it so far.
    pub(crate) sent: u32,
}

/// `from SOURCE lookup TABLE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenRule {
    /// The whole rule, to delete it by.
    pub(crate) message: RuleMessage,
    /// The source's address.
    pub(crate) source: IpAddr,
    /// The table.
    pub(crate) table: u32,
    /// Its place among the rules.
    pub(crate) priority: u32,
}

/// Every route of a family, in any table.
pub(crate) fn routes(netlink: &mut Netlink, v4: bool) -> Result<Vec<SeenRoute>, Error> {
    let mut question = RouteMessage::default();
    question.header.address_family = family(v4);
    let question = RouteNetlinkMessage::GetRoute(question);
    netlink.dump("list the routes", &question, |answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => seen_route(route, v4),
        _ => None,
    })
}

/// The queue in front of an interface; none where it has none, or one of another kind.
pub(crate) fn queue(netlink: &mut Netlink, index: u32) -> Result<Option<SeenQueue>, Error> {
    let question = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
    let queues = netlink.dump("list the queues", &question, |answer| match answer {
        RouteNetlinkMessage::NewQueueDiscipline(queue) => seen_queue(queue, index),
        _ => None,
    })?;
    Ok(queues.into_iter().next())
}

fn seen_queue(message: &TcMessage, index: u32) -> Option<SeenQueue> {
    let header = &message.header;
    if u32::try_from(header.index) != Ok(index) || header.parent != TcHandle::ROOT {
        return None;
    }
    let mut is_ours = false;
    let (mut waiting, mut sent) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            TcAttribute::Kind(kind) => is_ours = kind == pod_link::QUEUE,
            TcAttribute::Stats2(all) => {
                for one in all {
                    match one {
                        TcStats2::Queue(queue) => waiting = Some(queue.qlen),
                        TcStats2::Basic(basic) => sent = Some(basic.packets),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let (waiting, sent) = (waiting?, sent?);
    is_ours.then_some(SeenQueue { waiting, sent })
}

/// Whether the namespace takes what is sent to `address` for its own.
pub(crate) fn is_own(netlink: &mut Netlink, address: IpAddr) -> Result<bool, Error> {
    let mut question = RouteMessage::default();
    question.header.address_family = family(address.is_ipv4());
    question.header.destination_prefix_length = IpNet::from(address).prefix_len();
    let destination = RouteAddress::from(address);
    question.attributes = vec![RouteAttribute::Destination(destination)];
    let question = RouteNetlinkMessage::GetRoute(question);
    let asked = netlink.look_up(
        "ask for the way to an address",
        question,
        |answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => Some(route.header.kind == RouteType::Local),
            _ => None,
        },
    );
    match asked {
        // There is no way yet, not even out of the pod; or the way out is barred, by a route or a rule that stands for
        // one (net/ipv6/fib6_rules.c, `__fib6_rule_action`, Linux 6.8).
        Err(Error::Refused { .. }) => Ok(false),
        asked => Ok(asked?.unwrap_or(false)),
    }
}

/// Every neighbour of a family.
pub(crate) fn neighbours(netlink: &mut Netlink, v4: bool) -> Result<Vec<SeenNeighbour>, Error> {
    let mut question = NeighbourMessage::default();
    question.header.family = family(v4);
    let question = RouteNetlinkMessage::GetNeighbour(question);
    netlink.dump("list the neighbours", &question, |answer| match answer {
        RouteNetlinkMessage::NewNeighbour(neighbour) => seen_neighbour(neighbour),
        _ => None,
    })
}

/// Every address of one interface.
pub(crate) fn addresses(netlink: &mut Netlink, index: u32) -> Result<Vec<IpAddr>, Error> {
    let all = all_addresses(netlink)?.into_iter();
    Ok(all
        .filter(|(of, _)| *of == index)
        .map(|(_, address)| address)
        .collect())
}

/// Every address, and the index of the interface that has it.
pub(crate) fn all_addresses(netlink: &mut Netlink) -> Result<Vec<(u32, IpAddr)>, Error> {
    let question = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    netlink.dump("list the addresses", &question, |answer| match answer {
        RouteNetlinkMessage::NewAddress(address) => {
            let attributes = address.attributes.iter();
            // IFA_LOCAL is the address; IFA_ADDRESS alone is there with IPv6.
            let local = attributes.clone().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) => Some(*address),
                _ => None,
            });
            let found = local.or_else(|| {
                attributes.clone().find_map(|attribute| match attribute {
                    AddressAttribute::Address(address) => Some(*address),
                    _ => None,
                })
            });
            Some((address.header.index, found?))
        }
        _ => None,
    })
}

/// Every rule of a family that looks one source up in a table of its own.
pub(crate) fn source_rules(netlink: &mut Netlink, v4: bool) -> Result<Vec<SeenRule>, Error> {
    let mut question = RuleMessage::default();
    question.header.family = family(v4);
    let question = RouteNetlinkMessage::GetRule(question);
    netlink.dump("list the rules", &question, |answer| {
        let RouteNetlinkMessage::NewRule(message) = answer else {
            return None;
        };
        let mut table = u32::from(message.header.table);
        let mut source = None;
        let mut priority = 0;
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(place) => priority = *place,
                RuleAttribute::Table(wide) => table = *wide,
                RuleAttribute::Source(address) => source = Some(*address),
                _ => {}
            }
        }
        Some(SeenRule {
            message: message.clone(),
            source: source?,
            table,
            priority,
        })
    })
}

fn seen_route(route: &RouteMessage, v4: bool) -> Option<SeenRoute> {
    let mut destination = if v4 {
        IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)
    };
    let mut table = u32::from(route.header.table);
    let mut index = None;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(v4)) => destination = IpAddr::V4(*v4),
            RouteAttribute::Destination(RouteAddress::Inet6(v6)) => destination = IpAddr::V6(*v6),
            RouteAttribute::Table(wide) => table = *wide,
            RouteAttribute::Oif(oif) => index = Some(*oif),
            _ => {}
        }
    }
    Some(SeenRoute {
        destination: IpNet::new(destination, route.header.destination_prefix_length).ok()?,
        table,
        index,
        leads: matches!(route.header.kind, RouteType::Unicast | RouteType::Local),
    })
}

fn seen_neighbour(message: &NeighbourMessage) -> Option<SeenNeighbour> {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let state = message.header.state;
    if !matches!(state, Reachable | Stale | Delay | Probe | Noarp | Permanent) {
        return None;
    }
    let address = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
            _ => None,
        });
    Some(SeenNeighbour {
        address: address?,
        index: message.header.ifindex,
        permanent: state == Permanent,
    })
}

fn family(v4: bool) -> AddressFamily {
    if v4 {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

/// The table of routes for which no other table was chosen.
pub(crate) const MAIN_TABLE: u32 = RouteHeader::RT_TABLE_MAIN as u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_in_every_list() {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap().unwrap();
        assert!(lo.mtu >= 1500, "{lo:?}");
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(addresses(&mut netlink, lo.index).unwrap().contains(&local));
        let routed = routes(&mut netlink, true).unwrap();
        let found = routed.iter().find(|r| r.destination == IpNet::from(local));
        let found = found.unwrap();
        assert_eq!(
            (found.table, found.index, found.leads),
            (255, Some(lo.index), true)
        );
        source_rules(&mut netlink, true).unwrap();
        neighbours(&mut netlink, false).unwrap();
    }
}
