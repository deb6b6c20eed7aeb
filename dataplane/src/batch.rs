//! The buffers of a worker: all memory that packets ever lie in, allocated once at the start.
//!
//! Theory of operation: a worker owns one [`OutboundBatch`] and one [`InboundBatch`]. Outbound frames are filled from
//! the device and stay untouched until every [`Transmit`] that points into them was sent or dropped; what is still
//! there is what the worker *holds*. Inbound frames are filled by one receive call and empty again when the step ends.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use encap::Ecn;

use crate::limits::{FRAME, INBOUND_BUFFERS, OUTBOUND_PACKETS, ROOM, TRANSMITS};
use crate::underlay::Port;

/// One buffer, large enough for anything the kernel hands over.
pub type Frame = Box<[u8; FRAME]>;

/// What is known of a received buffer beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// Bytes received.
    pub len: usize,
    /// Outer source.
    pub source: SocketAddr,
    /// ECN codepoint of the outer header.
    pub ecn: Ecn,
    /// The `UDP_GRO` control message: where the kernel says datagrams begin, or the inner segment size (see `inbound`).
    pub segment: Option<u16>,
    /// The datagram was larger than the buffer.
    pub truncated: bool,
}

/// Buffers of one receive call.
pub struct InboundBatch {
    /// The bytes.
    pub frames: Vec<Frame>,
    /// What is known of each.
    pub metas: Vec<Meta>,
}

impl InboundBatch {
    /// Empty buffers for one receive call.
    pub fn new() -> InboundBatch {
        InboundBatch {
            frames: frames(INBOUND_BUFFERS),
            metas: vec![Meta::NONE; INBOUND_BUFFERS],
        }
    }
}

impl Default for InboundBatch {
    fn default() -> InboundBatch {
        InboundBatch::new()
    }
}

impl Meta {
    const NONE: Meta = Meta {
        len: 0,
        source: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        ecn: Ecn::NotEct,
        segment: None,
        truncated: false,
    };
}

/// Packets read from the device, and the datagrams made of them that still wait for the underlay.
pub(crate) struct OutboundBatch {
    pub(crate) frames: Vec<Frame>,
    pub(crate) transmits: Vec<Transmit>,
    /// Transmits before this one went already.
    pub(crate) done: usize,
}

/// One datagram for the underlay: headers of our making in front of a slice of a frame.
pub(crate) struct Transmit {
    pub(crate) to: SocketAddr,
    /// Where it leaves.
    pub(crate) port: Port,
    pub(crate) ecn: Ecn,
    /// Inner bytes, for the peer's tally.
    pub(crate) inner_len: usize,
    /// Not to be cut again when it proves too large: it is a fragment, or was tried before.
    pub(crate) last_try: bool,
    head: [u8; HEAD],
    head_len: usize,
    frame: usize,
    payload: Range<usize>,
}

impl OutboundBatch {
    pub(crate) fn new() -> OutboundBatch {
        OutboundBatch {
            frames: frames(OUTBOUND_PACKETS),
            transmits: Vec::with_capacity(ROOM),
            done: 0,
        }
    }

    /// Transmits that wait.
    pub(crate) fn waiting(&self) -> &[Transmit] {
        self.transmits.get(self.done..).unwrap_or_default()
    }

    /// Whether a packet cut into `count` datagrams still fits.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.transmits.len() + count <= TRANSMITS
    }

    /// Forgets what waits for `port`, and returns how many datagrams that was.
    pub(crate) fn discard(&mut self, port: Port) -> usize {
        let (before, done) = (self.transmits.len(), self.done);
        let mut place = 0;
        self.transmits.retain(|transmit| {
            place += 1;
            place <= done || transmit.port != port
        });
        before - self.transmits.len()
    }

    /// Moves what was pushed since there were `before` transmits to the front of those that wait: packets of one flow
    /// keep their order when the first of them is walked again.
    pub(crate) fn bring_forward(&mut self, before: usize) {
        let pushed = self.transmits.len().saturating_sub(before);
        if let Some(waiting) = self.transmits.get_mut(self.done..) {
            waiting.rotate_right(pushed.min(waiting.len()));
        }
    }

    /// Forgets all transmits; the frames are free again.
    pub(crate) fn clear(&mut self) {
        self.transmits.clear();
        self.done = 0;
    }

    /// The two pieces of a waiting datagram.
    pub(crate) fn parts<'a>(&'a self, transmit: &'a Transmit) -> [IoSlice<'a>; 2] {
        let frame = self
            .frames
            .get(transmit.frame)
            .map_or(&[][..], |f| f.as_slice());
        [
            IoSlice::new(transmit.head.get(..transmit.head_len).unwrap_or_default()),
            IoSlice::new(frame.get(transmit.payload.clone()).unwrap_or_default()),
        ]
    }
}

impl Transmit {
    /// A datagram whose payload is `payload` of frame number `frame`; headers follow by [`Transmit::push`].
    pub(crate) fn new(
        to: SocketAddr,
        port: Port,
        ecn: Ecn,
        frame: usize,
        payload: Range<usize>,
    ) -> Transmit {
        Transmit {
            to,
            port,
            ecn,
            head: [0; HEAD],
            head_len: 0,
            frame,
            payload,
            last_try: false,
            inner_len: 0,
        }
    }

    /// Puts `bytes` behind the headers already there, in front of the payload.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if let Some(place) = self
            .head
            .get_mut(self.head_len..self.head_len + bytes.len())
        {
            place.copy_from_slice(bytes);
            self.head_len += bytes.len();
        }
    }

    /// Where the packet lies that this datagram carries: frame number and range.
    pub(crate) fn packet(&self) -> (usize, Range<usize>) {
        (self.frame, self.payload.clone())
    }
}

fn frames(count: usize) -> Vec<Frame> {
    (0..count).map(|_| Box::new([0; FRAME])).collect()
}

/// Room for a VXLAN header with its inner Ethernet header and an IPv4 header of a fragment.
const HEAD: usize = 22 + 60;
