//! What of the host the programs' tables follow.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;

use dataplane::kernel_path::PodFacts;
use dataplane::snapshot::Snapshot;
use dataplane::spec::Spec;
use encap::Mac;
use ipnet::IpNet;

use super::flows::{FlowFacts, FlowPod};
use super::site::Site;

use super::switching::Surroundings;

/// The pods whose flows may leave the host's stack out, with the name of each one's host's end: attached by our plugin,
/// served, and without a limit, which is the stack's to keep: neither one of ours nor one at the host's end, as
/// `disciplined` has the indices of those.
pub(super) fn pods(
    with: &Surroundings<'_>,
    disciplined: &HashSet<u32>,
) -> Vec<(Ipv4Addr, String, PodFacts)> {
    let mut found = Vec::new();
    for attachment in with.model.records.served() {
        if attachment.bandwidth.is_some() {
            continue;
        }
        let end = with.picture.pod_links().host_end(&attachment);
        let pod_mac = Mac::from_str(&attachment.mac).ok();
        let (Some(end), Some(pod_mac)) = (end, pod_mac) else {
            continue;
        };
        if disciplined.contains(&end.ifindex) {
            continue;
        }
        for network in &attachment.addresses {
            if let IpAddr::V4(address) = network.addr() {
                let pod = PodFacts {
                    address,
                    ifindex: end.ifindex,
                    namespace: end.namespace,
                    pod_mac,
                    host_mac: end.mac,
                };
                found.push((address, end.name.clone(), pod));
            }
        }
    }
    found
}

/// The served pods of our plugin, as the thread of the flows knows them; `disciplined` as for [`pods`].
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
