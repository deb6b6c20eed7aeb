//! A received batch and its owners' shares of it.

use std::ops::Range;

use crate::batch::{InboundBatch, Meta};
use crate::limits::SHARE;

/// Buffers of one receive call, and the owner of each datagram in them.
pub(crate) struct SteeredBatch {
    pub(crate) received: InboundBatch,
    pub(crate) shares: Shares,
}

/// Lists of datagrams, by owner.
pub(crate) struct Shares(Vec<Vec<SteeredDatagram>>);

/// One datagram of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SteeredDatagram {
    /// Number of the buffer.
    pub(crate) frame: u16,
    /// Offset of its first byte there.
    start: u16,
    /// Bytes.
    len: u16,
    /// The size at which a pod cut its own UDP super-packet, if it is one; else 0.
    segment: u16,
}

impl SteeredBatch {
    /// Empty buffers and empty shares for `owners` workers.
    pub(super) fn new(owners: usize) -> SteeredBatch {
        let share = |_| Vec::with_capacity(SHARE);
        SteeredBatch {
            received: InboundBatch::new(),
            shares: Shares((0..owners).map(share).collect()),
        }
    }

    /// The metadata of buffer number `frame`.
    pub(crate) fn meta(&self, frame: u16) -> Option<&Meta> {
        self.received.metas.get(usize::from(frame))
    }
}

impl Shares {
    /// The datagrams of `owner`, in the order in which they were received.
    pub(crate) fn of(&self, owner: usize) -> &[SteeredDatagram] {
        let share = self.0.get(owner).map(Vec::as_slice);
        share.unwrap_or_default()
    }

    /// How many owners there can be.
    pub(super) fn owners(&self) -> usize {
        self.0.len()
    }

    /// Owners whose share is not empty, in their order.
    pub(super) fn present(&self) -> impl Iterator<Item = usize> {
        let shares = self.0.iter().enumerate();
        shares.filter_map(|(owner, share)| (!share.is_empty()).then_some(owner))
    }

    /// Empties all shares.
    pub(super) fn clear(&mut self) {
        self.0.iter_mut().for_each(Vec::clear);
    }

    /// Appends `part` to the share of `owner`, and returns whether there was room.
    pub(super) fn give(&mut self, owner: usize, part: SteeredDatagram) -> bool {
        let share = self.0.get_mut(owner);
        let Some(share) = share.filter(|share| share.len() < SHARE) else {
            return false;
        };
        share.push(part);
        true
    }
}

impl SteeredDatagram {
    /// The datagram at `range` of buffer number `frame`.
    pub(super) fn new(frame: usize, range: Range<usize>, segment: Option<u16>) -> SteeredDatagram {
        // Buffers are few, and a datagram's length and its place in one have 16 bits.
        SteeredDatagram {
            frame: frame as u16,
            start: range.start as u16,
            len: range.len() as u16,
            segment: segment.unwrap_or_default(),
        }
    }

    /// Where it lies in its buffer.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = usize::from(self.start);
        start..start + usize::from(self.len)
    }

    /// The size at which a pod cut its own UDP super-packet, if it is one.
    pub(crate) fn inner_segment(&self) -> Option<u16> {
        (self.segment > 0).then_some(self.segment)
    }
}
