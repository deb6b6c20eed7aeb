//! Which packets a worker captures, by what it knows of them.

use std::net::IpAddr;

use super::Stages;
use super::stage::Stage;
use super::tap::Event;
use crate::drops::{Direction, DropReason};
use crate::snapshot::Snapshot;

/// What a capture takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFilter {
    /// At these stages.
    pub stages: Stages,
    /// With one of these inner addresses as source or destination; empty: any.
    pub pods: Vec<IpAddr>,
    /// To or from the peer with one of these outer addresses; empty: any.
    pub peers: Vec<IpAddr>,
    /// Dropped for one of these reasons; empty: any. Of other stages it says nothing.
    pub reasons: Vec<DropReason>,
    /// So many bytes of each packet at most.
    pub snap_length: usize,
    /// Of each direction and reason a few drops a second alone, those of each sender among them, so that none hides the others;
    /// all are counted.
    pub sampled: bool,
}

impl CaptureFilter {
    /// All packets at `stages`.
    pub fn all(stages: Stages) -> CaptureFilter {
        CaptureFilter {
            stages,
            pods: Vec::new(),
            peers: Vec::new(),
            reasons: Vec::new(),
            snap_length: usize::MAX,
            sampled: false,
        }
    }

    /// Whether it takes `event`, whose inner packet begins with `inner`.
    pub(super) fn takes(&self, event: &Event<'_>, inner: &[u8], snapshot: &Snapshot) -> bool {
        self.stages.has(event.stage)
            && self.takes_reason(event)
            && (self.pods.is_empty() || self.takes_pod(inner))
            && (self.peers.is_empty() || self.takes_peer(event, inner, snapshot))
    }

    fn takes_reason(&self, event: &Event<'_>) -> bool {
        let named = |reason| self.reasons.contains(&reason);
        event.stage != Stage::Dropped || self.reasons.is_empty() || event.reason.is_some_and(named)
    }

    fn takes_pod(&self, inner: &[u8]) -> bool {
        let ends = addresses(inner);
        ends.is_some_and(|(source, destination)| {
            self.pods.contains(&source) || self.pods.contains(&destination)
        })
    }

    /// By the outer address, or where there is none yet by who owns the inner one.
    fn takes_peer(&self, event: &Event<'_>, inner: &[u8], snapshot: &Snapshot) -> bool {
        if let Some(remote) = event.remote {
            return self.peers.contains(&remote.ip());
        }
        let theirs = addresses(inner).map(|(source, destination)| match event.direction {
            Direction::Outbound => destination,
            Direction::Inbound => source,
        });
        let cluster = &snapshot.cluster;
        let peer = theirs.and_then(|address| cluster.peers.peer(cluster.fib.lookup(address)?));
        peer.is_some_and(|peer| {
            let mut public = peer.public.iter();
            public.any(|address| self.peers.contains(&address))
        })
    }
}

/// Source and destination of an IP packet, by its version alone.
fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let source: [u8; 4] = *packet.get(12..)?.first_chunk()?;
            let destination: [u8; 4] = *packet.get(16..)?.first_chunk()?;
            Some((source.into(), destination.into()))
        }
        6 => {
            let source: [u8; 16] = *packet.get(8..)?.first_chunk()?;
            let destination: [u8; 16] = *packet.get(24..)?.first_chunk()?;
            Some((source.into(), destination.into()))
        }
        _ => None,
    }
}
