//! What the kernel says, in bytes.

use std::io;

use cni_shim::nlmsg::{self, Header};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use super::{Error, Link};

/// The first message of a datagram, and the rest.
pub(super) fn split<'a>(
    doing: &'static str,
    bytes: &'a [u8],
) -> Result<(Header, &'a [u8], &'a [u8]), Error> {
    nlmsg::split(bytes).ok_or(Error::Nonsense {
        doing,
        what: "a message longer than its datagram",
    })
}

pub(super) fn parse(
    doing: &'static str,
    bytes: &[u8],
) -> Result<NetlinkPayload<RouteNetlinkMessage>, Error> {
    NetlinkMessage::deserialize(bytes)
        .map(|message| message.payload)
        .map_err(|source| Error::Exchange {
            doing,
            source: io::Error::other(source),
        })
}

pub(super) fn describe(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        kind: String::new(),
        alias: String::new(),
        peer: None,
        mac: Vec::new(),
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => link.mac.clone_from(bytes),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::IfAlias(alias) => link.alias.clone_from(alias),
            LinkAttribute::Link(peer) => link.peer = Some(*peer),
            LinkAttribute::LinkInfo(infos) => {
                let kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                link.kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    link
}
