//! Socket options that the socket crates do not wrap.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Sets an `int` option.
pub(crate) fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // WHY: socket2 and rustix lack UDP_GRO, the MTU discovery modes and the forced buffers.
    // SAFETY: setsockopt(2) reads `optlen` bytes at `optval`; both describe the local `value`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Attaches a socket filter (`SO_ATTACH_BPF`): the program returns how many bytes of each packet the socket keeps, 0 to drop it.
/// The socket refers to the program, so the descriptor may be closed.
///
/// # Errors
/// EINVAL for what is no socket filter, ENOMEM where `net.core.optmem_max` is too low, EPERM where a filter is locked.
pub(crate) fn attach_filter(socket: impl AsFd, program: BorrowedFd<'_>) -> io::Result<()> {
    set_int(
        socket,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_BPF,
        program.as_raw_fd(),
    )
}

/// Has a program select among a group of sockets (`SO_REUSEPORT`), one of which is `socket`: it returns the number of
/// the one that gets the datagram (linux/net/core/sock_reuseport.c, `run_bpf_filter`).
pub(crate) fn attach_reuseport_filter(
    socket: impl AsFd,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let program = libc::sock_fprog {
        len: program.len().try_into().map_err(too_long)?,
        filter: program.as_ptr().cast_mut(),
    };
    // WHY: socket2 and rustix lack SO_ATTACH_REUSEPORT_CBPF.
    // SAFETY: setsockopt(2) reads `optlen` bytes at `optval`, which describe the local `program`, and `len` instructions
    // at `filter`, which describe the caller's slice; it writes to neither.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Whether the kernel supports the option, an `int`.
pub(crate) fn is_supported(socket: impl AsFd, level: i32, name: i32) -> bool {
    words(socket, level, name, &mut [0]).is_ok()
}

/// What the kernel says of a socket's receive buffer (`SO_MEMINFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceiveMemory {
    /// Memory of what waits to be read, bytes: more than the datagrams have (`SK_MEMINFO_RMEM_ALLOC`).
    pub(crate) waiting: u32,
    /// How much may wait, bytes (`SK_MEMINFO_RCVBUF`).
    pub(crate) limit: u32,
    /// Packets that the kernel dropped since the socket was made (`SK_MEMINFO_DROPS`): full receive buffer and bad
    /// checksum alike.
    pub(crate) drops: u32,
}

/// What the kernel says of the socket's receive buffer.
pub(crate) fn receive_memory(socket: impl AsFd) -> io::Result<ReceiveMemory> {
    let mut values = [0u32; SK_MEMINFO_VARS];
    words(socket, libc::SOL_SOCKET, SO_MEMINFO, &mut values)?;
    let value = |place: usize| values.get(place).copied().unwrap_or_default();
    Ok(ReceiveMemory {
        waiting: value(SK_MEMINFO_RMEM_ALLOC),
        limit: value(SK_MEMINFO_RCVBUF),
        drops: value(SK_MEMINFO_DROPS),
    })
}

/// Bytes of memory that received datagrams take which are not read yet, and the most that they may take
/// (`SK_MEMINFO_RMEM_ALLOC`, `SK_MEMINFO_RCVBUF`).
pub(crate) fn backlog(socket: impl AsFd) -> io::Result<(u32, u32)> {
    let mut values = [0u32; SK_MEMINFO_VARS];
    words(socket, libc::SOL_SOCKET, SO_MEMINFO, &mut values)?;
    let [queued, limit, ..] = values;
    Ok((queued, limit))
}

fn words(socket: impl AsFd, level: i32, name: i32, values: &mut [u32]) -> io::Result<()> {
    let mut length = size_of_val(values) as libc::socklen_t;
    // WHY: no crate wraps SO_MEMINFO.
    // SAFETY: getsockopt(2) writes at most `optlen` bytes at `optval`; both describe `values`, which may hold any bits.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `linux/udp.h`: receive several datagrams of one flow as one buffer.
pub(crate) const UDP_GRO: i32 = 104;

/// `linux/udp.h`: send several datagrams as one message. A kernel that supports it returns its default.
pub(crate) const UDP_SEGMENT: i32 = 103;

/// `asm-generic/socket.h`
const SO_MEMINFO: i32 = 55;
/// `linux/sock_diag.h`
const SK_MEMINFO_RMEM_ALLOC: usize = 0;
/// `linux/sock_diag.h`
const SK_MEMINFO_RCVBUF: usize = 1;
/// `linux/sock_diag.h`
const SK_MEMINFO_DROPS: usize = 8;
/// `linux/sock_diag.h`
const SK_MEMINFO_VARS: usize = 9;
