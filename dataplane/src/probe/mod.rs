//! Probes of peer health: what workers answer and hear, and what control sends.
//!
//! Theory of operation: control sends requests through a socket of its own ([`Prober`]) to where data goes. The peer's
//! worker accepts them as it does data, by outer source, VNI and MAC, and answers each itself (`answers`), to where it
//! sends data: not to where the request came from. So an answer proves both ways, and a request with a forged source draws
//! an answer, no longer than itself, to the peer whose address it bears. What a worker hears of either kind it puts on a
//! ring, which control empties ([`Hearing`]); a full ring forgets what is newest. A report, which a request may want beside its
//! answer, is sent by control and not by a worker: it is text, and no packet waits for it.
//!
//! An answer is proof only if its nonce is that of a request to that very peer which is not answered yet: it is random,
//! used once, and known to none who did not see the request. To check that is control's part. What a request says is as
//! good as the outer source of data is, and proves no way out.
//!
//! A probe is no packet: it is counted as received, and as a probe once it was answered or heard, or as a drop
//! ([`BadProbe`](crate::drops::DropReason::BadProbe), [`ProbeLimit`](crate::drops::DropReason::ProbeLimit), or what the
//! underlay said of the answer). How many are answered is bounded, for each peer and in all
//! ([`PROBE_BURST`](crate::limits::PROBE_BURST)).

mod answers;
mod hearing;
mod prober;

use encap::Family;
pub use encap::probe::{
    Fate, KERNEL_PATH, Kind, Message, QUESTION, Question, REPORT_TEXT, REQUEST, Verdict,
    WANTS_REPORT, room_for_report,
};

use crate::families::PublicAddresses;
use crate::now::Now;

pub(crate) use answers::{Answer, Answers};
pub(crate) use hearing::HeardRing;
pub use hearing::Hearing;
pub use prober::{Prober, Undelivered};

/// A probe that a worker accepted from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The peer, by its public addresses: no two peers have one.
    pub peer: PublicAddresses,
    /// The family of the outer addresses.
    pub family: Family,
    /// When the worker's step began that received it: up to the length of a step, a fraction of a millisecond, before it
    /// came. So it may lie before the request was sent.
    pub at: Now,
    /// What it says.
    pub message: Message,
    /// Bytes of the outer IP packet that it came as, headers included.
    pub length: u32,
}

/// A report that a worker accepted from a peer.
#[derive(Clone, Copy, Debug)]
pub struct HeardReport {
    /// The peer, by its public addresses.
    pub peer: PublicAddresses,
    /// Whose nonce says which request it belongs to, and whose length how many problems there are.
    pub message: Message,
    text: [u8; REPORT_TEXT],
    len: u16,
}

impl HeardReport {
    /// Of the report that `bytes` are.
    pub fn new(peer: PublicAddresses, message: Message, bytes: &[u8]) -> HeardReport {
        let text = encap::probe::report_text(bytes);
        let mut report = HeardReport {
            peer,
            message,
            text: [0; REPORT_TEXT],
            // No more than REPORT_TEXT.
            len: text.len() as u16,
        };
        for (place, byte) in report.text.iter_mut().zip(text) {
            *place = *byte;
        }
        report
    }

    /// What it says, as the peer wrote it: any bytes.
    pub fn text(&self) -> &[u8] {
        self.text.get(..self.len.into()).unwrap_or_default()
    }
}

/// Bytes of outer IP and UDP headers.
pub(crate) const fn outer_headers(family: Family) -> usize {
    match family {
        Family::V4 => 20 + 8,
        Family::V6 => 40 + 8,
    }
}
