//! Theory of operation
//!
//! A netlink socket in the multicast groups that announce changes of links,
//! addresses, routes, neighbours, traffic control and the settings the kernel announces
//! (`forwarding`, `rp_filter`, `proxy_arp`), and one in the group of nf_tables,
//! where the kernel has it. Only the kind of each change is reported: the caller reads
//! the state again, once for a whole burst. So nothing is queued here; the
//! kernel's receive buffer is the bound, and when it overflows the kernel reports
//! that once ([`HostEvent::Overrun`]), which means the same as every other event:
//! read again.
//!
//! Neighbours come and go all the time, and a pod can make them do so. Only changes of those that the caller named
//! ([`Watch::set_neighbours`]) are reported: permanent entries, which no packet changes. Of next hops to peers, which the
//! kernel confirms every few seconds, it is noted that one has changed ([`Watch::take_next_hop_change`]).

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use rtnetlink::MulticastGroup;
use rtnetlink::sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rtnetlink::sys::{AsyncSocket, SocketAddr, TokioSocket};
use rustix::io::Errno;

use super::error::HostError;
use super::firewall::nft;

/// Something that changed in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostEvent {
    /// An interface came, went or changed.
    Link,
    /// An address came or went.
    Address,
    /// A route came, went or changed.
    Route,
    /// A setting that is announced changed: `forwarding`, `rp_filter`, `proxy_arp`.
    Setting,
    /// The entry of a pod's neighbour was removed or changed.
    Neighbour,
    /// A queue discipline or a filter came, went or changed.
    Shaping,
    /// A batch of nft rules was taken.
    Rules,
    /// The receive buffer overflowed: read everything again.
    Overrun,
}

/// Changes of the kernel's tables, without end. It ends only when the socket
/// fails, which calls for a new [`watch()`].
pub struct Watch {
    routing: Subscription,
    /// None where the kernel has no netfilter.
    filter: Option<Subscription>,
    neighbours: Neighbours,
}

/// The neighbours that the caller named, by interface and address.
#[derive(Default)]
struct Neighbours {
    /// A change of one of these is an event.
    reported: HashSet<(u32, IpAddr)>,
    next_hops: HashSet<(u32, IpAddr)>,
    /// One of the next hops has changed.
    next_hop_changed: bool,
}

/// One socket and what was read from it.
struct Subscription {
    socket: TokioSocket,
    buffer: Vec<u8>,
    /// Bytes of `buffer` already reported.
    reported: usize,
}

/// Starts to watch the calling thread's network namespace. Changes after the
/// return are reported; read the state after it, not before.
///
/// # Errors
/// When no netlink socket can be had.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn watch() -> Result<Watch, HostError> {
    let groups = GROUPS
        .iter()
        .fold(0, |mask, group| mask | 1_u32 << (*group as u32 - 1));
    Ok(Watch {
        routing: Subscription::open(NETLINK_ROUTE, groups)
            .map_err(|source: io::Error| HostError::Socket { source })?,
        // Without it the caller has to read the rules regularly.
        filter: Subscription::open(NETLINK_NETFILTER, 1 << (libc::NFNLGRP_NFTABLES - 1)).ok(),
        neighbours: Neighbours {
            // What changed before was not watched.
            next_hop_changed: true,
            ..Neighbours::default()
        },
    })
}

impl Watch {
    /// Whether every kind of change is reported: there is a group of nf_tables.
    pub fn is_complete(&self) -> bool {
        self.filter.is_some()
    }

    /// From here on changes of these neighbours, by interface and address, are reported.
    pub fn set_neighbours(&mut self, neighbours: HashSet<(u32, IpAddr)>) {
        self.neighbours.reported = neighbours;
    }

    /// From here on it is noted when one of these neighbours, by interface and address, changes.
    pub fn set_next_hops(&mut self, next_hops: HashSet<(u32, IpAddr)>) {
        self.neighbours.next_hops = next_hops;
    }

    /// Whether one of the next hops has changed since the last call, as far as the stream has been polled.
    pub fn take_next_hop_change(&mut self) -> bool {
        std::mem::take(&mut self.neighbours.next_hop_changed)
    }
}

impl Stream for Watch {
    type Item = HostEvent;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<HostEvent>> {
        let watch = self.get_mut();
        let filter = watch.filter.as_mut();
        match filter.map_or(Poll::Pending, |filter| {
            filter.poll(context, &mut watch.neighbours)
        }) {
            // The end of either ends both: the caller could not tell half a watch from a complete one.
            Poll::Ready(event) => return Poll::Ready(event),
            Poll::Pending => {}
        }
        watch.routing.poll(context, &mut watch.neighbours)
    }
}

impl Subscription {
    fn open(protocol: isize, groups: u32) -> io::Result<Subscription> {
        let mut socket = TokioSocket::new(protocol)?;
        socket.socket_mut().bind(&SocketAddr::new(0, groups))?;
        Ok(Subscription {
            socket,
            buffer: Vec::with_capacity(DATAGRAM),
            reported: 0,
        })
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        neighbours: &mut Neighbours,
    ) -> Poll<Option<HostEvent>> {
        loop {
            while let Some((kind, length)) = self.buffer.get(self.reported..).and_then(next_message)
            {
                let message = self.buffer.get(self.reported..self.reported + length);
                let found = event(kind, message.unwrap_or_default(), neighbours);
                self.reported += length;
                if let Some(event) = found {
                    return Poll::Ready(Some(event));
                }
            }
            self.buffer.clear();
            self.reported = 0;
            match self.socket.poll_recv_from(context, &mut self.buffer) {
                Poll::Pending => return Poll::Pending,
                // Port 0 is the kernel; messages of other processes are ignored.
                Poll::Ready(Ok(sender)) if sender.port_number() == 0 => {}
                Poll::Ready(Ok(_)) => self.buffer.clear(),
                Poll::Ready(Err(error)) => match Errno::from_io_error(&error) {
                    Some(Errno::NOBUFS) => {
                        neighbours.next_hop_changed = true;
                        return Poll::Ready(Some(HostEvent::Overrun));
                    }
                    Some(Errno::INTR) => {}
                    _ => return Poll::Ready(None),
                },
            }
        }
    }
}

/// Type and padded length of the first message of a datagram; none when what is
/// left is no message.
fn next_message(bytes: &[u8]) -> Option<(u16, usize)> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?);
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let length = usize::try_from(length).ok()?;
    // A datagram longer than the buffer is cut; its type still counts.
    (length >= HEADER && bytes.len() >= HEADER).then(|| {
        (
            kind,
            length.min(bytes.len()).next_multiple_of(4).min(bytes.len()),
        )
    })
}

fn event(kind: u16, message: &[u8], neighbours: &mut Neighbours) -> Option<HostEvent> {
    match kind {
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => {
            // One that cannot be read is no reason to look: the next regular look will do.
            let named = neighbour(message.get(HEADER..)?)?;
            neighbours.next_hop_changed |= neighbours.next_hops.contains(&named);
            let is_reported = neighbours.reported.contains(&named);
            is_reported.then_some(HostEvent::Neighbour)
        }
        libc::RTM_NEWLINK | libc::RTM_DELLINK => Some(HostEvent::Link),
        libc::RTM_NEWADDR | libc::RTM_DELADDR => Some(HostEvent::Address),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => Some(HostEvent::Route),
        libc::RTM_NEWQDISC | libc::RTM_DELQDISC | libc::RTM_NEWTFILTER | libc::RTM_DELTFILTER => {
            Some(HostEvent::Shaping)
        }
        libc::RTM_NEWNETCONF | RTM_DELNETCONF => Some(HostEvent::Setting),
        nft::RULES_CHANGED => Some(HostEvent::Rules),
        _ => None,
    }
}

/// Interface and address of a `struct ndmsg` and its attributes (linux/neighbour.h).
fn neighbour(body: &[u8]) -> Option<(u32, IpAddr)> {
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let mut attributes = body.get(NDMSG..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let value = attributes.get(4..length)?;
        if kind == NDA_DST {
            let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
            let v6 = <[u8; 16]>::try_from(value).map(IpAddr::from);
            return Some((index, v4.or(v6).ok()?));
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// Length of a `struct ndmsg`, in bytes.
const NDMSG: usize = 12;
/// The neighbour's address (linux/neighbour.h).
const NDA_DST: u16 = 1;
/// Length of a netlink message header, in bytes.
const HEADER: usize = size_of::<libc::nlmsghdr>();
/// Longest part of a datagram looked at, in bytes.
const DATAGRAM: usize = 32 * 1024;
const GROUPS: [MulticastGroup; 9] = [
    MulticastGroup::Link,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Netconf,
    MulticastGroup::Ipv6Netconf,
    MulticastGroup::Tc,
];

/// linux/rtnetlink.h; libc has it not for every C library.
const RTM_DELNETCONF: u16 = 81;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn walk(mut bytes: &[u8]) -> Vec<u16> {
        let mut kinds = Vec::new();
        while let Some((kind, length)) = next_message(bytes) {
            kinds.push(kind);
            bytes = &bytes[length..];
        }
        kinds
    }

    #[test]
    fn each_message_of_a_datagram_is_seen() {
        let mut datagram = message(16, &[1, 2, 3]);
        datagram.extend(message(20, &[]));
        datagram.extend(message(24, &[9; 8]));
        assert_eq!(walk(&datagram), [16, 20, 24]);
    }

    #[test]
    fn a_cut_datagram_still_tells_its_type() {
        let datagram = message(16, &[0; 100]);
        assert_eq!(walk(&datagram[..40]), [16]);
        assert_eq!(walk(&datagram[..15]), [] as [u16; 0]);
    }

    fn of_neighbour(index: u32, address: &[u8]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        body.extend(index.to_ne_bytes());
        body.extend([0x80, 0, 0, 1]);
        // A hardware address before it: NDA_LLADDR, 6 bytes and 2 of padding.
        body.extend([10, 0, 2, 0, 2, 0, 0, 0, 0, 1, 0, 0]);
        body.extend(u16::try_from(4 + address.len()).unwrap().to_ne_bytes());
        body.extend([1, 0]);
        body.extend(address);
        message(libc::RTM_DELNEIGH, &body)
    }

    #[test]
    fn only_neighbours_that_were_named_are_events() {
        let mut named = Neighbours {
            reported: HashSet::from([(7, "10.244.1.2".parse().unwrap())]),
            ..Neighbours::default()
        };
        let mut of = |message: &[u8]| event(libc::RTM_DELNEIGH, message, &mut named);
        assert_eq!(
            of(&of_neighbour(7, &[10, 244, 1, 2])),
            Some(HostEvent::Neighbour)
        );
        for other in [
            of_neighbour(8, &[10, 244, 1, 2]),
            of_neighbour(7, &[10, 244, 1, 3]),
            of_neighbour(7, &[0; 16]),
            of_neighbour(7, &[1; 5]),
        ] {
            assert_eq!(of(&other), None);
        }
    }

    #[test]
    fn other_announcements_are_not_events() {
        let mut none = Neighbours::default();
        assert_eq!(event(32, &[], &mut none), None);
        assert_eq!(event(80, &[], &mut none), Some(HostEvent::Setting));
    }

    #[test]
    fn a_change_of_a_next_hop_is_noted_and_is_no_event() {
        let mut named = Neighbours {
            next_hops: HashSet::from([(7, "192.0.2.2".parse().unwrap())]),
            ..Neighbours::default()
        };
        let other = of_neighbour(7, &[192, 0, 2, 3]);
        assert_eq!(event(libc::RTM_NEWNEIGH, &other, &mut named), None);
        assert!(!named.next_hop_changed);
        let next_hop = of_neighbour(7, &[192, 0, 2, 2]);
        assert_eq!(event(libc::RTM_NEWNEIGH, &next_hop, &mut named), None);
        assert!(named.next_hop_changed);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(walk(&bytes).len() <= bytes.len() / 4);
            neighbour(&bytes);
        }
    }
}
