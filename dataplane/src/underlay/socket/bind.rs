//! Opens sockets and binds them, alone or in a group on one port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::error::UnderlayError;
use super::options::{allow_absent_address, receive_whole};
use super::reuseport::{REMAINDERS, first_remainder, suits};
use super::spec::SocketSpec;
use crate::limits::TRANSMIT_SOCKETS;

/// Opens and binds a socket, without address reuse of any kind: a port that another process holds is an error.
///
/// # Errors
/// See [`UnderlayError`]; each sentence names the remedy.
pub fn bind(spec: &SocketSpec) -> Result<OwnedFd, UnderlayError> {
    let kernel = |error| UnderlayError::Kernel(*spec, error);
    open(spec).map_err(kernel)?.bound(spec)
}

/// Opens another worker's socket beside those that [`set_group_open`] has opened to it. The host need not have the address at the
/// moment, as those that are there need not.
///
/// # Errors
/// As [`bind`].
pub fn bind_in_group(spec: &SocketSpec) -> Result<OwnedFd, UnderlayError> {
    let kernel = |error| UnderlayError::Kernel(*spec, error);
    let socket = open(spec).map_err(kernel)?;
    socket.0.set_reuse_port(true).map_err(kernel)?;
    socket.freely(spec).bound(spec)
}

/// Opens a transmit socket of worker number `worker`, on a port of the kernel's choice that has its remainder
/// ([`select_by_source_port`](super::select_by_source_port)), or on any if the kernel offers none. As with [`bind_in_group`], the host need not have the
/// address.
///
/// # Errors
/// As [`bind`].
pub fn bind_transmit(spec: &SocketSpec, worker: usize) -> Result<OwnedFd, UnderlayError> {
    let kernel = |error| UnderlayError::Kernel(*spec, error);
    let number = worker * TRANSMIT_SOCKETS + spec.lane.unwrap_or_default();
    let remainder = first_remainder(spec.address) + number;
    let mut offered = 0;
    loop {
        let socket = open(spec).map_err(kernel)?.freely(spec).bound(spec)?;
        let port = SockRef::from(&socket).local_addr().map_err(kernel)?;
        let suited = port
            .as_socket()
            .is_some_and(|at| suits(at.port(), remainder));
        offered += 1;
        if suited || offered == OFFERS {
            return Ok(socket);
        }
    }
}

/// Lets sockets of any process of the same user join a bound socket ([`bind_in_group`]), or forbids it again.
///
/// # Errors
/// What setsockopt(2) gives.
pub fn set_group_open(socket: BorrowedFd<'_>, open: bool) -> io::Result<()> {
    SockRef::from(&socket).set_reuse_port(open)
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
    /// Allows an address that the host does not have.
    fn freely(self, spec: &SocketSpec) -> Unbound {
        allow_absent_address(&self.0, spec.address);
        self
    }

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

/// The kernel offers ports at random: one in 12 million runs of so many has no port of a given remainder.
const OFFERS: usize = 16 * REMAINDERS;
