//! All Nodes as the API server said last, and the records that they hold.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::families::PerFamily;
use ipnet::IpNet;

use super::annotations::{self, AnnotationFault, Names};
use super::node::{Metadata, Node, Spec};
use crate::config::NetConf;
use crate::lease::{Lease, default_vtep_mac};
use crate::registry::records::Candidate;
use crate::registry::{RefusedRecord, RegistryPlace};

/// The Nodes by name.
#[derive(Debug, Default)]
pub(super) struct NodeTable {
    nodes: HashMap<String, Node>,
}

/// Why a Node's pod subnets cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PodCidrFault {
    #[error(
        "it has no podCIDR: run kube-controller-manager with --allocate-node-cidrs=true and --cluster-cidr, or set up the cluster with kubeadm init --pod-network-cidr"
    )]
    Missing,
    #[error("podCIDR {0:?} is not a prefix: delete the Node and let it register again")]
    Malformed(String),
    #[error(
        "it has {0} podCIDRs, and at most one of each family can be used: delete the Node and let it register again"
    )]
    Many(usize),
    #[error(
        "its podCIDRs {0} and {1} are of one family: delete the Node and let it register again"
    )]
    SameFamily(IpNet, IpNet),
}

/// Why the record of a Node cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum NodeFault {
    #[error(transparent)]
    Annotation(#[from] AnnotationFault),
    #[error(transparent)]
    PodCidr(#[from] PodCidrFault),
}

impl NodeTable {
    /// The Nodes are these and no others.
    pub(super) fn replace(&mut self, nodes: Vec<Node>) {
        let named = nodes
            .into_iter()
            .map(|node| (node.metadata.name.clone(), node));
        self.nodes = named.collect();
    }

    /// A Node was added or changed. Returns whether anything differs that this registry reads.
    ///
    /// An older state is passed over: the answer to a patch may overtake the watch.
    pub(super) fn apply(&mut self, node: Node) -> bool {
        let Some(known) = self.nodes.get_mut(&node.metadata.name) else {
            self.nodes.insert(node.metadata.name.clone(), node);
            return true;
        };
        let is_same = known.metadata.uid == node.metadata.uid;
        if is_same && version(known) > version(&node) {
            return false;
        }
        let differs = !is_same
            || known.spec != node.spec
            || known.metadata.annotations != node.metadata.annotations;
        *known = node;
        differs
    }

    /// A Node was deleted. Returns whether it was known.
    pub(super) fn remove(&mut self, node: &Node) -> bool {
        let Metadata { name, uid, .. } = &node.metadata;
        let is_known = self
            .nodes
            .get(name)
            .is_some_and(|known| known.metadata.uid == *uid);
        is_known && self.nodes.remove(name).is_some()
    }

    /// The Node of this name.
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// The records in order of precedence: `own` first, then those of the other Nodes, the oldest first; and the records
    /// that cannot be read.
    pub(super) fn candidates(
        &self,
        own: Lease,
        names: &Names,
        net_conf: &NetConf,
    ) -> (Vec<Candidate>, Vec<RefusedRecord>) {
        let others = self
            .nodes
            .values()
            .filter(|node| node.metadata.name != own.name);
        let mut others: Vec<_> = others.collect();
        others
            .sort_unstable_by_key(|node| (&node.metadata.creation_timestamp, &node.metadata.name));
        let (mut candidates, mut refused) = (Vec::with_capacity(others.len() + 1), Vec::new());
        candidates.push(Candidate {
            place: place(&own.name),
            lease: own,
            is_own: true,
        });
        for node in others {
            match lease(node, names, net_conf) {
                Ok(None) => {}
                Ok(Some(lease)) => candidates.push(Candidate {
                    place: place(&node.metadata.name),
                    lease,
                    is_own: false,
                }),
                Err(fault) => refused.push(refuse(node, names, &fault)),
            }
        }
        (candidates, refused)
    }
}

/// The API server counts versions up; they are texts all the same, and one that is no number compares as none.
fn version(node: &Node) -> Option<u64> {
    node.metadata.resource_version.parse().ok()
}

/// Reads the record of a Node; `None` for a Node that is none of the overlay's.
fn lease(node: &Node, names: &Names, net_conf: &NetConf) -> Result<Option<Lease>, NodeFault> {
    let Some(published) = annotations::read(&node.metadata.annotations, names, net_conf)? else {
        return Ok(None);
    };
    let written = pod_cidrs(&node.spec)?;
    // As in flannel, the podCIDR of a family that the cluster network lacks is not used.
    let of_cluster = |subnet: &IpNet| match subnet {
        IpNet::V4(_) => net_conf.network.is_some(),
        IpNet::V6(_) => net_conf.ipv6_network.is_some(),
    };
    let used: Vec<_> = written.iter().copied().filter(of_cluster).collect();
    let mac = default_vtep_mac(published.public.first());
    let vtep_mac = published.vtep_mac.unwrap_or(PerFamily { v4: mac, v6: mac });
    Ok(Some(Lease {
        name: node.metadata.name.clone(),
        subnets: if used.is_empty() { written } else { used },
        public: published.public,
        format: published.format,
        vtep_mac,
        accept_sources: Vec::new(),
        underlay_sources: Vec::new(),
        // The annotations are flannel's, and have no word for it.
        kernel_path: None,
    }))
}

/// The pod subnets of a Node, host bits set to zero as in Go's `net.ParseCIDR`.
///
/// # Errors
/// [`PodCidrFault`].
pub(super) fn pod_cidrs(spec: &Spec) -> Result<Vec<IpNet>, PodCidrFault> {
    let written = spec.pod_cidrs();
    if written.len() > MOST_CIDRS {
        return Err(PodCidrFault::Many(written.len()));
    }
    let mut subnets = Vec::new();
    for text in written {
        let subnet: IpNet = text
            .parse()
            .map_err(|_| PodCidrFault::Malformed(text.chars().take(MOST_SHOWN).collect()))?;
        subnets.push(subnet.trunc());
    }
    match subnets.as_slice() {
        [] => Err(PodCidrFault::Missing),
        [first, second] if first.addr().is_ipv4() == second.addr().is_ipv4() => {
            Err(PodCidrFault::SameFamily(*first, *second))
        }
        _ => Ok(subnets),
    }
}

fn refuse(node: &Node, names: &Names, fault: &NodeFault) -> RefusedRecord {
    let text = |name| node.metadata.annotations.get(name).unwrap_or_default();
    let v4 = text(&names.public.v4).parse::<Ipv4Addr>().map(IpAddr::from);
    let v6 = text(&names.public.v6).parse::<Ipv6Addr>().map(IpAddr::from);
    RefusedRecord {
        place: place(&node.metadata.name),
        name: node.metadata.name.clone(),
        public: v4.or(v6).ok(),
        subnets: pod_cidrs(&node.spec).unwrap_or_default(),
        reason: fault.to_string(),
    }
}

/// A Node as the place of a fault.
pub(super) fn place(node: &str) -> RegistryPlace {
    let node = Some(node.to_owned());
    RegistryPlace::Kubernetes { node }
}

const MOST_CIDRS: usize = 2;
/// Characters; the longest prefix has 43.
const MOST_SHOWN: usize = 60;

#[cfg(test)]
mod tests;
