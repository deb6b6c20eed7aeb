//! Where the kernel routes one packet of a pod: asked of the kernel (`RTM_GETROUTE`), not concluded from its tables.

use std::net::IpAddr;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::Handle;
use rustix::io::Errno;

use super::{links, routes};
use crate::host::error::{HostError, errno};

/// Where the kernel sends a packet that comes by an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// What it does with the packet.
    pub to: RoutedTo,
    /// Whether a route leads to the packet's source by the interface that it comes by: without, Tartan's source check of
    /// pods drops it.
    pub is_routed_back: bool,
}

/// What the kernel does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoutedTo {
    /// It forwards it by this interface, to a gateway or on the link.
    Interface {
        /// The interface's name.
        name: String,
        /// The gateway, where there is one.
        gateway: Option<IpAddr>,
    },
    /// It is this node's own.
    ThisNode,
    /// It refuses it: what ip-route(8) calls the route, or what the kernel says.
    Nowhere(String),
}

/// Asks for a packet from `source` to `destination` that comes by `interface`.
pub(in crate::host) async fn ask(
    handle: &Handle,
    interface: &str,
    source: IpAddr,
    destination: IpAddr,
) -> Result<KernelRoute, HostError> {
    let link = links::named(handle, interface).await?;
    let link = link.ok_or_else(|| HostError::NoDevice {
        name: interface.to_owned(),
    })?;
    let listed = routes::list(handle).await?;
    let mut back = listed.iter().filter(|route| route.prefix.contains(&source));
    let is_routed_back =
        back.any(|route| route.kind == RouteType::Unicast && route.devices.contains(&link.index));
    let answers: Result<Vec<RouteMessage>, _> = handle
        .route()
        .get(question(link.index, source, destination))
        .execute()
        .try_collect()
        .await;
    let to = match answers {
        Ok(answers) => match answers.first() {
            Some(answer) => routed(handle, answer).await?,
            None => RoutedTo::Nowhere("the kernel gives no route".to_owned()),
        },
        Err(error) => match errno(&error) {
            Some(refusal) => RoutedTo::Nowhere(refused(refusal)),
            None => {
                return Err(HostError::netlink(
                    "ask for the route to",
                    destination.to_string(),
                    error,
                ));
            }
        },
    };
    Ok(KernelRoute { to, is_routed_back })
}

/// The interface of the most specific route to `address` that leads to one.
pub(in crate::host) async fn interface_towards(
    handle: &Handle,
    address: IpAddr,
) -> Result<Option<String>, HostError> {
    let listed = routes::list(handle).await?;
    let route = listed
        .iter()
        .filter(|route| route.kind == RouteType::Unicast && route.prefix.contains(&address))
        .max_by_key(|route| route.prefix.prefix_len());
    let Some(index) = route.and_then(|route| route.devices.first()) else {
        return Ok(None);
    };
    name_of(handle, *index).await
}

async fn name_of(handle: &Handle, index: u32) -> Result<Option<String>, HostError> {
    let messages = links::messages(handle).await?;
    let mut links = messages.iter().map(links::parse);
    Ok(links.find(|link| link.index == index).map(|link| link.name))
}

fn question(interface: u32, source: IpAddr, destination: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let header = &mut message.header;
    header.address_family = match destination {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    header.destination_prefix_length = IpNet::from(destination).prefix_len();
    header.source_prefix_length = IpNet::from(source).prefix_len();
    message.attributes = vec![
        RouteAttribute::Destination(destination.into()),
        RouteAttribute::Source(source.into()),
        RouteAttribute::Iif(interface),
    ];
    message
}

async fn routed(handle: &Handle, answer: &RouteMessage) -> Result<RoutedTo, HostError> {
    match answer.header.kind {
        RouteType::Local => return Ok(RoutedTo::ThisNode),
        RouteType::Unicast => {}
        kind => {
            return Ok(RoutedTo::Nowhere(format!(
                "{} route",
                routes::type_name(kind)
            )));
        }
    }
    let mut device = None;
    let mut gateway = None;
    for attribute in &answer.attributes {
        match attribute {
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(v4)) => gateway = Some(IpAddr::V4(*v4)),
            RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => gateway = Some(IpAddr::V6(*v6)),
            _ => {}
        }
    }
    let name = match device {
        Some(index) => name_of(handle, index).await?,
        None => None,
    };
    Ok(match name {
        Some(name) => RoutedTo::Interface { name, gateway },
        None => RoutedTo::Nowhere("the interface of its route is gone".to_owned()),
    })
}

/// What the kernel's refusal says of the route.
fn refused(refusal: Errno) -> String {
    match refusal {
        Errno::HOSTUNREACH => "unreachable route, or no route (EHOSTUNREACH)".to_owned(),
        Errno::NETUNREACH => "no route (ENETUNREACH)".to_owned(),
        Errno::ACCESS => "prohibit route (EACCES)".to_owned(),
        Errno::INVAL => "blackhole route, or an address that is never routed (EINVAL)".to_owned(),
        Errno::XDEV => {
            "the reverse path filter refuses the source at that interface (EXDEV)".to_owned()
        }
        other => other.to_string(),
    }
}
