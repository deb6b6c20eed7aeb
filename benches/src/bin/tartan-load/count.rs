//! Where numbered datagrams end: what came to each port, and whether anything is missing, doubled or late.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{setsockopt, sockopt};

/// Counts what comes to the ports, of both families, until SIGTERM. For each port: how many datagrams, how many of each
/// size, how many numbers were seen, how often one came twice, and how often one came behind a later one. "lost" is what
/// the kernel dropped at the socket because this program was too slow.
///
/// # Errors
/// What a socket says.
pub(crate) fn count(ports: &[u16]) -> io::Result<String> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let end = SignalFd::new(&signals)?;
    let mut ports = ports
        .iter()
        .map(|port| Port::open(*port))
        .collect::<io::Result<Vec<_>>>()?;
    let mut ended = false;
    while !ended {
        let sources = ports.iter().map(|port| port.socket.as_fd());
        let mut sources: Vec<_> = [end.as_fd()]
            .into_iter()
            .chain(sources)
            .map(|source| PollFd::new(source, PollFlags::POLLIN))
            .collect();
        poll(&mut sources, PollTimeout::NONE)?;
        ended = sources
            .first()
            .is_some_and(|end| end.any().unwrap_or_default());
        drop(sources);
        // What came before the signal counts.
        for port in &mut ports {
            port.drain()?;
        }
    }
    let reports = ports
        .iter()
        .map(Port::report)
        .collect::<io::Result<Vec<_>>>()?;
    Ok(format!("{{{}}}", reports.join(",")))
}

struct Port {
    number: u16,
    socket: UdpSocket,
    sizes: BTreeMap<usize, u64>,
    seen: HashSet<u64>,
    newest: Option<u64>,
    twice: u64,
    late: u64,
}

impl Port {
    fn open(number: u16) -> io::Result<Port> {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, number))?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
        Ok(Port {
            number,
            socket,
            sizes: BTreeMap::new(),
            seen: HashSet::new(),
            newest: None,
            twice: 0,
            late: 0,
        })
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 65_536];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(length) => self.take(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self, datagram: &[u8]) {
        *self.sizes.entry(datagram.len()).or_default() += 1;
        let number = datagram
            .strip_prefix(&MARK)
            .and_then(|rest| rest.first_chunk());
        let Some(number) = number.copied().map(u64::from_be_bytes) else {
            return;
        };
        self.twice += u64::from(!self.seen.insert(number));
        self.late += u64::from(Some(number) < self.newest);
        self.newest = self.newest.max(Some(number));
    }

    fn report(&self) -> io::Result<String> {
        let mut sizes = String::new();
        for (size, count) in &self.sizes {
            let comma = if sizes.is_empty() { "" } else { "," };
            write!(sizes, r#"{comma}"{size}":{count}"#).map_err(io::Error::other)?;
        }
        Ok(format!(
            r#""{}":{{"count":{},"sizes":{{{sizes}}},"distinct":{},"twice":{},"late":{},"lost":{}}}"#,
            self.number,
            self.sizes.values().sum::<u64>(),
            self.seen.len(),
            self.twice,
            self.late,
            self.lost()?,
        ))
    }

    /// What the kernel dropped at the socket: the last column of its line in the table (proc_net_udp(5)).
    fn lost(&self) -> io::Result<u64> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", self.socket.as_raw_fd()))?;
        let name = link.to_string_lossy();
        let inode = name.trim_start_matches("socket:[").trim_end_matches(']');
        let table = std::fs::read_to_string("/proc/thread-self/net/udp6")?;
        let line = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words.get(9) == Some(&inode));
        line.and_then(|words| words.get(12)?.parse().ok())
            .ok_or_else(|| {
                io::Error::other(format!("port {} is not in /proc/net/udp6", self.number))
            })
    }
}

/// What a numbered datagram begins with; its number follows, 8 bytes, the highest first.
pub(crate) const MARK: [u8; 2] = *b"TT";
/// Bytes that may wait in the kernel.
const BUFFER: usize = 64 << 20;
