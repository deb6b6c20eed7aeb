//! Netlink messages that change interfaces, addresses, neighbours, routes and rules.

use std::net::IpAddr;

use cni_shim::pod_link;
use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, NLA_F_NESTED, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{AfSpecInet, AfSpecUnspec, LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
    RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::{ChangeRequest, Tolerance};

/// Sets an interface up.
pub(super) fn up(doing: &'static str, index: u32) -> ChangeRequest {
    link_change(doing, up_message(index))
}

/// Makes settings of an interface's IPv4.
pub(super) fn set(doing: &'static str, index: u32, settings: &[Setting]) -> ChangeRequest {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(attribute(settings));
    link_change(doing, message)
}

/// Sets an interface up, gives it an alias, and makes settings of its IPv4 (net/core/rtnetlink.c, `do_setlink`, Linux 6.8;
/// an alias at the making of an interface is ignored there).
pub(super) fn up_and_set(
    doing: &'static str,
    index: u32,
    settings: &[Setting],
    alias: String,
) -> ChangeRequest {
    let mut message = up_message(index);
    message.attributes.push(LinkAttribute::IfAlias(alias));
    message.attributes.push(attribute(settings));
    link_change(doing, message)
}

/// IPV4_DEVCONF_* of linux/ip.h, and its value. As by /proc/sys/net/ipv4/conf, but all at once, and without the kernel
/// trying again and again for its lock while other processes have it. Only the value is set (net/ipv4/devinet.c,
/// `inet_set_link_af`, Linux 6.8): the kernel sends no RTM_NEWNETCONF, and drops no cached route, of which a new
/// interface has none.
pub(super) type Setting = (u16, u32);

pub(super) const ARP_NOTIFY: u16 = 22;

/// IFLA_AF_SPEC with AF_INET's IFLA_INET_CONF, in which each setting is an attribute of its own.
fn attribute(settings: &[Setting]) -> LinkAttribute {
    let mut each = Vec::new();
    for (setting, value) in settings {
        // `struct nlattr`: length with itself, kind; then the value.
        each.extend(8u16.to_ne_bytes());
        each.extend(setting.to_ne_bytes());
        each.extend(value.to_ne_bytes());
    }
    let all = AfSpecInet::Other(DefaultNla::new(IFLA_INET_CONF | NLA_F_NESTED, each));
    LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![all])])
}

fn up_message(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message
}

fn link_change(doing: &'static str, message: LinkMessage) -> ChangeRequest {
    ChangeRequest {
        doing,
        message: RouteNetlinkMessage::SetLink(message),
        flags: 0,
        tolerance: Tolerance::Nothing,
    }
}

/// Gives an interface an address, without duplicate detection.
pub(super) fn add_address(index: u32, address: IpAddr) -> ChangeRequest {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    message.header.prefix_len = full_length(address);
    message.header.scope = AddressScope::Universe;
    message.header.index = index;
    if address.is_ipv6() {
        // The range guarantees that no other interface has it.
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    message.attributes = vec![
        AddressAttribute::Local(address),
        AddressAttribute::Address(address),
    ];
    ChangeRequest {
        doing: "give the pod its address",
        message: RouteNetlinkMessage::NewAddress(message),
        flags: NLM_F_CREATE | NLM_F_EXCL,
        tolerance: Tolerance::Nothing,
    }
}

/// Sets a permanent neighbour: the hardware address of `address`.
pub(super) fn set_neighbour(index: u32, address: IpAddr, mac: [u8; 6]) -> ChangeRequest {
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
    ChangeRequest {
        doing: "set a permanent neighbour",
        message: RouteNetlinkMessage::NewNeighbour(message),
        flags: NLM_F_CREATE | NLM_F_REPLACE,
        tolerance: Tolerance::Nothing,
    }
}

/// Adds a route, unless there is one to the same destination, of the same
/// preference.
pub(super) fn add_route(doing: &'static str, route: RouteMessage) -> ChangeRequest {
    ChangeRequest {
        doing,
        message: RouteNetlinkMessage::NewRoute(route),
        flags: NLM_F_CREATE | NLM_F_EXCL,
        tolerance: Tolerance::Existing,
    }
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

/// The same route, with that MTU if it is an IPv6 route.
pub(super) fn with_mtu(mut route: RouteMessage, mtu_v6: Option<u16>) -> RouteMessage {
    let mtu = mtu_v6.filter(|_| route.header.address_family == AddressFamily::Inet6);
    let metrics = mtu.map(|mtu| vec![RouteMetric::Mtu(u32::from(mtu))]);
    route
        .attributes
        .extend(metrics.map(RouteAttribute::Metrics));
    route
}

/// The same route in another table.
pub(super) fn in_table(mut route: RouteMessage, table: u32) -> RouteMessage {
    route.header.table = RouteHeader::RT_TABLE_UNSPEC;
    route.attributes.push(RouteAttribute::Table(table));
    route
}

/// `from SOURCE lookup TABLE`, before the table `main`.
pub(super) fn add_source_rule(source: IpAddr, table: u32) -> ChangeRequest {
    let mut message = RuleMessage::default();
    message.header.family = family(source);
    message.header.src_len = full_length(source);
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Source(source),
        RuleAttribute::Table(table),
        RuleAttribute::Priority(RULE_PRIORITY),
    ];
    ChangeRequest {
        doing: "set the rule for the pod's second interface",
        message: RouteNetlinkMessage::NewRule(message),
        flags: NLM_F_CREATE | NLM_F_EXCL,
        tolerance: Tolerance::Nothing,
    }
}

/// Gives an interface a queue of its own in front of the driver, as long as the interface's `txqueuelen`. A kernel that
/// has none goes on without it.
pub(super) fn add_queue(index: u32) -> ChangeRequest {
    let mut message = TcMessage::default();
    // No interface has so large an index: the kernel numbers with `int`.
    message.header.index = i32::try_from(index).unwrap_or(i32::MAX);
    message.header.parent = TcHandle::ROOT;
    message.attributes = vec![TcAttribute::Kind(pod_link::QUEUE.to_owned())];
    ChangeRequest {
        doing: "give the pod's end a queue",
        message: RouteNetlinkMessage::NewQueueDiscipline(message),
        flags: NLM_F_CREATE | NLM_F_EXCL,
        tolerance: Tolerance::Anything,
    }
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
pub(super) const RULE_PRIORITY: u32 = 20_000;

/// linux/if_link.h.
const IFLA_INET_CONF: u16 = 1;
