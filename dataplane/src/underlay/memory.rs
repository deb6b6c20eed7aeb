//! An underlay of plain memory: a test or bench is the network between several of them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use encap::{Ecn, Format};

use super::{Failure, Outgoing, Port, Underlay};
use crate::batch::{InboundBatch, Meta};
use crate::families::PublicAddresses;

/// A datagram in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Outer source.
    pub from: SocketAddr,
    /// Outer destination.
    pub to: SocketAddr,
    /// Whose port it goes to.
    pub format: Format,
    /// Outer ECN codepoint.
    pub ecn: Ecn,
    /// The `UDP_GRO` mark that the receiver sees.
    pub segment: Option<u16>,
    /// The UDP payload.
    pub payload: Vec<u8>,
}

/// Queues of datagrams towards the worker, one per port, and one of what it sent.
pub struct Memory {
    /// Our addresses: there are the ports of their families. UDP port numbers are taken from the destination, as every
    /// node uses the same.
    pub public: PublicAddresses,
    /// Datagrams on their way to the worker, oldest first.
    pub to_worker: VecDeque<Datagram>,
    /// Datagrams that the worker sent, oldest first.
    pub sent: VecDeque<Datagram>,
    /// Reports that the worker has yet to read, each at the port towards the address that it speaks of.
    pub failures: VecDeque<(Format, Failure)>,
    /// Datagrams that still find room; `None` is without bound.
    pub room: Option<usize>,
    /// This port has no room at all.
    pub full: Option<Port>,
    /// Errors that the next sends meet, by `errno`.
    pub errors: VecDeque<i32>,
}

impl Memory {
    /// An empty underlay at `public`.
    pub fn new(public: PublicAddresses) -> Memory {
        Memory {
            public,
            to_worker: VecDeque::new(),
            sent: VecDeque::new(),
            failures: VecDeque::new(),
            room: None,
            full: None,
            errors: VecDeque::new(),
        }
    }
}

impl Underlay for Memory {
    fn receive(&mut self, port: Port, batch: &mut InboundBatch) -> io::Result<usize> {
        let mut count = 0;
        for (frame, meta) in batch.frames.iter_mut().zip(&mut batch.metas) {
            let comes = |d: &Datagram| Port::towards(d.to.ip(), d.format) == port;
            let Some(place) = self.to_worker.iter().position(comes) else {
                break;
            };
            let Some(datagram) = self.to_worker.remove(place) else {
                break;
            };
            for (to, from) in frame.iter_mut().zip(&datagram.payload) {
                *to = *from;
            }
            *meta = Meta {
                len: datagram.payload.len().min(frame.len()),
                source: datagram.from,
                ecn: datagram.ecn,
                segment: datagram.segment,
                truncated: datagram.payload.len() > frame.len(),
            };
            count += 1;
        }
        if count == 0 {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            Ok(count)
        }
    }

    fn send<'a>(
        &mut self,
        port: Port,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let Some(address) = self.public.of(port.family) else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        let mut count = 0;
        for datagram in datagrams {
            let refused = match (self.errors.pop_front(), self.room) {
                (Some(errno), _) => Some(io::Error::from_raw_os_error(errno)),
                (None, Some(0)) => Some(io::ErrorKind::WouldBlock.into()),
                (None, _) if self.full == Some(port) => Some(io::ErrorKind::WouldBlock.into()),
                (None, _) => None,
            };
            if let Some(error) = refused {
                return if count == 0 { Err(error) } else { Ok(count) };
            }
            self.room = self.room.map(|room| room - 1);
            self.sent.push_back(Datagram {
                from: SocketAddr::new(address, datagram.to.port()),
                to: datagram.to,
                format: port.format,
                ecn: datagram.ecn,
                segment: None,
                payload: datagram
                    .parts
                    .iter()
                    .flat_map(|part| part.iter().copied())
                    .collect(),
            });
            count += 1;
        }
        Ok(count)
    }

    fn failure(&mut self, port: Port) -> Option<Failure> {
        let here =
            |(format, failure): &(Format, Failure)| Port::towards(failure.to.ip(), *format) == port;
        let place = self.failures.iter().position(here)?;
        self.failures.remove(place).map(|(_, failure)| failure)
    }

    fn descriptor(&self, _port: Port) -> Option<RawFd> {
        None
    }
}
