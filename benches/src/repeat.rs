//! A device and an underlay of memory that cost next to nothing: they hand the same packet over again and again, and
//! count what they are given without looking at it.
//!
//! Theory of operation: a kernel's work is not the engine's, so no payload is copied here. What was handed over in a
//! buffer before still lies there, as the engine writes into headers alone: only those are put there anew
//! (so many bytes as there are of them, wherever a datagram begins).

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::RawFd;

use dataplane::batch::{InboundBatch, Meta};
use dataplane::counters::Counters;
use dataplane::device::{self, Content, Offload, Offloads, Read};
use dataplane::limits::{FRAME, INBOUND_BUFFERS};
use dataplane::now::Now;
use dataplane::sent::SentDatagrams;
use dataplane::snapshot::Snapshot;
use dataplane::underlay::{self, ErrorReport, Outgoing, Port, Received, TxSlot};
use dataplane::worker::{Next, Source};
use encap::{Ecn, Family, Format, push};

use crate::cluster;
use crate::packets::{IN, OUT, Shape};

/// A device on which the same packet waits `waiting` times.
pub struct Device {
    /// How often it still waits.
    pub waiting: usize,
    /// Packets written, super-packets as one.
    pub writes: usize,
    /// Bytes written.
    pub bytes: usize,
    offload: Offload,
    packet: Copies,
}

/// An underlay where the same datagrams wait `waiting` times.
pub struct Underlay {
    /// How often they still wait.
    pub waiting: usize,
    /// Datagrams sent.
    pub sent: usize,
    /// Bytes of them.
    pub bytes: usize,
    port: Port,
    from: SocketAddr,
    /// Bytes of each datagram in a buffer, if there are several.
    segment: Option<u16>,
    /// One buffer for each flow, in turn.
    buffers: Vec<Copies>,
    turn: usize,
}

/// The bytes of a packet, and which buffers hold them already.
struct Copies {
    bytes: Vec<u8>,
    /// Bytes from one header to the next.
    every: usize,
    /// Where those buffers lie.
    known: Vec<usize>,
}

/// A worker, and what counts its packets.
pub type Worker = dataplane::worker::Worker<Device, Underlay>;

/// Worker `index` on `counters` whose pod sends super-packets of `shape`, or single packets where it has one.
pub fn sender(shape: Shape, counters: &Counters, index: usize) -> Worker {
    let (offload, bytes) = shape.handed_over(OUT);
    let underlay = Underlay::new(Format::Udp, None, Vec::new());
    let device = Device::new(offload, bytes);
    Worker::new(device, underlay, counters, index, remembered())
}

/// Worker `index` on `counters` to which node 2 sends `flows` flows of `shape` in turn, in buffers as `UDP_GRO` makes them:
/// all of the shape in one.
pub fn receiver(
    shape: Shape,
    flows: u16,
    format: Format,
    counters: &Counters,
    index: usize,
) -> Worker {
    let outer = match format {
        Format::Udp => vec![],
        Format::Vxlan => push::vxlan(cluster::vni(), cluster::PEERS_MAC, cluster::MAC, Family::V4)
            .as_slice()
            .to_vec(),
    };
    let datagrams = |flow| {
        let packets = shape.stream(IN, flow).into_iter();
        packets.map(|packet| [outer.as_slice(), &packet].concat())
    };
    let size = datagrams(0).next().map(|first| first.len() as u16);
    let buffers = (0..flows).map(|flow| datagrams(flow).collect::<Vec<_>>().concat());
    let underlay = Underlay::new(format, size.filter(|_| shape.count > 1), buffers.collect());
    Worker::new(
        Device::new(Offload::NONE, Vec::new()),
        underlay,
        counters,
        index,
        remembered(),
    )
}

/// What a worker alone remembers of what it sent.
fn remembered() -> SentDatagrams {
    SentDatagrams::group(1, 0).remove(0)
}

/// Has a [`sender`] or [`receiver`] carry what it repeats `times` times, until it rests.
pub fn carry(worker: &mut Worker, snapshot: &Snapshot, times: usize) {
    if worker.underlay_mut().buffers.is_empty() {
        worker.device_mut().waiting = times;
        worker.wake(Source::Device);
    } else {
        worker.underlay_mut().waiting = times;
        let port = worker.underlay_mut().port;
        worker.wake(Source::Port(port));
    }
    while worker.step(snapshot, Now(0)) == Next::Now {}
}

impl Device {
    fn new(offload: Offload, packet: Vec<u8>) -> Device {
        Device {
            waiting: 0,
            writes: 0,
            bytes: 0,
            offload,
            packet: Copies::new(packet, FRAME),
        }
    }
}

impl device::Device for Device {
    fn read(&mut self, frame: &mut [u8; FRAME]) -> io::Result<Read> {
        self.waiting = self.waiting.checked_sub(1).ok_or(WOULD_BLOCK)?;
        self.packet.put(frame);
        Ok(Read {
            len: self.packet.bytes.len(),
            offload: self.offload,
            content: Content::Ip,
        })
    }

    fn write(&mut self, _offload: Offload, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.writes += 1;
        self.bytes += parts.iter().map(|part| part.len()).sum::<usize>();
        Ok(())
    }

    fn offloads(&mut self, _now: Now) -> Offloads {
        Offloads {
            checksum: true,
            tcp: true,
            udp: true,
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }
}

impl Underlay {
    fn new(format: Format, segment: Option<u16>, buffers: Vec<Vec<u8>>) -> Underlay {
        let every = segment.map_or(FRAME, usize::from);
        Underlay {
            waiting: 0,
            sent: 0,
            bytes: 0,
            port: Port::new(format, Family::V4),
            from: SocketAddr::new(cluster::public(2), cluster::port(format)),
            segment,
            buffers: buffers
                .into_iter()
                .map(|bytes| Copies::new(bytes, every))
                .collect(),
            turn: 0,
        }
    }
}

impl underlay::Underlay for Underlay {
    fn receive(&mut self, port: Port, batch: &mut InboundBatch) -> io::Result<Received> {
        if port != self.port || self.waiting == 0 {
            return Err(WOULD_BLOCK.into());
        }
        let count = self.waiting.min(INBOUND_BUFFERS);
        self.waiting -= count;
        for (frame, meta) in batch.frames.iter_mut().zip(&mut batch.metas).take(count) {
            let flows = self.buffers.len();
            let buffer = &mut self.buffers[self.turn % flows];
            self.turn += 1;
            buffer.put(frame);
            *meta = Meta {
                len: buffer.bytes.len(),
                source: self.from,
                ecn: Ecn::NotEct,
                segment: self.segment,
                truncated: false,
            };
        }
        Ok(Received {
            buffers: count,
            emptied: count < INBOUND_BUFFERS,
        })
    }

    fn send<'a>(
        &mut self,
        _exit: TxSlot,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let mut count = 0;
        for message in messages {
            let bytes: usize = message.pieces.map(|piece| piece.len()).sum();
            let each = message.segment.map_or(bytes, usize::from);
            self.sent += bytes.div_ceil(each.max(1));
            self.bytes += bytes;
            count += 1;
        }
        Ok(count)
    }

    fn send_single(&mut self, _exit: TxSlot, _to: SocketAddr, payload: &[u8]) -> io::Result<()> {
        self.sent += 1;
        self.bytes += payload.len();
        Ok(())
    }

    fn takes_gso(&mut self, _exit: TxSlot, _now: Now) -> bool {
        true
    }

    fn error_report(&mut self, _port: Port) -> Option<ErrorReport> {
        None
    }

    fn descriptor(&self, _port: Port) -> Option<RawFd> {
        None
    }

    fn tx_descriptor(&self, _exit: TxSlot) -> Option<RawFd> {
        None
    }
}

impl Copies {
    fn new(bytes: Vec<u8>, every: usize) -> Copies {
        Copies {
            bytes,
            every,
            known: Vec::new(),
        }
    }

    fn put(&mut self, frame: &mut [u8; FRAME]) {
        let place = frame.as_ptr().addr();
        if self.bytes.len() <= SHORT {
            frame[..self.bytes.len()].copy_from_slice(&self.bytes);
            return;
        }
        if !self.known.contains(&place) {
            frame[..self.bytes.len()].copy_from_slice(&self.bytes);
            self.known.push(place);
            return;
        }
        for start in (0..self.bytes.len()).step_by(self.every) {
            let end = self.bytes.len().min(start + HEADERS);
            frame[start..end].copy_from_slice(&self.bytes[start..end]);
        }
    }
}

/// Bytes from the start of a datagram that the engine may write to.
const HEADERS: usize = 128;
/// Packets of no more bytes are copied whole.
const SHORT: usize = 256;

const WOULD_BLOCK: io::ErrorKind = io::ErrorKind::WouldBlock;
