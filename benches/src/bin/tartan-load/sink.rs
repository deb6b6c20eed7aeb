//! Where a flood ends.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, setsockopt, sockopt};

/// Counts what arrives at `listen` within `time`, and how long it kept arriving.
///
/// # Errors
/// What the socket says.
pub(crate) fn sink(listen: SocketAddr, time: Duration) -> io::Result<String> {
    let socket = UdpSocket::bind(listen)?;
    socket.set_read_timeout(Some(FULL_INBOX_WAIT))?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
    let mut buffers = vec![[0_u8; LARGEST]; BATCH];
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let (start, mut first, mut last) = (Instant::now(), None, Instant::now());
    let (mut packets, mut bytes) = (0, 0);
    while start.elapsed() < time {
        let mut slices: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| [IoSliceMut::new(buffer)])
            .collect();
        match recvmmsg(
            socket.as_raw_fd(),
            &mut headers,
            &mut slices,
            MsgFlags::MSG_WAITFORONE,
            None,
        ) {
            Ok(results) => {
                last = Instant::now();
                first.get_or_insert(last);
                for message in results {
                    packets += 1;
                    bytes += message.bytes;
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let span = first.map_or(0.0, |first| (last - first).as_secs_f64());
    Ok(format!(
        r#"{{"received":{packets},"bytes":{bytes},"span":{span:.6}}}"#
    ))
}

/// Datagrams of one call, and room for each.
const BATCH: usize = 64;
const LARGEST: usize = 2048;
/// Bytes that may wait in the kernel.
const BUFFER: usize = 8 << 20;
/// A silent socket is left this often to look at the time.
const FULL_INBOX_WAIT: Duration = Duration::from_millis(50);
