//! What ends flows: changes of the host that a packet through its stack would meet, and an installed flow would not.
//!
//! Theory of operation. Three netlink sockets announce them: rules of nf_tables, connections that connection tracking has
//! forgotten, and routing (links, addresses, routes, policy rules, queue disciplines and filters). Announcements are
//! read by the flow thread itself, not by the control loop, whose turns may be long; and each has one effect
//! ([`Effect`]), which is one write; a change of rules is noted for the next service too. Only what may concern a flow has
//! one: pods come and go all the time, and their own routes and interfaces concern no other flow.
//!
//! Nothing is installed again from memory: after [`Effect::All`] the packets of each flow pass the host's stack again,
//! with what is new in it, before the flow is proposed and judged anew.
//!
//! The kernel makes an announcement of every connection that it forgets, of whatever pod, as long as any socket listens:
//! with thousands of connections a second these took as much processor time as a tenth of their packets, and to read them
//! was a third of that. So the thread listens only while programs follow flows ([`Watch::follow_connections`]); a filter
//! drops what concerns no entry of theirs
//! ([`FlowTable::filter_forgotten`](dataplane::kernel_path::FlowTable::filter_forgotten)); and where announcements still come
//! fast, the thread reads them once in [`CONNECTIONS_EVERY`]. To listen only while a flow is installed would not do: the end
//! of a connection that began while none listened is not announced (`nf_conntrack_events` = 2,
//! net/netfilter/nf_conntrack_ecache.c).
//!
//! What is not announced at all (rules of iptables-legacy, elements of ipsets) takes effect within
//! [`LIFETIME`](super::policy::LIFETIME): so often each flow sends packets through the stack.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use dataplane::kernel_path::FlowKey;
use ipnet::Ipv4Net;
use rtnetlink::MulticastGroup;
use rtnetlink::sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rtnetlink::sys::{Socket, SocketAddr};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::conntrack;
use super::facts::FlowFacts;
use crate::nfnetlink::attribute::{find, number};
use crate::nfnetlink::message::{message_type, request};
use crate::nfnetlink::requests::RequestSocket;

/// Why all flows are revoked at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Cause {
    /// Flows that a service before this one judged: rules changed before this one watched them, or the flows were not proposed
    /// anew in time.
    Start,
    /// Another process changed rules of nf_tables.
    Rules,
    /// A route changed that packets of the cluster, or those to a peer, may take.
    Route,
    /// A policy rule (ip-rule(8)) changed.
    PolicyRule,
    /// An interface of the kernel path changed.
    Link,
    /// An address of the cluster, or of an interface of the kernel path, changed.
    Address,
    /// A queue discipline or filter at an interface of the kernel path changed.
    TrafficControl,
    /// Announcements were lost: there were more than a socket holds.
    Overrun,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Cause; 8] = [
        Cause::Start,
        Cause::Rules,
        Cause::Route,
        Cause::PolicyRule,
        Cause::Link,
        Cause::Address,
        Cause::TrafficControl,
        Cause::Overrun,
    ];

    /// Its name in `-o json`.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Start => "start",
            Cause::Rules => "rules",
            Cause::Route => "route",
            Cause::PolicyRule => "policy-rule",
            Cause::Link => "link",
            Cause::Address => "address",
            Cause::TrafficControl => "traffic-control",
            Cause::Overrun => "overrun",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Start => {
                "rules changed before the service watched the host, or no packet has proved the flows since"
            }
            Cause::Rules => "another process changed rules of nf_tables",
            Cause::Route => "a route of the cluster or to a peer changed",
            Cause::PolicyRule => "a policy rule of routing changed",
            Cause::Link => "an interface of the kernel path changed",
            Cause::Address => {
                "an address of the cluster or of an interface of the kernel path changed"
            }
            Cause::TrafficControl => {
                "a queue discipline or filter at an interface of the kernel path changed"
            }
            Cause::Overrun => "announcements of the kernel were lost",
        })
    }
}

/// What an announcement does to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// All are revoked.
    All(Cause),
    /// Those of one pod are revoked.
    Pod {
        /// Its address.
        address: Ipv4Addr,
        /// Its host's end, as the facts have it.
        ifindex: u32,
    },
    /// The two directions of a connection are removed.
    Connection(FlowKey, FlowKey),
    /// Ends no flow: each change of rules up to this generation has had its effect.
    RulesFollowed(u32),
}

/// The three sockets.
pub(super) struct Watch {
    /// `None` where the kernel has no nf_tables: then there are no rules of it.
    rules: Option<Socket>,
    /// `None` where the kernel has no connection tracking: then no flow is installed.
    connections: Option<Socket>,
    /// The kernel announces forgotten connections until then; `None` while it does not.
    followed: Option<Duration>,
    /// When announcements of those were read last.
    connections_read: Duration,
    routing: Socket,
    /// The threads that nf_tables names have the numbers that this process knows them by.
    has_global_pids: bool,
    buffer: Vec<u8>,
    /// When announcements of forgotten connections were lost last.
    lost: Option<Duration>,
    /// They were, and it has had no effect yet.
    is_lost: bool,
}

impl Watch {
    /// Watches the calling thread's network namespace. Changes after the return are announced.
    ///
    /// # Errors
    /// When no netlink socket can be had.
    pub(super) fn open() -> io::Result<Watch> {
        let routing = GROUPS.map(|group| group as u32);
        Ok(Watch {
            rules: open(NETLINK_NETFILTER, &[libc::NFNLGRP_NFTABLES as u32]).ok(),
            connections: open(NETLINK_NETFILTER, &[]).ok(),
            followed: None,
            connections_read: Duration::ZERO,
            routing: open(NETLINK_ROUTE, &routing)?,
            has_global_pids: is_initial(std::fs::read_link("/proc/self/ns/pid").ok().as_deref()),
            buffer: Vec::with_capacity(DATAGRAM),
            lost: None,
            is_lost: false,
        })
    }

    /// The socket of forgotten connections, to filter it. Until [`Watch::follow_connections`] none is announced.
    pub(super) fn connections(&self) -> Option<BorrowedFd<'_>> {
        self.connections.as_ref().map(Socket::as_fd)
    }

    /// The descriptors to poll at `now`, and how long at most.
    pub(super) fn descriptors(
        &self,
        now: Duration,
    ) -> (impl Iterator<Item = BorrowedFd<'_>>, Option<Duration>) {
        let since = now.saturating_sub(self.connections_read);
        let pause = CONNECTIONS_EVERY.checked_sub(since);
        let pause = pause.filter(|pause| !pause.is_zero());
        // What was lost is yet to have its effect.
        let longest = pause.or(self.is_lost.then_some(LOST_LOOK));
        let connections = self.connections.as_ref().filter(|_| pause.is_none());
        let sockets = self.rules.iter().chain(connections).chain([&self.routing]);
        (sockets.map(Socket::as_fd), longest)
    }

    /// Has the kernel announce forgotten connections until `until` at least, those alone that begin from now on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn follow_connections(&mut self, until: Duration) -> io::Result<()> {
        if self.followed.is_none() {
            let socket = self.connections.as_mut();
            let socket = socket.ok_or(io::ErrorKind::Unsupported)?;
            socket.add_membership(NFNLGRP_CONNTRACK_DESTROY)?;
        }
        self.followed = self.followed.max(Some(until));
        Ok(())
    }

    /// Ends the announcements that no flow needs any more at `now`.
    pub(super) fn leave_connections(&mut self, now: Duration) {
        if self.followed.is_some_and(|until| now >= until) {
            let left = self
                .connections
                .as_mut()
                .map(|socket| socket.drop_membership(NFNLGRP_CONNTRACK_DESTROY));
            // Where the kernel refuses, they are read as before.
            if !matches!(left, Some(Err(_))) {
                self.followed = None;
            }
        }
    }

    /// Reads what was announced and calls `take` with each effect. Of forgotten connections a bounded number is read at a
    /// time: the descriptor stays readable. Where some of those were lost, all flows are revoked, at most once in
    /// [`CONNECTIONS_LOST`]: a pod that opens and closes connections can bring it about, and no connection's end waits for
    /// it longer than its lifetime. `now` is of any clock that never goes back.
    ///
    /// # Errors
    /// When a socket fails for good.
    pub(super) fn read(
        &mut self,
        facts: &FlowFacts,
        now: Duration,
        take: &mut impl FnMut(Effect),
    ) -> io::Result<()> {
        let buffer = &mut self.buffer;
        let has_global_pids = self.has_global_pids;
        let is_own = |thread| has_global_pids && is_own_thread(thread);
        let mut is_whole = true;
        if let Some(socket) = &self.rules {
            is_whole &= read(socket, buffer, usize::MAX, |kind, body| {
                rules(kind, body, is_own).for_each(&mut *take);
            })?;
        }
        is_whole &= read(&self.routing, buffer, usize::MAX, |kind, body| {
            routing(kind, body, facts).into_iter().for_each(&mut *take);
        })?;
        if !is_whole {
            let followed = rules_generation().map(Effect::RulesFollowed);
            take(Effect::All(Cause::Overrun));
            followed.into_iter().for_each(&mut *take);
        }
        if let Some(socket) = &self.connections {
            let read_at = &mut self.connections_read;
            self.is_lost |= !read(socket, buffer, MOST_CONNECTIONS, |kind, body| {
                *read_at = now;
                if let Some(effect) = connection(kind, body, facts) {
                    take(effect);
                }
            })?;
            let is_due = |lost| now.saturating_sub(lost) >= CONNECTIONS_LOST;
            if self.is_lost && self.lost.is_none_or(is_due) {
                self.is_lost = false;
                self.lost = Some(now);
                take(Effect::All(Cause::Overrun));
            }
        }
        Ok(())
    }
}

fn open(protocol: isize, groups: &[u32]) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    let mask = groups
        .iter()
        .fold(0, |mask, group| mask | 1_u32 << (group - 1));
    // Without the right to it the kernel's limit holds, and announcements are lost sooner.
    let _ = set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER);
    socket.bind(&SocketAddr::new(0, mask))?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// Reads datagrams until there is none, or `most` were read. Returns whether none was lost.
fn read(
    socket: &Socket,
    buffer: &mut Vec<u8>,
    most: usize,
    mut take: impl FnMut(u16, &[u8]),
) -> io::Result<bool> {
    let mut is_whole = true;
    for _ in 0..most {
        buffer.clear();
        match socket.recv_from(buffer, 0) {
            // Port 0 is the kernel; messages of other processes are ignored.
            Ok((_, sender)) if sender.port_number() == 0 => {}
            Ok(_) => continue,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => break,
                Some(Errno::NOBUFS) => {
                    is_whole = false;
                    continue;
                }
                Some(Errno::INTR) => continue,
                _ => return Err(error),
            },
        }
        messages(buffer).for_each(|(kind, body)| take(kind, body));
    }
    Ok(is_whole)
}

/// Type and body of the messages of a datagram. A datagram longer than the buffer is cut; its type still counts.
fn messages(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        let body = rest.get(HEADER..length.min(rest.len()))?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// A change of nf_tables: one message ends each batch, with the thread that sent it (`nf_tables_gen_notify`). Our own
/// batches concern no flow: they masquerade what leaves the cluster, check sources, and guard the encapsulation ports. Each
/// batch is noted.
fn rules(kind: u16, body: &[u8], is_own: impl Fn(u32) -> bool) -> impl Iterator<Item = Effect> {
    let attributes = body.get(NFGENMSG..).unwrap_or_default();
    let is_change = kind == NEWGEN;
    let word = |kind| number(attributes, kind);
    let is_others = is_change && !word(NFTA_GEN_PROC_PID).is_some_and(is_own);
    let revoked = is_others.then_some(Effect::All(Cause::Rules));
    // In this order: where the service ends between them, the next one ends the flows.
    let followed = generation(kind, attributes).map(Effect::RulesFollowed);
    revoked.into_iter().chain(followed)
}

/// The generation that the attributes of a change of nf_tables, or of an answer, name.
fn generation(kind: u16, attributes: &[u8]) -> Option<u32> {
    let is_one = kind == NEWGEN;
    number(attributes, NFTA_GEN_ID).filter(|_| is_one)
}

/// The present generation of the rules of the calling thread's network namespace: the kernel counts each batch, and never
/// says 0. `None` where it has no nf_tables.
pub(super) fn rules_generation() -> Option<u32> {
    let request = |sequence| request(GETGEN, 0, libc::AF_UNSPEC as u8, &[], sequence);
    let read = |kind, attributes: &[u8]| generation(kind, attributes);
    let mut socket = RequestSocket::open().ok()?;
    socket.request(request, read).ok()?
}

/// Whether the link of a process to its PID namespace is to the initial one, whose numbers nf_tables names. In another one
/// the number of a stranger may be that of a thread of ours, so every batch is taken for another's there.
fn is_initial(namespace: Option<&Path>) -> bool {
    namespace == Some(Path::new(INITIAL_PID_NAMESPACE))
}

/// Whether a thread is of this process, by its number in the PID namespace of this process.
fn is_own_thread(thread: u32) -> bool {
    thread == std::process::id() || Path::new(&format!("/proc/self/task/{thread}")).exists()
}

/// A connection that was forgotten, if one of its ends is a pod of this node.
fn connection(kind: u16, body: &[u8], facts: &FlowFacts) -> Option<Effect> {
    let (original, reply) = conntrack::destroyed(kind, body.get(NFGENMSG..)?)?;
    let is_of_pod = |address| facts.pods.contains_key(&address);
    (is_of_pod(original.source) || is_of_pod(original.destination))
        .then_some(Effect::Connection(original, reply))
}

fn routing(kind: u16, body: &[u8], facts: &FlowFacts) -> Vec<Effect> {
    let one = |effect| vec![effect];
    let effects = match kind {
        libc::RTM_NEWLINK | libc::RTM_DELLINK => link(kind, body, facts),
        libc::RTM_NEWADDR | libc::RTM_DELADDR => address(body, facts).map(one),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => route(kind, body, facts).map(one),
        libc::RTM_NEWRULE | libc::RTM_DELRULE => Some(one(Effect::All(Cause::PolicyRule))),
        libc::RTM_NEWQDISC | libc::RTM_DELQDISC => {
            let kind = body.get(TCMSG..).and_then(|rest| find(rest, TCA_KIND));
            // The kernel path's own place for filters.
            let is_own = kind == Some(b"clsact\0");
            traffic_control(body, facts).filter(|_| !is_own)
        }
        libc::RTM_NEWTFILTER | libc::RTM_DELTFILTER => {
            // tcm_info: preference, protocol.
            let preference = word(body, 16).map(|info| info >> 16);
            traffic_control(body, facts).filter(|_| preference != Some(OWN_PREFERENCE))
        }
        _ => None,
    };
    effects.unwrap_or_default()
}

/// `struct ifinfomsg`: family, index at 4, flags at 8.
fn link(kind: u16, body: &[u8], facts: &FlowFacts) -> Option<Vec<Effect>> {
    let index = word(body, 4)?;
    // Ports of bridges are announced once more as such.
    if *body.first()? != libc::AF_UNSPEC as u8 {
        return None;
    }
    if facts.devices.contains(&index) {
        return Some(vec![Effect::All(Cause::Link)]);
    }
    let is_up = word(body, 8)? & libc::IFF_UP as u32 != 0;
    (kind == libc::RTM_DELLINK || !is_up).then(|| pods_behind(index, facts))
}

/// `struct ifaddrmsg`: family, prefix length, and index at 4.
fn address(body: &[u8], facts: &FlowFacts) -> Option<Effect> {
    let attributes = body.get(IFADDRMSG..)?;
    let address = find(attributes, IFA_LOCAL).or(find(attributes, IFA_ADDRESS));
    let address = <[u8; 4]>::try_from(address?).ok().map(Ipv4Addr::from)?;
    let is_concerned = facts.devices.contains(&word(body, 4)?)
        || facts.networks.iter().any(|net| net.contains(&address));
    is_concerned.then_some(Effect::All(Cause::Address))
}

/// `struct rtmsg`: family, destination's length, and flags at 8.
fn route(kind: u16, body: &[u8], facts: &FlowFacts) -> Option<Effect> {
    let attributes = body.get(RTMSG..)?;
    let (family, length) = (*body.first()?, *body.get(1)?);
    if i32::from(family) != libc::AF_INET || word(body, 8)? & RTM_F_CLONED != 0 {
        return None;
    }
    let destination = match find(attributes, RTA_DST) {
        Some(bytes) => <[u8; 4]>::try_from(bytes).ok()?.into(),
        None => Ipv4Addr::UNSPECIFIED,
    };
    let device = find(attributes, RTA_OIF).and_then(|bytes| word(bytes, 0));
    let pods = &facts.snapshot.pods;
    if length == 32
        && pods.in_own_subnet(destination.into())
        && pods.tunnel_address(destination.into()) != Some(destination.into())
    {
        let pod = facts.pods.get(&destination)?;
        let is_its_own = kind == libc::RTM_NEWROUTE && device == Some(pod.ifindex);
        return (!is_its_own).then_some(Effect::Pod {
            address: destination,
            ifindex: pod.ifindex,
        });
    }
    let route = Ipv4Net::new(destination, length).ok()?.trunc();
    let overlaps = |net: &Ipv4Net| net.contains(&route) || route.contains(net);
    let is_concerned = facts.networks.iter().any(overlaps) || {
        let mut peers = facts.snapshot.cluster.peers.iter();
        peers.any(|peer| {
            let mut public = peer.public.iter();
            public.any(|address| matches!(address, std::net::IpAddr::V4(v4) if route.contains(&v4)))
        })
    };
    is_concerned.then_some(Effect::All(Cause::Route))
}

/// `struct tcmsg`: the index at 4.
fn traffic_control(body: &[u8], facts: &FlowFacts) -> Option<Vec<Effect>> {
    let index = word(body, 4)?;
    Some(match facts.devices.contains(&index) {
        true => vec![Effect::All(Cause::TrafficControl)],
        false => pods_behind(index, facts),
    })
}

/// One effect for each address of the pod behind a host's end.
fn pods_behind(index: u32, facts: &FlowFacts) -> Vec<Effect> {
    let pods = facts.pods.iter();
    let behind = pods.filter(|(_, pod)| pod.ifindex == index);
    let effects = behind.map(|(address, pod)| Effect::Pod {
        address: *address,
        ifindex: pod.ifindex,
    });
    effects.collect()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Tc,
];
/// Connections read before rules and routes are looked at again.
const MOST_CONNECTIONS: usize = 512;
/// How often announcements of forgotten connections are read where they never end: below the 10 ms in which a flow is to
/// end.
const CONNECTIONS_EVERY: Duration = Duration::from_millis(5);
/// See [`Watch::read`].
const CONNECTIONS_LOST: Duration = Duration::from_secs(10);
/// How often it is looked whether that time has passed.
const LOST_LOOK: Duration = Duration::from_secs(1);
/// About 5,000 announcements.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Longest part of a datagram looked at, in bytes.
const DATAGRAM: usize = 32 * 1024;
/// The preference of the kernel path's own filters.
const OWN_PREFERENCE: u32 = 42_000;
const GETGEN: u16 = message_type(libc::NFNL_SUBSYS_NFTABLES as u8, libc::NFT_MSG_GETGEN as u8);
const NEWGEN: u16 = message_type(libc::NFNL_SUBSYS_NFTABLES as u8, libc::NFT_MSG_NEWGEN as u8);
/// linux/netfilter/nfnetlink.h
const NFNLGRP_CONNTRACK_DESTROY: u32 = 3;
/// linux/netfilter/nf_tables.h: numbers in network byte order.
const NFTA_GEN_ID: u16 = 1;
const NFTA_GEN_PROC_PID: u16 = 2;
/// PROC_PID_INIT_INO of linux/proc_ns.h.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";
/// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// linux/rtnetlink.h
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTM_F_CLONED: u32 = 0x200;
const TCA_KIND: u16 = 1;
/// Lengths of the headers in front of attributes, in bytes: `struct nlmsghdr`, and those of each kind.
const HEADER: usize = size_of::<libc::nlmsghdr>();
const NFGENMSG: usize = 4;
const IFADDRMSG: usize = 8;
const RTMSG: usize = 12;
const TCMSG: usize = 20;

#[cfg(test)]
mod tests;
