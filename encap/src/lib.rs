//! Tartan's wire formats: bytes in, bytes out. No I/O, no clock, no unsafe code.
//!
//! A packet from a pod meets [`inner`] (what is it), [`segment`] or [`fragment`] (how it is cut), [`ecn`] and
//! [`push`] (headers in front of it). A datagram from a peer meets [`pull`] (prove the headers, find the packet),
//! [`ecn`], [`transport`] (can its transport checksum be trusted) and [`coalesce`] (wire packets → super-packets). What a
//! super-packet leaves undone is an [`offload`]. [`icmp`] makes the errors that go back, [`neighbour`] the answers to
//! requests for link-layer addresses, [`probe`] the messages between nodes that are no packets.
//!
//! Panic contract: no public function panics on any bytes, lengths or indices. Whatever comes from outside is
//! parsed once into a value ([`Inner`], [`pull::Pulled`], [`segment::SegmentPlan`]); functions that take such a value
//! beside its packet return `None` or an error when the two do not belong together.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod coalesce;
pub mod ecn;
mod ether;
mod family;
mod field;
mod format;
pub mod fragment;
pub mod icmp;
pub mod inner;
mod ipv4;
mod ipv6;
pub mod neighbour;
pub mod offload;
mod parse;
pub mod probe;
pub mod protocol;
pub mod pull;
pub mod push;
pub mod segment;
mod tcp;
pub mod transport;
mod udp;
mod vxlan;

pub use ecn::Ecn;
pub use ether::{Mac, NotAMac};
pub use family::Family;
pub use format::Format;
pub use inner::{Fragment, Inner, Malformed};
pub use vxlan::Vni;
