//! What of the host the programs' tables follow.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;

use dataplane::kernel_path::{PodEnd, PodFacts};
use dataplane::snapshot::Snapshot;
use dataplane::spec::Spec;
use encap::Mac;
use ipnet::IpNet;

use super::flows::{FlowFacts, FlowPod};
use super::site::Site;

use super::switching::Surroundings;

/// The pods that are attached by our plugin and served, each with the name of its host's end where its flows may leave the
/// host's stack out: not of one with a limit, which is the stack's to keep, one of ours or one at the host's end, as
/// `disciplined` has the indices of those. None may where that is `None`.
pub(super) fn pods(
    with: &Surroundings<'_>,
    disciplined: Option<&HashSet<u32>>,
) -> Vec<(Option<String>, PodFacts)> {
    let mut found = Vec::new();
    for attachment in with.model.records.served() {
        let link = with.picture.pod_links().host_end(&attachment);
        let link = link.filter(|link| {
            attachment.bandwidth.is_none()
                && disciplined.is_some_and(|limited| !limited.contains(&link.ifindex))
        });
        let end = link.as_ref().and_then(|link| {
            Some(PodEnd {
                ifindex: NonZeroU32::new(link.ifindex)?,
                namespace: link.namespace,
                pod_mac: Mac::from_str(&attachment.mac).ok()?,
                host_mac: link.mac,
            })
        });
        let name = link.map(|link| link.name);
        for network in &attachment.addresses {
            if let IpAddr::V4(address) = network.addr() {
                found.push((name.clone(), PodFacts { address, end }));
            }
        }
    }
    found
}

/// The served pods of our plugin, as the thread of the flows knows them; `disciplined` has the
/// indices of host's ends with a limit.
pub(super) fn flow_pods(
    with: &Surroundings<'_>,
    disciplined: &HashSet<u32>,
) -> HashMap<Ipv4Addr, FlowPod> {
    let mut found = HashMap::new();
    for attachment in with.model.records.served() {
        let Some(end) = with.picture.pod_links().host_end(&attachment) else {
            continue;
        };
        let pod = FlowPod {
            ifindex: end.ifindex,
            is_limited: attachment.bandwidth.is_some() || disciplined.contains(&end.ifindex),
        };
        for network in &attachment.addresses {
            if let IpAddr::V4(address) = network.addr() {
                found.insert(address, pod);
            }
        }
    }
    found
}

/// What the thread of the flows judges by.
pub(super) fn of_flows(
    spec: &Spec,
    snapshot: Arc<Snapshot>,
    site: &Site,
    private_port: u16,
    pods: &HashMap<Ipv4Addr, FlowPod>,
) -> FlowFacts {
    let node = &spec.cluster.node;
    let networks = node.networks.iter();
    let devices = [site.underlay.ifindex, site.tunnel.ifindex];
    FlowFacts {
        snapshot,
        networks: networks
            .filter_map(|network| match network {
                IpNet::V4(v4) => Some(*v4),
                IpNet::V6(_) => None,
            })
            .collect(),
        pods: pods.clone(),
        encapsulation_ports: vec![node.udp_port, node.vxlan_port, private_port],
        devices: devices.into_iter().chain(site.device_index).collect(),
    }
}
