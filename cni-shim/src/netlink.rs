//! A blocking netlink socket: a request, or several in one datagram (`batch`),
//! then the answers, in the kernel's own words when it refuses.
//!
//! A socket belongs to the network namespace of the thread that opened it,
//! for as long as it lives, so the pod's side is configured from our own
//! thread through a socket opened inside.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use cni_shim::nlmsg::kernel_words;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use rustix::buffer::spare_capacity;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use answer::{describe, parse, split};
pub(crate) use batch::{ChangeRequest, Tolerance};
pub(crate) use error::Error;

mod answer;
mod batch;
mod error;

/// A route netlink socket; of another kind in tests alone.
#[derive(Debug)]
pub(crate) struct Netlink<S = Socket> {
    socket: S,
    sequence: u32,
    buffer: Vec<u8>,
}

/// An interface as the kernel describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its index in its namespace.
    pub(crate) index: u32,
    /// Its name.
    pub(crate) name: String,
    /// The kernel's word for what it is (`veth`); empty for hardware.
    pub(crate) kind: String,
    /// Its alias; empty for none.
    pub(crate) alias: String,
    /// Of a veth: the index of its other end, in that one's namespace.
    pub(crate) peer: Option<u32>,
    /// Its hardware address.
    pub(crate) mac: Vec<u8>,
    /// The largest packet it takes, in bytes.
    pub(crate) mtu: u32,
    /// Whether it is set up.
    pub(crate) up: bool,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub(crate) fn open() -> Result<Netlink, Error> {
        let open = || {
            let socket = Socket::new(NETLINK_ROUTE)?;
            socket.set_ext_ack(true)?;
            socket.set_cap_ack(true)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
            Ok(Netlink {
                socket,
                sequence: 0,
                buffer: Vec::with_capacity(LARGEST_DATAGRAM),
            })
        };
        open().map_err(|source| Error::Open { source })
    }
}

impl<S: AsFd> Netlink<S> {
    /// Sends one change and waits until the kernel has made it. `doing`
    /// completes "the kernel refused to …".
    ///
    /// # Errors
    /// [`Error::Refused`], and whatever keeps the answer from us.
    pub(crate) fn change(
        &mut self,
        doing: &'static str,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), Error> {
        self.ask(doing, message, NLM_F_REQUEST | NLM_F_ACK | flags, |_| {})
            .map(|_| ())
    }

    /// How many requests were made.
    #[cfg(test)]
    pub(crate) fn requests(&self) -> u32 {
        self.sequence
    }

    /// Looks an interface up by name; None where there is none.
    ///
    /// # Errors
    /// Whatever keeps the answer from us.
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        let mut question = LinkMessage::default();
        question
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        let mut found = None;
        let asked = self.ask(
            "look an interface up",
            RouteNetlinkMessage::GetLink(question),
            NLM_F_REQUEST | NLM_F_ACK,
            |answer| {
                if let RouteNetlinkMessage::NewLink(link) = answer {
                    found = Some(describe(link));
                }
            },
        );
        match asked {
            Err(error) if error.is(rustix::io::Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
            Ok(_) => Ok(found),
        }
    }

    /// Asks for one thing and returns what `read` makes of the answer; None
    /// where that is nothing.
    ///
    /// # Errors
    /// As of [`Netlink::change`].
    pub(crate) fn look_up<T>(
        &mut self,
        doing: &'static str,
        question: RouteNetlinkMessage,
        read: impl Fn(&RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut found = None;
        let each = |answer: &RouteNetlinkMessage| found = found.take().or_else(|| read(answer));
        self.ask(doing, question, NLM_F_REQUEST | NLM_F_ACK, each)?;
        Ok(found)
    }

    /// Does `work` when it is our turn with the kernel's lock of interfaces. A writer of /proc/sys that finds it taken
    /// tries again and again (`restart_syscall`) and keeps a core busy; a netlink request sleeps until the lock is free.
    /// So this makes a request, and does `work` at once, even before it reads the answer.
    pub(crate) fn in_turn<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let doing = "wait for our turn";
        let mut question = LinkMessage::default();
        question.header.index = LOOPBACK;
        let question = RouteNetlinkMessage::GetLink(question);
        let mut request = Vec::new();
        self.append(&mut request, question, NLM_F_REQUEST | NLM_F_ACK);
        let asked = self.send(doing, &request);
        let done = work();
        // Nothing depends on the answer; the next request skips what is left of it.
        let _ = asked.and_then(|()| self.hear(doing, |_| {}));
        done
    }

    /// Every interface: what one takes away because no interface has it must not be judged by half a list.
    ///
    /// # Errors
    /// As of [`Netlink::change`], and [`Error::Interrupted`].
    pub(crate) fn links(&mut self) -> Result<Vec<Link>, Error> {
        let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let doing = "list the interfaces";
        let (links, whole) = self.look(doing, &question, |answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(describe(link)),
            _ => None,
        })?;
        whole.then_some(links).ok_or(Error::Interrupted { doing })
    }

    /// Removes the interface of that index, which no later one gets, and with a veth its other end. It is gone from the
    /// kernel's tables, with its addresses and routes, a millisecond after the
    /// call; the call itself returns only when no CPU reads it any more, which
    /// takes two RCU grace periods (net/core/dev.c, `netdev_run_todo`). One
    /// that is not there is success.
    ///
    /// # Errors
    /// As of [`Netlink::change`].
    pub(crate) fn remove_link(&mut self, index: u32) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let message = RouteNetlinkMessage::DelLink(message);
        match self.change("remove the pod's interface", message, 0) {
            Err(error) if error.is(rustix::io::Errno::NODEV) => Ok(()),
            result => result,
        }
    }

    /// Asks for everything of a kind and reads what `read` makes of each
    /// answer. A dump that changes made inconsistent is repeated; of one that
    /// was interrupted each time we take what the last had.
    ///
    /// # Errors
    /// As of [`Netlink::change`].
    pub(crate) fn dump<T>(
        &mut self,
        doing: &'static str,
        question: &RouteNetlinkMessage,
        read: impl FnMut(&RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        self.look(doing, question, read).map(|(seen, _)| seen)
    }

    /// The same, and whether the last dump was whole.
    fn look<T>(
        &mut self,
        doing: &'static str,
        question: &RouteNetlinkMessage,
        mut read: impl FnMut(&RouteNetlinkMessage) -> Option<T>,
    ) -> Result<(Vec<T>, bool), Error> {
        let mut seen = Vec::new();
        for _ in 0..DUMP_ATTEMPTS {
            seen.clear();
            let each = |answer: &RouteNetlinkMessage| seen.extend(read(answer));
            if self.ask(doing, question.clone(), NLM_F_REQUEST | NLM_F_DUMP, each)? {
                return Ok((seen, true));
            }
        }
        Ok((seen, false))
    }

    /// Sends one message and feeds the answers to `each` until the kernel
    /// says that it is done. False when a dump was interrupted.
    fn ask(
        &mut self,
        doing: &'static str,
        message: RouteNetlinkMessage,
        flags: u16,
        each: impl FnMut(&RouteNetlinkMessage),
    ) -> Result<bool, Error> {
        let mut request = Vec::new();
        self.append(&mut request, message, flags);
        self.send(doing, &request)?;
        self.hear(doing, each)
    }

    /// Feeds the answers to `each` until the kernel says that it is done.
    fn hear(
        &mut self,
        doing: &'static str,
        mut each: impl FnMut(&RouteNetlinkMessage),
    ) -> Result<bool, Error> {
        let mut whole = true;
        loop {
            let length = self.receive(doing)?;
            let mut rest = self.buffer.get(..length).unwrap_or_default();
            while !rest.is_empty() {
                let (header, one, tail) = split(doing, rest)?;
                rest = tail;
                if header.sequence != self.sequence {
                    continue;
                }
                whole &= header.flags & NLM_F_DUMP_INTR == 0;
                match parse(doing, one)? {
                    NetlinkPayload::Error(answer) => {
                        if answer.code.is_none() {
                            return Ok(whole);
                        }
                        return Err(Error::Refused {
                            doing,
                            detail: kernel_words(one),
                            source: answer.to_io(),
                        });
                    }
                    NetlinkPayload::Done(done) if done.code == 0 => return Ok(whole),
                    // A dump that failed in the middle ends so (net/netlink/af_netlink.c, `netlink_dump_done`).
                    NetlinkPayload::Done(done) => {
                        return Err(Error::Refused {
                            doing,
                            detail: String::new(),
                            source: io::Error::from_raw_os_error(done.code.saturating_neg()),
                        });
                    }
                    NetlinkPayload::InnerMessage(answer) => each(&answer),
                    _ => {}
                }
            }
        }
    }

    /// Adds a message with the next sequence number to a datagram.
    fn append(&mut self, datagram: &mut Vec<u8>, message: RouteNetlinkMessage, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        request.finalize();
        let start = datagram.len();
        datagram.resize(start + request.buffer_len(), 0);
        if let Some(place) = datagram.get_mut(start..) {
            request.serialize(place);
        }
        datagram.resize(datagram.len().next_multiple_of(4), 0);
    }

    fn send(&mut self, doing: &'static str, datagram: &[u8]) -> Result<(), Error> {
        // To the kernel, where no address says otherwise (netlink(7)).
        rustix::net::send(&self.socket, datagram, SendFlags::empty())
            .map(|_| ())
            .map_err(|errno| Error::Exchange {
                doing,
                source: errno.into(),
            })
    }

    fn receive(&mut self, doing: &'static str) -> Result<usize, Error> {
        loop {
            // What is not written is not touched: most of it never is.
            self.buffer.clear();
            let room = spare_capacity(&mut self.buffer);
            match rustix::net::recv(&self.socket, room, RecvFlags::TRUNC) {
                Ok((_, 0)) => {
                    return Err(Error::Nonsense {
                        doing,
                        what: "an empty datagram",
                    });
                }
                Ok((_, length)) if length <= self.buffer.len() => return Ok(length),
                Ok(_) => {
                    return Err(Error::Nonsense {
                        doing,
                        what: "a datagram larger than the kernel builds",
                    });
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    return Err(Error::Exchange {
                        doing,
                        source: errno.into(),
                    });
                }
            }
        }
    }
}

/// LOOPBACK_IFINDEX of linux/loopback.h: the index of `lo` in every namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// The kernel builds dumps in buffers of at most 32 KiB.
const LARGEST_DATAGRAM: usize = 64 * 1024;

/// The kernel answers at once; an answer this late will not come.
const PATIENCE: Duration = Duration::from_secs(10);

/// A dump that changes made inconsistent is repeated, at most this often.
const DUMP_ATTEMPTS: u32 = 5;

#[cfg(test)]
mod tests;
