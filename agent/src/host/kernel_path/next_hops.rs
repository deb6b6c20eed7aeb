//! The next hop to each peer: by the kernel's routes, and with the MAC of its neighbour table.
//!
//! A program writes the Ethernet header of what it sends by itself, so it has to know the next hop's MAC. A route that
//! leads another way than straight out of the underlay device leaves its peer to user space: several next hops, a policy
//! that encapsulates, another device. A neighbour whose MAC is not confirmed is one that the kernel asks for first
//! (`NTF_USE`), and its peer is user space's meanwhile.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use encap::Mac;
use futures_util::TryStreamExt;
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, route::RouteHeader};
use rtnetlink::{Handle, RouteMessageBuilder};

use crate::host::Host;
use crate::host::error::HostError;
use crate::host::shaping::send_request;

/// How packets of this node reach a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Out of the underlay device, to this neighbour: a gateway, or the peer itself.
    Neighbour(Ipv4Addr),
    /// Out of the underlay device, but by no neighbour with an address of IPv4; or no way at all.
    Unknown,
    /// Out of another interface, by which its packets may come too.
    Elsewhere,
}

/// What is known of the ways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextHops {
    /// Each peer's next hop, by its public address, as far as the kernel has its MAC.
    pub macs: HashMap<Ipv4Addr, Mac>,
    /// The neighbours that peers are reached by.
    pub neighbours: HashSet<Ipv4Addr>,
}

impl Host {
    /// The way to an address, from our underlay address by the device of that index.
    ///
    /// # Errors
    /// The kernel's refusal, but for an address without a route: its way is unknown.
    pub async fn way_to(&self, peer: Ipv4Addr, underlay: u32) -> Result<Way, HostError> {
        way_to(&self.netlink.handle, peer, underlay).await
    }

    /// The MACs that the kernel has of neighbours on a device, without those that it gave up.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn neighbour_macs(&self, index: u32) -> Result<HashMap<Ipv4Addr, Mac>, HostError> {
        let request = self.netlink.handle.neighbours().get();
        let request = request.set_address_family(AddressFamily::Inet);
        let all: Vec<NeighbourMessage> = request
            .execute()
            .try_collect()
            .await
            .map_err(|source| HostError::netlink("list", "the neighbours", source))?;
        let on_device = all.iter().filter(|message| message.header.ifindex == index);
        Ok(on_device.filter_map(known_neighbour).collect())
    }

    /// Has the kernel confirm a neighbour as if a packet were to be sent to it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub async fn use_neighbour(&self, index: u32, address: Ipv4Addr) -> Result<(), HostError> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = index;
        message.header.state = NeighbourState::None;
        message.header.flags = NeighbourFlags::Use;
        message.attributes = vec![NeighbourAttribute::Destination(NeighbourAddress::Inet(
            address,
        ))];
        let request = RouteNetlinkMessage::NewNeighbour(message);
        send_request(&self.netlink.handle, request, NLM_F_CREATE)
            .await
            .map_err(|source| HostError::netlink("ask for", address.to_string(), source))
    }
}

async fn way_to(handle: &Handle, peer: Ipv4Addr, underlay: u32) -> Result<Way, HostError> {
    let message = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(peer, 32)
        .build();
    let mut answer = Box::pin(handle.route().get(message).execute());
    match answer.try_next().await {
        Ok(Some(route)) => Ok(parse_route(&route, peer, underlay)),
        // Unreachable by the routes, or forbidden.
        Ok(None) | Err(rtnetlink::Error::NetlinkError(_)) => Ok(Way::Unknown),
        Err(source) => Err(HostError::netlink(
            "look up the route to",
            IpAddr::from(peer).to_string(),
            source,
        )),
    }
}

fn parse_route(route: &RouteMessage, peer: Ipv4Addr, underlay: u32) -> Way {
    let RouteHeader { kind, .. } = route.header;
    let (mut device, mut gateway, mut is_plain) = (None, None, true);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => gateway = Some(*address),
            // A gateway of the other family, or a tunnel.
            RouteAttribute::Via(_) | RouteAttribute::Encap(_) | RouteAttribute::EncapType(_) => {
                is_plain = false;
            }
            // A list of next hops, each with a device of its own.
            RouteAttribute::MultiPath(_) => return Way::Elsewhere,
            _ => {}
        }
    }
    match (kind, device) {
        (RouteType::Unicast, Some(index)) if index != underlay => Way::Elsewhere,
        (RouteType::Unicast, Some(_)) if is_plain => Way::Neighbour(gateway.unwrap_or(peer)),
        _ => Way::Unknown,
    }
}

fn known_neighbour(message: &NeighbourMessage) -> Option<(Ipv4Addr, Mac)> {
    let is_known = matches!(
        message.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(*v4),
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(Mac);
            }
            _ => {}
        }
    }
    is_known.then_some((address?, mac?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(kind: RouteType, attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.kind = kind;
        message.attributes = attributes;
        message
    }

    #[test]
    fn only_a_plain_way_out_of_the_underlay_is_one() {
        let peer = Ipv4Addr::new(192, 0, 2, 7);
        let router = Ipv4Addr::new(192, 0, 2, 1);
        let of = |kind, attributes| parse_route(&route(kind, attributes), peer, 4);
        let direct = vec![RouteAttribute::Oif(4)];
        assert_eq!(of(RouteType::Unicast, direct.clone()), Way::Neighbour(peer));
        let by_router = vec![
            RouteAttribute::Gateway(RouteAddress::Inet(router)),
            RouteAttribute::Oif(4),
        ];
        assert_eq!(of(RouteType::Unicast, by_router), Way::Neighbour(router));
        assert_eq!(of(RouteType::Local, direct), Way::Unknown);
        assert_eq!(
            of(RouteType::Unicast, vec![RouteAttribute::Oif(5)]),
            Way::Elsewhere
        );
        assert_eq!(of(RouteType::Unicast, vec![]), Way::Unknown);
        let by_tunnel = vec![RouteAttribute::Oif(4), RouteAttribute::Encap(Vec::new())];
        assert_eq!(of(RouteType::Unicast, by_tunnel), Way::Unknown);
        let by_several = vec![RouteAttribute::MultiPath(Vec::new())];
        assert_eq!(of(RouteType::Unicast, by_several), Way::Elsewhere);
    }

    #[test]
    fn a_neighbour_that_the_kernel_gave_up_has_no_mac() {
        let mut message = NeighbourMessage::default();
        message.header.state = NeighbourState::Stale;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet([192, 0, 2, 7].into())),
            NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 7]),
        ];
        let known = (Ipv4Addr::new(192, 0, 2, 7), Mac([2, 0, 0, 0, 0, 7]));
        assert_eq!(known_neighbour(&message), Some(known));
        message.header.state = NeighbourState::Failed;
        assert_eq!(known_neighbour(&message), None);
    }
}
