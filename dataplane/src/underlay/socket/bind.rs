//! Opening a socket and binding it to its place, or joining the group that has it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::error::UnderlayError;
use super::options::receive_whole;
use super::spec::SocketSpec;
use crate::sys::sockopt;

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
