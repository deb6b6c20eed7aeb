//! Selects the worker's socket for a VXLAN datagram, and the ports of transmit sockets that make the selection even.
//!
//! Theory of operation: the kernel's own choice among the sockets of a group is a hash of the outer addresses and
//! ports. Flows of a kernel's VXLAN device have thousands of ports, but a node of ours sends from a few, and a hash of
//! a few is uneven: of 16 ports for 4 sockets, each 25th group has a socket without any. So a group selects by
//! the remainder of the outer source port, and the transmit sockets of a node have ports of consecutive remainders:
//! the workers of another node share its ports evenly, but for one. Each node's remainders begin at another number,
//! so that several nodes do not make the same workers busy.
//!
//! A flow keeps its outer source port, and so its worker, as with the hash. `udp` has one source port alone: there the
//! hash stays, so that different nodes come to different workers. A transmit socket that an earlier release opened
//! keeps the port it has.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use encap::Family;
use libc::sock_filter;

use crate::sys::sockopt;

/// Has the kernel select among a group of `sockets` sockets, one of which is `socket`, by the remainder of the outer
/// source port; the kernel orders the sockets. Where the selected socket has left the group, the kernel's hash selects;
/// a socket that joins later gets nothing until this is called again.
///
/// # Errors
/// What setsockopt(2) gives: `ENOPROTOOPT` before Linux 4.5, `EINVAL` where the socket is in no group. Then the kernel's
/// own choice stands.
pub fn select_by_source_port(
    socket: BorrowedFd<'_>,
    family: Family,
    sockets: u32,
) -> io::Result<()> {
    // The program sees the UDP payload; what is in front of it lies behind SKF_NET_OFF, where the IP header begins.
    let network = libc::SKF_NET_OFF as u32;
    let instruction = |code: u32, k| sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let remainder = instruction(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, sockets.max(1));
    let choose = instruction(libc::BPF_RET | libc::BPF_A, 0);
    match family {
        Family::V4 => {
            let header = instruction(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, network);
            let port = instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, network);
            sockopt::attach_reuseport_filter(socket, &[header, port, remainder, choose])
        }
        // VXLAN has no extension headers in front; if there are any, two of their bytes do as well.
        Family::V6 => {
            let place = network + IPV6_HEADER;
            let port = instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, place);
            sockopt::attach_reuseport_filter(socket, &[port, remainder, choose])
        }
    }
}

/// The remainder of the first transmit socket of the node at `address`: neighbours begin one apart.
pub(super) fn first_remainder(address: IpAddr) -> usize {
    let sum = |octets: &[u8]| octets.iter().copied().map(usize::from).sum();
    match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    }
}

/// Whether `port` has the remainder `remainder`, modulo [`REMAINDERS`].
pub(super) fn suits(port: u16, remainder: usize) -> bool {
    usize::from(port) % REMAINDERS == remainder % REMAINDERS
}

/// Bytes of an IPv6 header (RFC 8200 section 3).
const IPV6_HEADER: u32 = 40;

/// Divided by 1, 2, 3, 4, 6, 8, 12 and 24: for other numbers of workers the shares are as uneven as the hash's.
pub(super) const REMAINDERS: usize = 24;
