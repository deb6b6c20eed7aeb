//! The buffers of a worker: all memory that packets ever lie in, allocated once at the start.
//!
//! Theory of operation: a worker owns one [`OutboundBatch`] and one [`InboundBatch`]. Outbound frames are filled from
//! the device and stay untouched until every datagram that points into them was sent or dropped; what is still there is
//! what the worker *holds*. Inbound frames are filled by one receive call and empty again when the step ends.

mod outbound;
mod tx_queue;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use encap::Ecn;

use crate::limits::{FRAME, INBOUND_BUFFERS};

pub use outbound::Pieces;
pub(crate) use outbound::{Datagram, Head, OutboundBatch, Retry};

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

/// Frames whose pages the kernel gives when they are written first.
fn frames(count: usize) -> Vec<Frame> {
    let frame = || vec![0; FRAME].into_boxed_slice().try_into().ok();
    (0..count).filter_map(|_| frame()).collect()
}
