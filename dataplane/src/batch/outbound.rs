//! Packets read from the device, and the datagrams made of them that still wait for the underlay.
//!
//! Theory of operation: a packet is read into a frame and stays there. The headers in front of the payload of each
//! datagram are written once into one buffer ([`Head`]s); a [`Datagram`] is such a head and a slice of a frame. It waits
//! in the [`TxQueue`] of its transmit socket, as part of a *GSO batch*: datagrams that leave as one message. All of it
//! is empty again when everything was sent or dropped, and nothing is read before that. Memory is allocated once, for
//! the most that one packet can become beside a full batch; the kernel provides only pages that are written.

mod messages;
mod runs;

use std::net::SocketAddr;
use std::ops::Range;

use encap::Ecn;
use encap::segment::{MAX_HEADER, MAX_SEGMENTS};

use super::tx_queue::TxQueue;
use super::{Frame, frames};
use crate::device::Read;
use crate::limits::{FRAME, INNER_START, OUTBOUND_BYTES, OUTBOUND_PACKETS, REMEMBERED_OF_MESSAGE};
use crate::sent::InnerStart;
use crate::underlay::TxSlot;

pub use messages::Pieces;

/// Packets read from the device, and the datagrams made of them that still wait for the underlay.
pub(crate) struct OutboundBatch {
    frames: Vec<Frame>,
    /// What was read into each frame.
    reads: Vec<Read>,
    heads: Vec<u8>,
    datagrams: Vec<Datagram>,
    /// The queue of each transmit socket, by [`TxSlot::index`].
    queues: Vec<TxQueue>,
    /// The queue of the latest datagram of the packet read last, by [`TxSlot::index`], if the packet became any.
    latest: Option<usize>,
}

/// One datagram for the underlay: headers of our making in front of a slice of a frame.
#[derive(Clone, Copy)]
pub(crate) struct Datagram {
    pub(crate) head: Head,
    /// The packet to walk again if the datagram is too large.
    pub(crate) retry: Retry,
    frame: u16,
    start: u32,
    len: u32,
    /// The number of the next datagram in its GSO batch, if it is not the last.
    next: u32,
}

/// Headers in the heads buffer.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    start: u32,
    len: u16,
    /// Bytes of it that do not belong to the inner packet.
    outer: u16,
}

/// The packet to walk again when the kernel refuses a datagram as too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The packet in that frame, or the wire packet of that number that it stands for.
    Packet {
        /// The frame.
        frame: u16,
        /// The wire packet.
        segment: u16,
    },
    /// No retry: it is a fragment, or was tried before.
    Never,
}

/// Datagrams of one GSO batch that were sent as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Outer destination.
    pub(crate) to: SocketAddr,
    /// Datagrams.
    pub(crate) count: usize,
    /// Inner bytes.
    pub(crate) bytes: usize,
    /// The kernel refused the batch as one message and took all of it datagram by datagram.
    pub(crate) gso_failed: bool,
}

impl OutboundBatch {
    pub(crate) fn new() -> OutboundBatch {
        let mut queues = Vec::new();
        queues.resize_with(TxSlot::COUNT, || TxQueue::new(DATAGRAMS));
        OutboundBatch {
            frames: frames(OUTBOUND_PACKETS + 1),
            reads: vec![Read::whole(0); OUTBOUND_PACKETS],
            heads: Vec::with_capacity(HEADS),
            datagrams: Vec::with_capacity(DATAGRAMS),
            queues,
            latest: None,
        }
    }

    /// Whether one more packet may be read: there is room for the most datagrams that it can become.
    pub(crate) fn has_room(&self) -> bool {
        self.takes(MAX_SEGMENTS + AGAIN, MAX_HEAD)
    }

    /// Whether there is room for `count` more datagrams with heads of `head` bytes each.
    pub(crate) fn takes(&self, count: usize, head: usize) -> bool {
        self.datagrams.len() + count <= DATAGRAMS && self.heads.len() + count * head <= HEADS
    }

    /// The frame to read packet number `number` into.
    pub(crate) fn frame(&mut self, number: usize) -> Option<&mut Frame> {
        self.frames
            .get_mut(number)
            .filter(|_| number < OUTBOUND_PACKETS)
    }

    /// Notes what was read into frame `number`.
    pub(crate) fn note(&mut self, number: usize, read: Read) {
        self.latest = None;
        if let Some(place) = self.reads.get_mut(number) {
            *place = read;
        }
    }

    /// Notes that the super-packet in frame `number` is cut into segments of `size` payload bytes, not as its sender
    /// asked.
    pub(crate) fn cut_at(&mut self, number: usize, size: u16) {
        let read = self.reads.get_mut(number);
        if let Some(cut) = read.and_then(|read| read.offload.cut.as_mut()) {
            cut.size = size;
        }
    }

    /// What was read into frame `number`.
    pub(crate) fn read(&self, number: usize) -> Read {
        self.reads
            .get(number)
            .copied()
            .unwrap_or_else(|| Read::whole(0))
    }

    /// Bytes of frame `number`.
    pub(crate) fn bytes(&self, number: usize, range: Range<usize>) -> &[u8] {
        self.frames
            .get(number)
            .and_then(|frame| frame.get(range))
            .unwrap_or_default()
    }

    /// Bytes of frame `number`, to change.
    pub(crate) fn bytes_mut(&mut self, number: usize, range: Range<usize>) -> &mut [u8] {
        self.frames
            .get_mut(number)
            .and_then(|frame| frame.get_mut(range))
            .unwrap_or_default()
    }

    /// Puts `outer`, and `inner` bytes that `write` fills from the packets' frames, at the end of the heads. `None` where
    /// there is no room or `write` fails.
    pub(crate) fn head(
        &mut self,
        outer: &[u8],
        inner: usize,
        write: impl FnOnce(&[Frame], &mut [u8]) -> Option<usize>,
    ) -> Option<Head> {
        let start = self.heads.len();
        let len = outer.len() + inner;
        if start + len > HEADS {
            return None;
        }
        self.heads.extend_from_slice(outer);
        self.heads.resize(start + len, 0);
        let place = self.heads.get_mut(start + outer.len()..)?;
        if write(&self.frames, place) != Some(inner) {
            self.heads.truncate(start);
            return None;
        }
        Some(Head {
            start: start as u32,
            len: len as u16,
            outer: outer.len() as u16,
        })
    }

    /// Appends the datagram `[head][payload]`, whose payload lies in frame `frame`, to the queue of `slot`. Returns whether
    /// there was room.
    pub(crate) fn push(
        &mut self,
        slot: TxSlot,
        (to, ecn): (SocketAddr, Ecn),
        head: Head,
        (frame, payload): (usize, Range<usize>),
        retry: Retry,
    ) -> bool {
        let number = self.datagrams.len();
        let Some(queue) = self
            .queues
            .get_mut(slot.index())
            .filter(|_| number < DATAGRAMS)
        else {
            return false;
        };
        self.latest = Some(slot.index());
        let len = usize::from(head.len) + payload.len();
        let before = queue.push(number as u32, len, to, ecn);
        if let Some(before) = before.and_then(|number| self.datagrams.get_mut(number as usize)) {
            before.next = number as u32;
        }
        self.datagrams.push(Datagram {
            head,
            retry,
            frame: frame as u16,
            start: payload.start as u32,
            len: payload.len() as u32,
            next: 0,
        });
        true
    }

    /// Copies `head` and a slice of a frame to lie one behind the other, where nothing that waits lies: the number of the
    /// frame, and the range. `None` where they are more than one packet can be.
    pub(crate) fn join(
        &mut self,
        head: &[u8],
        frame: usize,
        payload: Range<usize>,
    ) -> Option<(usize, Range<usize>)> {
        let (from, to) = self.frames.split_at_mut_checked(OUTBOUND_PACKETS)?;
        let from = from.get(frame)?.get(payload)?;
        let len = head.len() + from.len();
        let place = to.first_mut()?.get_mut(..len)?;
        let (first, second) = place.split_at_mut_checked(head.len())?;
        first.copy_from_slice(head);
        second.copy_from_slice(from);
        Some((OUTBOUND_PACKETS, 0..len))
    }

    /// The queue of `slot`.
    pub(crate) fn queue(&mut self, slot: TxSlot) -> Option<&mut TxQueue> {
        self.queues.get_mut(slot.index())
    }

    /// All queues, by [`TxSlot::index`].
    pub(crate) fn queues(&self) -> &[TxQueue] {
        &self.queues
    }

    /// Datagrams that wait.
    pub(crate) fn count(&self) -> usize {
        self.queues.iter().map(TxQueue::count).sum()
    }

    /// Whether the packet read last filled a GSO batch.
    pub(crate) fn filled_gso_batch(&self) -> bool {
        let queue = self.latest.and_then(|index| self.queues.get(index));
        queue.is_some_and(TxQueue::was_filled)
    }

    /// Empties the batch; the frames are free again.
    pub(crate) fn clear(&mut self) {
        for queue in &mut self.queues {
            queue.discard();
        }
        self.heads.clear();
        self.datagrams.clear();
    }

    /// Removes the front message of `slot`, which was sent. Gives `note` the destination of its first datagrams, and how
    /// their inner packets begin, if these have more than `least` bytes.
    pub(crate) fn mark_sent(
        &mut self,
        slot: TxSlot,
        least: usize,
        mut note: impl FnMut(SocketAddr, &InnerStart),
    ) -> Option<Sent> {
        let queue = self.queues.get_mut(slot.index())?;
        let batch = queue.front()?;
        let (to, gso_suspect) = (batch.to, batch.gso_suspect);
        let count = if batch.one_by_one { 1 } else { batch.count };
        let (mut bytes, mut number) = (0, batch.first);
        for place in 0..count {
            let datagram = self.datagrams.get(number as usize)?;
            bytes += datagram.inner();
            if place < REMEMBERED_OF_MESSAGE
                && datagram.inner() > least
                && let Some(start) = datagram.inner_start(&self.heads, &self.frames)
            {
                note(to, &start);
            }
            number = datagram.next;
        }
        batch.first = number;
        batch.count -= count;
        let all = batch.count == 0;
        if all {
            queue.pop();
        }
        Some(Sent {
            to,
            count,
            bytes,
            gso_failed: all && gso_suspect,
        })
    }

    /// Removes the first datagram that waits for `slot`: the kernel refused that very datagram. Returns its destination too.
    pub(crate) fn take_first(&mut self, slot: TxSlot) -> Option<(Datagram, SocketAddr)> {
        let queue = self.queues.get_mut(slot.index())?;
        let batch = queue.front()?;
        let datagram = *self.datagrams.get(batch.first as usize)?;
        let to = batch.to;
        batch.first = datagram.next;
        batch.count -= 1;
        batch.gso_suspect = false;
        if batch.count == 0 {
            queue.pop();
        }
        Some((datagram, to))
    }

    /// Has `push` add datagrams for `slot` in front of those that wait there, not behind them: the packets of a flow keep
    /// their order when one of them is walked again.
    pub(crate) fn in_front<T>(
        &mut self,
        slot: TxSlot,
        push: impl FnOnce(&mut OutboundBatch) -> T,
    ) -> T {
        let before = self.queue(slot).map_or(0, |queue| {
            queue.seal();
            queue.len()
        });
        let result = push(self);
        if let Some(queue) = self.queue(slot) {
            queue.bring_forward(before);
        }
        result
    }

    fn datagram(&self, number: u32) -> Option<&Datagram> {
        self.datagrams.get(number as usize)
    }
}

impl Datagram {
    /// Bytes of the inner packet.
    fn inner(&self) -> usize {
        usize::from(self.head.len - self.head.outer) + self.len as usize
    }

    /// The first bytes of the inner packet, from the head on into the frame; `None` of a packet that has fewer.
    fn inner_start(&self, heads: &[u8], frames: &[Frame]) -> Option<InnerStart> {
        let Head { start, len, outer } = self.head;
        let (start, end) = (start as usize, start as usize + usize::from(len));
        let head = heads.get(start + usize::from(outer)..end)?;
        let frame = frames.get(usize::from(self.frame))?;
        let payload = frame.get(self.start as usize..(self.start + self.len) as usize)?;
        let mut bytes = [0; INNER_START];
        if let Some(head) = head.first_chunk() {
            bytes = *head;
        } else if head.is_empty() {
            bytes = *payload.first_chunk()?;
        } else {
            let (front, back) = bytes.split_at_mut_checked(head.len())?;
            front.copy_from_slice(head);
            back.copy_from_slice(payload.get(..back.len())?);
        }
        Some(bytes)
    }
}

/// Datagrams that packets can become when they are read: what one can become beside as many of others.
const READ: usize = 2 * MAX_SEGMENTS;

/// Datagrams that those can become when the kernel refuses them as too large and they are walked again, once each: another for each, and
/// fragments of 512 bytes and more (RFC 791 demands 576 of every path) of all that was read. Half of that allows for
/// headers.
const AGAIN: usize = READ + (OUTBOUND_BYTES + FRAME) / 256;

/// Datagrams that there is memory for. So there is always room for one more until all were sent.
const DATAGRAMS: usize = READ + AGAIN;

/// Bytes of a head at most: VXLAN, Ethernet, and the inner packet's own headers.
const MAX_HEAD: usize = 22 + MAX_HEADER;

/// Bytes of heads that there is memory for.
const HEADS: usize = DATAGRAMS * MAX_HEAD;
