//! What the kernel says, in bytes.

use std::io;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use super::{Error, Link};

/// What we read of `struct nlmsghdr` (linux/netlink.h).
pub(super) struct Header {
    pub(super) flags: u16,
    pub(super) sequence: u32,
}

/// The first message of a datagram, and the rest.
pub(super) fn split<'a>(
    doing: &'static str,
    bytes: &'a [u8],
) -> Result<(Header, &'a [u8], &'a [u8]), Error> {
    let nonsense = Error::Nonsense {
        doing,
        what: "a message longer than its datagram",
    };
    let Some(([l0, l1, l2, l3, _, _, f0, f1, s0, s1, s2, s3], _)) = bytes.split_first_chunk()
    else {
        return Err(nonsense);
    };
    let length = u32::from_ne_bytes([*l0, *l1, *l2, *l3]) as usize;
    let Some(one) = bytes.get(..length).filter(|one| one.len() >= HEADER) else {
        return Err(nonsense);
    };
    let header = Header {
        flags: u16::from_ne_bytes([*f0, *f1]),
        sequence: u32::from_ne_bytes([*s0, *s1, *s2, *s3]),
    };
    let tail = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Ok((header, one, tail))
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

/// NLMSGERR_ATTR_MSG of an extended acknowledgement, or nothing. With
/// NETLINK_CAP_ACK the attributes follow the errno and the request's header.
pub(super) fn kernel_words(message: &[u8]) -> String {
    let mut attributes = message.get(HEADER + 4 + HEADER..).unwrap_or_default();
    while let Some(([l0, l1, k0, k1], _)) = attributes.split_first_chunk() {
        let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let Some(value) = attributes.get(4..length) else {
            break;
        };
        if u16::from_ne_bytes([*k0, *k1]) == NLMSGERR_ATTR_MSG {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return String::from_utf8_lossy(text).into_owned();
        }
        attributes = attributes
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    String::new()
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

/// Length of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;

const NLMSGERR_ATTR_MSG: u16 = 1;
