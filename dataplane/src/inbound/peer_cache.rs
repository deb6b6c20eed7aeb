//! The table look-ups of the latest datagram: datagrams come in runs of one flow, so the next mostly has the same.
//!
//! The cache lives for one batch and one snapshot, so it is never out of date. It caches refusals too.

use std::net::IpAddr;

use encap::inner::Inner;

use crate::drops::DropReason;
use crate::now::Now;
use crate::peers::{Peer, PeerId};
use crate::snapshot::Snapshot;

/// The latest peer and the latest checked pair of addresses.
#[derive(Default)]
pub(crate) struct PeerCache<'a> {
    sender: Option<(IpAddr, Sender<'a>)>,
    pair: Option<(AddressPair, Result<(), DropReason>)>,
    /// That the peer was heard has been noted.
    noted: bool,
}

/// The peer of an outer source, if it is one.
type Sender<'a> = Option<(PeerId, &'a Peer)>;

/// The source and destination of an inner packet, and the peer that sent it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct AddressPair {
    peer: PeerId,
    source: IpAddr,
    destination: IpAddr,
}

impl<'a> PeerCache<'a> {
    /// The peer with outer source `address`.
    pub(super) fn sender(&mut self, snapshot: &'a Snapshot, address: IpAddr) -> Sender<'a> {
        match self.sender {
            Some((known, sender)) if known == address => sender,
            _ => {
                let sender = snapshot.cluster.peers.by_source(address);
                self.sender = Some((address, sender));
                self.noted = false;
                sender
            }
        }
    }

    /// Notes that a datagram of the latest sender was accepted: once for each run of its datagrams.
    pub(super) fn note_heard(&mut self, peer: &Peer, now: Now) {
        if !self.noted {
            self.noted = true;
            peer.note_heard(now);
        }
    }

    /// Checks that the inner source is the peer's, and the inner destination ours.
    pub(super) fn check_addresses(
        &mut self,
        snapshot: &Snapshot,
        (id, peer): (PeerId, &Peer),
        inner: &Inner,
    ) -> Result<(), DropReason> {
        let pair = AddressPair {
            peer: id,
            source: inner.source,
            destination: inner.destination,
        };
        match self.pair {
            Some((known, verdict)) if known == pair => verdict,
            _ => {
                let verdict = snapshot.accepts((id, peer), pair.source, pair.destination);
                self.pair = Some((pair, verdict));
                verdict
            }
        }
    }
}
