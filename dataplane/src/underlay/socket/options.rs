//! The options of every socket, whether this process opened it or adopted it.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use socket2::{SockFilter, Socket, Type};

use super::error::UnderlayError;
use super::spec::SocketSpec;
use crate::limits::{ERROR_REPORTS, RECEIVE_BUFFER, SEND_BUFFER};
use crate::sys::{recvmmsg, sockopt};

pub(super) fn prepare(descriptor: OwnedFd, spec: &SocketSpec) -> Result<Socket, UnderlayError> {
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
    for _ in 0..ERROR_REPORTS {
        if recvmmsg::error_report(&socket).is_err() {
            break;
        }
    }
    let _ = socket.take_error();
    Ok(socket)
}

fn options(socket: &Socket, spec: &SocketSpec) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    no_fragments(socket, spec.address)?;
    match spec.address {
        IpAddr::V4(_) => sockopt::set_int(socket, libc::SOL_IP, libc::IP_RECVTOS, 1)?,
        IpAddr::V6(_) => sockopt::set_int(socket, libc::SOL_IPV6, libc::IPV6_RECVTCLASS, 1)?,
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

/// Datagrams leave with DF, whatever the kernel holds for the path MTU, and reports of lost ones come to the error queue.
fn no_fragments(socket: &Socket, address: IpAddr) -> io::Result<()> {
    let (level, discover, probe, report) = match address {
        // PROBE: set DF, and keep the kernel from applying a path MTU, which a forged report may have set.
        IpAddr::V4(_) => (
            libc::SOL_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
            libc::IP_RECVERR,
        ),
        IpAddr::V6(_) => (
            libc::SOL_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
            libc::IPV6_RECVERR,
        ),
    };
    sockopt::set_int(socket, level, discover, probe)?;
    sockopt::set_int(socket, level, report, 1)
}

/// Makes a new socket, to be bound to `address`, one that only sends, with DF, and gets reports of what is lost. The host
/// need not have the address.
pub(crate) fn send_only(socket: &Socket, address: IpAddr) -> io::Result<()> {
    no_fragments(socket, address)?;
    allow_absent_address(socket, address);
    receive_nothing(socket)
}

/// Lets a socket be bound to an address that the host does not have.
pub(super) fn allow_absent_address(socket: &Socket, address: IpAddr) {
    let (level, freebind) = match address {
        IpAddr::V4(_) => (libc::SOL_IP, libc::IP_FREEBIND),
        IpAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_FREEBIND),
    };
    // Refused before Linux 4.15 for IPv6; then the address must be there.
    let _ = sockopt::set_int(socket, level, freebind, 1);
}

/// Without UDP_GRO the kernel would cut a pod's UDP super-packet at the inner segment size, outside our control.
pub(super) fn receive_whole(socket: &Socket) -> io::Result<()> {
    sockopt::set_int(socket, libc::SOL_UDP, sockopt::UDP_GRO, 1)
}

/// Beyond the host's limit with CAP_NET_ADMIN, else up to it.
fn grow(socket: &Socket, force: i32, ask: i32, bytes: i32) -> io::Result<()> {
    sockopt::set_int(socket, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| sockopt::set_int(socket, libc::SOL_SOCKET, ask, bytes))
}

/// Whether the kernel supports `UDP_SEGMENT` (Linux 4.18).
pub(super) fn supports_gso(socket: &Socket) -> bool {
    sockopt::is_supported(socket, libc::SOL_UDP, sockopt::UDP_SEGMENT)
}

/// Workers do not read transmit sockets, so drop every datagram that comes to one. Error reports still arrive.
pub(super) fn receive_nothing(socket: &Socket) -> io::Result<()> {
    let nothing = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    socket.attach_filter(&[nothing])
}
