//! Probes of peer health: a datagram of a peer that holds no packet. It is answered or handed to control, and goes no
//! further (see [`crate::probe`]).

use encap::Family;
use encap::probe::{Fate, KERNEL_PATH, Kind, MESSAGE, Message, Question, Verdict};

use super::{Datagram, Inbound};
use crate::drops::DropReason;
use crate::peers::{Peer, PeerId};
use crate::probe::{Heard, HeardReport, outer_headers};

impl<D> Inbound<'_, D> {
    /// Takes the probe of `peer` that a datagram holds. A request is counted when its answer was sent. What it asks of a
    /// packet is looked up behind the limit of answers: more requests than are answered cost no look-up. Returns the family
    /// of the inner packets that come by the same way: the frame comes from the peer's station for those.
    ///
    /// # Errors
    /// The reason to drop it.
    pub(super) fn probe(
        &mut self,
        (id, peer): (PeerId, &Peer),
        datagram: &Datagram,
    ) -> Result<Family, DropReason> {
        let (source, format) = (datagram.source, datagram.format);
        let frames = &self.delivery.writer.frames;
        let bytes = frames.bytes(datagram.frame, datagram.range.clone());
        let probe = bytes.get(format.header_len()..).unwrap_or_default();
        let message = Message::parse(probe).map_err(|_| DropReason::BadProbe)?;
        if !self.answers.admits(source, message.kind, self.now) {
            return Err(DropReason::ProbeLimit);
        }
        let family = Family::of(source.ip());
        // A datagram of the kernel's is no longer than 65,535 bytes.
        let length = (outer_headers(family) + bytes.len()) as u32;
        let way = peer.way_over(family);
        if message.kind == Kind::Request {
            let (_, way) = way.ok_or(DropReason::NoUnderlay)?;
            peer.note_kernel_path(message.flags & KERNEL_PATH != 0, self.now);
            let question = probe.get(MESSAGE..).filter(|_| message.asks());
            let verdict = question.map(|question| match Question::parse(question) {
                Some(question) => {
                    let asker = (id, peer);
                    self.snapshot.verdict(asker, format, &question, self.now)
                }
                None => Verdict {
                    fate: Fate::NotUnderstood,
                    mtu_back: 0,
                },
            });
            let heard = peer.last_answer().map(|at| {
                let ago = self.now.since(at).as_millis();
                u32::try_from(ago).unwrap_or(u32::MAX - 1).min(u32::MAX - 1)
            });
            let inner_mtu = self.snapshot.cluster.inner_mtu.v4.into();
            let answer = Message {
                verdict,
                ..message.answer(length, heard, inner_mtu)
            };
            self.answers.push(way, &answer);
        } else {
            self.tally.probe();
        }
        self.peer_cache.note_heard(peer, self.now);
        if message.kind == Kind::Report {
            let report = HeardReport::new(peer.public, message, probe);
            self.answers.hear_report(report);
            return Ok(way.map_or(family, |(inner, _)| inner));
        }
        self.answers.hear(Heard {
            peer: peer.public,
            family,
            at: self.now,
            message,
            length,
        });
        Ok(way.map_or(family, |(inner, _)| inner))
    }
}
