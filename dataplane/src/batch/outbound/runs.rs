//! The datagrams that wait as a capture shows them: those of one packet in one message together.

use std::net::SocketAddr;

use encap::Format;

use super::{Datagram, Head, OutboundBatch};
use crate::batch::tx_queue::TxQueue;
use crate::capture::{Event, Stage};
use crate::drops::Direction;
use crate::underlay::TxSlot;

/// Datagrams of one message that one packet from the device has become.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    /// Outer destination.
    pub(crate) to: SocketAddr,
    /// Datagrams.
    pub(crate) count: usize,
    /// Bytes of all of them.
    bytes: usize,
    /// The headers in front of the first one's inner packet.
    outer: &'a [u8],
    /// The first one's inner packet, in two parts.
    pub(crate) inner: [&'a [u8]; 2],
}

impl OutboundBatch {
    /// Gives `note` the runs of the first `messages` messages that wait for `slot`.
    pub(crate) fn each_run(&self, slot: TxSlot, messages: usize, mut note: impl FnMut(&Run<'_>)) {
        let queue = self.queues.get(slot.index());
        let waiting = queue.map(TxQueue::waiting).unwrap_or_default();
        let mut left = messages;
        for batch in waiting {
            let (mut number, mut count) = (batch.first, batch.count);
            while count > 0 && left > 0 {
                let together = if batch.one_by_one { 1 } else { count };
                number = self.runs_of_message(batch.to, number, together, &mut note);
                count -= together;
                left -= 1;
            }
        }
    }

    /// Those of a message of `count` datagrams, the first of which has that number. Returns the next one's.
    fn runs_of_message(
        &self,
        to: SocketAddr,
        mut number: u32,
        count: usize,
        note: &mut impl FnMut(&Run<'_>),
    ) -> u32 {
        let mut run: Option<(u16, Run<'_>)> = None;
        for _ in 0..count {
            let Some(datagram) = self.datagram(number) else {
                break;
            };
            number = datagram.next;
            let bytes = usize::from(datagram.head.len) + datagram.len as usize;
            match &mut run {
                Some((frame, run)) if *frame == datagram.frame => {
                    run.count += 1;
                    run.bytes += bytes;
                }
                _ => {
                    let next = Run {
                        to,
                        count: 1,
                        bytes,
                        outer: self.outer(datagram),
                        inner: self.parts(datagram),
                    };
                    if let Some((_, run)) = run.replace((datagram.frame, next)) {
                        note(&run);
                    }
                }
            }
        }
        if let Some((_, run)) = run {
            note(&run);
        }
        number
    }

    /// The inner packet of a datagram: what our headers hold of it, and what lies in its frame.
    pub(crate) fn parts(&self, datagram: &Datagram) -> [&[u8]; 2] {
        let Head { start, len, outer } = datagram.head;
        let (start, end) = (start as usize, start as usize + usize::from(len));
        let head = self.heads.get(start + usize::from(outer)..end);
        let payload = datagram.start as usize..(datagram.start + datagram.len) as usize;
        [
            head.unwrap_or_default(),
            self.bytes(datagram.frame.into(), payload),
        ]
    }

    fn outer(&self, datagram: &Datagram) -> &[u8] {
        let Head { start, outer, .. } = datagram.head;
        let start = start as usize;
        let outer = self.heads.get(start..start + usize::from(outer));
        outer.unwrap_or_default()
    }
}

impl<'a> Run<'a> {
    /// What happened to it at `stage`.
    pub(crate) fn event(&self, stage: Stage, format: Format) -> Event<'a> {
        Event {
            total: Some(self.bytes),
            remote: Some(self.to),
            format: Some(format),
            outer: self.outer,
            ..Event::inner(stage, Direction::Outbound, self.count)
        }
    }
}
