//! How datagrams travel between nodes.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use encap::{Ecn, Family, Format};

use crate::batch::InboundBatch;
use crate::limits::QUOTE;

pub mod memory;
pub mod socket;

/// One of the ports of a node's underlay: what is spoken on it, over which IP version.
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

    /// The port through which datagrams of `format` go to `address`, and by which they come from there.
    pub const fn towards(address: IpAddr, format: Format) -> Port {
        Port::new(format, Family::of(address))
    }

    /// Its place in [`Port::ALL`].
    pub const fn index(self) -> usize {
        match (self.format, self.family) {
            (Format::Vxlan, Family::V4) => 0,
            (Format::Vxlan, Family::V6) => 1,
            (Format::Udp, Family::V4) => 2,
            (Format::Udp, Family::V6) => 3,
        }
    }
}

/// The UDP side of a worker: up to four ports, those of one family at least. Never blocks.
pub trait Underlay {
    /// Receives up to one batch of buffers that came to `port`.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is queued, or there is no such port. Any other error belongs to an earlier send.
    fn receive(&mut self, port: Port, batch: &mut InboundBatch) -> io::Result<usize>;

    /// Sends datagrams through one port in order until one is refused, and returns how many went.
    ///
    /// # Errors
    /// Only if the first was refused: `WouldBlock` or `ENOBUFS` when there is no room, `AddrNotAvailable` when there is
    /// no such port, else the kernel's reason, which may belong to an earlier send.
    fn send<'a>(
        &mut self,
        port: Port,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize>;

    /// The next report about a datagram that we sent through `port` earlier, if there is one.
    fn failure(&mut self, port: Port) -> Option<Failure>;

    /// The descriptor of `port`, if there is one.
    fn descriptor(&self, port: Port) -> Option<RawFd>;
}

/// One datagram to send: its pieces, gathered by the kernel.
pub struct Outgoing<'a> {
    /// Outer destination.
    pub to: SocketAddr,
    /// ECN codepoint of the outer header.
    pub ecn: Ecn,
    /// The UDP payload.
    pub parts: [IoSlice<'a>; 2],
}

/// A report about a datagram that we sent: from our own kernel, or from a router by ICMP.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Where it was sent to.
    pub to: SocketAddr,
    /// Our own kernel says so, no router: then there is no quote to judge by.
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

impl Failure {
    /// The bytes of the datagram that came back.
    pub fn quoted(&self) -> &[u8] {
        self.quote.get(..self.quoted.min(QUOTE)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_its_place() {
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
