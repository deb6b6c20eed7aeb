//! Which worker's socket a VXLAN datagram comes to, and the ports that senders take so that it comes out even.
//!
//! Theory of operation: the kernel's own choice among the sockets of a group is a hash of the outer addresses and
//! ports. Flows of a kernel's VXLAN device have thousands of ports, but a node of ours sends from a few, and a hash of
//! a few is uneven: of 16 ports for 4 sockets, each 25th group has a socket that none comes to. So a group chooses by
//! the remainder of the outer source port, and the transmit sockets of a node have ports of consecutive remainders:
//! what one node sends, the workers of another share alike but for one port. Each node's remainders begin elsewhere,
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

/// Has a group of `sockets`, one of which is `socket`, choose by the outer source port: each gets what has its remainder,
/// by an order of the kernel's own. For those that are no longer in the group the kernel chooses; those that join later
/// get nothing until they are counted here.
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
        // Nobody puts extension headers in front of VXLAN; bytes of theirs would be as good as any.
        Family::V6 => {
            let place = network + IPV6_HEADER;
            let port = instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, place);
            sockopt::attach_reuseport_filter(socket, &[port, remainder, choose])
        }
    }
}

/// The turn of the first transmit socket of the node at `address`: neighbours begin one apart.
pub(super) fn first_turn(address: IpAddr) -> usize {
    let sum = |octets: &[u8]| octets.iter().copied().map(usize::from).sum();
    match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    }
}

/// Whether `port` has the remainder of the transmit socket number `turn`.
pub(super) fn suits(port: u16, turn: usize) -> bool {
    usize::from(port) % TURNS == turn % TURNS
}

/// Bytes of an IPv6 header (RFC 8200 section 3).
const IPV6_HEADER: u32 = 40;

/// Divided by 1, 2, 3, 4, 6, 8, 12 and 24: for other numbers of workers consecutive turns are no consecutive remainders,
/// and the shares as uneven as the hash's.
pub(super) const TURNS: usize = 24;
