//! One datagram after the other, there and back.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::flood::connected;

/// Sends every datagram back to where it came from, for `time`.
///
/// # Errors
/// What the socket says.
pub(crate) fn echo(listen: SocketAddr, time: Duration) -> io::Result<String> {
    let socket = UdpSocket::bind(listen)?;
    socket.set_read_timeout(Some(FULL_INBOX_WAIT))?;
    let mut buffer = vec![0; 65_535];
    let (start, mut answered) = (Instant::now(), 0);
    while start.elapsed() < time {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                socket.send_to(buffer.get(..length).unwrap_or_default(), from)?;
                answered += 1;
            }
            Err(error) if is_patience(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(format!(r#"{{"answered":{answered}}}"#))
}

/// Measures round trips to an echo for `time`. A datagram that is not answered in time is counted as lost.
///
/// # Errors
/// What the socket says, or that nothing was answered at all.
pub(crate) fn ping(to: SocketAddr, size: usize, time: Duration) -> io::Result<String> {
    let socket = connected(to)?;
    socket.set_read_timeout(Some(FULL_INBOX_WAIT))?;
    let (mut datagram, mut answer) = (vec![0; size], vec![0; 65_535]);
    let (start, mut number, mut lost) = (Instant::now(), 0_u64, 0);
    let mut trips = Vec::new();
    while start.elapsed() < time {
        number += 1;
        for (place, byte) in datagram.iter_mut().zip(number.to_be_bytes()) {
            *place = byte;
        }
        let sent = Instant::now();
        // Refused means that the echo does not listen yet.
        let answered = socket
            .send(&datagram)
            .and_then(|_| receive(&socket, &mut answer, number));
        match answered {
            Ok(()) => trips.push(sent.elapsed()),
            Err(error)
                if is_patience(&error) || error.kind() == io::ErrorKind::ConnectionRefused =>
            {
                lost += 1;
            }
            Err(error) => return Err(error),
        }
    }
    trips.sort_unstable();
    let half = |share| at(&trips, share).map(|micros| micros / 2.0);
    let (Some(p50), Some(p99)) = (half(0.5), half(0.99)) else {
        return Err(io::Error::other(format!("{to} answered nothing")));
    };
    Ok(format!(
        r#"{{"trips":{},"lost":{lost},"p50_us":{p50:.2},"p99_us":{p99:.2}}}"#,
        trips.len()
    ))
}

/// Microseconds that this share of the times, sorted, do not exceed; none of no times.
pub(crate) fn at(sorted: &[Duration], share: f64) -> Option<f64> {
    let place = (sorted.len() as f64 * share) as usize;
    sorted
        .get(place.min(sorted.len().saturating_sub(1)))
        .map(|time| time.as_secs_f64() * 1e6)
}

/// The answer to datagram `number`; what comes late of earlier ones is passed over.
fn receive(socket: &UdpSocket, answer: &mut [u8], number: u64) -> io::Result<()> {
    loop {
        let length = socket.recv(answer)?;
        let named = answer.get(..length).and_then(|bytes| bytes.first_chunk());
        if named.copied().map(u64::from_be_bytes) == Some(number) {
            return Ok(());
        }
    }
}

fn is_patience(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// How long an answer may take.
const FULL_INBOX_WAIT: Duration = Duration::from_millis(50);
