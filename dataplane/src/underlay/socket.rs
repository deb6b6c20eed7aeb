//! Plain UDP sockets: one per port that receives, and beside it transmit sockets for VXLAN.
//!
//! Theory of operation: flannel sends all of `udp` from its one port, so that port's socket does both. VXLAN wants the
//! outer source port to vary with the flow, so it leaves through transmit sockets with ports of their own, which never
//! receive. Each socket may send several datagrams as one message until the kernel proves that it does not take them
//! ([`crate::probation`]).
//!
//! Where a node has several workers, each has a socket for every port, and those of one port are a group
//! (`SO_REUSEPORT`): the kernel gives all datagrams from one outer address and port to one of them. The first is bound for
//! itself alone, which fails if anybody holds the port; only then is it opened to others, which join it. So no other
//! program can have been joined. Whoever comes later gets in only as the same user, in the same network namespace, and
//! asking for it by the same option; a program of another user, or one that just binds the port, is refused. A single
//! worker's socket is open to nobody. A group is complete before its first socket is read: one more would take its share
//! of the flows away from the others.

mod error;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use encap::Format;
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

use super::{Exit, Failure, Outgoing, Port, Received, Underlay};
use crate::batch::InboundBatch;
use crate::limits::{
    ERRORS, INBOUND_BUFFERS, INBOUND_BYTES, RECEIVE_BUFFER, SEND_BUFFER, TRANSMIT_SOCKETS,
};
use crate::now::Now;
use crate::probation::Probation;
use crate::sys::outbox::Outbox;
use crate::sys::{mmsg, sockopt};

pub use error::UnderlayError;

/// What a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// A public address of the node: outer source of what we send, and the only outer destination accepted.
    pub address: IpAddr,
    /// The format's UDP port; 0 for a transmit socket, which has one of the kernel's choice.
    pub port: u16,
    /// What is spoken on it.
    pub format: Format,
    /// The number of a transmit socket, below [`TRANSMIT_SOCKETS`]; `None` for the one that receives.
    pub lane: Option<usize>,
}

/// The sockets of one worker.
pub struct Sockets {
    /// By [`Port::index`].
    receive: [Option<Socket>; Port::ALL.len()],
    /// By [`Exit::index`]; where there is none, that of lane 0 sends, or else the port's own.
    transmit: [Option<Socket>; Exit::COUNT],
    /// Whether each exit sends several datagrams as one message, by [`Exit::index`].
    trains: [Probation; Exit::COUNT],
    /// The kernel knows of such messages at all.
    knows_trains: bool,
    given_up: u64,
    outbox: Outbox,
    /// Buffers that the next receive call fills at most.
    buffers: usize,
}

/// Opens and binds a socket. No address reuse of any kind: who holds the port must not be joined unknowingly.
///
/// # Errors
/// See [`UnderlayError`]; each sentence names the remedy.
pub fn bind(spec: &SocketSpec) -> Result<OwnedFd, UnderlayError> {
    let kernel = |error| UnderlayError::Kernel(*spec, error);
    open(spec).map_err(kernel)?.bound(spec)
}

/// Opens another worker's socket of a place: one that receives beside those that [`share`] has opened to it, a transmit
/// socket for itself. The host need not have the address at the moment, as those that are there need not.
///
/// # Errors
/// As [`bind`].
pub fn join(spec: &SocketSpec) -> Result<OwnedFd, UnderlayError> {
    let kernel = |error| UnderlayError::Kernel(*spec, error);
    let socket = open(spec).map_err(kernel)?;
    if spec.lane.is_none() {
        socket.0.set_reuse_port(true).map_err(kernel)?;
    }
    let (level, freebind) = match spec.address {
        IpAddr::V4(_) => (libc::SOL_IP, libc::IP_FREEBIND),
        IpAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_FREEBIND),
    };
    // Refused before Linux 4.15 for IPv6; then the address must be there.
    let _ = sockopt::set_int(&socket.0, level, freebind, 1);
    socket.bound(spec)
}

/// Opens a bound socket to those that [`join`] it, of any process of the same user; or closes it to them again.
///
/// # Errors
/// What setsockopt(2) gives.
pub fn share(socket: BorrowedFd<'_>, shared: bool) -> io::Result<()> {
    SockRef::from(&socket).set_reuse_port(shared)
}

/// A socket that has no address yet.
struct Unbound(Socket);

fn open(spec: &SocketSpec) -> io::Result<Unbound> {
    let socket = Socket::new(
        Domain::for_address(SocketAddr::new(spec.address, spec.port)),
        Type::DGRAM.nonblocking().cloexec(),
        Some(Protocol::UDP),
    )?;
    if spec.address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Before the first datagram can come: see `options`.
    receive_whole(&socket)?;
    Ok(Unbound(socket))
}

impl Unbound {
    fn bound(self, spec: &SocketSpec) -> Result<OwnedFd, UnderlayError> {
        let address = SocketAddr::new(spec.address, spec.port);
        self.0
            .bind(&address.into())
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EADDRINUSE) if spec.lane.is_none() => UnderlayError::PortTaken(*spec),
                Some(libc::EADDRNOTAVAIL) => UnderlayError::NotOurAddress(*spec),
                _ => UnderlayError::Kernel(*spec, error),
            })?;
        Ok(self.0.into())
    }
}

/// Datagrams that the kernel dropped at a socket before we could read them: its buffer was full, or the checksum bad.
///
/// # Errors
/// What getsockopt(2) gives; `ENOPROTOOPT` before Linux 4.12.
pub fn kernel_drops(socket: BorrowedFd<'_>) -> io::Result<u64> {
    sockopt::drops(socket).map(u64::from)
}

impl Sockets {
    /// Makes an underlay of bound sockets, one per port and its transmit sockets, opened here or by an earlier service:
    /// checks what they are bound to, sets every option again, and clears errors of the past. A port without transmit
    /// sockets sends by itself.
    ///
    /// # Errors
    /// [`UnderlayError::Foreign`] if one is bound to something else.
    pub fn adopt(
        bound: impl IntoIterator<Item = (OwnedFd, SocketSpec)>,
    ) -> Result<Sockets, UnderlayError> {
        let mut sockets = Sockets {
            receive: Default::default(),
            transmit: Default::default(),
            trains: Default::default(),
            knows_trains: true,
            given_up: 0,
            outbox: Outbox::new(),
            buffers: INBOUND_BUFFERS,
        };
        for (descriptor, spec) in bound {
            let socket = prepare(descriptor, &spec)?;
            sockets.knows_trains &= knows_trains(&socket);
            let port = spec.underlay_port();
            let place = match spec.lane {
                None => sockets.receive.get_mut(port.index()),
                Some(lane) => {
                    receive_nothing(&socket).map_err(|e| UnderlayError::Kernel(spec, e))?;
                    sockets.transmit.get_mut(Exit { port, lane }.index())
                }
            };
            if let Some(place) = place {
                *place = Some(socket);
            }
        }
        Ok(sockets)
    }

    /// Every socket, with its port.
    pub fn descriptors(&self) -> impl Iterator<Item = (Port, RawFd)> {
        let receive = Port::ALL.into_iter().zip(&self.receive);
        let transmit = Exit::all().map(|exit| exit.port).zip(&self.transmit);
        receive
            .chain(transmit)
            .filter_map(|(port, socket)| Some((port, socket.as_ref()?.as_raw_fd())))
    }

    fn socket(&self, port: Port) -> Option<&Socket> {
        self.receive.get(port.index())?.as_ref()
    }

    fn sending(&self, exit: Exit) -> Option<&Socket> {
        sending(&self.receive, &self.transmit, exit)
    }
}

impl SocketSpec {
    /// The port that the socket serves.
    pub const fn underlay_port(&self) -> Port {
        Port::towards(self.address, self.format)
    }
}

impl Underlay for Sockets {
    fn receive(&mut self, port: Port, batch: &mut InboundBatch) -> io::Result<Received> {
        let socket = self.socket(port).ok_or(io::ErrorKind::WouldBlock)?;
        let most = self.buffers.min(batch.frames.len());
        let frames = batch.frames.get_mut(..most).unwrap_or_default();
        let count = mmsg::receive(socket, frames, &mut batch.metas)?;
        let bytes = batch.metas.iter().take(count).map(|meta| meta.len).sum();
        self.buffers = buffers_for(count, bytes);
        Ok(Received {
            buffers: count,
            emptied: count < most,
        })
    }

    fn send<'a>(
        &mut self,
        exit: Exit,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let Sockets {
            receive,
            transmit,
            trains,
            outbox,
            ..
        } = self;
        let socket = sending(receive, transmit, exit).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut train = None;
        let count = outbox.send(
            socket,
            messages.enumerate().map(|(place, message)| {
                if message.segment.is_some() && train.is_none() {
                    train = Some(place);
                }
                message
            }),
        )?;
        if train.is_some_and(|place| place < count)
            && let Some(standing) = trains.get_mut(exit.index())
        {
            standing.took();
        }
        Ok(count)
    }

    fn takes_trains(&mut self, exit: Exit, now: Now) -> bool {
        let standing = self.trains.get_mut(exit.index());
        self.knows_trains && standing.is_some_and(|standing| standing.in_use(now))
    }

    fn proved(&mut self, exit: Exit, now: Now) {
        let standing = self.trains.get_mut(exit.index());
        if standing.is_some_and(|standing| standing.prove(now)) {
            self.given_up += 1;
        }
    }

    fn given_up(&self) -> u64 {
        self.given_up
    }

    fn failure(&mut self, port: Port) -> Option<Failure> {
        let lanes = (0..TRANSMIT_SOCKETS).map(|lane| Exit { port, lane }.index());
        let transmit = lanes.filter_map(|index| self.transmit.get(index)?.as_ref());
        let mut sockets = self.socket(port).into_iter().chain(transmit);
        sockets.find_map(|socket| mmsg::failure(socket).ok())
    }

    fn descriptor(&self, port: Port) -> Option<RawFd> {
        Some(self.socket(port)?.as_fd().as_raw_fd())
    }

    fn exit_descriptor(&self, exit: Exit) -> Option<RawFd> {
        Some(self.sending(exit)?.as_fd().as_raw_fd())
    }
}

/// The socket that sends for an exit. Flows of a lane without one share that of lane 0, so their outer port is still that
/// of a transmit socket.
fn sending<'a>(
    receive: &'a [Option<Socket>],
    transmit: &'a [Option<Socket>],
    exit: Exit,
) -> Option<&'a Socket> {
    let Exit { port, lane: _ } = exit;
    let of = |exit: Exit| transmit.get(exit.index())?.as_ref();
    let first = || of(Exit { port, lane: 0 });
    of(exit)
        .or_else(first)
        .or_else(|| receive.get(port.index())?.as_ref())
}

/// Buffers that hold [`INBOUND_BYTES`] if they are as full as the `count` last ones, which held `bytes`.
fn buffers_for(count: usize, bytes: usize) -> usize {
    let fitting = INBOUND_BYTES * count / bytes.max(1);
    fitting.clamp(1, INBOUND_BUFFERS)
}

/// Whether the kernel knows messages of several datagrams (Linux 4.18).
fn knows_trains(socket: &Socket) -> bool {
    sockopt::knows(socket, libc::SOL_UDP, sockopt::UDP_SEGMENT)
}

/// Nobody reads a transmit socket, so nothing may come to it; reports of errors do.
fn receive_nothing(socket: &Socket) -> io::Result<()> {
    let nothing = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    socket.attach_filter(&[nothing])
}

fn prepare(descriptor: OwnedFd, spec: &SocketSpec) -> Result<Socket, UnderlayError> {
    let socket = Socket::from(descriptor);
    let found = socket
        .local_addr()
        .ok()
        .and_then(|address| address.as_socket());
    let datagram = socket.r#type().is_ok_and(|kind| kind == Type::DGRAM);
    let bound = found.is_some_and(|found| {
        let port = spec.port == 0 || spec.port == found.port();
        found.ip() == spec.address && port && found.port() != 0
    });
    if !bound || !datagram {
        return Err(UnderlayError::Foreign {
            wanted: *spec,
            found: format!("{found:?}"),
        });
    }
    options(&socket, spec).map_err(|error| UnderlayError::Kernel(*spec, error))?;
    for _ in 0..ERRORS {
        if mmsg::failure(&socket).is_err() {
            break;
        }
    }
    let _ = socket.take_error();
    Ok(socket)
}

fn options(socket: &Socket, spec: &SocketSpec) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    match spec.address {
        // PROBE: set DF, and never let the kernel judge sizes by a path MTU that anybody may have forged.
        IpAddr::V4(_) => {
            sockopt::set_int(
                socket,
                libc::SOL_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_PROBE,
            )?;
            sockopt::set_int(socket, libc::SOL_IP, libc::IP_RECVERR, 1)?;
            sockopt::set_int(socket, libc::SOL_IP, libc::IP_RECVTOS, 1)?;
        }
        IpAddr::V6(_) => {
            sockopt::set_int(
                socket,
                libc::SOL_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_PROBE,
            )?;
            sockopt::set_int(socket, libc::SOL_IPV6, libc::IPV6_RECVERR, 1)?;
            sockopt::set_int(socket, libc::SOL_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        }
    }
    receive_whole(socket)?;
    grow(
        socket,
        libc::SO_RCVBUFFORCE,
        libc::SO_RCVBUF,
        RECEIVE_BUFFER,
    )?;
    grow(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER)
}

/// Without UDP_GRO the kernel would cut a pod's UDP super-packet at the inner segment size, outside our control.
fn receive_whole(socket: &Socket) -> io::Result<()> {
    sockopt::set_int(socket, libc::SOL_UDP, sockopt::UDP_GRO, 1)
}

/// Beyond the host's limit with CAP_NET_ADMIN, else up to it.
fn grow(socket: &Socket, force: i32, ask: i32, bytes: i32) -> io::Result<()> {
    sockopt::set_int(socket, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| sockopt::set_int(socket, libc::SOL_SOCKET, ask, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FRAME;

    #[test]
    fn buffers_hold_as_much_as_a_step_takes() {
        // Small ones all, full ones as many as a step's bytes, whatever the number of those before.
        assert_eq!(buffers_for(16, 16 * 64), INBOUND_BUFFERS);
        assert_eq!(buffers_for(1, 0), INBOUND_BUFFERS);
        for count in 1..=INBOUND_BUFFERS {
            let full = buffers_for(count, count * FRAME);
            assert_eq!(full * FRAME, INBOUND_BYTES);
        }
        assert_eq!(buffers_for(8, 4 * FRAME), INBOUND_BUFFERS);
        assert_eq!(buffers_for(12, 9 * FRAME), 10);
    }
}
