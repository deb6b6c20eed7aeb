//! What a capture gets of the inbound stages: each datagram as it came, and each that is dropped.

use std::net::SocketAddr;
use std::ops::Range;

use encap::Format;
use encap::coalesce::{FrameSlice, Packet};

use super::{Datagram, Datagrams, Inbound, Writer};
use crate::batch::Meta;
use crate::capture::{Event, Stage};
use crate::drop_counts::Parties;
use crate::drops::{Direction, DropReason};
use crate::limits::FRAME;
use crate::peers::PeerId;
use crate::steer::{SteeredBatch, SteeredDatagram};

/// Datagrams of one flow in a row, of which the first shows.
struct Run<'a> {
    source: SocketAddr,
    first: &'a [u8],
    count: usize,
    bytes: usize,
}

impl<D> Inbound<'_, D> {
    /// Captures the datagrams of a buffer.
    pub(super) fn capture_received(
        &self,
        format: Format,
        meta: &Meta,
        bytes: &[u8],
        datagrams: &Datagrams,
    ) {
        if self.delivery.writer.tap.wants(Stage::Received) {
            let datagram = |range: Range<usize>| bytes.get(range).unwrap_or_default();
            let each = datagrams
                .ranges()
                .map(|range| (meta.source, datagram(range)));
            self.capture_runs(format, each);
        }
    }

    /// Captures the datagrams of a share, all of the `udp` format.
    pub(crate) fn capture_share(&self, batch: &SteeredBatch, share: &[SteeredDatagram]) {
        if self.delivery.writer.tap.wants(Stage::Received) {
            let each = share.iter().filter_map(|part| {
                let meta = batch.meta(part.frame).filter(|meta| !meta.truncated)?;
                let frame = batch.received.frames.get(usize::from(part.frame))?;
                Some((meta.source, frame.get(part.range())?))
            });
            self.capture_runs(Format::Udp, each);
        }
    }

    #[cold]
    fn capture_runs<'a>(
        &self,
        format: Format,
        datagrams: impl Iterator<Item = (SocketAddr, &'a [u8])>,
    ) {
        let mut run: Option<Run<'_>> = None;
        for (source, datagram) in datagrams {
            if let Some(run) = &mut run
                && run.source == source
                && is_of_one_flow(format, run.first, datagram)
            {
                run.count += 1;
                run.bytes += datagram.len();
                continue;
            }
            let next = Run {
                source,
                first: datagram,
                count: 1,
                bytes: datagram.len(),
            };
            if let Some(run) = run.replace(next) {
                self.capture_run(format, &run);
            }
        }
        if let Some(run) = run {
            self.capture_run(format, &run);
        }
    }

    fn capture_run(&self, format: Format, run: &Run<'_>) {
        let (outer, inner) = split(format, run.first);
        let event = Event {
            packets: run.count,
            total: Some(run.bytes),
            ..Event::received(format, run.source, outer)
        };
        let writer = &self.delivery.writer;
        writer
            .tap
            .offer(self.snapshot, &event, std::iter::once(inner));
    }

    /// Drops `packets` wire packets of `datagram`, which are of `of`.
    #[cold]
    pub(super) fn drop(
        &self,
        datagram: &Datagram,
        reason: DropReason,
        packets: usize,
        of: Parties<'_>,
    ) {
        self.tally
            .drop(Direction::Inbound, reason, packets as u64, of);
        let writer = &self.delivery.writer;
        if writer.tap.wants(Stage::Dropped) {
            let bytes = writer.frames.bytes(datagram.frame, datagram.range.clone());
            self.capture_drop(datagram.format, datagram.source, bytes, (reason, packets));
        }
    }

    /// Drops what did not fit its buffer.
    #[cold]
    pub(super) fn drop_truncated(&self, format: Format, frame: usize, meta: &Meta) {
        let reason = DropReason::Truncated;
        let peer = self.snapshot.cluster.peers.by_source(meta.source.ip());
        let of = self.snapshot.parties(peer.map(|(_, peer)| peer), None);
        self.tally.drop(Direction::Inbound, reason, 1, of);
        let writer = &self.delivery.writer;
        let bytes = writer.frames.bytes(frame, 0..meta.len.min(FRAME));
        if writer.tap.wants(Stage::Received) {
            let (outer, inner) = split(format, bytes);
            let event = Event::received(format, meta.source, outer);
            writer
                .tap
                .offer(self.snapshot, &event, std::iter::once(inner));
        }
        if writer.tap.wants(Stage::Dropped) {
            self.capture_drop(format, meta.source, bytes, (reason, 1));
        }
    }

    #[cold]
    fn capture_drop(
        &self,
        format: Format,
        source: SocketAddr,
        datagram: &[u8],
        (reason, packets): (DropReason, usize),
    ) {
        let (outer, inner) = split(format, datagram);
        let event = Event {
            remote: Some(source),
            format: Some(format),
            outer,
            ..Event::drop(Direction::Inbound, reason, packets)
        };
        let tap = self.delivery.writer.tap;
        tap.offer(self.snapshot, &event, std::iter::once(inner));
    }
}

impl<'a> Event<'a> {
    /// One datagram that came from `source`.
    pub(crate) fn received(format: Format, source: SocketAddr, outer: &'a [u8]) -> Event<'a> {
        Event {
            remote: Some(source),
            format: Some(format),
            outer,
            ..Event::inner(Stage::Received, Direction::Inbound, 1)
        }
    }
}

/// The headers of the format, and what lies behind them.
fn split(format: Format, datagram: &[u8]) -> (&[u8], &[u8]) {
    let headers = datagram.split_at_checked(format.header_len());
    headers.unwrap_or((datagram, &[]))
}

impl<D> Writer<'_, D> {
    /// Captures a packet of the coalescer that the device took.
    #[cold]
    pub(super) fn capture_gathered(&self, id: PeerId, packet: &Packet<'_>) {
        let event = Event {
            gso: packet.offload.cut.map_or(0, |cut| cut.size),
            is_unfinished: packet.offload.checksum.is_some(),
            remote: self.remote(id),
            ..Event::inner(Stage::Written, Direction::Inbound, packet.count)
        };
        let pieces = packet.pieces().map(|place| self.frames.at(place));
        let parts = std::iter::once(packet.header).chain(pieces);
        self.tap.offer(self.snapshot, &event, parts);
    }

    /// Captures a packet that the device took.
    #[cold]
    pub(super) fn capture_written(&self, id: PeerId, parts: [&[u8]; 2]) {
        let event = Event {
            remote: self.remote(id),
            ..Event::inner(Stage::Written, Direction::Inbound, 1)
        };
        self.tap.offer(self.snapshot, &event, parts.into_iter());
    }

    /// Captures what lies at `place` as dropped.
    #[cold]
    pub(super) fn capture_dropped(
        &self,
        id: PeerId,
        place: FrameSlice,
        reason: DropReason,
        packets: usize,
    ) {
        let event = Event {
            remote: self.remote(id),
            ..Event::drop(Direction::Inbound, reason, packets)
        };
        let packet = self.frames.at(place);
        self.tap
            .offer(self.snapshot, &event, std::iter::once(packet));
    }

    fn remote(&self, id: PeerId) -> Option<SocketAddr> {
        let peer = self.snapshot.cluster.peers.peer(id)?;
        Some(SocketAddr::new(peer.public.first(), 0))
    }
}

/// Whether two datagrams show the same inner addresses, protocol and ports where packets without options have them.
fn is_of_one_flow(format: Format, one: &[u8], other: &[u8]) -> bool {
    let ((_, one), (_, other)) = (split(format, one), split(format, other));
    let version = |packet: &[u8]| packet.first().map_or(0, |byte| byte >> 4);
    let places: &[Range<usize>] = match (version(one), version(other)) {
        (4, 4) => &[9..10, 12..24],
        (6, 6) => &[6..7, 8..44],
        _ => return false,
    };
    places.iter().all(|place| {
        let part = one.get(place.clone());
        part.is_some() && part == other.get(place.clone())
    })
}
