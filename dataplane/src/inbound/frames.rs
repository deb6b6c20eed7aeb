//! The buffers that the packets of a batch lie in.

use std::ops::Range;

use encap::coalesce::FrameSlice;

use crate::batch::Frame;

/// Buffers to deliver from.
pub(crate) enum Frames<'a> {
    /// Of this worker alone: a packet may be rewritten in place.
    Own(&'a mut [Frame]),
    /// Other workers read other packets of them at the same time: read only.
    Shared(&'a [Frame]),
}

impl Frames<'_> {
    /// The bytes at `place`; none where the buffer ends before them.
    pub(super) fn at(&self, place: FrameSlice) -> &[u8] {
        let (start, len) = (place.start as usize, usize::from(place.len));
        self.bytes(place.frame.into(), start..start + len)
    }

    /// The bytes at `place`, to be rewritten; `None` where they must not be.
    pub(super) fn at_mut(&mut self, place: FrameSlice) -> Option<&mut [u8]> {
        let (start, len) = (place.start as usize, usize::from(place.len));
        self.bytes_mut(place.frame.into(), start..start + len)
    }

    /// Bytes of buffer number `frame`; none where the buffer ends before them.
    pub(super) fn bytes(&self, frame: usize, range: Range<usize>) -> &[u8] {
        let frames = match self {
            Frames::Own(frames) => frames,
            Frames::Shared(frames) => *frames,
        };
        let bytes = frames.get(frame).and_then(|frame| frame.get(range));
        bytes.unwrap_or_default()
    }

    /// Bytes of buffer number `frame`, to be rewritten; `None` where the buffers are shared.
    pub(super) fn bytes_mut(&mut self, frame: usize, range: Range<usize>) -> Option<&mut [u8]> {
        match self {
            Frames::Own(frames) => frames.get_mut(frame)?.get_mut(range),
            Frames::Shared(_) => None,
        }
    }
}
