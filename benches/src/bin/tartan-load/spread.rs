//! Many flows that live at once: a few datagrams of each, again and again.

use std::io::{self, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::flood::unconnected;

/// Keeps `flows` UDP flows alive for `time`: one source port per [`PORTS_BEYOND`] flows, each with that many destination
/// ports from the port of `to` on. Every flow has its turn, again and again. `turns` says of the first turn, the second and
/// all later ones how many datagrams a flow sends in it, by rotation with the others of its source port, and how many all
/// send together in a second at most. The first turn greets, and a pause follows it: connection tracking takes a flow that
/// was answered and lasts longer than 2 s for a stream (linux/net/netfilter/nf_conntrack_proto_udp.c). Prints a line after
/// each of the first three turns, reports at the end how many were sent, and how many whole turns it were.
///
/// # Errors
/// What the sockets say, full buffers and missing listeners apart; or that the ports of `to` would exceed 65535.
pub(crate) fn spread(
    to: SocketAddr,
    flows: usize,
    turns: [(u32, u32); 3],
    time: Duration,
) -> io::Result<String> {
    let beyond = PORTS_BEYOND.min(flows);
    let targets = ports_from(to, beyond)?;
    let sockets = (0..flows.div_ceil(beyond))
        .map(|_| unconnected(to))
        .collect::<io::Result<Vec<_>>>()?;
    let start = Instant::now();
    let [greeting, first, later] = turns;
    let (mut sent, mut turns) = (0_u64, 0_u64);
    'time: loop {
        let ((each, rate), payload) = match turns {
            0 => (greeting, [GREETING; SIZE]),
            1 => (first, [0x5a; SIZE]),
            _ => (later, [0x5a; SIZE]),
        };
        let (began, before) = (Instant::now(), sent);
        for (number, socket) in sockets.iter().enumerate() {
            let targets = targets.iter().take(flows - number * beyond);
            // Not one flow's datagrams one behind the other: GRO would make a single packet of them.
            for target in (0..each).flat_map(|_| targets.clone()) {
                sent += u64::from(send(socket, *target, &payload)?);
                // When so many are due.
                let due = Duration::from_secs_f64((sent - before) as f64 / f64::from(rate));
                if let Some(early) = due
                    .checked_sub(began.elapsed())
                    .filter(|early| *early > COARSE)
                {
                    thread::sleep(early);
                }
                if start.elapsed() >= time {
                    break 'time;
                }
            }
        }
        turns += 1;
        if turns <= 3 {
            let (seconds, mut output) = (start.elapsed().as_secs_f64(), io::stdout().lock());
            writeln!(output, r#"{{"turns":{turns},"seconds":{seconds:.6}}}"#)?;
            output.flush()?;
        }
        if turns == 1 {
            thread::sleep(AFTER_GREETING);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!(
        r#"{{"sent":{sent},"seconds":{seconds:.6},"flows":{flows},"turns":{turns}}}"#
    ))
}

/// The address with its port and the ports after it, `count` of them.
///
/// # Errors
/// That they would exceed 65535.
pub(crate) fn ports_from(first: SocketAddr, count: usize) -> io::Result<Vec<SocketAddr>> {
    (0..count)
        .map(|place| {
            let port = usize::from(first.port()) + place;
            let port = u16::try_from(port).map_err(|_| {
                io::Error::other(format!("{first}: {count} ports from there exceed 65535"))
            })?;
            Ok(SocketAddr::new(first.ip(), port))
        })
        .collect()
}

/// One datagram; whether the kernel took it.
fn send(socket: &UdpSocket, to: SocketAddr, payload: &[u8]) -> io::Result<bool> {
    match socket.send_to(payload, to) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ECONNREFUSED | Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Flows of one source port: with 1,000 source ports 100,000 flows, within the usual limit of open files.
pub(crate) const PORTS_BEYOND: usize = 100;
/// What a datagram that is to be answered consists of.
pub(crate) const GREETING: u8 = b'?';
const AFTER_GREETING: Duration = Duration::from_secs(3);
/// Payload bytes of a datagram.
const SIZE: usize = 64;
/// Less than this ahead of the pace is not slept.
const COARSE: Duration = Duration::from_millis(1);
