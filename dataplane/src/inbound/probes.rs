//! Probes of peer health: a datagram of a peer that holds no packet. It is answered or handed to control, and goes no
//! further (see [`crate::probe`]).

use std::net::SocketAddr;

use encap::Family;
use encap::probe::{Kind, Message, NotAMessage};

use super::Inbound;
use crate::drops::DropReason;
use crate::peers::Peer;
use crate::probe::{Heard, outer_headers};

impl<D> Inbound<'_, D> {
    /// Takes the probe `message` of `peer`, which came from `source` as a datagram of `bytes` bytes. A request is counted
    /// when its answer was sent. Returns the family of the inner packets that come by the same way: the frame comes from
    /// the peer's station for those.
    ///
    /// # Errors
    /// The reason to drop it.
    pub(super) fn probe(
        &mut self,
        peer: &Peer,
        source: SocketAddr,
        message: Result<Message, NotAMessage>,
        bytes: usize,
    ) -> Result<Family, DropReason> {
        let message = message.map_err(|_| DropReason::BadProbe)?;
        if !self.answers.admits(source, message.kind, self.now) {
            return Err(DropReason::ProbeLimit);
        }
        let family = Family::of(source.ip());
        // A datagram of the kernel's is no longer than 65,535 bytes.
        let length = (outer_headers(family) + bytes) as u32;
        let way = peer.way_over(family);
        if message.kind == Kind::Request {
            let (_, way) = way.ok_or(DropReason::NoUnderlay)?;
            let heard = peer.last_answer().map(|at| {
                let ago = self.now.since(at).as_millis();
                u32::try_from(ago).unwrap_or(u32::MAX - 1).min(u32::MAX - 1)
            });
            let inner_mtu = self.snapshot.cluster.inner_mtu.v4.into();
            self.answers
                .push(way, &message.answer(length, heard, inner_mtu));
        } else {
            self.tally.probe();
        }
        self.peer_cache.note_heard(peer, self.now);
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
