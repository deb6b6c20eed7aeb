//! Theory of operation
//!
//! Questions to the kernel's connection tracking over nfnetlink (linux/netfilter/nfnetlink_conntrack.h): what it knows of
//! one connection, found by the tuple of either direction, and the demand to be *liberal* about a TCP connection's
//! windows. Connection tracking compares each segment with the window that it has seen advertised. Of an installed flow
//! it sees nothing, so the next segments that it sees would be INVALID, and kube-proxy drops those. A liberal entry
//! accepts them (`nf_ct_tcp_be_liberal` for one connection).
//!
//! Nothing here waits (`nfnetlink::requests`). Messages are pure bytes; only [`Tracking`] has a socket. Zones: the question
//! names none, so only connections of the default zone are found.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use dataplane::kernel_path::FlowKey;
use netlink_packet_core::NLM_F_ACK;
use rustix::io::Errno;

use crate::nfnetlink::attribute::{Attribute, find, number, walk};
use crate::nfnetlink::message::{message_type, request};
use crate::nfnetlink::requests::RequestSocket;

/// What connection tracking knows of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Packets from the end that opened it.
    pub original: FlowKey,
    /// Packets of the other end, as they are expected.
    pub reply: FlowKey,
    /// `IPS_*` (linux/netfilter/nf_conntrack_common.h).
    pub status: u32,
    /// How long it is remembered without a further packet.
    pub timeout: Duration,
    /// It has a mark or label, or a zone in one direction.
    pub is_marked: bool,
    /// A helper follows it, or sequence numbers are rewritten.
    pub is_rewritten: bool,
    /// What is known of a TCP connection.
    pub tcp: Option<TcpState>,
}

/// The TCP part of a [`Connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpState {
    /// Both ends have agreed on it, and neither has begun to end it.
    pub is_established: bool,
    /// Windows are not checked in either direction.
    pub is_liberal: bool,
}

/// A socket of connection tracking. Its network namespace is that of the thread that opened it.
pub struct Tracking(RequestSocket);

impl Tracking {
    /// # Errors
    /// The kernel's reason not to open a socket.
    pub fn open() -> io::Result<Tracking> {
        RequestSocket::open().map(Tracking)
    }

    /// The connection that packets of this key belong to, in either direction.
    ///
    /// # Errors
    /// The kernel's: EPERM without CAP_NET_ADMIN, EINVAL where it has no connection tracking.
    pub fn get(&mut self, key: &FlowKey) -> io::Result<Option<Connection>> {
        // One that cannot be read is one that is not known.
        let read = |kind, attributes: &[u8]| (kind == NEW).then(|| connection(attributes));
        match self.0.request(|sequence| get(key, sequence), read) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(None),
            answer => Ok(answer?.flatten()),
        }
    }

    /// Makes the checks of a TCP connection's windows liberal in both directions.
    ///
    /// # Errors
    /// The kernel's: ENOENT where the connection has ended.
    pub fn make_liberal(&mut self, connection: &Connection) -> io::Result<()> {
        let demand = |sequence| make_liberal(&connection.original, sequence);
        self.0.request(demand, |_, _| None::<()>).map(drop)
    }
}

/// The question for a connection.
fn get(key: &FlowKey, sequence: u32) -> Vec<u8> {
    let kind = message_type(SUBSYSTEM, IPCTNL_MSG_CT_GET);
    request(kind, 0, FAMILY, &[tuple(key)], sequence)
}

/// The demand to be liberal.
fn make_liberal(original: &FlowKey, sequence: u32) -> Vec<u8> {
    // struct nf_ct_tcp_flags: flags, mask.
    let flags = [LIBERAL, LIBERAL];
    let tcp = vec![
        Attribute::bytes(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &flags),
        Attribute::bytes(CTA_PROTOINFO_TCP_FLAGS_REPLY, &flags),
    ];
    let info = Attribute::nest(CTA_PROTOINFO, vec![Attribute::nest(CTA_PROTOINFO_TCP, tcp)]);
    request(NEW, NLM_F_ACK, FAMILY, &[tuple(original), info], sequence)
}

/// The kernel looks in both directions for what is asked of as an original tuple.
fn tuple(key: &FlowKey) -> Attribute {
    let address = vec![
        Attribute::bytes(CTA_IP_V4_SRC, &key.source.octets()),
        Attribute::bytes(CTA_IP_V4_DST, &key.destination.octets()),
    ];
    let protocol = vec![
        Attribute::bytes(CTA_PROTO_NUM, &[key.protocol]),
        Attribute::bytes(CTA_PROTO_SRC_PORT, &key.source_port.to_be_bytes()),
        Attribute::bytes(CTA_PROTO_DST_PORT, &key.destination_port.to_be_bytes()),
    ];
    Attribute::nest(
        CTA_TUPLE_ORIG,
        vec![
            Attribute::nest(CTA_TUPLE_IP, address),
            Attribute::nest(CTA_TUPLE_PROTO, protocol),
        ],
    )
}

/// The connection of a message's attributes; `None` where they are not those of an IPv4 connection with ports.
fn connection(attributes: &[u8]) -> Option<Connection> {
    let (original, reply) = tuples(attributes)?;
    let has = |kind| find(attributes, kind).is_some();
    let is_zoned = |kind| {
        let tuple = find(attributes, kind);
        tuple.is_some_and(|tuple| find(tuple, CTA_TUPLE_ZONE).is_some())
    };
    let status = number(attributes, CTA_STATUS)?;
    let tcp = find(attributes, CTA_PROTOINFO).and_then(|info| find(info, CTA_PROTOINFO_TCP));
    Some(Connection {
        original,
        reply,
        status,
        timeout: Duration::from_secs(number(attributes, CTA_TIMEOUT)?.into()),
        is_marked: number(attributes, CTA_MARK).is_some_and(|mark| mark != 0)
            || has(CTA_LABELS)
            || has(CTA_ZONE)
            || is_zoned(CTA_TUPLE_ORIG)
            || is_zoned(CTA_TUPLE_REPLY),
        is_rewritten: [
            CTA_HELP,
            CTA_SEQ_ADJ_ORIG,
            CTA_SEQ_ADJ_REPLY,
            CTA_SYNPROXY,
            CTA_TUPLE_MASTER,
        ]
        .into_iter()
        .any(has),
        tcp: tcp.map(|tcp| TcpState {
            is_established: find(tcp, CTA_PROTOINFO_TCP_STATE) == Some(&[ESTABLISHED]),
            is_liberal: [
                CTA_PROTOINFO_TCP_FLAGS_ORIGINAL,
                CTA_PROTOINFO_TCP_FLAGS_REPLY,
            ]
            .into_iter()
            .all(|kind| {
                let flags = find(tcp, kind).and_then(|flags| flags.first());
                flags.is_some_and(|flags| flags & LIBERAL != 0)
            }),
        }),
    })
}

/// Both directions of a connection that connection tracking has forgotten: a message of the group
/// [`DESTROYED`](libc::NFNLGRP_CONNTRACK_DESTROY). `None` where it is of another protocol or family, or translated in
/// any way, or is one of TCP that was never assured: such a connection was never installed.
pub(super) fn destroyed(kind: u16, attributes: &[u8]) -> Option<(FlowKey, FlowKey)> {
    let is_end = kind == message_type(SUBSYSTEM, IPCTNL_MSG_CT_DELETE);
    if !is_end {
        return None;
    }
    let (original, reply) = tuples(attributes)?;
    let is_assured = number(attributes, CTA_STATUS).is_some_and(|bits| bits & ips::ASSURED != 0);
    // Without the filter of the socket, most of those that end at once: a scan of ports costs no more than this look.
    let was_never = i32::from(original.protocol) == libc::IPPROTO_TCP && !is_assured;
    (!was_never && is_inverse(&original, &reply)).then_some((original, reply))
}

/// Whether packets of one go where those of the other come from.
pub(super) fn is_inverse(one: &FlowKey, other: &FlowKey) -> bool {
    inverse(one) == *other
}

/// The other direction of an untranslated connection.
pub(super) fn inverse(key: &FlowKey) -> FlowKey {
    FlowKey {
        source: key.destination,
        destination: key.source,
        source_port: key.destination_port,
        destination_port: key.source_port,
        protocol: key.protocol,
    }
}

fn tuples(attributes: &[u8]) -> Option<(FlowKey, FlowKey)> {
    let of = |kind| key(find(attributes, kind)?);
    Some((of(CTA_TUPLE_ORIG)?, of(CTA_TUPLE_REPLY)?))
}

fn key(tuple: &[u8]) -> Option<FlowKey> {
    let (address, protocol) = (find(tuple, CTA_TUPLE_IP)?, find(tuple, CTA_TUPLE_PROTO)?);
    let v4 = |kind| {
        Some(Ipv4Addr::from(
            <[u8; 4]>::try_from(find(address, kind)?).ok()?,
        ))
    };
    let port = |kind| {
        let bytes = <[u8; 2]>::try_from(find(protocol, kind)?).ok()?;
        Some(u16::from_be_bytes(bytes))
    };
    Some(FlowKey {
        source: v4(CTA_IP_V4_SRC)?,
        destination: v4(CTA_IP_V4_DST)?,
        source_port: port(CTA_PROTO_SRC_PORT)?,
        destination_port: port(CTA_PROTO_DST_PORT)?,
        protocol: walk(protocol)
            .find(|(kind, _)| *kind == CTA_PROTO_NUM)
            .and_then(|(_, value)| value.first().copied())?,
    })
}

/// `IPS_*` of linux/netfilter/nf_conntrack_common.h.
pub(super) mod ips {
    /// Another connection announced it: a helper's work.
    pub(in super::super) const EXPECTED: u32 = 1 << 0;
    /// Packets of both ends were seen, and it is kept when the table is full.
    pub(in super::super) const ASSURED: u32 = 1 << 2;
    /// Its first packet has left the host's stack.
    pub(in super::super) const CONFIRMED: u32 = 1 << 3;
    /// Source or destination is translated.
    pub(in super::super) const NAT_MASK: u32 = 1 << 4 | 1 << 5;
    /// Sequence numbers are rewritten.
    pub(in super::super) const SEQ_ADJUST: u32 = 1 << 6;
    /// It is being removed.
    pub(in super::super) const DYING: u32 = 1 << 9;
    /// A pattern for connections, or none at all.
    pub(in super::super) const TEMPLATE: u32 = 1 << 11;
    /// A rule set a helper.
    pub(in super::super) const HELPER: u32 = 1 << 13;
    /// A flow table of nf_tables, or a network card, carries it.
    pub(in super::super) const OFFLOAD: u32 = 1 << 14 | 1 << 15;
}

const SUBSYSTEM: u8 = libc::NFNL_SUBSYS_CTNETLINK as u8;
const FAMILY: u8 = libc::AF_INET as u8;
/// An entry, in questions and answers.
const NEW: u16 = message_type(SUBSYSTEM, IPCTNL_MSG_CT_NEW);
/// IP_CT_TCP_FLAG_BE_LIBERAL (linux/netfilter/nf_conntrack_tcp.h).
const LIBERAL: u8 = 0x08;
/// TCP_CONNTRACK_ESTABLISHED (linux/netfilter/nf_conntrack_tcp.h).
const ESTABLISHED: u8 = 3;

// linux/netfilter/nfnetlink_conntrack.h
const IPCTNL_MSG_CT_NEW: u8 = 0;
const IPCTNL_MSG_CT_GET: u8 = 1;
const IPCTNL_MSG_CT_DELETE: u8 = 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_HELP: u16 = 5;
const CTA_TIMEOUT: u16 = 7;
const CTA_MARK: u16 = 8;
const CTA_TUPLE_MASTER: u16 = 14;
const CTA_SEQ_ADJ_ORIG: u16 = 15;
const CTA_SEQ_ADJ_REPLY: u16 = 16;
const CTA_ZONE: u16 = 18;
const CTA_LABELS: u16 = 22;
const CTA_SYNPROXY: u16 = 24;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;

#[cfg(test)]
mod tests;
