//! `recvmmsg` and the error queue of a UDP socket.
//!
//! All kernel structures live on the stack for the length of one call, so no pointer outlives what it points to.

use std::ffi::c_uint;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use encap::Ecn;
use socket2::{SockAddr, SockAddrStorage};

use super::cmsg;
use crate::batch::{Frame, Meta};
use crate::limits::{CONTROL, FRAME, INBOUND_BUFFERS, QUOTE};
use crate::underlay::ErrorReport;

/// Receives up to one batch of buffers without blocking, and describes each in `metas`.
///
/// # Errors
/// `WouldBlock` when nothing is queued; otherwise the socket's pending error, which belongs to an earlier send.
pub(crate) fn receive(
    socket: impl AsFd,
    frames: &mut [Frame],
    metas: &mut [Meta],
) -> io::Result<usize> {
    // WHY: libc's structs have private padding, so they cannot be written as literals.
    // SAFETY: all-zero is a valid value of these plain C structs: null pointers and zero lengths.
    let mut messages: [libc::mmsghdr; INBOUND_BUFFERS] = unsafe { zeroed() };
    let mut slices = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; INBOUND_BUFFERS];
    let mut names = std::array::from_fn::<_, INBOUND_BUFFERS, _>(|_| SockAddrStorage::zeroed());
    let mut controls = [ControlSpace([0; CONTROL]); INBOUND_BUFFERS];
    let count = frames.len().min(metas.len()).min(INBOUND_BUFFERS);
    let rows = messages
        .iter_mut()
        .zip(&mut slices)
        .zip(&mut names)
        .zip(&mut controls)
        .zip(frames.iter_mut());
    for ((((message, slice), name), control), frame) in rows {
        *slice = libc::iovec {
            iov_base: frame.as_mut_ptr().cast(),
            iov_len: FRAME,
        };
        let header = &mut message.msg_hdr;
        header.msg_iov = slice;
        header.msg_iovlen = 1;
        header.msg_name = (&raw mut *name).cast();
        header.msg_namelen = size_of::<SockAddrStorage>() as u32;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL as _;
    }
    // WHY: no crate gives recvmmsg with control messages into memory that it does not allocate; by its number, as
    // `sendmmsg` is.
    // SAFETY: "vlen" messages are initialised (`count` is at most the length of every array zipped above, and each of
    // the first `count` got its own slice of FRAME writable bytes, its own name and control space); all of it outlives
    // the call; a null timeout means none (recvmmsg(2)).
    let received = unsafe {
        libc::syscall(
            libc::SYS_recvmmsg,
            socket.as_fd().as_raw_fd(),
            messages.as_mut_ptr(),
            count as c_uint,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut::<libc::timespec>(),
        )
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    for (((message, name), control), meta) in messages
        .iter()
        .zip(names)
        .zip(&controls)
        .zip(metas)
        .take(received as usize)
    {
        *meta = describe(message, name, &control.0);
    }
    Ok(received as usize)
}

/// Takes one entry from the socket's error queue (`IP_RECVERR`), with the start of the datagram that it speaks of. Which
/// socket it is, the caller knows.
///
/// # Errors
/// `WouldBlock` when the queue is empty.
pub(crate) fn error_report(socket: impl AsFd) -> io::Result<ErrorReport> {
    detailed_error_report(socket).map(|(report, _)| report)
}

/// What a report says beside what [`ErrorReport`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Icmp {
    /// Type and code of the ICMP error, of the family of the socket.
    pub(crate) kind: (u8, u8),
    /// The address that sent it.
    pub(crate) reporter: Option<IpAddr>,
}

/// As [`error_report`], with what the ICMP error says, if the report comes from one.
///
/// # Errors
/// As [`error_report`].
pub(crate) fn detailed_error_report(socket: impl AsFd) -> io::Result<(ErrorReport, Option<Icmp>)> {
    let mut quote = [0u8; QUOTE];
    let mut name = SockAddrStorage::zeroed();
    let mut control = ControlSpace([0; CONTROL]);
    let mut slice = libc::iovec {
        iov_base: quote.as_mut_ptr().cast(),
        iov_len: quote.len(),
    };
    // WHY: libc's structs have private padding, so they cannot be written as literals.
    // SAFETY: all-zero is a valid value of this plain C struct: null pointers and zero lengths.
    let mut message: libc::mmsghdr = unsafe { zeroed() };
    let header = &mut message.msg_hdr;
    header.msg_iov = &raw mut slice;
    header.msg_iovlen = 1;
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<SockAddrStorage>() as u32;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL as _;
    // WHY: the path MTU comes only through MSG_ERRQUEUE, which the crates do not read.
    // SAFETY: recvmsg(2) writes at most "msg_iovlen" buffers of "iov_len" bytes, "msg_namelen" bytes at "msg_name" and
    // "msg_controllen" bytes at "msg_control": `slice`, `name` and `control`, which are that long and outlive the call.
    let received = unsafe {
        libc::recvmsg(
            socket.as_fd().as_raw_fd(),
            header,
            libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
        )
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    message.msg_len = received as u32;
    let used = control
        .0
        .get(..control_length(&message.msg_hdr))
        .unwrap_or_default();
    let error = cmsg::walk(used)
        .find(|c| {
            matches!(
                (c.level, c.kind),
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
            )
        })
        .map(|c| c.data)
        .unwrap_or_default();
    // struct sock_extended_err: u32 errno, u8 origin, type, code, pad, u32 info, u32 data
    let [e0, e1, e2, e3, origin, kind, code, _pad, i0, i1, i2, i3] =
        error.first_chunk::<12>().copied().unwrap_or_default();
    let icmp = Icmp {
        kind: (kind, code),
        reporter: offender(error.get(EXTENDED_ERROR..).unwrap_or_default()),
    };
    let is_icmp = matches!(origin, SO_EE_ORIGIN_ICMP | SO_EE_ORIGIN_ICMP6);
    let report = ErrorReport {
        to: describe(&message, name, &[]).source,
        socket: 0,
        local: origin == SO_EE_ORIGIN_LOCAL,
        errno: i32::from_ne_bytes([e0, e1, e2, e3]),
        info: u32::from_ne_bytes([i0, i1, i2, i3]),
        quote,
        quoted: received as usize,
    };
    Ok((report, is_icmp.then_some(icmp)))
}

/// The address behind a `sock_extended_err` (`SO_EE_OFFENDER`): `sockaddr_in` or `sockaddr_in6`, or none.
fn offender(bytes: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    match i32::from(family) {
        libc::AF_INET => {
            let address: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(IpAddr::V4(address.into()))
        }
        libc::AF_INET6 => {
            let address: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            Some(IpAddr::V6(address.into()))
        }
        _ => None,
    }
}

fn describe(message: &libc::mmsghdr, name: SockAddrStorage, control: &[u8]) -> Meta {
    // WHY: socket2 makes addresses only from storage of a stated length.
    // SAFETY: the kernel wrote `msg_namelen` bytes of a socket address of the family named in it, into zeroed storage.
    let name = unsafe { SockAddr::new(name, message.msg_hdr.msg_namelen) };
    let mut meta = Meta {
        len: message.msg_len as usize,
        source: name.as_socket().map_or(UNSPECIFIED, unmapped),
        ecn: Ecn::NotEct,
        segment: None,
        // Without its control messages the buffer may hold one datagram or several.
        truncated: message.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
    };
    let used = control
        .get(..control_length(&message.msg_hdr))
        .unwrap_or_default();
    for found in cmsg::walk(used) {
        match (found.level, found.kind) {
            (libc::SOL_UDP, super::sockopt::UDP_GRO) => {
                meta.segment = cmsg::int(found.data)
                    .and_then(|size| u16::try_from(size).ok())
                    .filter(|size| *size > 0);
            }
            (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                meta.ecn = Ecn::of(cmsg::int(found.data).unwrap_or_default() as u8);
            }
            _ => {}
        }
    }
    meta
}

fn unmapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), v6.port()),
            None => SocketAddr::new(IpAddr::V6(Ipv6Addr::from(v6.ip().octets())), v6.port()),
        },
        v4 => v4,
    }
}

/// Bytes of control messages, as the kernel left them. To glibc the field is a `size_t`; to musl a `socklen_t` with padding,
/// which is zero.
#[allow(clippy::unnecessary_cast)]
fn control_length(header: &libc::msghdr) -> usize {
    header.msg_controllen as usize
}

/// Control space aligned as `cmsghdr` asks.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlSpace([u8; CONTROL]);

/// `linux/errqueue.h`
const SO_EE_ORIGIN_LOCAL: u8 = 1;
/// `linux/errqueue.h`
const SO_EE_ORIGIN_ICMP: u8 = 2;
/// `linux/errqueue.h`
const SO_EE_ORIGIN_ICMP6: u8 = 3;
/// Bytes of `struct sock_extended_err`.
const EXTENDED_ERROR: usize = 16;

const UNSPECIFIED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
