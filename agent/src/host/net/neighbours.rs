//! Permanent neighbour entries: the hardware addresses of pods.

use std::net::IpAddr;

use futures_util::TryStreamExt;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::Handle;

use crate::host::error::HostError;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct Neighbour {
    /// The interface that it is on.
    pub(in crate::host) index: u32,
    pub(in crate::host) address: IpAddr,
    pub(in crate::host) mac: Vec<u8>,
}

/// Every permanent entry of the namespace.
pub(in crate::host) async fn list(handle: &Handle) -> Result<Vec<Neighbour>, HostError> {
    let all = handle.neighbours().get().execute();
    let messages: Vec<NeighbourMessage> = all
        .try_collect()
        .await
        .map_err(|source| HostError::netlink("list", "the neighbours", source))?;
    Ok(messages.iter().filter_map(parse).collect())
}

/// Sets a permanent entry, in the place of whatever there is for that address.
pub(in crate::host) async fn set(handle: &Handle, wanted: &Neighbour) -> Result<(), HostError> {
    let request = handle
        .neighbours()
        .add(wanted.index, wanted.address)
        .state(NeighbourState::Permanent)
        .link_layer_address(&wanted.mac)
        .replace();
    request.execute().await.map_err(|source| {
        HostError::netlink("set the neighbour", wanted.address.to_string(), source)
    })
}

fn parse(message: &NeighbourMessage) -> Option<Neighbour> {
    if message.header.state != NeighbourState::Permanent {
        return None;
    }
    let mut address = None;
    let mut mac = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac.clone_from(bytes),
            _ => {}
        }
    }
    Some(Neighbour {
        index: message.header.ifindex,
        address: address?,
        mac,
    })
}
