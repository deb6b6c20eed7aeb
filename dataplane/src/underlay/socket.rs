//! Plain UDP sockets, one per port, that send and receive.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use encap::Format;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Failure, Outgoing, Port, Underlay};
use crate::batch::InboundBatch;
use crate::limits::{ERRORS, RECEIVE_BUFFER, SEND_BUFFER};
use crate::sys::{mmsg, sockopt};

/// What a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// A public address of the node: outer source of what we send, and the only outer destination accepted.
    pub address: IpAddr,
    /// The format's UDP port.
    pub port: u16,
    /// What is spoken on it.
    pub format: Format,
}

/// Why a socket cannot be had.
#[derive(Debug)]
pub enum UnderlayError {
    /// Somebody holds the port.
    PortTaken(SocketSpec),
    /// No interface of this host has the address.
    NotOurAddress(SocketSpec),
    /// The descriptor is bound to something else than its name says.
    Foreign {
        /// What it should be bound to.
        wanted: SocketSpec,
        /// What the kernel says.
        found: String,
    },
    /// Anything else the kernel says.
    Kernel(SocketSpec, io::Error),
}

/// The sockets of one worker, each at the place of its [`Port`].
pub struct Sockets([Option<Socket>; Port::ALL.len()]);

/// Opens and binds a socket. No address reuse of any kind: a second agent must not take half of the traffic.
///
/// # Errors
/// See [`UnderlayError`]; each sentence names the remedy.
pub fn bind(spec: &SocketSpec) -> Result<OwnedFd, UnderlayError> {
    let address = SocketAddr::new(spec.address, spec.port);
    let kernel = |error| UnderlayError::Kernel(*spec, error);
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM.nonblocking().cloexec(),
        Some(Protocol::UDP),
    )
    .map_err(kernel)?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(kernel)?;
    }
    socket
        .bind(&address.into())
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => UnderlayError::PortTaken(*spec),
            Some(libc::EADDRNOTAVAIL) => UnderlayError::NotOurAddress(*spec),
            _ => UnderlayError::Kernel(*spec, error),
        })?;
    Ok(socket.into())
}

/// Datagrams that the kernel dropped at a socket before we could read them: its buffer was full, or the checksum bad.
///
/// # Errors
/// What getsockopt(2) gives; `ENOPROTOOPT` before Linux 4.12.
pub fn kernel_drops(socket: BorrowedFd<'_>) -> io::Result<u64> {
    sockopt::drops(socket).map(u64::from)
}

impl Sockets {
    /// Makes an underlay of bound sockets, one per port, opened here or by an earlier service: checks what they are
    /// bound to, sets every option again, and clears errors of the past.
    ///
    /// # Errors
    /// [`UnderlayError::Foreign`] if one is bound to something else.
    pub fn adopt(
        bound: impl IntoIterator<Item = (OwnedFd, SocketSpec)>,
    ) -> Result<Sockets, UnderlayError> {
        let mut sockets = Sockets(Default::default());
        for (descriptor, spec) in bound {
            let socket = prepare(descriptor, &spec)?;
            if let Some(place) = sockets.0.get_mut(spec.underlay_port().index()) {
                *place = Some(socket);
            }
        }
        Ok(sockets)
    }

    fn socket(&self, port: Port) -> Option<&Socket> {
        self.0.get(port.index())?.as_ref()
    }
}

impl SocketSpec {
    /// The port that the socket serves.
    pub const fn underlay_port(&self) -> Port {
        Port::towards(self.address, self.format)
    }
}

impl Underlay for Sockets {
    fn receive(&mut self, port: Port, batch: &mut InboundBatch) -> io::Result<usize> {
        let socket = self.socket(port).ok_or(io::ErrorKind::WouldBlock)?;
        mmsg::receive(socket, &mut batch.frames, &mut batch.metas)
    }

    fn send<'a>(
        &mut self,
        port: Port,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let socket = self.socket(port).ok_or(io::ErrorKind::AddrNotAvailable)?;
        mmsg::send(socket, datagrams)
    }

    fn failure(&mut self, port: Port) -> Option<Failure> {
        mmsg::failure(self.socket(port)?).ok()
    }

    fn descriptor(&self, port: Port) -> Option<RawFd> {
        Some(self.socket(port)?.as_fd().as_raw_fd())
    }
}

fn prepare(descriptor: OwnedFd, spec: &SocketSpec) -> Result<Socket, UnderlayError> {
    let socket = Socket::from(descriptor);
    let found = socket
        .local_addr()
        .ok()
        .and_then(|address| address.as_socket());
    let datagram = socket.r#type().is_ok_and(|kind| kind == Type::DGRAM);
    if found != Some(SocketAddr::new(spec.address, spec.port)) || !datagram {
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
    // Without UDP_GRO the kernel would cut a pod's UDP super-packet at the inner segment size, outside our control.
    sockopt::set_int(socket, libc::SOL_UDP, sockopt::UDP_GRO, 1)?;
    grow(
        socket,
        libc::SO_RCVBUFFORCE,
        libc::SO_RCVBUF,
        RECEIVE_BUFFER,
    )?;
    grow(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER)
}

/// Beyond the host's limit with CAP_NET_ADMIN, else up to it.
fn grow(socket: &Socket, force: i32, ask: i32, bytes: i32) -> io::Result<()> {
    sockopt::set_int(socket, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| sockopt::set_int(socket, libc::SOL_SOCKET, ask, bytes))
}

impl std::fmt::Display for UnderlayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UnderlayError::PortTaken(SocketSpec {
                address,
                port,
                format,
            }) => write!(
                f,
                "UDP port {port} of {address} (format {format}) is taken: 'ss -lunp sport = :{port}' names the \
                 process; a kernel VXLAN device shows in 'ip -d link show type vxlan' and must be deleted first"
            ),
            UnderlayError::NotOurAddress(SocketSpec { address, .. }) => write!(
                f,
                "no interface of this host has the address {address}: correct public-ip of this node, or bring the \
                 interface up"
            ),
            UnderlayError::Foreign { wanted, found } => write!(
                f,
                "a descriptor handed over as socket of {}:{} is bound to something else: {found}",
                wanted.address, wanted.port
            ),
            UnderlayError::Kernel(SocketSpec { address, port, .. }, error) => {
                write!(f, "the kernel refuses UDP socket {address}:{port}: {error}")
            }
        }
    }
}

impl std::error::Error for UnderlayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            UnderlayError::Kernel(_, error) => Some(error),
            _ => None,
        }
    }
}
