//! Everything a worker knows, immutable: control builds one, publishes it with one pointer swap, and workers adopt it
//! between batches.
//!
//! Theory of operation: a snapshot is two shared parts, the cluster's tables and those of this node's pods. Each is made
//! anew only where its part of the spec is another than before, and the cluster's from those before it
//! ([`Cluster`](crate::cluster)). So a pod that comes or goes costs what a node's pods cost, whatever the size of the
//! cluster.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::drop_counts::{Parties, addresses};
use crate::peer_id::PeerId;
use crate::peers::Peer;
use crate::pods::Pods;
use crate::spec::Spec;

/// One consistent view of the cluster.
pub struct Snapshot {
    /// The spec's version.
    pub version: u64,
    /// The other nodes and the routes to them.
    pub cluster: Arc<Cluster>,
    /// The local set.
    pub pods: Arc<Pods>,
}

impl Snapshot {
    /// The view that `spec` describes. What was learned and counted about peers of `previous` lives on in it.
    pub fn new(spec: &Spec, previous: Option<&Snapshot>) -> Snapshot {
        let cluster = match previous.map(|previous| &previous.cluster) {
            Some(same) if same.is_of(&spec.cluster) => Arc::clone(same),
            before => Arc::new(Cluster::new(
                &spec.cluster,
                before.map(|cluster| &**cluster),
            )),
        };
        let pods = match previous.map(|previous| &previous.pods) {
            Some(same) if same.are_of(&spec.local) => Arc::clone(same),
            before => Arc::new(Pods::new(&spec.local, before.map(|pods| &**pods))),
        };
        Snapshot {
            version: spec.version,
            cluster,
            pods,
        }
    }

    /// Where a dropped packet counts beside the worker's total: at `peer`, and at the pod that has the address `pod`.
    pub(crate) fn parties<'a>(
        &'a self,
        peer: Option<&'a Peer>,
        pod: Option<IpAddr>,
    ) -> Parties<'a> {
        Parties {
            peer: peer.map(Peer::drops),
            pod: pod.and_then(|address| self.pods.drops(address)),
        }
    }

    /// The same of a datagram that was to leave for `to`, with an inner packet in two parts.
    pub(crate) fn parties_of_datagram(&self, to: SocketAddr, inner: [&[u8]; 2]) -> Parties<'_> {
        let peer = self.cluster.peers.by_source(to.ip()).map(|(_, peer)| peer);
        // Its IP header is in one part: in headers of our making, or where it was read.
        let header = inner.into_iter().find(|part| !part.is_empty());
        let addresses = header.and_then(addresses);
        self.parties(peer, addresses.map(|(source, _)| source))
    }

    /// Whether inner `source` belongs to `peer`: its subnets, its own node addresses, what `accept-sources` lists. An
    /// address of ours belongs to no peer, whatever a lease says.
    pub fn belongs(&self, id: PeerId, peer: &Peer, source: IpAddr) -> bool {
        let claimed = self.cluster.fib.lookup(source) == Some(id)
            || peer.also.iter().any(|net| net.contains(&source));
        claimed && !self.pods.is_ours(source) && !self.pods.in_own_subnet(source)
    }
}
