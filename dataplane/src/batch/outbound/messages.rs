//! The datagrams that wait for the underlay, as messages for `sendmmsg`.

use std::io::IoSlice;

use super::{Head, OutboundBatch};
use crate::batch::tx_queue::{GsoBatch, TxQueue};
use crate::underlay::{Outgoing, TxSlot};

/// The pieces of one message, in order.
#[derive(Clone)]
pub struct Pieces<'a> {
    batch: &'a OutboundBatch,
    next: u32,
    left: usize,
    payload: Option<IoSlice<'a>>,
}

impl OutboundBatch {
    /// The messages that wait for `slot`, in order.
    pub(crate) fn messages(&self, slot: TxSlot) -> impl Iterator<Item = Outgoing<'_>> {
        let queue = self.queues.get(slot.index());
        let mut batches = queue.map(TxQueue::waiting).unwrap_or_default().iter();
        // The rest of a GSO batch that is sent datagram by datagram.
        let mut one_by_one: Option<GsoBatch> = None;
        std::iter::from_fn(move || {
            let mut batch = match one_by_one.take() {
                Some(batch) => batch,
                None => *batches.next()?,
            };
            let count = if batch.one_by_one { 1 } else { batch.count };
            let message = Outgoing {
                to: batch.to,
                ecn: batch.ecn,
                segment: (count > 1).then_some(batch.size as u16),
                pieces: Pieces {
                    batch: self,
                    next: batch.first,
                    left: count,
                    payload: None,
                },
            };
            if batch.count > count {
                batch.count -= count;
                batch.first = self.datagram(batch.first)?.next;
                one_by_one = Some(batch);
            }
            Some(message)
        })
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = IoSlice<'a>;

    fn next(&mut self) -> Option<IoSlice<'a>> {
        if let Some(payload) = self.payload.take() {
            return Some(payload);
        }
        self.left = self.left.checked_sub(1)?;
        let datagram = self.batch.datagram(self.next)?;
        self.next = datagram.next;
        let Head { start, len, .. } = datagram.head;
        let head = start as usize..start as usize + usize::from(len);
        let payload = datagram.start as usize..(datagram.start + datagram.len) as usize;
        let payload = IoSlice::new(self.batch.bytes(datagram.frame.into(), payload));
        if head.is_empty() {
            return Some(payload);
        }
        self.payload = Some(payload);
        Some(IoSlice::new(self.batch.heads.get(head).unwrap_or_default()))
    }
}
