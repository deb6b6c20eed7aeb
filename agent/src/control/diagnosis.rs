//! Problems that the decision itself shows: pure functions of what is known and decided.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use cni_shim::Attachment;
use encap::Family;

use super::families;
use super::model::{Known, Model};
use crate::attachments::pod_name;
use crate::control::records::{RecordKey, key};
use crate::host::Bypass;
use crate::problems::Problem;

/// Every problem of the decision. `bridges` are those of another plugin with pods beside ours.
pub fn problems(model: &Model, bridges: &[String]) -> Vec<Problem> {
    let known = &model.known;
    let down = known.facts.underlay.out_of_service.iter().cloned();
    down.map(Problem::UnderlayDown)
        .chain(mixed(bridges))
        .chain(unused_address(known))
        .chain(narrow(model))
        .chain(below_configured(known))
        .chain(left_over(known))
        .chain(other_subnets(known))
        .chain(unreachable(model))
        .chain(without_subnets(known))
        .chain(lost_family(model))
        .chain(bypassing(model))
        .chain(direct_senders(known))
        .collect()
}

/// Every problem of the attachment records.
pub fn of_records(model: &Model) -> Vec<Problem> {
    let refused = model.records.refused();
    let shown = refused.iter().take(MOST_OF_A_KIND);
    let shown = shown.map(|refused| Problem::RecordRefused {
        file: refused.file.clone(),
        reason: refused.reason.clone(),
    });
    let more = more(refused.len(), "records are refused", "tartan pods");
    stranded(model)
        .into_iter()
        .chain(shown)
        .chain(more)
        .collect()
}

/// That there are more problems of a kind than are shown.
pub(crate) fn more(count: usize, what: &'static str, command: &'static str) -> Option<Problem> {
    let more = count.saturating_sub(MOST_OF_A_KIND);
    (more > 0).then_some(Problem::MoreOfAKind {
        more,
        what,
        command,
    })
}

/// It works, but for IPv6 and for the check of sources, and is not meant to last.
fn mixed(bridges: &[String]) -> Option<Problem> {
    let bridges = bridges.to_vec();
    (!bridges.is_empty()).then_some(Problem::MixedPods { bridges })
}

/// An address of the configuration is used in the place of one of our lease, and of no other.
fn unused_address(known: &Known) -> Option<Problem> {
    let (config, own) = (&known.config, known.own.public);
    let written: [Option<IpAddr>; 2] = [
        config.local_v4.map(IpAddr::from),
        config.local_v6.map(IpAddr::from),
    ];
    let unused = |address: &IpAddr| own.of(Family::of(*address)).is_none();
    let address = written.into_iter().flatten().find(unused)?;
    Some(Problem::UnusedAddress { address })
}

/// No host needs to make packets smaller than the tunnel device's least MTU.
fn narrow(model: &Model) -> Option<Problem> {
    let desired = &model.desired;
    let (carries, needs) = (
        desired.spec.cluster.node.underlay_mtu,
        desired.largest_datagram,
    );
    (carries < needs).then(|| Problem::UnderlayNarrow {
        interface: model.known.facts.underlay.name.clone(),
        carries,
        needs,
        device_mtu: desired.host.mtu,
    })
}

/// Every node counts on the MTU that the net-conf names; one with less is sent packets that it cannot take.
fn below_configured(known: &Known) -> Option<Problem> {
    let configured = known.net_conf.backend.configured_mtu()?;
    let underlay = &known.facts.underlay;
    (underlay.mtu < configured).then(|| Problem::UnderlayBelowMtu {
        interface: underlay.name.clone(),
        carries: underlay.mtu,
        configured,
    })
}

/// Devices of flannel's hold this node's addresses beside ours, and answer for them.
fn left_over(known: &Known) -> impl Iterator<Item = Problem> {
    let devices = known.facts.flannel_devices.iter().take(MOST_OF_A_KIND);
    devices.map(|(device, address)| Problem::FlannelLeftOver {
        device: device.clone(),
        address: *address,
    })
}

fn other_subnets(known: &Known) -> impl Iterator<Item = Problem> {
    let bridges = known.facts.foreign_bridges.iter().take(MOST_OF_A_KIND);
    bridges.map(|bridge| Problem::BridgeOtherSubnet {
        bridge: bridge.clone(),
        subnets: known.own.subnets.clone(),
    })
}

/// One problem for all of them: a node without an address of some family reaches no node that has only that.
fn unreachable(model: &Model) -> Option<Problem> {
    let spec = &model.desired.spec;
    let ours = spec.cluster.node.public;
    let mut peers = spec.cluster.peers.iter().filter(|peer| {
        let ways = [Family::V4, Family::V6].map(|inner| ours.way_to(peer.public, inner));
        ways == [None, None]
    });
    let first = peers.next()?;
    Some(Problem::PeersUnreachable {
        first: first.name.clone(),
        address: first.public,
        more: peers.count(),
        ours,
    })
}

/// One problem for all of them: the switch of a family concerns every node.
fn without_subnets(known: &Known) -> Option<Problem> {
    let cluster = known.net_conf.cluster();
    let (family, lacking) = families::without_subnets(&cluster, &known.leases)?;
    let (first, rest) = lacking.split_first()?;
    Some(Problem::FamilyWithoutSubnets {
        family,
        first: (*first).to_owned(),
        more: rest.len(),
    })
}

/// One problem for all of them: a list that is cut loses a family of many nodes.
fn lost_family(model: &Model) -> Option<Problem> {
    let (first, rest) = model.lost_families.split_first()?;
    Some(Problem::PeerLostFamily {
        lost: first.clone(),
        more: rest.len(),
    })
}

/// One problem for all of them: a change of subnets strands every pod of the node.
fn stranded(model: &Model) -> Option<Problem> {
    let pods: Vec<String> = model
        .stranded()
        .map(|pod| pod_name(pod).unwrap_or_else(|| format!("container {}", pod.container)))
        .collect();
    (!pods.is_empty()).then_some(Problem::PodsStranded { pods })
}

/// Pods whose links are not as they should be.
pub fn of_links(adopted: &[Arc<Attachment>], faulty: &HashMap<RecordKey, String>) -> Vec<Problem> {
    let more = more(faulty.len(), "pods have faulty links", "tartan pods");
    let problem = |attachment: &Arc<Attachment>| {
        Some(Problem::PodLink {
            pod: pod_name(attachment)
                .unwrap_or_else(|| format!("container {}", attachment.container)),
            host_ifname: attachment.host_ifname.clone(),
            reason: faulty.get(&key(attachment))?.clone(),
        })
    };
    let shown = adopted.iter().filter_map(problem).take(MOST_OF_A_KIND);
    shown.chain(more).collect()
}

fn direct_senders(known: &Known) -> impl Iterator<Item = Problem> {
    known.facts.direct.iter().cloned().map(|senders| {
        if senders.is_filtered() {
            Problem::DirectRoutingFiltered(senders)
        } else {
            Problem::DirectRouting(senders)
        }
    })
}

fn bypassing(model: &Model) -> Vec<Problem> {
    // The route to a stranded pod goes with the pod.
    let stranded: HashSet<&str> = model.stranded().map(|pod| &*pod.host_ifname).collect();
    let leads_to_stranded = |bypass: &Bypass| {
        let device = bypass.device.as_deref();
        device.is_some_and(|device| stranded.contains(device))
    };
    let bypassing = model.known.facts.bypassing.iter();
    let bypassing: Vec<&Bypass> = bypassing.filter(|b| !leads_to_stranded(b)).collect();
    let more = more(bypassing.len(), "routes bypass Tartan", "tartan routes");
    let shown = bypassing.into_iter().take(MOST_OF_A_KIND).cloned();
    shown.map(Problem::RouteBypasses).chain(more).collect()
}

/// A node with thousands of foreign routes or garbled records still has a status of one screen.
pub(crate) const MOST_OF_A_KIND: usize = 20;
