//! What this node's own Node must say, and the patch that makes it say so (flannel `pkg/subnet/kube/kube.go`).
//!
//! Theory of operation. The VTEP MAC that the annotations hold when this node first looks is kept, so that peers need not
//! learn another; after that it is ours, like the other annotations. They are written once. If they differ later although
//! nothing else is announced, another program changed them: a flanneld beside us, or a person. They are written back, but
//! only so often: two programs that overwrite each other's record for ever are worse than one that is refused.
//!
//! What this node is to its peers is certain as soon as its podCIDR is. So a record that is contested, or whose overwrites
//! cannot be read, is a fault beside the plan ([`Plan::fault`]), and the other Nodes are followed all the same.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use dataplane::families::{PerFamily, PublicAddresses};
use encap::{Format, Mac};
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::annotations::{self, AnnotationFault, Names, Published};
use super::node::{Annotations, Node, NodeConditions};
use super::node_table::{PodCidrFault, pod_cidrs};
use crate::config::NetConf;
use crate::lease::Lease;
use crate::registry::Announcement;

/// What is known of this node's own record.
#[derive(Debug, Default)]
pub(super) struct OwnNode {
    /// The VTEP MACs, once chosen.
    vtep_mac: Option<PerFamily<Mac>>,
    /// The annotations that the Node had or was given, and the Node's `uid`.
    settled: Option<(String, Vec<(String, String)>)>,
    /// When changes of others were written back.
    written_back: VecDeque<Instant>,
    /// The addresses that an operator set, as far as they could be read.
    overwrite: Option<Overwrite>,
}

/// The addresses of `public-ip-overwrite` and `public-ipv6-overwrite`.
type Overwrite = (Option<Ipv4Addr>, Option<Ipv6Addr>);

/// What is to be done, and what holds afterwards.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// This node's lease.
    pub(super) lease: Lease,
    /// The annotations to write now; empty if the Node has them, or they are contested.
    pub(super) differing: Vec<(String, String)>,
    /// What the operator must mend, although the lease is certain.
    pub(super) fault: Option<OwnNodeFault>,
    /// They were as they should be before: another program changed them.
    pub(super) by_others: bool,
    /// All annotations that the Node is to have.
    target: Vec<(String, String)>,
    uid: String,
}

/// Why this node has no lease, or one that its Node does not name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OwnNodeFault {
    #[error(transparent)]
    PodCidr(#[from] PodCidrFault),
    #[error(transparent)]
    Annotation(#[from] AnnotationFault),
    #[error(
        "its podCIDR {subnet} lies outside {key} {network} of the network configuration: set {key} to the cluster CIDR of kube-controller-manager"
    )]
    Outside {
        subnet: IpNet,
        key: &'static str,
        network: IpNet,
    },
    #[error(
        "its podCIDR {0} is IPv6, and the network configuration has no IPv6Network: set EnableIPv6 and IPv6Network to the cluster CIDR of kube-controller-manager"
    )]
    NoIpv6Network(IpNet),
    #[error(
        "its podCIDR {0} is IPv4, and EnableIPv4 is false in the network configuration: set it to true, and Network to the cluster CIDR of kube-controller-manager"
    )]
    NoNetwork(IpNet),
    #[error(
        "another program changes {names} of this Node each time Tartan writes them: stop the flanneld of this node (keep its DaemonSet off it by deploy/kubernetes/flannel-affinity.yaml); Tartan writes them again after 10 minutes"
    )]
    Contested { names: String },
}

impl OwnNode {
    /// Compares this node's Node with what it announces.
    ///
    /// # Errors
    /// [`OwnNodeFault`]: this node has no lease.
    pub(super) fn plan(
        &mut self,
        node: &Node,
        names: &Names,
        announced: &Announcement,
        now: Instant,
    ) -> Result<Plan, OwnNodeFault> {
        let subnets = own_subnets(node, &announced.net_conf)?;
        let found = &node.metadata.annotations;
        let mut fault = None;
        let overwrite = match (annotations::pair(found, &names.overwrite), self.overwrite) {
            (Ok(read), _) => *self.overwrite.insert(read),
            (Err(unreadable), Some(last)) => {
                fault = Some(unreadable.into());
                last
            }
            (Err(unreadable), None) => return Err(unreadable.into()),
        };
        let public = overwritten(announced.public, overwrite);
        let vtep_mac = *self.vtep_mac.get_or_insert_with(|| {
            let kept = |name| annotations::mac(found, name).ok().flatten();
            let kept = |name| kept(name).filter(|mac: &Mac| mac.is_unicast());
            PerFamily {
                v4: kept(&names.backend_data).unwrap_or(announced.vtep_mac.v4),
                v6: kept(&names.backend_v6_data).unwrap_or(announced.vtep_mac.v6),
            }
        });
        let format = announced.net_conf.backend.format();
        let published = Published {
            public,
            format,
            vtep_mac: (format == Format::Vxlan).then_some(vtep_mac),
        };
        let vni = announced.net_conf.backend.vni();
        let target = annotations::write(&published, names, vni, &announced.net_conf);
        let differs = |(name, value): &&(String, String)| found.get(name) != Some(value);
        let mut differing: Vec<_> = target.iter().filter(differs).cloned().collect();
        let uid = node.metadata.uid.clone();
        let settled = (uid, target);
        let by_others = !differing.is_empty() && self.settled.as_ref() == Some(&settled);
        if by_others {
            if let Err(contested) = self.check_contest(&differing, now) {
                fault = Some(contested);
                differing.clear();
            }
        } else if differing.is_empty() {
            self.settled = Some(settled.clone());
        }
        let (uid, target) = settled;
        Ok(Plan {
            lease: Lease {
                name: announced.node_name.clone(),
                subnets,
                public,
                format,
                vtep_mac,
                accept_sources: Vec::new(),
                underlay_sources: Vec::new(),
                kernel_path: None,
            },
            differing,
            fault,
            by_others,
            target,
            uid,
        })
    }

    /// The annotations of `plan` were written.
    pub(super) fn written(&mut self, plan: &Plan, now: Instant) {
        if plan.by_others {
            self.written_back.push_back(now);
        }
        self.settled = Some((plan.uid.clone(), plan.target.clone()));
    }

    /// When a record that is refused as contested may be written again.
    pub(super) fn next_write_back(&self) -> Option<Instant> {
        self.written_back.front().map(|first| *first + CONTEST)
    }

    fn check_contest(
        &mut self,
        differing: &[(String, String)],
        now: Instant,
    ) -> Result<(), OwnNodeFault> {
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= CONTEST;
        while self.written_back.front().is_some_and(is_old) {
            self.written_back.pop_front();
        }
        if self.written_back.len() < MOST_WRITE_BACKS {
            return Ok(());
        }
        let names: Vec<_> = differing.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        Err(OwnNodeFault::Contested { names })
    }
}

/// The pod subnets of the families of the cluster network. As in flannel, an IPv6 one must be in the network configuration,
/// and an IPv4 one is not used where `EnableIPv4` is false.
fn own_subnets(node: &Node, net_conf: &NetConf) -> Result<Vec<IpNet>, OwnNodeFault> {
    let mut used = Vec::new();
    let mut without_network = None;
    for subnet in pod_cidrs(&node.spec)? {
        let (key, network) = match subnet {
            IpNet::V4(_) => ("Network", net_conf.network.map(IpNet::V4)),
            IpNet::V6(_) => ("IPv6Network", net_conf.ipv6_network.map(IpNet::V6)),
        };
        match network {
            Some(network) if network.contains(&subnet) => used.push(subnet),
            Some(network) => {
                return Err(OwnNodeFault::Outside {
                    subnet,
                    key,
                    network,
                });
            }
            None if matches!(subnet, IpNet::V6(_)) => {
                return Err(OwnNodeFault::NoIpv6Network(subnet));
            }
            None => without_network = Some(subnet),
        }
    }
    match without_network {
        Some(subnet) if used.is_empty() => Err(OwnNodeFault::NoNetwork(subnet)),
        _ => Ok(used),
    }
}

/// `announced`, with the addresses that an operator wrote in place of those of the same family.
fn overwritten(announced: PublicAddresses, (v4, v6): Overwrite) -> PublicAddresses {
    match announced {
        PublicAddresses::V4(own) => PublicAddresses::V4(v4.unwrap_or(own)),
        PublicAddresses::V6(own) => PublicAddresses::V6(v6.unwrap_or(own)),
        PublicAddresses::Dual(own4, own6) => {
            PublicAddresses::Dual(v4.unwrap_or(own4), v6.unwrap_or(own6))
        }
    }
}

/// What differs, for the log: each name with the value found.
pub(super) fn found(found: &Annotations, differing: &[(String, String)]) -> String {
    let each = differing.iter().map(|(name, _)| {
        let value = found.get(name).map(|value| value.chars().take(MOST_SHOWN));
        match value {
            Some(value) => format!("{name} = {:?}", value.collect::<String>()),
            None => format!("{name} missing"),
        }
    });
    each.collect::<Vec<_>>().join(", ")
}

/// The patch that sets `annotations`.
pub(super) fn annotation_patch(annotations: &[(String, String)]) -> Value {
    let pairs = annotations.iter();
    let pairs = pairs.map(|(name, value)| (name.clone(), Value::String(value.clone())));
    json!({"metadata": {"annotations": pairs.collect::<Map<_, _>>()}})
}

/// Whether a Node with these conditions says already what [`condition_patch`] says.
pub(super) fn has_condition(conditions: &NodeConditions) -> bool {
    let network = conditions.network_unavailable.as_ref();
    network.is_some_and(|found| found.status == "False" && found.reason == REASON)
}

/// The patch that says that pods of this node have a network, in flannel's words, which programs look for. `now` is a
/// time in RFC 3339 with whole seconds.
pub(super) fn condition_patch(now: &str) -> Value {
    json!({"status": {"conditions": [{
        "type": "NetworkUnavailable",
        "status": "False",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": REASON,
        "message": "Flannel is running on this node",
    }]}})
}

/// flannel's.
const REASON: &str = "FlannelIsUp";
/// So often in [`CONTEST`] are changes of others written back.
const MOST_WRITE_BACKS: usize = 3;
const CONTEST: Duration = Duration::from_secs(600);
/// Characters.
const MOST_SHOWN: usize = 100;

#[cfg(test)]
mod tests;
