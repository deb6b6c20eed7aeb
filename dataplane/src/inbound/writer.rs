//! Writes packets to the device, counts them, and detects offloads that fail.
//!
//! The kernel can refuse a write with an offload because the packet is bad or because it does not support the offload
//! that it granted. So after `EINVAL` or `EIO` the same wire packets are written finished and one by one. If the kernel
//! takes all of them, the offload was at fault, and [`Device::offload_failed`] is called.

use std::io::{self, IoSlice};

use encap::checksum;
use encap::coalesce::{FrameSlice, Packet};
use encap::inner::Inner;
use encap::segment::{self, MAX_HEADER, SegmentPlan};
use encap::transport::{self, ChecksumState};

use super::frames::Frames;
use crate::capture::{Stage, Tap};
use crate::counters::Tally;
use crate::device::{Device, Offload};
use crate::drop_counts::addresses;
use crate::drops::{Direction, DropReason};
use crate::limits::PIECES;
use crate::now::Now;
use crate::peers::PeerId;
use crate::snapshot::Snapshot;

/// What writing needs.
pub(crate) struct Writer<'a, D> {
    pub(crate) device: &'a mut D,
    pub(crate) frames: Frames<'a>,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) tally: &'a Tally,
    pub(crate) tap: &'a Tap,
    pub(crate) now: Now,
    /// A write showed that the device is gone.
    pub(crate) device_lost: bool,
}

impl<D: Device> Writer<'_, D> {
    /// The bytes at `place`.
    pub(super) fn bytes(&self, place: FrameSlice) -> &[u8] {
        self.frames.at(place)
    }

    /// Writes a packet of the coalescer.
    pub(super) fn gathered(&mut self, packet: &Packet<'_>) {
        let id = PeerId(packet.owner);
        match self.write_gathered(packet) {
            Ok(()) => {
                self.delivered(id, packet.count, packet.bytes);
                if self.tap.wants(Stage::Written) {
                    self.capture_gathered(id, packet);
                }
            }
            Err(error) if may_be_offload(&error, packet.offload) => self.replay(id, packet),
            Err(_) => {
                // A packet of the coalescer has at least one piece.
                if let Some(first) = packet.packets().next() {
                    self.drop(id, first, DropReason::DeviceRefused, packet.count);
                }
            }
        }
    }

    /// Writes a single packet, its checksum finished, and returns whether it was taken.
    pub(super) fn finished(
        &mut self,
        id: PeerId,
        place: FrameSlice,
        inner: &Inner,
        verdict: ChecksumState,
    ) -> bool {
        let packet = self.frames.at(place);
        let written = match verdict {
            ChecksumState::Partial { start, offset } => {
                // The bytes stay as they are: other workers may be reading around them.
                let (before, checksum, after) = finish(packet, start, offset);
                let parts = [before, &checksum, after].map(IoSlice::new);
                self.device.write(Offload::NONE, &parts)
            }
            _ => self.device.write(Offload::NONE, &[IoSlice::new(packet)]),
        };
        let is_taken = self.account(id, place, written, inner.len);
        if is_taken && self.tap.wants(Stage::Written) {
            self.capture_written(id, [self.frames.at(place), &[]]);
        }
        is_taken
    }

    /// Writes the wire packets of a super-packet, and returns how many the device took.
    pub(super) fn cut(&mut self, id: PeerId, place: FrameSlice, plan: &SegmentPlan) -> usize {
        let Some(headers) = plan.headers(self.bytes(place)) else {
            self.drop(id, place, DropReason::BadSuperPacket, plan.count());
            return 0;
        };
        let mut header = [0; MAX_HEADER];
        let mut taken = 0;
        for index in 0..plan.count() {
            let packet = self.frames.at(place);
            let length = headers
                .write(packet, index, &mut header)
                .unwrap_or_default();
            let header = header.get(..length).unwrap_or_default();
            let payload = packet.get(plan.payload(index)).unwrap_or_default();
            let parts = [IoSlice::new(header), IoSlice::new(payload)];
            let written = self.device.write(Offload::NONE, &parts);
            let length = header.len() + payload.len();
            let is_taken = self.account(id, place, written, length);
            if is_taken && self.tap.wants(Stage::Written) {
                let payload = self.frames.at(place).get(plan.payload(index));
                self.capture_written(id, [header, payload.unwrap_or_default()]);
            }
            taken += usize::from(is_taken);
        }
        taken
    }

    /// Counts `packets` dropped packets of what lies at `place`.
    #[cold]
    pub(super) fn drop(&self, id: PeerId, place: FrameSlice, reason: DropReason, packets: usize) {
        let peer = self.snapshot.cluster.peers.peer(id);
        let destination = addresses(self.bytes(place)).map(|(_, destination)| destination);
        let of = self.snapshot.parties(peer, destination);
        self.tally
            .drop(Direction::Inbound, reason, packets as u64, of);
        if self.tap.wants(Stage::Dropped) {
            self.capture_dropped(id, place, reason, packets);
        }
    }

    fn write_gathered(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let mut pieces = packet.pieces();
        let first = pieces.next().map_or(&[][..], |place| self.frames.at(place));
        let written = if packet.header.is_empty() {
            self.device.write(packet.offload, &[IoSlice::new(first)])
        } else {
            let mut parts = [IoSlice::new(&[]); PIECES];
            let slices = [packet.header, first].into_iter();
            let slices = slices.chain(pieces.map(|place| self.frames.at(place)));
            for (part, slice) in parts.iter_mut().zip(slices) {
                *part = IoSlice::new(slice);
            }
            let count = packet.count + 1;
            self.device
                .write(packet.offload, parts.get(..count).unwrap_or_default())
        };
        if let Err(error) = &written {
            self.note_loss(error);
        }
        written
    }

    /// Writes the wire packets of a refused packet one by one.
    fn replay(&mut self, id: PeerId, packet: &Packet<'_>) {
        // A super-packet that came as one is cut now; coalesced packets are wire packets already.
        let size = packet.offload.cut.map(|cut| cut.size);
        let size = size.filter(|_| packet.header.is_empty());
        let mut taken = 0;
        for place in packet.packets() {
            taken += match self.replay_at(id, place, size) {
                Some(taken) => taken,
                None => {
                    let packets = size.map_or(1, |_| packet.count);
                    self.drop(id, place, DropReason::DeviceRefused, packets);
                    0
                }
            };
        }
        if taken == packet.count {
            self.device.offload_failed(packet.offload, self.now);
        }
    }

    /// Writes the packet at `place`, cut at `size` payload bytes if it is a super-packet; returns how many the device took.
    fn replay_at(&mut self, id: PeerId, place: FrameSlice, size: Option<u16>) -> Option<usize> {
        let packet = self.bytes(place);
        let inner = Inner::parse(packet).ok()?;
        let Some(size) = size else {
            let verdict = transport::checksum_state(packet, &inner);
            return Some(self.finished(id, place, &inner, verdict).into());
        };
        let plan = segment::plan(packet, &inner, size).ok()?;
        Some(self.cut(id, place, &plan))
    }

    fn account(
        &mut self,
        id: PeerId,
        place: FrameSlice,
        written: io::Result<()>,
        bytes: usize,
    ) -> bool {
        match written {
            Ok(()) => self.delivered(id, 1, bytes),
            Err(ref error) => {
                self.note_loss(error);
                self.drop(id, place, DropReason::DeviceRefused, 1);
            }
        }
        written.is_ok()
    }

    fn delivered(&self, id: PeerId, packets: usize, bytes: usize) {
        self.tally.deliver(Direction::Inbound, packets);
        if let Some(peer) = self.snapshot.cluster.peers.peer(id) {
            peer.count_received(packets, bytes);
        }
    }

    fn note_loss(&mut self, error: &io::Error) {
        self.device_lost |= error.raw_os_error() == Some(libc::EBADFD);
    }
}

/// `packet` in front of its unfinished checksum, the finished checksum, and the packet behind it.
fn finish(packet: &[u8], start: usize, offset: usize) -> (&[u8], [u8; 2], &[u8]) {
    // They cannot be out of bounds: the field was found by reading there.
    let (before, rest) = packet
        .split_at_checked(start + offset)
        .unwrap_or((packet, &[]));
    let checksum = checksum::finished(packet, start);
    let after = rest.get(checksum.len()..).unwrap_or_default();
    (before, checksum, after)
}

/// Whether `error` of a write may be due to its offload.
fn may_be_offload(error: &io::Error, offload: Offload) -> bool {
    let reason = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIO));
    reason && offload != Offload::NONE
}
