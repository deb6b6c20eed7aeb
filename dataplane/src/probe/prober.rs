//! Control's side of probing: the socket that requests leave by, and what comes back of those that do not arrive.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use encap::Family;
use encap::probe::{self, MESSAGE, Message, QUESTION_BYTES, Question, REQUEST, room_for_report};
use socket2::{Domain, Protocol, Socket, Type};

use super::outer_headers;
use crate::limits::ERROR_REPORTS;
use crate::peers::Peer;
use crate::sys::recvmmsg::{self, Icmp};
use crate::underlay::ErrorReport;
use crate::underlay::socket::send_only;

/// The socket that requests to peers leave by, of one family, on a UDP port of the kernel's choice.
///
/// Requests go where data goes, with DF, and the kernel applies no path MTU to them. Answers come to the workers; the
/// socket receives nothing but reports of what did not arrive.
pub struct Prober {
    socket: Socket,
    family: Family,
}

/// A report that a request did not arrive: from a router or the peer's host, by ICMP.
///
/// Anyone can forge one who knows our port. That it repeats the nonce proves that its sender saw the request; without it, it
/// is a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// Where the request was sent to.
    pub to: SocketAddr,
    /// The nonce of the request, where the report quotes it.
    pub nonce: Option<u64>,
    /// Type and code of the ICMP error, ICMPv6 where `to` is IPv6.
    pub icmp: (u8, u8),
    /// Its sender.
    pub reporter: Option<IpAddr>,
    /// The kernel's `errno` for it.
    pub errno: i32,
    /// The path MTU that it names, bytes of outer packet.
    pub mtu: Option<u32>,
}

impl Prober {
    /// A socket at our public address `local`, which the host need not have at the moment.
    ///
    /// # Errors
    /// What socket(2), setsockopt(2) and bind(2) give.
    pub fn new(local: IpAddr) -> io::Result<Prober> {
        let address = SocketAddr::new(local, 0);
        let kind = Type::DGRAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::UDP))?;
        send_only(&socket, local)?;
        socket.bind(&address.into())?;
        Ok(Prober {
            socket,
            family: Family::of(local),
        })
    }

    /// The family of its requests.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Sends `request` to `peer`, as an outer IP packet of `length` bytes, or of [`least`](Prober::least) bytes where that
    /// is more.
    ///
    /// # Errors
    /// `AddrNotAvailable` where we send nothing to the peer over this family; else what our own kernel says: `EMSGSIZE`
    /// where its own end of the path takes less, no route, a firewall rule on output.
    pub fn send(&self, peer: &Peer, request: &Message, length: Option<u16>) -> io::Result<()> {
        self.send_bytes(peer, &request.emit(), length)
    }

    /// Sends `request`, whose flags say so, with `question` behind it, otherwise as [`send`](Prober::send).
    ///
    /// # Errors
    /// As [`send`](Prober::send).
    pub fn ask(
        &self,
        peer: &Peer,
        request: &Message,
        question: &Question,
        length: Option<u16>,
    ) -> io::Result<()> {
        let bytes: [u8; MESSAGE] = request.emit();
        let question: [u8; QUESTION_BYTES] = question.emit();
        self.send_bytes(peer, &[&bytes[..], &question[..]].concat(), length)
    }

    /// Sends the report that a request of `peer` wanted, which came as an outer IP packet of `length` bytes: as many whole lines of
    /// `text` as have room. One that has no room at all is not sent, which is no error.
    ///
    /// # Errors
    /// As [`send`](Prober::send).
    pub fn tell(&self, peer: &Peer, report: &Message, text: &[u8], length: u32) -> io::Result<()> {
        let headers = outer_headers(self.family) + peer.format.header_len();
        let Some(room) = room_for_report(length, headers) else {
            return Ok(());
        };
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        let mut bytes = report.emit().to_vec();
        for line in lines {
            if bytes.len() + line.len() > MESSAGE + room {
                break;
            }
            bytes.extend_from_slice(line);
        }
        self.put(peer, &bytes, 0)
    }

    fn send_bytes(&self, peer: &Peer, request: &[u8], length: Option<u16>) -> io::Result<()> {
        let least = self.least(peer);
        self.put(
            peer,
            request,
            length.map_or(least, |length| length.max(least)),
        )
    }

    /// Sends a message, filled up to an outer IP packet of `length` bytes.
    fn put(&self, peer: &Peer, message: &[u8], length: u16) -> io::Result<()> {
        let way = peer.way_over(self.family);
        let (_, way) = way.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let header = probe::header(way.header);
        let mut datagram = [header.as_slice(), message].concat();
        let wanted = usize::from(length).saturating_sub(outer_headers(self.family));
        datagram.resize(wanted.max(datagram.len()), 0);
        let to = way.to.into();
        // An error may be an earlier request's, and is gone once it was returned.
        for _ in 0..2 {
            if self.socket.send_to(&datagram, &to).is_ok() {
                return Ok(());
            }
        }
        self.socket.send_to(&datagram, &to).map(drop)
    }

    /// Bytes of the outer IP packet of the shortest request to `peer`.
    pub fn least(&self, peer: &Peer) -> u16 {
        let headers = outer_headers(self.family) + peer.format.header_len();
        (headers + REQUEST) as u16
    }

    /// Takes the reports of requests that did not arrive, at most a few dozen at a time.
    pub fn undelivered(&self) -> impl Iterator<Item = Undelivered> {
        let reports = (0..ERROR_REPORTS).map_while(|_| self.report());
        reports.flatten()
    }

    /// The next report; `Some(None)` for one that our own kernel gave, which [`Prober::send`] returned already.
    fn report(&self) -> Option<Option<Undelivered>> {
        let (report, icmp) = recvmmsg::detailed_error_report(&self.socket).ok()?;
        Some(icmp.map(|icmp| Undelivered::of(&report, icmp)))
    }
}

impl Undelivered {
    fn of(report: &ErrorReport, icmp: Icmp) -> Undelivered {
        let quoted = report.quoted();
        // Behind nothing or behind the headers of VXLAN: only one of them can begin so.
        let vxlan = encap::Format::Vxlan.header_len();
        let messages = [quoted, quoted.get(vxlan..).unwrap_or_default()];
        let quoted = messages.into_iter().find_map(probe::quoted_nonce);
        Undelivered {
            to: report.to,
            nonce: quoted,
            icmp: icmp.kind,
            reporter: icmp.reporter,
            errno: report.errno,
            mtu: (report.errno == libc::EMSGSIZE).then_some(report.info),
        }
    }

    /// What the ICMP error says (RFC 792, RFC 1812, RFC 4443).
    pub fn reason(&self) -> &'static str {
        match (Family::of(self.to.ip()), self.icmp) {
            (Family::V4, (3, 0)) => "network unreachable",
            (Family::V4, (3, 1)) => "host unreachable",
            (Family::V4, (3, 2)) => "protocol unreachable",
            (Family::V4, (3, 3)) | (Family::V6, (1, 4)) => "port unreachable",
            (Family::V4, (3, 4)) | (Family::V6, (2, _)) => "packet too big",
            (Family::V4, (3, 9 | 10 | 13)) | (Family::V6, (1, 1)) => {
                "prohibited by a firewall or router"
            }
            (Family::V6, (1, 0)) => "no route to the destination",
            (Family::V6, (1, 3)) => "address unreachable",
            (Family::V6, (1, 5)) => "refused by a source address policy",
            (Family::V6, (1, 6)) => "refused by a reject route",
            (Family::V4, (3, _)) | (Family::V6, (1, _)) => "destination unreachable",
            (Family::V4, (11, _)) | (Family::V6, (3, _)) => "time to live exceeded",
            _ => "not delivered",
        }
    }
}

impl fmt::Display for Undelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, code) = self.icmp;
        write!(f, "{} (ICMP type {kind} code {code}", self.reason())?;
        if let Some(reporter) = self.reporter {
            write!(f, " from {reporter}")?;
        }
        f.write_str(")")
    }
}
