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
//! Both ends know each other from the start, so neither sends a request
//! that a third host could answer falsely. The gateway's address exists on no interface; it
//! is the same in every pod. IPv6 works the same way, with `fe80::1`.
//!
//! Where the overlay carries IPv6 packets only smaller than the interface, the
//! pod's IPv6 routes have that MTU, and its kernel makes no larger ones.
//!
//! Another interface of the same pod keeps the default route it had. So that
//! replies leave where requests came in, what leaves from the addresses of the
//! later one is looked up in a table of its own:
//!
//! ```text
//!  ip rule from 10.244.1.3 lookup 1001
//!  ip route default via 169.254.1.1 dev net1 onlink table 1001
//! ```
//!
//! The host's end joins the UDP datagrams of a flow that arrive together (`cni_shim::ethtool`), and the pod's end has a
//! queue, in which a sender waits while the host's end is full instead of losing packets there: a veth has none of its
//! own. Both are left out where the agent says so, and where the kernel cannot.
//!
//! The pair is made by one request, with its peer already in the pod's
//! namespace: creating and then moving costs two RCU grace periods, and lets
//! udev at the pod's end. MAC addresses are set explicitly, which makes udev
//! leave them alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_shim::ethtool::{self, Device, Ethtool, Gathering};
use cni_shim::pod_end;
use cni_shim::pod_link::{self, PodRoute};
use cni_shim::protocol::AttachmentKey;
use cni_shim::protocol::request::parse_mac;
use cni_shim::{Attachment, NodeFile};
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
};
use rustix::io::Errno;

use crate::announce;
use crate::end;
use crate::failpoint;
use crate::netlink::{self, ChangeRequest, LOOPBACK, Link, Netlink};
use crate::netns::{self, Netns};
use crate::sysctl;
use cni_shim::link_name::HOST_MAC;
use messages::{
    ARP_NOTIFY, Setting, add_address, add_queue, add_route, add_source_rule, everything, in_table,
    link_route, route_via, set, set_neighbour, up, up_and_set, with_mtu,
};

pub(crate) use rules::remove_rules;

mod messages;
mod rules;
mod settled;

/// What to make.
pub(crate) struct PairSpec<'a> {
    /// The pod's namespace.
    pub(crate) netns: &'a Netns,
    /// Names, addresses, MAC, MTU, table.
    pub(crate) record: &'a Attachment,
    /// Where the pod's routes lead; none: everywhere.
    pub(crate) routes: &'a [IpNet],
    /// The MTU of the pod's IPv6 routes, where it is less than the interface's.
    pub(crate) mtu_v6: Option<u16>,
    /// What of the link's throughput the agent has switched on.
    pub(crate) node: &'a NodeFile,
    /// Whether the attachment is still ours to make.
    pub(crate) is_ours: &'a dyn Fn() -> bool,
}

/// What was made.
#[derive(Debug)]
pub(crate) struct Made {
    /// MAC of the host's end, as the kernel has it.
    pub(crate) host_mac: Vec<u8>,
    /// MAC of the pod's end, as the kernel has it.
    pub(crate) pod_mac: Vec<u8>,
    /// The destinations of the routes through this interface. Another interface of the
    /// pod keeps those it had.
    pub(crate) routes: Vec<IpNet>,
}

/// Why the pair could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot set up the pod's network namespace")]
    Netns { source: netns::Error },
    #[error("cannot set up the pod's interface: see the kernel's error below, and dmesg")]
    Netlink { source: netlink::Error },
    #[error("the pod already has an interface {ifname}: delete that attachment first")]
    Exists { ifname: String },
    #[error(
        "the attachment was removed while it was made, and {host_ifname} belongs to another ADD now: did a DEL run beside this ADD?"
    )]
    Overtaken { host_ifname: String },
    #[error("the host already has an interface {host_ifname} that tartan-cni cannot replace")]
    HostExists { host_ifname: String },
    #[error("{destination} is routed elsewhere on this node: see `ip route get {}`", destination.addr())]
    Routed { destination: IpNet },
    #[error("the interface {name} vanished while it was set up: did the pod end?")]
    Vanished { name: String },
    #[error("cannot set up the pod's interface: is /proc/sys writable?")]
    Sysctl { source: sysctl::Error },
    #[error(
        "the kernel does not take {address} for the pod's own: see `ip route get {address}` and `ip -6 rule` in the pod, and `dmesg` for what it waits for"
    )]
    NotOwn { address: IpAddr },
    #[error("{mac:?} in the record is no MAC address")]
    Mac { mac: String },
    #[error(transparent)]
    Failpoint(#[from] failpoint::Error),
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

/// Refuses a name that an interface of the pod has.
pub(crate) fn expect_free(pod: &mut Netlink, ifname: &str) -> Result<(), Error> {
    match pod.link(ifname)? {
        None => Ok(()),
        Some(_) => Err(Error::Exists {
            ifname: ifname.to_owned(),
        }),
    }
}

/// Makes the pair and everything on it. On error the caller removes it.
pub(crate) fn make(
    host: &mut Netlink,
    pod: &mut Netlink,
    spec: &PairSpec<'_>,
) -> Result<Made, Error> {
    let record = spec.record;
    let mac = parse_mac(&record.mac).ok_or_else(|| Error::Mac {
        mac: record.mac.clone(),
    })?;
    create(host, spec, mac)?;
    failpoint::after("created")?;
    let host_link = expect_link(host, &record.host_ifname)?;
    let pod_link = expect_link(pod, &record.ifname)?;
    let mut addresses = record.addresses.iter();
    let v6 = addresses.any(|prefix| prefix.addr().is_ipv6());
    sysctl::set_host_side(host, &record.host_ifname, v6)?;
    let advertiser = spec
        .netns
        .inside(|| {
            sysctl::set_pod_side(pod, &record.ifname, v6)?;
            Ok::<_, sysctl::Error>(if v6 { announce::open().ok() } else { None })
        })
        .map_err(|source| Error::Netns { source })??;
    // What the kernel lacks is the agent's to tell. While the ends are down this costs the kernel no NAPI that it would have to stop again.
    if spec.node.gather
        && let Err(error) = gather(host_link.index)
        && !error.is_lack()
    {
        eprintln!("tartan-cni: small packets of the pod are not gathered: {error}");
    }
    failpoint::after("set-up")?;
    // Nothing comes in before the pod's end is up too.
    let name = pod_end::alias(&key(record));
    let host_up = up_and_set(
        "bring the host's end up",
        host_link.index,
        &host_settings(),
        name,
    );
    host.change_all(vec![host_up])?;
    let routes = equip_pod(pod, pod_link.index, spec)?;
    failpoint::after("pod-equipped")?;
    route_to_pod(host, host_link.index, record, mac)?;
    if let Some(socket) = advertiser {
        announce::advertise(&socket, pod_link.index, mac, &record.addresses);
    }
    settled::wait_for_addresses(pod, record.addresses.iter().map(IpNet::addr))?;
    // The end that came up first sends nothing until the kernel's link watch has seen the other, which may be after
    // our answer. A look-up makes the kernel do that at once (net/core/rtnetlink.c, `rtnl_getlink`, Linux 6.8).
    expect_link(host, &record.host_ifname)?;
    failpoint::after("routed")?;
    Ok(Made {
        host_mac: host_link.mac,
        pod_mac: pod_link.mac,
        routes,
    })
}

/// Lets the host's end join the UDP datagrams of a flow that arrive together.
fn gather(index: u32) -> Result<(), ethtool::Error> {
    Ethtool::open()?.set_gathering(Device::Index(index), Gathering::ON)
}

fn create(host: &mut Netlink, spec: &PairSpec<'_>, mac: [u8; 6]) -> Result<(), Error> {
    let create = "create the veth pair";
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    let host_ifname = &spec.record.host_ifname;
    match host.change(create, veth_message(spec, mac), flags) {
        Err(error) if error.is(Errno::EXIST) => {}
        result => return Ok(result?),
    }
    // The pod's name was free a moment ago, so it is the host's name that is
    // taken: by what is left of an attachment whose record is lost, or by the
    // ADD after a DEL that did not wait for us any more.
    if !(spec.is_ours)() {
        return Err(Error::Overtaken {
            host_ifname: host_ifname.clone(),
        });
    }
    let record = spec.record;
    let left = host.link(host_ifname)?;
    let is_left = |left: &Link| end::is_end(left, &key(record), &[&record.network]);
    if let Some(left) = left.filter(is_left) {
        host.remove_link(left.index)?;
    }
    match host.change(create, veth_message(spec, mac), flags) {
        Err(error) if error.is(Errno::EXIST) => Err(Error::HostExists {
            host_ifname: host_ifname.clone(),
        }),
        result => Ok(result?),
    }
}

fn veth_message(spec: &PairSpec<'_>, mac: [u8; 6]) -> RouteNetlinkMessage {
    let mtu = spec.record.mtu;
    let end = |name: &str, mac: [u8; 6]| {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Address(mac.to_vec()),
            LinkAttribute::Mtu(u32::from(mtu)),
        ];
        message
    };
    let mut peer = end(&spec.record.ifname, mac);
    peer.attributes.extend([
        LinkAttribute::NetNsFd(spec.netns.raw_fd()),
        LinkAttribute::GsoMaxSegs(gso_max_segs(mtu)),
    ]);
    let mut host = end(&spec.record.host_ifname, HOST_MAC);
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

/// Addresses, loopback, neighbour and routes inside the pod. Returns where
/// the routes lead that were set.
fn equip_pod(pod: &mut Netlink, index: u32, spec: &PairSpec<'_>) -> Result<Vec<IpNet>, Error> {
    let addresses = || spec.record.addresses.iter().map(IpNet::addr);
    let mut changes = vec![
        // No runtime is bound to do it.
        up("bring the pod's loopback up", LOOPBACK),
        set("let the pod announce itself", index, &POD_SETTINGS),
    ];
    // An interface that comes up with its IPv4 address says so (`arp_notify`).
    let v4 = addresses().filter(IpAddr::is_ipv4);
    changes.extend(v4.map(|address| add_address(index, address)));
    if spec.node.pod_queue {
        // While the end is down: a queue of an end that is up takes its place only after an RCU grace period.
        changes.push(add_queue(index));
    }
    changes.push(up("bring the pod's end up", index));
    let v6 = addresses().filter(IpAddr::is_ipv6);
    changes.extend(v6.map(|address| add_address(index, address)));
    let mut gateways: Vec<IpAddr> = addresses().map(gateway).collect();
    gateways.dedup();
    let mut wanted = Vec::new();
    for gateway in gateways {
        changes.push(set_neighbour(index, gateway, HOST_MAC));
        for destination in destinations(spec.routes, gateway) {
            wanted.push((changes.len(), destination, gateway));
            let route = with_mtu(route_via(index, destination, gateway), spec.mtu_v6);
            changes.push(add_route("set the pod's route", route));
        }
    }
    if let Some(table) = spec.record.table {
        for address in addresses() {
            changes.push(add_source_rule(address, table));
            let route = route_via(index, everything(address), gateway(address));
            // It may exist already, for an earlier address of the family.
            let route = in_table(with_mtu(route, spec.mtu_v6), table);
            changes.push(add_route("set the route of its table", route));
        }
    }
    let made = pod.change_all(changes)?;
    // The pod's first interface keeps the routes that were there.
    wanted.retain(|(place, ..)| made.get(*place) == Some(&true));
    // Every IPv6 interface has fe80::/64 on link. And `onlink` does without it; programs that check the gateway do not.
    let v4 = wanted.iter().find(|(.., gateway)| gateway.is_ipv4());
    let on_link = v4.map(|(.., gateway)| link_route(index, *gateway));
    let on_link = on_link.map(|route| add_route("route the gateway", route));
    pod.change_all(on_link.into_iter().collect())?;
    let set = wanted.into_iter().map(|(_, destination, _)| destination);
    Ok(set.collect())
}

/// Where routes through `gateway` are to lead.
fn destinations(routes: &[IpNet], gateway: IpAddr) -> Vec<IpNet> {
    if routes.is_empty() {
        return vec![everything(gateway)];
    }
    let of_family = |route: &&IpNet| route.addr().is_ipv4() == gateway.is_ipv4();
    routes.iter().filter(of_family).copied().collect()
}

/// The routes to the pod, and the neighbour entries that they need.
fn route_to_pod(
    host: &mut Netlink,
    index: u32,
    record: &Attachment,
    mac: [u8; 6],
) -> Result<(), Error> {
    let addresses = || record.addresses.iter().map(IpNet::addr);
    let mut changes: Vec<ChangeRequest> = addresses()
        .map(|address| set_neighbour(index, address, mac))
        .collect();
    let mut added = Vec::new();
    for PodRoute { prefix, gateway } in pod_link::routes_of(record) {
        let route = match gateway {
            None => link_route(index, prefix.addr()),
            Some(gateway) => route_via(index, prefix, gateway),
        };
        added.push((changes.len(), prefix));
        changes.push(add_route("route the pod's address", route));
    }
    let made = host.change_all(changes)?;
    match added
        .iter()
        .find(|(place, _)| made.get(*place) != Some(&true))
    {
        Some((_, destination)) => Err(Error::Routed {
            destination: *destination,
        }),
        None => Ok(()),
    }
}

fn key(record: &Attachment) -> AttachmentKey {
    let (container, ifname) = (record.container.clone(), record.ifname.clone());
    AttachmentKey { container, ifname }
}

fn expect_link(netlink: &mut Netlink, name: &str) -> Result<Link, Error> {
    netlink.link(name)?.ok_or_else(|| Error::Vanished {
        name: name.to_owned(),
    })
}

fn host_settings() -> [Setting; pod_link::SETTINGS4.len()] {
    pod_link::SETTINGS4.map(|setting| (setting.number, u32::from(setting.value)))
}

const POD_SETTINGS: [Setting; 1] = [(ARP_NOTIFY, 1)];

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
