//! Numbered datagrams, one call each, for tests that account for every one of them.

use std::io;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::count::MARK;
use crate::flood::connected;

/// Sends `count` datagrams of `size` bytes, and says how many the kernel took. Each holds [`MARK`] and a number; the
/// numbers of a later run are higher than those of an earlier one.
///
/// # Errors
/// What the socket says.
pub(crate) fn send(to: SocketAddr, size: usize, count: u64) -> io::Result<String> {
    let socket = connected(to)?;
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(io::Error::other)?;
    let first = u64::try_from(since.as_nanos()).map_err(io::Error::other)?;
    let rest = vec![0; size.saturating_sub(MARK.len() + size_of::<u64>())];
    let (start, mut sent) = (Instant::now(), 0_u64);
    for number in first..first + count {
        let datagram = [&MARK[..], &number.to_be_bytes(), &rest].concat();
        sent += u64::from(socket.send(&datagram)? == size);
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!(r#"{{"sent":{sent},"seconds":{seconds:.2}}}"#))
}
