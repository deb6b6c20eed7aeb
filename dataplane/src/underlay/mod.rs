//! How datagrams travel between nodes.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::RawFd;

use encap::{Ecn, Format};

use crate::batch::InboundBatch;
use crate::limits::QUOTE;

pub mod memory;
pub mod socket;

/// The UDP side of a worker: one port per format. Never blocks.
pub trait Underlay {
    /// Receives up to one batch of buffers that came to the port of `format`.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is queued. Any other error belongs to an earlier send.
    fn receive(&mut self, format: Format, batch: &mut InboundBatch) -> io::Result<usize>;

    /// Sends datagrams of one format in order until one is refused, and returns how many went.
    ///
    /// # Errors
    /// Only if the first was refused: `WouldBlock` or `ENOBUFS` when there is no room, else the kernel's reason, which
    /// may belong to an earlier send.
    fn send<'a>(
        &mut self,
        format: Format,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize>;

    /// The next report about a datagram that we sent earlier, if there is one.
    fn failure(&mut self, format: Format) -> Option<Failure>;

    /// The descriptor of the port of `format`, if there is one.
    fn descriptor(&self, format: Format) -> Option<RawFd>;
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
