//! What the kernel is told about addresses, neighbours, routes and rules.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::{Error, Netlink};

/// Gives an interface an address, without duplicate detection.
pub(super) fn add_address(netlink: &mut Netlink, index: u32, address: IpAddr) -> Result<(), Error> {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    message.header.prefix_len = full_length(address);
    message.header.scope = AddressScope::Universe;
    message.header.index = index;
    if address.is_ipv6() {
        // The range guarantees that nobody else has it.
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    message.attributes = vec![
        AddressAttribute::Local(address),
        AddressAttribute::Address(address),
    ];
    netlink.change(
        "give the pod its address",
        RouteNetlinkMessage::NewAddress(message),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

/// Tells an interface for good who has `address`.
pub(super) fn set_neighbour(
    netlink: &mut Netlink,
    index: u32,
    address: IpAddr,
    mac: [u8; 6],
) -> Result<(), Error> {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address);
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![
        NeighbourAttribute::Destination(match address {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        }),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    netlink.change(
        "set a permanent neighbour",
        RouteNetlinkMessage::NewNeighbour(message),
        NLM_F_CREATE | NLM_F_REPLACE,
    )
}

/// Adds a route; one to the same destination, of the same preference, makes
/// it fail with EEXIST.
pub(super) fn add_route(
    netlink: &mut Netlink,
    doing: &'static str,
    route: RouteMessage,
) -> Result<(), Error> {
    netlink.change(
        doing,
        RouteNetlinkMessage::NewRoute(route),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

/// `ADDRESS dev INDEX scope link`.
pub(super) fn link_route(index: u32, address: IpAddr) -> RouteMessage {
    let mut route = route(index, IpNet::from(address));
    if address.is_ipv4() {
        // IPv6 routes have no scope.
        route.header.scope = RouteScope::Link;
    }
    route
}

/// `DESTINATION via GATEWAY dev INDEX onlink`.
pub(super) fn route_via(index: u32, destination: IpNet, gateway: IpAddr) -> RouteMessage {
    let mut route = route(index, destination);
    route.header.flags = RouteFlags::Onlink;
    route
        .attributes
        .push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
    route
}

/// The same route in another table.
pub(super) fn in_table(mut route: RouteMessage, table: u32) -> RouteMessage {
    route.header.table = RouteHeader::RT_TABLE_UNSPEC;
    route.attributes.push(RouteAttribute::Table(table));
    route
}

/// `from SOURCE lookup TABLE`, before the table `main`.
pub(super) fn add_source_rule(
    netlink: &mut Netlink,
    source: IpAddr,
    table: u32,
) -> Result<(), Error> {
    let mut message = RuleMessage::default();
    message.header.family = family(source);
    message.header.src_len = full_length(source);
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Source(source),
        RuleAttribute::Table(table),
        RuleAttribute::Priority(RULE_PRIORITY),
    ];
    netlink.change(
        "set the rule for the pod's second interface",
        RouteNetlinkMessage::NewRule(message),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

/// Everything of the address's family.
pub(super) fn everything(address: IpAddr) -> IpNet {
    match address {
        IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
    }
}

fn route(index: u32, destination: IpNet) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = family(destination.addr());
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Static;
    route.header.scope = RouteScope::Universe;
    route.header.kind = RouteType::Unicast;
    route.header.destination_prefix_length = destination.prefix_len();
    route.attributes = vec![RouteAttribute::Oif(index)];
    if destination.prefix_len() > 0 {
        let destination = RouteAddress::from(destination.addr());
        route
            .attributes
            .push(RouteAttribute::Destination(destination));
    }
    route
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn full_length(address: IpAddr) -> u8 {
    IpNet::from(address).prefix_len()
}

/// Behind `local` (0), far before `main` (32766).
const RULE_PRIORITY: u32 = 20_000;
