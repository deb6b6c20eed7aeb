//! How datagrams travel between nodes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use encap::{Ecn, Family, Format};

use crate::batch::{InboundBatch, Pieces};
use crate::limits::{QUOTE, TRANSMIT_SOCKETS};
use crate::now::Now;

pub mod memory;
pub mod socket;

/// One of the ports of a node's underlay: the wire format on it, and the IP version below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// The wire format.
    pub format: Format,
    /// The family of the outer addresses.
    pub family: Family,
}

impl Port {
    /// Every port that there can be.
    pub const ALL: [Port; 4] = [
        Port::new(Format::Vxlan, Family::V4),
        Port::new(Format::Vxlan, Family::V6),
        Port::new(Format::Udp, Family::V4),
        Port::new(Format::Udp, Family::V6),
    ];

    /// The port of `format` over `family`.
    pub const fn new(format: Format, family: Family) -> Port {
        Port { format, family }
    }

    /// The port for datagrams of `format` to and from `address`.
    pub const fn towards(address: IpAddr, format: Format) -> Port {
        Port::new(format, Family::of(address))
    }

    /// Its index in [`Port::ALL`].
    pub const fn index(self) -> usize {
        match (self.format, self.family) {
            (Format::Vxlan, Family::V4) => 0,
            (Format::Vxlan, Family::V6) => 1,
            (Format::Udp, Family::V4) => 2,
            (Format::Udp, Family::V6) => 3,
        }
    }
}

/// A transmit slot: a port, and the number of one of its transmit sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TxSlot {
    /// The port.
    pub port: Port,
    /// The transmit socket, below [`TRANSMIT_SOCKETS`]; the `udp` format has only number 0, the port itself.
    pub lane: usize,
}

impl TxSlot {
    /// How many there can be.
    pub const COUNT: usize = Port::ALL.len() * TRANSMIT_SOCKETS;

    /// The transmit slot of a flow, by its hash. flannel sends all of `udp` from one port.
    pub(crate) const fn of_flow(port: Port, hash: u32) -> TxSlot {
        let lane = match port.format {
            Format::Udp => 0,
            Format::Vxlan => hash as usize % TRANSMIT_SOCKETS,
        };
        TxSlot { port, lane }
    }

    /// Every slot, in the order of [`TxSlot::index`].
    pub fn all() -> impl Iterator<Item = TxSlot> {
        let lanes = |port| (0..TRANSMIT_SOCKETS).map(move |lane| TxSlot { port, lane });
        Port::ALL.into_iter().flat_map(lanes)
    }

    /// Its index in [`TxSlot::all`].
    pub const fn index(self) -> usize {
        self.port.index() * TRANSMIT_SOCKETS + self.lane
    }
}

/// The UDP side of a worker: up to four ports, those of one family at least. Never blocks.
pub trait Underlay {
    /// Receives up to one batch of buffers that came to `port`.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is queued, or there is no such port. Any other error belongs to an earlier send.
    fn receive(&mut self, port: Port, batch: &mut InboundBatch) -> io::Result<Received>;

    /// Sends messages through one slot in order until one is refused, and returns how many were sent. A message is sent
    /// as a whole or not at all.
    ///
    /// # Errors
    /// Only if the first was refused: `WouldBlock` or `ENOBUFS` when there is no room, `AddrNotAvailable` when there is
    /// no such port, else the kernel's reason, which may belong to an earlier send. `EINVAL`, `EIO` and `EMSGSIZE` for a
    /// message of several datagrams may be due to `UDP_SEGMENT`.
    fn send<'a>(
        &mut self,
        slot: TxSlot,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize>;

    /// Sends one datagram of a few bytes through `slot`, not ECN-capable, ahead of what waits there.
    ///
    /// # Errors
    /// As [`Underlay::send`].
    fn send_single(&mut self, slot: TxSlot, to: SocketAddr, payload: &[u8]) -> io::Result<()>;

    /// Whether [`Underlay::send`] takes messages of several datagrams at present. Asked once a batch: an offload that
    /// was given up is tried again after its time.
    fn takes_gso(&mut self, _slot: TxSlot, _now: Now) -> bool {
        false
    }

    /// Notes that a message of several datagrams was refused, and each of them was then taken alone: the offload, not the
    /// datagrams, was at fault.
    fn offload_failed(&mut self, _slot: TxSlot, _now: Now) {}

    /// How often an offload was given up.
    fn given_up(&self) -> u64 {
        0
    }

    /// The number of the socket of its port that `slot` sends through: 0 is the port's own, which also receives. Slots that
    /// share a socket have one number.
    fn socket(&self, slot: TxSlot) -> usize {
        match slot.port.format {
            Format::Udp => 0,
            Format::Vxlan => 1 + slot.lane,
        }
    }

    /// The next report about a datagram that we sent through any slot of `port` earlier, if there is one.
    fn error_report(&mut self, port: Port) -> Option<ErrorReport>;

    /// The descriptor that `port` receives on, if there is one.
    fn descriptor(&self, port: Port) -> Option<RawFd>;

    /// The descriptor that becomes writable when `slot` takes more, if there is one.
    fn tx_descriptor(&self, slot: TxSlot) -> Option<RawFd>;
}

/// What was received at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Buffers of the batch that were filled, at least one.
    pub buffers: usize,
    /// The kernel returned fewer than were asked for: the queue is empty, and the poll announces later datagrams. The
    /// underlay may ask for fewer than the whole batch.
    pub emptied: bool,
}

/// One message to send: its pieces, gathered by the kernel.
pub struct Outgoing<'a> {
    /// Outer destination.
    pub to: SocketAddr,
    /// ECN codepoint of the outer header.
    pub ecn: Ecn,
    /// Bytes of each datagram that the message is cut into, the last may have fewer (`UDP_SEGMENT`); `None` for a single
    /// datagram.
    pub segment: Option<u16>,
    /// The UDP payload.
    pub pieces: Pieces<'a>,
}

/// A report about a datagram that we sent: from our own kernel, or from a router by ICMP.
#[derive(Clone, Debug)]
pub struct ErrorReport {
    /// Where it was sent to.
    pub to: SocketAddr,
    /// The number of the socket that the report came to, as in [`Underlay::socket`].
    pub socket: usize,
    /// The report comes from our own kernel, not from a router; then there is no quote to check.
    pub local: bool,
    /// `errno` of the report; `EMSGSIZE` carries a path MTU.
    pub errno: i32,
    /// The path MTU, bytes of outer packet, when `errno` is `EMSGSIZE`.
    pub info: u32,
    /// The start of its UDP payload.
    pub quote: [u8; QUOTE],
    /// How many bytes of `quote` were returned.
    pub quoted: usize,
}

impl ErrorReport {
    /// The bytes of the datagram that came back.
    pub fn quoted(&self) -> &[u8] {
        self.quote.get(..self.quoted.min(QUOTE)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_its_index() {
        for (place, port) in Port::ALL.into_iter().enumerate() {
            assert_eq!(port.index(), place);
        }
        assert_eq!(
            Port::towards("192.0.2.1".parse().unwrap(), Format::Udp),
            Port::new(Format::Udp, Family::V4)
        );
        assert_eq!(
            Port::towards("2001:db8::1".parse().unwrap(), Format::Vxlan),
            Port::new(Format::Vxlan, Family::V6)
        );
    }
}
