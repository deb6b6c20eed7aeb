//! The datagrams that wait for one transmit socket, in order, as few messages as possible.
//!
//! Theory of operation: a *GSO batch* is a run of datagrams to one peer that leave as one message, which the kernel or
//! the network card cuts apart again (`UDP_SEGMENT`): all of one length, the last may be shorter. A datagram joins the
//! latest GSO batch to its peer, or begins a new one at the end of the queue. All packets of a flow go to one peer
//! through one socket, so they leave in the order in which they came, whatever other datagrams join in between.

use std::net::SocketAddr;

use encap::{Ecn, Family};

use crate::limits::{GSO_BATCHES_SEARCHED, GSO_BYTES_V4, GSO_BYTES_V6, GSO_SEGMENTS};
use crate::now::Now;

/// The GSO batches that wait for one transmit socket.
pub(crate) struct TxQueue {
    batches: Vec<GsoBatch>,
    /// Number of the first batch that was not sent yet.
    done: usize,
    /// Since when the socket has been full.
    pub(crate) held_since: Option<Now>,
    /// The latest datagram filled its batch.
    filled: bool,
}

/// Datagrams that leave as one message, or as one message each where `one_by_one` is set.
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
    /// Each datagram is sent as a message of its own.
    pub(crate) one_by_one: bool,
    /// The kernel refused it as one message, and has refused none of its datagrams since.
    pub(crate) gso_suspect: bool,
    bytes: usize,
    sealed: bool,
}

impl TxQueue {
    /// An empty queue with memory for as many GSO batches as one outbound batch can become; the kernel allocates only pages
    /// that are written.
    pub(super) fn new(batches: usize) -> TxQueue {
        TxQueue {
            batches: Vec::with_capacity(batches),
            done: 0,
            held_since: None,
            filled: false,
        }
    }

    /// Appends datagram number `number` of `len` bytes. Returns the number of the datagram that it follows in its GSO batch.
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

    /// Whether the latest datagram filled its batch: another of the same length begins a new one.
    pub(crate) fn was_filled(&self) -> bool {
        self.filled
    }

    /// The batches that wait, oldest first.
    pub(crate) fn waiting(&self) -> &[GsoBatch] {
        self.batches.get(self.done..).unwrap_or_default()
    }

    /// Datagrams that wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting().iter().map(|batch| batch.count).sum()
    }

    /// The batch to be sent next.
    pub(crate) fn front(&mut self) -> Option<&mut GsoBatch> {
        self.batches.get_mut(self.done)
    }

    /// Removes the front batch: all of it was sent or dropped.
    pub(super) fn pop(&mut self) {
        self.done += 1;
    }

    /// Has every batch sent datagram by datagram, and lets no datagram join.
    pub(crate) fn split_all(&mut self) {
        for batch in self.batches.iter_mut().skip(self.done) {
            batch.one_by_one = true;
            batch.sealed = true;
        }
    }

    /// Lets no datagram join a batch that waits now.
    pub(super) fn seal(&mut self) {
        for batch in self.batches.iter_mut().skip(self.done) {
            batch.sealed = true;
        }
    }

    /// A mark for [`Queue::bring_forward`].
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// Moves the batches appended since the queue had `before` of them to the front of those that wait.
    pub(super) fn bring_forward(&mut self, before: usize) {
        let appended = self.batches.len().saturating_sub(before);
        if let Some(waiting) = self.batches.get_mut(self.done..) {
            waiting.rotate_right(appended.min(waiting.len()));
        }
    }

    /// Empties the queue and returns how many datagrams waited.
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
