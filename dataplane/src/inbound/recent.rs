//! What the tables said of the datagram before: datagrams come in runs of one flow, so it mostly holds for the next.
//!
//! It lives for one batch over one snapshot, so it is never out of date. A refusal is remembered like a permission.

use std::net::IpAddr;

use encap::inner::Inner;

use crate::drops::DropReason;
use crate::peers::{Peer, PeerId};
use crate::snapshot::Snapshot;

/// The latest answers.
#[derive(Default)]
pub(crate) struct Recent<'a> {
    sender: Option<(IpAddr, Sender<'a>)>,
    passage: Option<(Passage, Result<(), DropReason>)>,
}

/// The peer that an outer source stands for.
type Sender<'a> = Option<(PeerId, &'a Peer)>;

/// From a peer's pod to one of ours.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Passage {
    peer: PeerId,
    source: IpAddr,
    destination: IpAddr,
}

impl<'a> Recent<'a> {
    /// The peer that outer source `address` stands for.
    pub(super) fn sender(&mut self, snapshot: &'a Snapshot, address: IpAddr) -> Sender<'a> {
        match self.sender {
            Some((known, sender)) if known == address => sender,
            _ => {
                let sender = snapshot.cluster.peers.by_source(address);
                self.sender = Some((address, sender));
                sender
            }
        }
    }

    /// Whether the inner source is the peer's, and the inner destination ours.
    pub(super) fn passage(
        &mut self,
        snapshot: &Snapshot,
        (id, peer): (PeerId, &Peer),
        inner: &Inner,
    ) -> Result<(), DropReason> {
        let passage = Passage {
            peer: id,
            source: inner.source,
            destination: inner.destination,
        };
        match self.passage {
            Some((known, verdict)) if known == passage => verdict,
            _ => {
                let verdict = passage.judge(snapshot, peer);
                self.passage = Some((passage, verdict));
                verdict
            }
        }
    }
}

impl Passage {
    fn judge(&self, snapshot: &Snapshot, peer: &Peer) -> Result<(), DropReason> {
        if !snapshot.belongs(self.peer, peer, self.source) {
            return Err(DropReason::NotPeersSource);
        }
        if !snapshot.pods.is_local(self.destination) {
            return Err(DropReason::NotOurs);
        }
        Ok(())
    }
}
