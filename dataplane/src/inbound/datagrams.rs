//! The ranges of the datagrams in a received buffer.

use std::ops::Range;

use encap::{Format, pull};

/// The datagrams of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagrams {
    /// Bytes of the buffer.
    len: usize,
    /// Bytes of each datagram, the last may have fewer; at least 1.
    size: usize,
    /// The size at which a pod cut its own UDP super-packet, if the buffer is one.
    pub(crate) inner_segment: Option<u16>,
}

impl Datagrams {
    /// The datagrams of `buffer`, for which the kernel reports the segment size `segment`. That may be the size of inner
    /// segments: then the first inner packet spans the buffer, which is one datagram.
    pub(crate) fn of(format: Format, buffer: &[u8], segment: Option<u16>) -> Datagrams {
        let len = buffer.len();
        let whole = Datagrams {
            len,
            size: len.max(1),
            inner_segment: None,
        };
        match segment {
            Some(size) if !(1..len).contains(&usize::from(size)) => whole,
            Some(size) if pull::inner_span(buffer, format) != Some(len) => Datagrams {
                size: size.into(),
                ..whole
            },
            inner_segment => Datagrams {
                inner_segment,
                ..whole
            },
        }
    }

    /// How many there are, at least one: a datagram without payload is one.
    pub(crate) fn count(&self) -> usize {
        self.len.div_ceil(self.size).max(1)
    }

    /// Where each lies in the buffer.
    pub(crate) fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.count()).map(move |index| {
            let start = index * self.size;
            start..(start + self.size).min(self.len)
        })
    }
}
