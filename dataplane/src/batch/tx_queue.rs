//! What waits for one transmit socket, in order, as few messages as can be.
//!
//! Theory of operation: a *train* is datagrams to one peer that leave as one message, cut apart again by the kernel or
//! the network card (`UDP_SEGMENT`): all of one length, the last perhaps shorter. A datagram joins the latest train to
//! its peer, or begins a train behind all others. All packets of a flow go to one peer through one socket, so they leave
//! in the order in which they came, whatever else joins in between.

use std::net::SocketAddr;

use encap::{Ecn, Family};

use crate::limits::{GSO_BATCHES_SEARCHED, GSO_BYTES_V4, GSO_BYTES_V6, GSO_SEGMENTS};
use crate::now::Now;

/// Trains that wait for one transmit socket.
pub(crate) struct TxQueue {
    batches: Vec<GsoBatch>,
    /// Trains before this one went already.
    done: usize,
    /// Since when the socket takes nothing.
    pub(crate) held_since: Option<Now>,
    /// The latest datagram filled its train.
    filled: bool,
}

/// Datagrams that leave as one message, or one after the other when they are `apart`.
#[derive(Clone, Copy)]
pub(crate) struct GsoBatch {
    /// Outer destination.
    pub(crate) to: SocketAddr,
    /// Outer ECN codepoint.
    pub(crate) ecn: Ecn,
    /// Bytes of each datagram, except that the last may have fewer.
    pub(crate) size: usize,
    /// Datagrams.
    pub(crate) count: usize,
    /// Numbers of the first and last datagram; they are linked.
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// To be sent datagram by datagram.
    pub(crate) one_by_one: bool,
    /// Refused as a train, and none of its datagrams was refused since.
    pub(crate) gso_suspect: bool,
    bytes: usize,
    sealed: bool,
}

impl TxQueue {
    /// An empty queue with memory for as many trains as one batch can be; pages that none needed stay with the kernel.
    pub(super) fn new(batches: usize) -> TxQueue {
        TxQueue {
            batches: Vec::with_capacity(batches),
            done: 0,
            held_since: None,
            filled: false,
        }
    }

    /// Appends datagram number `number` of `len` bytes. Returns the number of the one that it follows in its train.
    pub(super) fn push(
        &mut self,
        number: u32,
        len: usize,
        to: SocketAddr,
        ecn: Ecn,
    ) -> Option<u32> {
        let waiting = self.batches.get_mut(self.done..).unwrap_or_default();
        let mut latest = waiting.iter_mut().rev().take(GSO_BATCHES_SEARCHED);
        if let Some(batch) = latest.find(|batch| batch.to == to)
            && batch.takes(len, ecn)
        {
            let before = batch.last;
            batch.last = number;
            batch.count += 1;
            batch.bytes += len;
            batch.sealed = len < batch.size;
            self.filled = !batch.sealed && !batch.takes(len, ecn);
            return Some(before);
        }
        self.filled = false;
        self.batches.push(GsoBatch {
            to,
            ecn,
            size: len,
            count: 1,
            first: number,
            last: number,
            one_by_one: false,
            gso_suspect: false,
            bytes: len,
            sealed: false,
        });
        None
    }

    /// Whether the latest datagram filled its train: another of the same length begins a new one.
    pub(crate) fn was_filled(&self) -> bool {
        self.filled
    }

    /// Trains that wait, oldest first.
    pub(crate) fn waiting(&self) -> &[GsoBatch] {
        self.batches.get(self.done..).unwrap_or_default()
    }

    /// Datagrams that wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting().iter().map(|batch| batch.count).sum()
    }

    /// The train to go next.
    pub(crate) fn front(&mut self) -> Option<&mut GsoBatch> {
        self.batches.get_mut(self.done)
    }

    /// The train to go next went, or has nothing left.
    pub(super) fn pop(&mut self) {
        self.done += 1;
    }

    /// No train is a train any more, and none takes another datagram.
    pub(crate) fn split_all(&mut self) {
        for batch in self.batches.iter_mut().skip(self.done) {
            batch.one_by_one = true;
            batch.sealed = true;
        }
    }

    /// Nothing joins what waits now.
    pub(super) fn seal(&mut self) {
        for batch in self.batches.iter_mut().skip(self.done) {
            batch.sealed = true;
        }
    }

    /// A mark for [`Queue::bring_forward`].
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// Moves what was appended since the queue had `before` trains to the front of those that wait.
    pub(super) fn bring_forward(&mut self, before: usize) {
        let appended = self.batches.len().saturating_sub(before);
        if let Some(waiting) = self.batches.get_mut(self.done..) {
            waiting.rotate_right(appended.min(waiting.len()));
        }
    }

    /// Forgets everything and returns how many datagrams waited.
    pub(crate) fn discard(&mut self) -> usize {
        let count = self.count();
        self.batches.clear();
        self.done = 0;
        self.held_since = None;
        self.filled = false;
        count
    }
}

impl GsoBatch {
    fn takes(&self, len: usize, ecn: Ecn) -> bool {
        let most = match Family::of(self.to.ip()) {
            Family::V4 => GSO_BYTES_V4,
            Family::V6 => GSO_BYTES_V6,
        };
        let bytes = self.bytes + len;
        !self.sealed
            && self.ecn == ecn
            && len <= self.size
            && self.count < GSO_SEGMENTS
            && bytes <= most
            // Kernels before 5.16 count the headers of the whole message too (udp_send_skb, fixed by 158390e45612).
            && bytes + HEADERS <= GSO_SEGMENTS * self.size
    }
}

/// Outer IPv6 and UDP headers of a message, bytes.
const HEADERS: usize = 40 + 8;

#[cfg(test)]
mod tests;
