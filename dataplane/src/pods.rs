//! The node's local set: which inner addresses live here.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::drop_counts::DropCounts;
use crate::spec::{LocalSpec, PodId};

/// Who may speak from this node and who is reached on it.
pub struct Pods {
    /// What they were made of.
    spec: Arc<LocalSpec>,
    /// Each attachment's address, with the drops of its pod.
    attachments: HashMap<IpAddr, Arc<DropCounts>>,
    kernel_prefixes: Vec<IpNet>,
    allowed_sources: Vec<IpNet>,
    subnets: Vec<IpNet>,
    tunnel: Vec<IpAddr>,
    node: HashSet<IpAddr>,
}

/// What an address of the local set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Our tunnel's.
    Tunnel,
    /// An attachment's.
    Attachment,
    /// One that the kernel has on another device.
    Kernel,
}

impl Pods {
    /// What was counted about pods of `previous` lives on with the pod, not with its address.
    pub(crate) fn new(spec: &Arc<LocalSpec>, previous: Option<&Pods>) -> Pods {
        let mut counts = previous.map_or_else(HashMap::new, Pods::counts);
        let attachments = spec.attachments.iter().map(|address| {
            let counts = counts.entry(spec.owner(*address)).or_default();
            (*address, Arc::clone(counts))
        });
        Pods {
            attachments: attachments.collect(),
            spec: Arc::clone(spec),
            kernel_prefixes: spec.kernel_prefixes.clone(),
            allowed_sources: spec.allowed_sources.clone(),
            subnets: spec.subnets.clone(),
            tunnel: spec.tunnel.clone(),
            node: spec.addresses.iter().copied().collect(),
        }
    }

    /// The drops of each pod.
    fn counts(&self) -> HashMap<Owner, Arc<DropCounts>> {
        let of = |(address, counts): (&IpAddr, &Arc<DropCounts>)| {
            (self.spec.owner(*address), Arc::clone(counts))
        };
        self.attachments.iter().map(of).collect()
    }

    /// Whether they were made of this very spec.
    pub(crate) fn are_of(&self, spec: &Arc<LocalSpec>) -> bool {
        Arc::ptr_eq(&self.spec, spec)
    }

    /// Whether a packet from this node may carry `source`: a pod's, our tunnel's or the node's own address, or one that
    /// a pod was allowed.
    pub fn may_speak(&self, source: IpAddr) -> bool {
        let allowed = || self.allowed_sources.iter().any(|net| net.contains(&source));
        self.is_ours(source) || allowed()
    }

    /// Whether an address is a pod's, our tunnel's or the node's own. What a pod was allowed beside its own is not: its
    /// prefix may hold addresses of others.
    pub fn is_ours(&self, address: IpAddr) -> bool {
        self.is_local(address) || self.node.contains(&address)
    }

    /// Whether a packet from a peer may go to `destination`: a pod's or our tunnel's address. The node's underlay
    /// addresses, loopback, link-local, multicast and broadcast are none of these.
    pub fn is_local(&self, destination: IpAddr) -> bool {
        self.local(destination).is_some()
    }

    /// What of this node a packet from a peer goes to; `None` where it may not.
    pub fn local(&self, destination: IpAddr) -> Option<Local> {
        if self.tunnel.contains(&destination) {
            Some(Local::Tunnel)
        } else if !self.in_own_subnet(destination) {
            None
        } else if self.attachments.contains_key(&destination) {
            Some(Local::Attachment)
        } else {
            self.kernel_serves(destination).then_some(Local::Kernel)
        }
    }

    /// The drops of the pod that has `address`; `None` where that is no attachment's.
    pub fn drops(&self, address: IpAddr) -> Option<&DropCounts> {
        self.attachments.get(&address).map(|counts| &**counts)
    }

    /// The drops of `pod` where it has `address`; `None` where another has it, or none.
    pub fn drops_of(&self, pod: PodId, address: IpAddr) -> Option<&DropCounts> {
        let is_its = self.spec.pods.get(&address) == Some(&pod);
        is_its.then(|| self.drops(address)).flatten()
    }

    /// Whether the kernel has it on another device, and not as the broadcast address of any prefix there.
    fn kernel_serves(&self, destination: IpAddr) -> bool {
        let mut prefixes = self.kernel_prefixes.iter();
        prefixes.any(|prefix| prefix.contains(&destination))
            && !self
                .kernel_prefixes
                .iter()
                .any(|prefix| is_broadcast(prefix, destination))
    }

    /// Whether `destination` lies in a subnet leased to this node.
    pub fn in_own_subnet(&self, destination: IpAddr) -> bool {
        self.subnets
            .iter()
            .any(|subnet| subnet.contains(&destination))
    }

    /// Our tunnel address of the family of `like`: the source of the ICMP errors that we make.
    pub fn tunnel_address(&self, like: IpAddr) -> Option<IpAddr> {
        self.tunnel
            .iter()
            .copied()
            .find(|address| address.is_ipv4() == like.is_ipv4())
    }
}

impl LocalSpec {
    /// Whose counts those of an attached address are.
    fn owner(&self, address: IpAddr) -> Owner {
        let pod = self.pods.get(&address);
        pod.map_or(Owner::Address(address), |pod| Owner::Pod(*pod))
    }
}

/// Who has an attached address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Pod(PodId),
    /// A pod that has this address alone, as long as it is attached.
    Address(IpAddr),
}

fn is_broadcast(prefix: &IpNet, address: IpAddr) -> bool {
    matches!(prefix, IpNet::V4(v4) if v4.prefix_len() < 31) && prefix.broadcast() == address
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drop_counts::Parties;
    use crate::drops::{Direction, DropReason};
    use crate::spec::tests::spec;

    fn local() -> LocalSpec {
        LocalSpec::clone(&spec().local)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_a_pod_was_allowed_it_may_send_from_and_is_not_reached_at() {
        let mut allowed = local();
        allowed
            .allowed_sources
            .push("203.0.113.0/24".parse().unwrap());
        let pods = Pods::new(&Arc::new(allowed), None);
        assert!(pods.may_speak(ip("203.0.113.7")));
        assert!(!pods.may_speak(ip("203.0.114.7")));
        assert!(!pods.is_local(ip("203.0.113.7")));
        assert!(!Pods::new(&Arc::new(local()), None).may_speak(ip("203.0.113.7")));
    }

    #[test]
    fn the_local_set_is_pods_and_tunnel_and_nothing_of_the_host() {
        let mut spec = local();
        spec.attachments.push(ip("127.0.0.1"));
        spec.attachments.push(ip("10.244.9.9"));
        spec.kernel_prefixes.push("10.244.1.64/26".parse().unwrap());
        spec.kernel_prefixes.push("10.244.1.96/27".parse().unwrap());
        spec.kernel_prefixes
            .push("10.244.1.112/28".parse().unwrap());
        let pods = Pods::new(&Arc::new(spec), None);
        for local in ["10.244.1.2", "10.244.1.0", "10.244.1.65"] {
            assert!(
                pods.is_local(ip(local)) && pods.may_speak(ip(local)),
                "{local}"
            );
        }
        for remote in [
            "127.0.0.1",
            "10.244.9.9",
            "10.244.1.3",
            "10.244.1.127",
            "224.0.0.1",
            "169.254.169.254",
            "::1",
        ] {
            assert!(!pods.is_local(ip(remote)), "{remote}");
        }
        assert!(!pods.is_local(ip("192.0.2.1")) && pods.may_speak(ip("192.0.2.1")));
        assert_eq!(pods.tunnel_address(ip("10.9.9.9")), Some(ip("10.244.1.0")));
        assert_eq!(pods.tunnel_address(ip("fd00::1")), None);
    }

    #[test]
    fn counts_stay_with_the_pod_and_not_with_the_address() {
        let with = |of: &[(&str, u64)]| {
            let mut spec = local();
            spec.attachments = of.iter().map(|(address, _)| ip(address)).collect();
            let numbered = of.iter().filter(|(_, pod)| *pod > 0);
            spec.pods = numbered
                .map(|(address, pod)| (ip(address), PodId(*pod)))
                .collect();
            Arc::new(spec)
        };
        let count = |pods: &Pods, address: &str| {
            let parties = Parties {
                peer: None,
                pod: pods.drops(ip(address)),
            };
            parties.count(Direction::Inbound, DropReason::NotOurs, 1);
        };
        let sum = |pods: &Pods, address: &str| pods.drops(ip(address)).map(|d| d.read().sum());
        let first = Pods::new(
            &with(&[("10.244.1.2", 1), ("10.244.1.3", 1), ("10.244.1.4", 0)]),
            None,
        );
        for address in ["10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.9"] {
            count(&first, address);
        }
        assert_eq!(sum(&first, "10.244.1.2"), Some(2), "a pod of two addresses");
        assert_eq!(sum(&first, "10.244.1.9"), None);
        let of = |pod: u64, address: &str| {
            let drops = first.drops_of(PodId(pod), ip(address));
            drops.map(|d| d.read().sum())
        };
        assert_eq!(of(1, "10.244.1.3"), Some(2));
        assert_eq!((of(2, "10.244.1.3"), of(1, "10.244.1.4")), (None, None));
        // One address is another pod's now, and a pod has moved.
        let next = Pods::new(
            &with(&[("10.244.1.2", 2), ("10.244.1.5", 1), ("10.244.1.4", 0)]),
            Some(&first),
        );
        assert_eq!(sum(&next, "10.244.1.2"), Some(0));
        assert_eq!(sum(&next, "10.244.1.5"), Some(2));
        assert_eq!(sum(&next, "10.244.1.4"), Some(1));
    }

    #[test]
    fn a_broadcast_address_of_any_prefix_is_no_pod() {
        let mut spec = local();
        for prefix in ["10.244.1.0/24", "10.244.1.64/26"] {
            spec.kernel_prefixes.push(prefix.parse().unwrap());
        }
        let pods = Pods::new(&Arc::new(spec), None);
        assert!(pods.is_local(ip("10.244.1.126")) && pods.is_local(ip("10.244.1.128")));
        assert!(!pods.is_local(ip("10.244.1.127")) && !pods.is_local(ip("10.244.1.255")));
    }
}
