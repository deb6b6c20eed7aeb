//! New TCP connections, one after the other: each is accepted, closed by the far end, then by this one.
//!
//! The end that closes first keeps the pair of ports for a minute (TIME_WAIT, RFC 9293 section 3.6.1). It is the listener
//! here: its port is one anyway, and the other end's ports are free at once for the next connections.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::ping::at;

/// Accepts connections at `listen` and closes each at once, for `time`; reports how many.
///
/// # Errors
/// What the listening socket says. What became of one connection before it was accepted is not an error.
pub(crate) fn accept(listen: SocketAddr, time: Duration) -> io::Result<String> {
    let listener = TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    let (start, mut accepted) = (Instant::now(), 0_u64);
    while start.elapsed() < time {
        match listener.accept() {
            Ok(_) => accepted += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(&listener)?,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(format!(r#"{{"accepted":{accepted}}}"#))
}

/// Waits until the listener has a connection, or for the time after which the clock is looked at.
fn wait(listener: &TcpListener) -> io::Result<()> {
    let mut sources = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let longest = PollTimeout::try_from(CLOCK_WAIT).map_err(io::Error::other)?;
    match poll(&mut sources, longest) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether accept(2) tells of the one connection only, and the next one may be well.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Connects to `to` for `time` from `threads` threads, each a connection after the other, and waits until each is closed by
/// the far end. Reports connections, failures, and how long half and 99 of 100 took from the first packet to the close.
///
/// # Errors
/// That not one connection came about, with what the last one met.
pub(crate) fn connect(to: SocketAddr, threads: usize, time: Duration) -> io::Result<String> {
    let start = Instant::now();
    let workers: Vec<_> = (0..threads)
        .map(|_| thread::spawn(move || one_after_the_other(to, start, time)))
        .collect();
    let mut found = Found::default();
    for worker in workers {
        let part = worker
            .join()
            .map_err(|_| io::Error::other("a thread of connections ended early"))?;
        found.took.extend(part.took);
        found.failed += part.failed;
        found.last = part.last.or(found.last);
    }
    let seconds = start.elapsed().as_secs_f64();
    found.took.sort_unstable();
    let (Some(p50), Some(p99)) = (at(&found.took, 0.5), at(&found.took, 0.99)) else {
        let last = found
            .last
            .map_or_else(String::new, |error| error.to_string());
        return Err(io::Error::other(format!(
            "{to} closed no connection: {last}"
        )));
    };
    Ok(format!(
        r#"{{"connections":{},"failed":{},"seconds":{seconds:.6},"p50_us":{p50:.2},"p99_us":{p99:.2}}}"#,
        found.took.len(),
        found.failed
    ))
}

/// What a thread met.
#[derive(Default)]
struct Found {
    took: Vec<Duration>,
    failed: u64,
    last: Option<io::Error>,
}

fn one_after_the_other(to: SocketAddr, start: Instant, time: Duration) -> Found {
    let mut found = Found::default();
    while let Some(left) = time
        .checked_sub(start.elapsed())
        .filter(|left| !left.is_zero())
    {
        let began = Instant::now();
        match one(to, left.max(LEAST_WAIT)) {
            Ok(()) => found.took.push(began.elapsed()),
            Err(error) => {
                found.failed += 1;
                found.last = Some(error);
                // No process listens yet: that is not a load.
                thread::sleep(AFTER_FAILURE);
            }
        }
    }
    found
}

/// One connection, closed by the far end within `patience` or not at all.
fn one(to: SocketAddr, patience: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, patience)?;
    stream.set_read_timeout(Some(patience))?;
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("{to} sends data"))),
    }
}

/// An idle listener is left this often to look at the time.
const CLOCK_WAIT: Duration = Duration::from_millis(50);
/// The last connections may outlast the time by this, so that a slow one is counted as what it is.
const LEAST_WAIT: Duration = Duration::from_millis(500);
const AFTER_FAILURE: Duration = Duration::from_millis(1);
