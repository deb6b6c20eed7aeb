//! An underlay of plain memory: a test or bench is the network between several of them.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use encap::{Ecn, Format};

use super::{ErrorReport, Outgoing, Port, Received, TxSlot, Underlay};
use crate::batch::{InboundBatch, Meta};
use crate::families::PublicAddresses;
use crate::now::Now;

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
    pub error_reports: VecDeque<(Format, ErrorReport)>,
    /// Datagrams that still find room; `None` is without bound. A message goes as a whole while there is any.
    pub room: Option<usize>,
    /// This port has no room at all.
    pub full: Option<Port>,
    /// Errors that the next messages meet, by `errno`.
    pub errors: VecDeque<i32>,
    /// Datagrams of more bytes of UDP payload meet `EMSGSIZE`.
    pub largest: Option<usize>,
    /// Whether the underlay says that it takes messages of several datagrams.
    pub takes_gso: bool,
    /// The error that all of them meet, by `errno`.
    pub gso_refusal: Option<i32>,
    /// How often the worker noted that the offload failed.
    pub offload_failures: usize,
    /// The outer source port of the first transmit socket for VXLAN, the others follow; without it all leaves from the
    /// port that it goes to.
    pub first_port: Option<u16>,
}

/// Which of `workers` workers gets `datagram`, as the kernel chooses in a group of sockets on one port
/// (`SO_REUSEPORT`): by the outer addresses and ports alone.
pub fn member(datagram: &Datagram, workers: usize) -> usize {
    let mut hasher = std::hash::DefaultHasher::new();
    (datagram.from, datagram.to).hash(&mut hasher);
    (hasher.finish() % workers.max(1) as u64) as usize
}

impl Memory {
    /// An empty underlay at `public`.
    pub fn new(public: PublicAddresses) -> Memory {
        Memory {
            public,
            to_worker: VecDeque::new(),
            sent: VecDeque::new(),
            error_reports: VecDeque::new(),
            room: None,
            full: None,
            errors: VecDeque::new(),
            largest: None,
            takes_gso: true,
            gso_refusal: None,
            offload_failures: 0,
            first_port: None,
        }
    }

    /// The outer source of what leaves through `slot` for `to`.
    fn source(&self, slot: TxSlot, to: SocketAddr) -> io::Result<SocketAddr> {
        let address = self.public.of(slot.port.family);
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let lane = |first| first + slot.lane as u16;
        let own = self.first_port.map(lane);
        let port = own.filter(|_| slot.port.format == Format::Vxlan);
        Ok(SocketAddr::new(address, port.unwrap_or(to.port())))
    }

    /// Why a message whose datagrams have up to `length` bytes is not taken.
    fn refusal(&mut self, slot: TxSlot, length: impl Fn() -> usize) -> Option<io::Error> {
        if let Some(errno) = self.errors.pop_front() {
            return Some(io::Error::from_raw_os_error(errno));
        }
        if self.room == Some(0) || self.full == Some(slot.port) {
            return Some(io::ErrorKind::WouldBlock.into());
        }
        let too_large = self.largest.is_some_and(|largest| length() > largest);
        too_large.then(|| io::Error::from_raw_os_error(libc::EMSGSIZE))
    }

    /// What the wire sees of `message`: as many datagrams as it is cut into.
    fn take(&mut self, from: SocketAddr, slot: TxSlot, message: Outgoing<'_>) {
        let pieces = message.pieces.map(|piece| piece.to_vec());
        let payload = pieces.collect::<Vec<_>>().concat();
        let size = message.segment.map_or(usize::MAX, usize::from);
        // A datagram without payload is one all the same.
        let count = payload.len().div_ceil(size).max(1);
        self.room = self.room.map(|room| room.saturating_sub(count));
        self.sent.extend((0..count).map(|index| Datagram {
            from,
            to: message.to,
            format: slot.port.format,
            ecn: message.ecn,
            segment: None,
            payload: payload.chunks(size).nth(index).unwrap_or_default().to_vec(),
        }));
    }
}

impl Underlay for Memory {
    fn receive(&mut self, port: Port, batch: &mut InboundBatch) -> io::Result<Received> {
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
            Ok(Received {
                buffers: count,
                emptied: count < batch.frames.len(),
            })
        }
    }

    fn send<'a>(
        &mut self,
        slot: TxSlot,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let mut count = 0;
        for message in messages {
            let source = self.source(slot, message.to)?;
            let length = || message.pieces.clone().map(|piece| piece.len()).sum();
            let length = || message.segment.map_or_else(length, usize::from);
            let batch = self.gso_refusal.filter(|_| message.segment.is_some());
            let refusal = self.refusal(slot, length);
            if let Some(error) = refusal.or_else(|| batch.map(io::Error::from_raw_os_error)) {
                return if count == 0 { Err(error) } else { Ok(count) };
            }
            self.take(source, slot, message);
            count += 1;
        }
        Ok(count)
    }

    fn send_single(&mut self, slot: TxSlot, to: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let from = self.source(slot, to)?;
        if let Some(error) = self.refusal(slot, || payload.len()) {
            return Err(error);
        }
        self.room = self.room.map(|room| room.saturating_sub(1));
        self.sent.push_back(Datagram {
            from,
            to,
            format: slot.port.format,
            ecn: Ecn::NotEct,
            segment: None,
            payload: payload.to_vec(),
        });
        Ok(())
    }

    fn takes_gso(&mut self, _slot: TxSlot, _now: Now) -> bool {
        self.takes_gso
    }

    fn offload_failed(&mut self, _slot: TxSlot, _now: Now) {
        self.offload_failures += 1;
    }

    fn error_report(&mut self, port: Port) -> Option<ErrorReport> {
        let here = |(format, failure): &(Format, ErrorReport)| {
            Port::towards(failure.to.ip(), *format) == port
        };
        let place = self.error_reports.iter().position(here)?;
        self.error_reports.remove(place).map(|(_, failure)| failure)
    }

    fn descriptor(&self, _port: Port) -> Option<RawFd> {
        None
    }

    fn tx_descriptor(&self, _slot: TxSlot) -> Option<RawFd> {
        None
    }
}
