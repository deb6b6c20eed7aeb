//! Datagrams as fast as they go.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, sendmmsg};

/// Floods `to` for `time` from `flows` sockets in turn, a batch each; reports what the kernel took.
///
/// # Errors
/// What the sockets say, full buffers apart: those are waited for.
pub(crate) fn flood(
    to: SocketAddr,
    size: usize,
    flows: usize,
    time: Duration,
) -> io::Result<String> {
    let sockets = (0..flows)
        .map(|_| connected(to))
        .collect::<io::Result<Vec<_>>>()?;
    let payload = vec![0x5a; size];
    let messages = vec![[IoSlice::new(&payload)]; BATCH];
    let addresses: Vec<Option<()>> = vec![None; BATCH];
    let controls: [ControlMessage<'_>; 0] = [];
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let (start, mut sent) = (Instant::now(), 0);
    'time: loop {
        for socket in &sockets {
            if start.elapsed() >= time {
                break 'time;
            }
            let taken = sendmmsg(
                socket.as_raw_fd(),
                &mut headers,
                &messages,
                &addresses,
                controls,
                MsgFlags::empty(),
            );
            match taken {
                Ok(results) => sent += results.count(),
                // No process listens yet, or a buffer below us is full: the flood goes on.
                Err(Errno::ECONNREFUSED | Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!(
        r#"{{"sent":{sent},"seconds":{seconds:.6},"size":{size},"flows":{flows}}}"#
    ))
}

/// A socket connected to `to`, from any port.
///
/// # Errors
/// What the socket says.
pub(crate) fn connected(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = unconnected(to)?;
    socket.connect(to)?;
    Ok(socket)
}

/// A socket of the family of `to`, from any port.
///
/// # Errors
/// What the socket says.
pub(crate) fn unconnected(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if to.is_ipv4() {
        ([0; 4], 0).into()
    } else {
        ([0; 16], 0).into()
    };
    UdpSocket::bind(any)
}

/// Datagrams of one call.
const BATCH: usize = 64;
