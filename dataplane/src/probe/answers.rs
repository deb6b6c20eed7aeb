//! The answers of a worker: which requests get one, and the bytes that wait to be sent.
//!
//! Theory of operation: probes of both kinds draw from token buckets before anything is done for them, so that neither a
//! flood of requests costs more than its share nor one of answers fills the ring to control. A bucket is chosen in two
//! steps by keyed hashes: the outer address chooses a set of [`PROBE_PORTS`] buckets, the outer port and the kind one of
//! the set. A peer's own requests come from one port, which a forger does not know: with any one port he spends another
//! bucket, with many ports those of this one set. All buckets together bound what a worker answers to [`PROBE_SETS`] ×
//! [`PROBE_PORTS`] ÷ [`PROBE_EVERY`].

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use encap::Format;
use encap::probe::{Kind, MESSAGE, Message};

use super::{Heard, HeardReport, HeardRing};
use crate::limits::{ANSWERS, PROBE_BURST, PROBE_EVERY, PROBE_PORTS, PROBE_SETS};
use crate::now::Now;
use crate::peers::Way;
use crate::sent::mix;
use crate::token_bucket::{Rate, TokenBucket};
use crate::underlay::TxSlot;

/// What a worker keeps for probes.
pub(crate) struct Answers {
    key: u64,
    /// [`PROBE_SETS`] sets, one behind the other.
    buckets: Box<[TokenBucket]>,
    /// Answers that wait to be sent, at most [`ANSWERS`].
    waiting: Vec<Answer>,
    heard: Arc<HeardRing>,
    /// Probes since [`Answers::take_count`].
    count: usize,
}

/// One answer, ready to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    /// Where it leaves.
    pub(crate) slot: TxSlot,
    /// Where it goes.
    pub(crate) to: SocketAddr,
    bytes: [u8; LONGEST],
    len: usize,
}

impl Answers {
    /// None yet. `key` is random.
    pub(crate) fn new(key: u64) -> Answers {
        Answers {
            key,
            buckets: vec![TokenBucket::full(RATE); PROBE_SETS * PROBE_PORTS].into_boxed_slice(),
            waiting: Vec::with_capacity(ANSWERS),
            heard: Arc::new(HeardRing::new()),
            count: 0,
        }
    }

    /// The ring to control.
    pub(crate) fn ring(&self) -> Arc<HeardRing> {
        Arc::clone(&self.heard)
    }

    /// Whether another probe of `kind` from `source` is within the limits, which it then counts against.
    pub(crate) fn admits(&mut self, source: SocketAddr, kind: Kind, now: Now) -> bool {
        let (set, place) = self.place(source, kind);
        let room = kind != Kind::Request || self.waiting.len() < ANSWERS;
        let bucket = self.buckets.get_mut(set * PROBE_PORTS + place);
        room && bucket.is_some_and(|bucket| bucket.take(RATE, now))
    }

    fn place(&self, source: SocketAddr, kind: Kind) -> (usize, usize) {
        let kind = match kind {
            Kind::Request => 0,
            Kind::Answer | Kind::Report => 1,
        };
        let address = match source.ip() {
            IpAddr::V4(v4) => u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let low = mix(self.key ^ address as u64, SPREAD);
        let address = mix(low ^ (address >> 64) as u64, SPREAD);
        let port = mix(address ^ u64::from(source.port()) << 1 ^ kind, SPREAD);
        (address as usize % PROBE_SETS, port as usize % PROBE_PORTS)
    }

    /// Tells control of a probe.
    pub(crate) fn hear(&mut self, heard: Heard) {
        self.count += 1;
        self.heard.push(heard);
    }

    /// Gives control a report.
    pub(crate) fn hear_report(&mut self, report: HeardReport) {
        self.count += 1;
        self.heard.push_report(report);
    }

    /// How many probes there were since the last call.
    pub(crate) fn take_count(&mut self) -> usize {
        std::mem::take(&mut self.count)
    }

    /// Notes `message` to be sent by `way`. Its nonce spreads answers over transmit sockets, as flows are spread.
    pub(crate) fn push(&mut self, way: &Way, message: &Message) {
        let header = encap::probe::header(way.header);
        let bytes = header.as_slice().iter().copied().chain(message.emit());
        let mut answer = Answer {
            slot: TxSlot::of_flow(way.port, message.nonce as u32),
            to: way.to,
            bytes: [0; LONGEST],
            len: header.as_slice().len() + MESSAGE,
        };
        for (place, byte) in answer.bytes.iter_mut().zip(bytes) {
            *place = byte;
        }
        self.waiting.push(answer);
    }

    /// Takes an answer that waits.
    pub(crate) fn pop(&mut self) -> Option<Answer> {
        self.waiting.pop()
    }
}

impl Answer {
    /// The UDP payload.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Bytes of an answer with the longest header.
const LONGEST: usize = Format::Vxlan.header_len() + MESSAGE;

/// Any number with as many ones as zeros, so that neighbouring addresses lie far apart whatever the key: digits of the
/// golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

const RATE: Rate = Rate {
    burst: PROBE_BURST,
    every: PROBE_EVERY,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, address], port))
    }

    fn admitted(answers: &mut Answers, source: SocketAddr, now: Now) -> usize {
        let admits = |_: &usize| answers.admits(source, Kind::Request, now);
        (0..10_000).filter(admits).count()
    }

    #[test]
    fn a_peer_has_its_burst_and_then_its_rate() {
        let mut answers = Answers::new(7);
        let start = Now(0).after(PROBE_EVERY);
        let burst = PROBE_BURST as usize;
        assert_eq!(admitted(&mut answers, from(2, 4000), start), burst);
        assert_eq!(admitted(&mut answers, from(2, 4000), start), 0);
        let later = start.after(PROBE_EVERY);
        assert_eq!(admitted(&mut answers, from(2, 4000), later), 1);
        // Answers count apart: they do not take the place of requests.
        assert!(
            answers.admits(from(2, 4000), Kind::Answer, later) || {
                let (one, two) = (Kind::Request, Kind::Answer);
                answers.place(from(2, 4000), one) == answers.place(from(2, 4000), two)
            }
        );
    }

    /// A flood with a peer's address, forged, spends that peer's set at most, and mostly not the bucket that the peer uses.
    #[test]
    fn a_flood_of_one_address_leaves_the_others_theirs() {
        let mut answers = Answers::new(7);
        let start = Now(0).after(PROBE_EVERY);
        let flood: usize = (0..u16::MAX)
            .map(|port| usize::from(answers.admits(from(2, port), Kind::Request, start)))
            .sum();
        assert!(flood <= PROBE_PORTS * PROBE_BURST as usize, "{flood}");
        let others = (3..=250).filter(|address| {
            let answered = admitted(&mut answers, from(*address, 4000), start);
            answered == PROBE_BURST as usize
        });
        // A few share its set; of the rest some share a bucket with each other.
        assert!(others.count() >= 200);
        let one_port: usize = (0..1000)
            .map(|_| usize::from(answers.admits(from(251, 1), Kind::Request, start)))
            .sum();
        assert!(one_port <= PROBE_BURST as usize);
    }
}
