//! Probes of peer health: requests, answers and reports between two Tartan nodes, in the place of an inner packet.
//!
//! A probe goes where data goes and looks like nothing that data can be, so no node ever delivers one to a pod. In the
//! `vxlan` format it is a frame of EtherType 0x88b5 (IEEE Std 802, "local experimental 1") behind the VXLAN header: the
//! kernel has no handler for it, and a stock flannel node drops it unseen. In the `udp` format it is the datagram itself,
//! and begins with a zero byte, which is no IP version: the TUN of a stock flannel node refuses it (`tun_get_user`).
//!
//! ```text
//!  0 u8 0 | 1 "TRT" | 4 u8 version 1 | 5 u8 kind: 1 request, 2 answer, 3 report | 6 u16 reserved
//!  8 u64 nonce                                   | 16 u64 the requester's clock, ns
//! 24 u32 bytes of the request's outer IP packet, of a report the number of problems | 28 u32 ms since the sender last heard the receiver, 2³²−1 = never
//! 32 u32 the sender's inner MTU                  | 36 u32 flags
//! 40 u32 of an answer, what becomes of a packet   | 44 u32 reserved
//! 48 a question, where the flags say so, or the text of a report; then zeros, to the size that is wanted
//! ```
//!
//! Numbers are big-endian. A sender sets what is reserved to zero; a receiver ignores it, the flags that it does not know,
//! and the zeros. A request is never shorter than [`REQUEST`], and an answer is [`MESSAGE`] bytes in either format: it is
//! never longer than the request that draws it.
//!
//! A request may ask what would become of an inner packet, and its answer tells that ([`Question`], [`Verdict`]). It may ask
//! for a report, too ([`WANTS_REPORT`]): behind the answer comes a message of that kind, with at most [`REPORT_TEXT`] bytes of
//! text about what is wrong with the node. Both together are no longer than the request. Nodes that do not know the one or the other
//! answer as always and tell nothing.

mod question;

use std::fmt;

use crate::push::Header;
use crate::{ether, field, vxlan};

pub use question::{Fate, QUESTION_BYTES, Question, Verdict};

/// A request, or the answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Which of the two.
    pub kind: Kind,
    /// What binds an answer to its request: random, and never used again.
    pub nonce: u64,
    /// The requester's clock as the request left, nanoseconds from an origin of its own; an answer repeats it.
    pub clock: u64,
    /// Of an answer: bytes of the outer IP packet, headers included, that the request came as. Of a report: how many problems
    /// its sender has. 0 in a request.
    pub length: u32,
    /// Milliseconds since the sender last heard an answer of the receiver; `None` if it never did.
    pub heard: Option<u32>,
    /// The largest inner IPv4 packet that the sender's cluster configuration allows, bytes.
    pub inner_mtu: u32,
    /// What else the sender says: [`KERNEL_PATH`], [`QUESTION`], [`WANTS_REPORT`].
    pub flags: u32,
    /// Of an answer to a question: what becomes of the packet.
    pub verdict: Option<Verdict>,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Asks for an answer.
    Request,
    /// Answers a request.
    Answer,
    /// Tells what is wrong with the sender's node, because a request asked for it; its nonce is that request's.
    Report,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotAMessage {
    /// Shorter than [`MESSAGE`], or a request than [`REQUEST`].
    Short,
    /// They do not begin as a probe does.
    Magic,
    /// Another version of the format.
    Version,
    /// Neither request, answer nor report.
    Kind,
}

impl NotAMessage {
    /// One sentence for the operator.
    pub const fn gloss(self) -> &'static str {
        match self {
            NotAMessage::Short => "the probe is shorter than its format asks",
            NotAMessage::Magic => "the frame of a probe holds something else",
            NotAMessage::Version => "the probe has another version than 1",
            NotAMessage::Kind => "the probe is neither a request, an answer nor a report",
        }
    }
}

impl fmt::Display for NotAMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.gloss())
    }
}

impl std::error::Error for NotAMessage {}

impl Message {
    /// The message at the start of `bytes`.
    ///
    /// # Errors
    /// [`NotAMessage`] where there is none.
    pub fn parse(bytes: &[u8]) -> Result<Message, NotAMessage> {
        if !is_probe(bytes) {
            return Err(NotAMessage::Magic);
        }
        let message: &[u8; MESSAGE] = bytes.first_chunk().ok_or(NotAMessage::Short)?;
        let [_, _, _, _, version, kind, ..] = *message;
        if version != VERSION {
            return Err(NotAMessage::Version);
        }
        let kind = match kind {
            REQUEST_KIND => Kind::Request,
            ANSWER_KIND => Kind::Answer,
            REPORT_KIND => Kind::Report,
            _ => return Err(NotAMessage::Kind),
        };
        if kind == Kind::Request && bytes.len() < REQUEST {
            return Err(NotAMessage::Short);
        }
        let word = |at| field::bytes::<4>(message, at).map(u32::from_be_bytes);
        let long = |at| field::bytes::<8>(message, at).map(u64::from_be_bytes);
        let fields = || {
            Some(Message {
                kind,
                nonce: long(NONCE)?,
                clock: long(CLOCK)?,
                length: word(LENGTH)?,
                heard: word(HEARD).filter(|heard| *heard != NEVER),
                inner_mtu: word(INNER_MTU)?,
                flags: word(FLAGS)?,
                verdict: field::bytes::<4>(message, VERDICT)
                    .filter(|_| kind == Kind::Answer)
                    .and_then(Verdict::parse),
            })
        };
        fields().ok_or(NotAMessage::Short)
    }

    /// The message as bytes, without what fills a request up.
    pub fn emit(&self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        let kind = match self.kind {
            Kind::Request => REQUEST_KIND,
            Kind::Answer => ANSWER_KIND,
            Kind::Report => REPORT_KIND,
        };
        let [zero, t, r, t2] = MAGIC;
        // All of it lies inside: the offsets are constants.
        let _ = field::put(&mut bytes, 0, [zero, t, r, t2, VERSION, kind]);
        let _ = field::put(&mut bytes, NONCE, self.nonce.to_be_bytes());
        let _ = field::put(&mut bytes, CLOCK, self.clock.to_be_bytes());
        let _ = field::put(&mut bytes, LENGTH, self.length.to_be_bytes());
        let heard = self.heard.unwrap_or(NEVER);
        let _ = field::put(&mut bytes, HEARD, heard.to_be_bytes());
        let _ = field::put(&mut bytes, INNER_MTU, self.inner_mtu.to_be_bytes());
        let _ = field::put(&mut bytes, FLAGS, self.flags.to_be_bytes());
        if let Some(verdict) = self.verdict {
            let _ = field::put(&mut bytes, VERDICT, verdict.emit());
        }
        bytes
    }

    /// The answer to this request, which came as an outer IP packet of `length` bytes, from a node that heard the requester
    /// `heard` milliseconds ago and has this inner MTU. It tells no verdict.
    pub const fn answer(&self, length: u32, heard: Option<u32>, inner_mtu: u32) -> Message {
        Message {
            kind: Kind::Answer,
            nonce: self.nonce,
            clock: self.clock,
            length,
            heard,
            inner_mtu,
            flags: 0,
            verdict: None,
        }
    }

    /// The report that this request wants, of a node with so many problems.
    pub const fn report(&self, problems: u32) -> Message {
        Message {
            kind: Kind::Report,
            nonce: self.nonce,
            clock: self.clock,
            length: problems,
            heard: None,
            inner_mtu: 0,
            flags: 0,
            verdict: None,
        }
    }

    /// Whether a question stands behind this message.
    pub const fn asks(&self) -> bool {
        matches!(self.kind, Kind::Request) && self.flags & QUESTION != 0
    }

    /// Whether this message wants a report.
    pub const fn wants_report(&self) -> bool {
        matches!(self.kind, Kind::Request) && self.flags & WANTS_REPORT != 0
    }
}

/// Whether `bytes`, which stand where an inner packet would, begin as a probe does.
pub fn is_probe(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The nonce of the message that `bytes` begin with, perhaps without its end, as an ICMP error quotes it.
pub fn quoted_nonce(bytes: &[u8]) -> Option<u64> {
    let nonce = field::bytes::<8>(bytes, NONCE).filter(|_| is_probe(bytes));
    nonce.map(u64::from_be_bytes)
}

/// The text of the report that `bytes` are, without the zeros that fill it up, [`REPORT_TEXT`] bytes at most.
pub fn report_text(bytes: &[u8]) -> &[u8] {
    let text = bytes.get(MESSAGE..).unwrap_or_default();
    let text = text.get(..REPORT_TEXT).unwrap_or(text);
    let end = text
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    text.get(..end).unwrap_or_default()
}

/// How many bytes of text a report may have to a request that came as an outer IP packet of `length` bytes, where `headers` bytes
/// stand in front of a message: so many that answer and report together are no longer than the request. `None` where not even
/// an empty report has room.
pub fn room_for_report(length: u32, headers: usize) -> Option<usize> {
    let length = usize::try_from(length).ok()?;
    let room = length.checked_sub(2 * (headers + MESSAGE))?;
    Some(room.min(REPORT_TEXT))
}

/// What stands in front of a probe, where `data` stands in front of an inner packet: the same networks and stations, and
/// another EtherType.
pub fn header(data: Header) -> Header {
    data.with_ether_type(ether::PROBE)
}

/// Bytes of a message.
pub const MESSAGE: usize = 48;
/// Bytes of a request at least: as many as its answer has, also where that one goes in the other format, with a VXLAN
/// header in front of it.
pub const REQUEST: usize = MESSAGE + vxlan::HEADER + ether::HEADER;
/// A flag of a request: the sender's kernel path is in use. Peers send a node without it no datagrams that kernels encapsulate.
pub const KERNEL_PATH: u32 = 1;
/// A flag of a request: a [`Question`] stands behind it.
pub const QUESTION: u32 = 1 << 1;
/// A flag of a request: the sender wants a report, too.
pub const WANTS_REPORT: u32 = 1 << 2;
/// Bytes of text of a report at most.
pub const REPORT_TEXT: usize = 512;

/// How a probe begins.
const MAGIC: [u8; 4] = *b"\0TRT";
const VERSION: u8 = 1;
const REQUEST_KIND: u8 = 1;
const ANSWER_KIND: u8 = 2;
const REPORT_KIND: u8 = 3;
/// In the place of milliseconds.
const NEVER: u32 = u32::MAX;

// Offsets in a message.
const NONCE: usize = 8;
const CLOCK: usize = 16;
const LENGTH: usize = 24;
const HEARD: usize = 28;
const INNER_MTU: usize = 32;
const FLAGS: usize = 36;
const VERDICT: usize = 40;

#[cfg(test)]
mod tests;
