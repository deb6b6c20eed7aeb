//! The routed veth pair: no bridge, no ARP, no neighbour discovery.
//!
//! ```text
//!  pod's namespace                              host's namespace
//!  IFNAME  10.244.1.2/32                        ttXXXXXXXXXX  (no address)
//!    169.254.1.1 lladdr ee:ee:… PERMANENT         10.244.1.2 lladdr 02:… PERMANENT
//!    169.254.1.1 dev IFNAME scope link            10.244.1.2 dev tt… scope link
//!    default via 169.254.1.1 onlink
//! ```
//!
//! Both ends know each other from the start, so nothing is asked and nothing
//! can be answered falsely. The gateway's address exists on no interface; it
//! is the same in every pod. IPv6 alike, with `fe80::1`.
//!
//! The pair is made by one request, with its peer already in the pod's
//! namespace: creating and then moving costs two RCU grace periods, and lets
//! udev at the pod's end. MAC addresses are set explicitly, which makes udev
//! leave them alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

use crate::link_name::HOST_MAC;
use crate::netlink::{self, Link, Netlink};
use crate::netns::{self, Netns};
use crate::sysctl;

/// What to make.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// The pod's namespace.
    pub(crate) netns: &'a Netns,
    /// Name of the pod's end.
    pub(crate) ifname: &'a str,
    /// Name of the host's end.
    pub(crate) host_ifname: &'a str,
    /// MAC of the pod's end.
    pub(crate) pod_mac: [u8; 6],
    /// The pod's addresses, host prefixes.
    pub(crate) addresses: &'a [IpNet],
    /// MTU of both ends, in bytes.
    pub(crate) mtu: u16,
}

/// What was made.
#[derive(Debug)]
pub(crate) struct Made {
    /// MAC of the host's end, as the kernel has it.
    pub(crate) host_mac: Vec<u8>,
    /// MAC of the pod's end, as the kernel has it.
    pub(crate) pod_mac: Vec<u8>,
    /// Families whose default route goes through this interface. Another
    /// interface of the pod keeps the one it had.
    pub(crate) default_routes: Vec<IpAddr>,
}

/// Why the pair could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot set up the pod's network namespace")]
    Netns { source: netns::Error },
    #[error("cannot set up the pod's interface: see `dmesg` and the kernel's words below")]
    Netlink { source: netlink::Error },
    #[error("the pod already has an interface {ifname}: delete that attachment first")]
    Exists { ifname: String },
    #[error("the host already has an interface {host_ifname} that tartan-cni cannot replace")]
    HostExists { host_ifname: String },
    #[error("{address} is routed elsewhere on this node: see `ip route get {address}`")]
    Routed { address: IpAddr },
    #[error("the interface {name} vanished while it was set up: did the pod end?")]
    Vanished { name: String },
    #[error("cannot set up the pod's interface: is /proc/sys writable?")]
    Sysctl { source: sysctl::Error },
}

impl From<sysctl::Error> for Error {
    fn from(source: sysctl::Error) -> Error {
        Error::Sysctl { source }
    }
}

impl From<netlink::Error> for Error {
    fn from(source: netlink::Error) -> Error {
        Error::Netlink { source }
    }
}

/// The gateway a pod sees, by family.
pub(crate) fn gateway(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(GATEWAY_V4),
        IpAddr::V6(_) => IpAddr::V6(GATEWAY_V6),
    }
}

/// A socket inside the pod's namespace, once it is known that the name is free.
pub(crate) fn open_pod_side(netns: &Netns, ifname: &str) -> Result<Netlink, Error> {
    let mut pod = netns
        .inside(Netlink::open)
        .map_err(|source| Error::Netns { source })??;
    match pod.link(ifname)? {
        None => Ok(pod),
        Some(_) => Err(Error::Exists {
            ifname: ifname.to_owned(),
        }),
    }
}

/// Makes the pair and everything on it. On error the caller removes it.
pub(crate) fn make(host: &mut Netlink, pod: &mut Netlink, plan: &Plan<'_>) -> Result<Made, Error> {
    create(host, plan)?;
    let host_link = expect_link(host, plan.host_ifname)?;
    let pod_link = expect_link(pod, plan.ifname)?;
    let v6 = plan.addresses.iter().any(|prefix| prefix.addr().is_ipv6());
    sysctl::set_host_side(plan.host_ifname, v6)?;
    plan.netns
        .inside(|| sysctl::set_pod_side(plan.ifname, v6))
        .map_err(|source| Error::Netns { source })??;
    set_up(host, host_link.index, "bring the host's end up")?;
    let default_routes = equip_pod(pod, pod_link.index, plan)?;
    for address in plan.addresses {
        let address = address.addr();
        neighbour(host, host_link.index, address, plan.pod_mac)?;
        let route = host_route(host_link.index, address);
        match add_route(host, "route the pod's address", route) {
            Err(error) if error.is(Errno::EXIST) => return Err(Error::Routed { address }),
            result => result?,
        }
    }
    Ok(Made {
        host_mac: host_link.mac,
        pod_mac: pod_link.mac,
        default_routes,
    })
}

/// Removes the pair by the name of its host's end, and with it its addresses,
/// routes and neighbours. One that is not there is success.
pub(crate) fn remove(host: &mut Netlink, host_ifname: &str) -> Result<(), Error> {
    let mut message = LinkMessage::default();
    message
        .attributes
        .push(LinkAttribute::IfName(host_ifname.to_owned()));
    let message = RouteNetlinkMessage::DelLink(message);
    match host.change("remove the pod's interface", message, 0) {
        Err(error) if error.is(Errno::NODEV) => Ok(()),
        result => Ok(result?),
    }
}

fn create(host: &mut Netlink, plan: &Plan<'_>) -> Result<(), Error> {
    let create = "create the veth pair";
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    match host.change(create, veth_message(plan), flags) {
        Err(error) if error.is(Errno::EXIST) => {}
        result => return Ok(result?),
    }
    // The pod's name was free a moment ago, so it is the host's name that is
    // taken: by what is left of an attachment whose record is lost.
    remove(host, plan.host_ifname)?;
    match host.change(create, veth_message(plan), flags) {
        Err(error) if error.is(Errno::EXIST) => Err(Error::HostExists {
            host_ifname: plan.host_ifname.to_owned(),
        }),
        result => Ok(result?),
    }
}

fn veth_message(plan: &Plan<'_>) -> RouteNetlinkMessage {
    let end = |name: &str, mac: [u8; 6]| {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Address(mac.to_vec()),
            LinkAttribute::Mtu(u32::from(plan.mtu)),
        ];
        message
    };
    let mut peer = end(plan.ifname, plan.pod_mac);
    peer.attributes.extend([
        LinkAttribute::NetNsFd(plan.netns.raw_fd()),
        LinkAttribute::GsoMaxSegs(gso_max_segs(plan.mtu)),
    ]);
    let mut host = end(plan.host_ifname, HOST_MAC);
    host.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    RouteNetlinkMessage::NewLink(host)
}

/// As many segments as one UDP_SEGMENT send can carry: a super-packet that
/// needs two sends is cut by the dataplane instead of the pod.
fn gso_max_segs(mtu: u16) -> u32 {
    (LARGEST_SEND / (u32::from(mtu) + VXLAN_AND_ETHERNET)).clamp(1, MOST_SEGMENTS)
}

/// Addresses, loopback, neighbour and routes inside the pod.
fn equip_pod(pod: &mut Netlink, index: u32, plan: &Plan<'_>) -> Result<Vec<IpAddr>, Error> {
    if let Some(lo) = pod.link("lo")? {
        // No runtime is bound to do it, and doing it twice is harmless.
        set_up(pod, lo.index, "bring the pod's loopback up")?;
    }
    set_up(pod, index, "bring the pod's end up")?;
    let mut default_routes = Vec::new();
    for prefix in plan.addresses {
        let address = prefix.addr();
        let message = address_message(index, address);
        pod.change(
            "give the pod its address",
            message,
            NLM_F_CREATE | NLM_F_EXCL,
        )?;
        let gateway = gateway(address);
        neighbour(pod, index, gateway, HOST_MAC)?;
        match set_default_route(pod, index, gateway) {
            // The pod's first interface keeps it.
            Err(error) if error.is(Errno::EXIST) => {}
            result => {
                result?;
                default_routes.push(gateway);
            }
        }
    }
    Ok(default_routes)
}

fn set_default_route(pod: &mut Netlink, index: u32, gateway: IpAddr) -> Result<(), netlink::Error> {
    add_route(pod, "set the default route", default_route(index, gateway))?;
    if gateway.is_ipv6() {
        // Every IPv6 interface has fe80::/64 on link.
        return Ok(());
    }
    // `onlink` does without it; programs that check the gateway do not.
    add_route(pod, "route the gateway", host_route(index, gateway))
}

fn expect_link(netlink: &mut Netlink, name: &str) -> Result<Link, Error> {
    netlink.link(name)?.ok_or_else(|| Error::Vanished {
        name: name.to_owned(),
    })
}

fn set_up(netlink: &mut Netlink, index: u32, doing: &'static str) -> Result<(), Error> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    Ok(netlink.change(doing, RouteNetlinkMessage::SetLink(message), 0)?)
}

fn address_message(index: u32, address: IpAddr) -> RouteNetlinkMessage {
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
    RouteNetlinkMessage::NewAddress(message)
}

fn neighbour(
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
    Ok(netlink.change(
        "set a permanent neighbour",
        RouteNetlinkMessage::NewNeighbour(message),
        NLM_F_CREATE | NLM_F_REPLACE,
    )?)
}

fn add_route(
    netlink: &mut Netlink,
    doing: &'static str,
    route: RouteMessage,
) -> Result<(), netlink::Error> {
    netlink.change(
        doing,
        RouteNetlinkMessage::NewRoute(route),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

/// `ADDRESS dev INDEX scope link`.
fn host_route(index: u32, address: IpAddr) -> RouteMessage {
    let mut route = route(index, address);
    route.header.destination_prefix_length = full_length(address);
    if address.is_ipv4() {
        // IPv6 routes have no scope.
        route.header.scope = RouteScope::Link;
    }
    route
        .attributes
        .push(RouteAttribute::Destination(RouteAddress::from(address)));
    route
}

/// `default via GATEWAY dev INDEX onlink`.
fn default_route(index: u32, gateway: IpAddr) -> RouteMessage {
    let mut route = route(index, gateway);
    route.header.flags = RouteFlags::Onlink;
    route
        .attributes
        .push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
    route
}

fn route(index: u32, address: IpAddr) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = family(address);
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Static;
    route.header.scope = RouteScope::Universe;
    route.header.kind = RouteType::Unicast;
    route.attributes = vec![RouteAttribute::Oif(index)];
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

/// Link-local, so it can never be a pod's or a peer's.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Largest UDP payload over IPv4, in bytes.
const LARGEST_SEND: u32 = 65_507;

/// VXLAN header and inner Ethernet header, in bytes, which every segment bears.
const VXLAN_AND_ETHERNET: u32 = 8 + 14;

/// UDP_MAX_SEGMENTS of kernels before 6.9.
const MOST_SEGMENTS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_super_packet_fits_one_send() {
        assert_eq!(gso_max_segs(1450), 44);
        for mtu in 576..=u16::MAX {
            let segments = gso_max_segs(mtu);
            let bytes = segments * (u32::from(mtu) + VXLAN_AND_ETHERNET);
            assert!(segments == 1 || bytes <= LARGEST_SEND, "{mtu}");
            assert!((1..=64).contains(&segments));
        }
    }

    #[test]
    fn the_gateway_is_of_the_pods_family() {
        for text in ["10.244.1.2", "fd00::2"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(gateway(address).is_ipv4(), address.is_ipv4());
        }
    }
}
