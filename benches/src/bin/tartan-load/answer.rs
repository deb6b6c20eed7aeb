//! The far end of many flows: it answers a greeting, so that a flow counts as one of both ends.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::spread::{GREETING, PORTS_BEYOND, ports_from};

/// Listens at [`PORTS_BEYOND`] ports from that of `listen` on, for `time`, and answers each datagram that begins with
/// [`GREETING`]. Reports how many datagrams arrived, and how many of them it answered.
///
/// # Errors
/// What the sockets say; or that the ports would exceed 65535.
pub(crate) fn answer(listen: SocketAddr, time: Duration) -> io::Result<String> {
    let sockets = ports_from(listen, PORTS_BEYOND)?
        .into_iter()
        .map(|address| {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })
        .collect::<io::Result<Vec<_>>>()?;
    // poll(2) would ask all of them at every datagram, which takes longer than the datagram.
    let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (place, socket) in sockets.iter().enumerate() {
        ready.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, place as u64))?;
    }
    let mut events = [EpollEvent::empty(); PORTS_BEYOND];
    let (start, mut arrived, mut answered) = (Instant::now(), 0_u64, 0_u64);
    while start.elapsed() < time {
        let found = match ready.wait(&mut events, CLOCK_WAIT) {
            Ok(found) => found,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in events.iter().take(found) {
            if let Some(socket) = sockets.get(event.data() as usize) {
                let (came, greetings) = drain(socket)?;
                arrived += came;
                answered += greetings;
            }
        }
    }
    Ok(format!(r#"{{"arrived":{arrived},"answered":{answered}}}"#))
}

/// Takes what waits at the socket, at most so much that the other ports have their turn; how many datagrams, and how many of
/// them were answered.
fn drain(socket: &UdpSocket) -> io::Result<(u64, u64)> {
    let (mut arrived, mut answered) = (0, 0);
    let mut first = [0];
    while arrived < TURN {
        match socket.recv_from(&mut first) {
            Ok((_, from)) => {
                arrived += 1;
                if first == [GREETING] {
                    // A full buffer below us loses an answer, as a network may.
                    answered += u64::from(socket.send_to(&first, from).is_ok());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((arrived, answered))
}

/// An idle listener is left this often to look at the time; milliseconds.
const CLOCK_WAIT: u16 = 50;
/// Datagrams of one port before the next one.
const TURN: u64 = 256;
