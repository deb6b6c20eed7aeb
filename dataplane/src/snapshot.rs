//! Everything a worker knows, immutable: control builds one, publishes it with one pointer swap, and workers adopt it
//! between batches.
//!
//! Theory of operation: a snapshot is two shared parts, the cluster's tables and those of this node's pods. Each is made
//! anew only where its part of the spec is another than before, and the cluster's from those before it
//! ([`Cluster`](crate::cluster)). So a pod that comes or goes costs what a node's pods cost, whatever the size of the
//! cluster.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::Cluster;
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
            _ => Arc::new(Pods::new(&spec.local)),
        };
        Snapshot {
            version: spec.version,
            cluster,
            pods,
        }
    }

    /// Whether inner `source` belongs to `peer`: its subnets, its own node addresses, what `accept-sources` lists. An
    /// address of ours belongs to no peer, whatever a lease says.
    pub fn belongs(&self, id: PeerId, peer: &Peer, source: IpAddr) -> bool {
        let claimed = self.cluster.fib.lookup(source) == Some(id)
            || peer.also.iter().any(|net| net.contains(&source));
        claimed && !self.pods.is_ours(source) && !self.pods.in_own_subnet(source)
    }
}
