//! What is wrong, worded: the sentence of each problem.

use std::fmt::Display;
use std::time::SystemTime;

use encap::Family;

use super::{ChangedMac, LeasesInForce, Problem, UnderlayFault, family_name};
use crate::control::direct_routing::DirectSenders;
use crate::host::Bypass;

impl Problem {
    /// What is wrong and what it causes, in one sentence without its full stop.
    pub fn sentence(&self) -> String {
        match self {
            Problem::NetConfRefused {
                path,
                reason,
                cached,
            } => format!(
                "the net-conf is refused{}: {}: {reason}",
                net_conf_in_force(*cached),
                path.display()
            ),
            Problem::NetConfMissing { reason, cached, .. } => format!(
                "the net-conf is refused{}: {reason}",
                net_conf_in_force(*cached)
            ),
            Problem::ConfigurationRefused { path, reason } => {
                let path = path.display().to_string();
                // Most reasons name the file and the line.
                let place = match reason.contains(&path) {
                    true => String::new(),
                    false => format!("{path}: "),
                };
                format!(
                    "the configuration is refused and the last one that was good stays in force: {place}{reason}"
                )
            }
            Problem::LeasesRefused {
                place,
                reason,
                in_force,
            } => {
                let in_force = match in_force {
                    LeasesInForce::Cache => " and the leases from cache stay in force",
                    LeasesInForce::Earlier => " and the old one stays in force",
                    LeasesInForce::Nothing => "",
                };
                format!("the list of nodes is refused{in_force}: {place}: {reason}")
            }
            Problem::RegistryLost { registry, reason } => format!(
                "the registry does not answer, and the leases in force stay: {registry}: {reason}"
            ),
            Problem::LeaseRefused { place, reason } => {
                format!("a lease is refused, and its node is not reached by it: {place}: {reason}")
            }
            Problem::NoExternalInterface { reason } => {
                format!("this node cannot tell its peers an address: {reason}")
            }
            Problem::ListShrinks {
                place,
                lost,
                in_force,
                due,
            } => {
                let (shown, rest) = lost.split_at(lost.len().min(NODES_SHOWN));
                format!(
                    "the list of nodes lacks {} of {in_force} nodes at once ({}{}): {place} is held back until {}, and the old list stays in force",
                    lost.len(),
                    list(shown),
                    and_more(rest.len()),
                    time_of_day(*due)
                )
            }
            Problem::WorkersBehind { version } => {
                format!("a worker has not adopted snapshot {version}")
            }
            Problem::ApiSocket { path, reason } => format!(
                "no new caller can connect to the API socket {}: {reason}",
                path.display()
            ),
            Problem::HealthPort {
                address,
                holder,
                reason,
            } => format!(
                "/healthz and /readyz are not answered on {address}, so probes fail: {}",
                match holder {
                    Some(holder) => format!("{holder} has the port"),
                    None => reason.clone(),
                }
            ),
            Problem::MetricsPort {
                address,
                holder,
                reason,
            } => format!(
                "/metrics is not answered on {address}, so this node cannot be scraped: {}",
                match holder {
                    Some(holder) => format!("{holder} has the port"),
                    None => reason.clone(),
                }
            ),
            Problem::LocksRemoved { run_dir } => format!(
                "another process has emptied {}, so no lock keeps a second agent or a clean-up from this node",
                run_dir.display()
            ),
            Problem::StateNotSaved { path, reason } => format!(
                "cannot write {}, so a restart without the list of nodes would not forward: {reason}",
                path.display()
            ),
            Problem::UnderlaySocket { .. } => self.underlay_socket(),
            Problem::UnderlayMove { reason } => {
                format!("the workers cannot take the sockets of the new underlay address: {reason}")
            }
            Problem::CoresUnusable { cores } => format!(
                "`cores` names {}, which this host does not have or this service may not use, so a worker is not pinned",
                list(cores)
            ),
            Problem::WorkersNotConfined { reason } => {
                format!("the workers are not confined to the system calls that they need: {reason}")
            }
            Problem::WorkersNotPinned { workers } => {
                let worker = |(worker, core): &(usize, Option<usize>)| match core {
                    Some(core) => format!("worker {worker} to core {core}"),
                    None => format!("worker {worker} to its core"),
                };
                let workers: Vec<String> = workers.iter().map(worker).collect();
                format!(
                    "the kernel refuses to pin {}, so it runs on any core",
                    list(&workers)
                )
            }
            Problem::UnderlayDown(interface) => {
                let name = &interface.name;
                let state = if interface.up {
                    "has no carrier"
                } else {
                    "is down"
                };
                format!("{name}, which carries the overlay, {state}")
            }
            Problem::Host(problem) => problem.sentence.clone(),
            Problem::NodeFile { path, reason } => format!(
                "cannot write {}, so the CNI plugin does not learn of this node's subnets and MTU: {reason}",
                path.display()
            ),
            Problem::PodUpkeep { reason } => {
                format!("the upkeep of pods is incomplete: {reason}")
            }
            Problem::PodLink {
                pod,
                host_ifname,
                reason,
            } => format!("packets of {pod}, by {host_ifname}, may be lost: {reason}"),
            Problem::MixedPods { bridges } => format!(
                "pods of another plugin on {} live beside Tartan's: they reach each other by proxy ARP, IPv4 alone",
                list(bridges)
            ),
            Problem::UnusedAddress { address } => format!(
                "the configuration names the local address {address}, and this node's lease has no address of that family"
            ),
            Problem::UnderlayNarrow {
                interface,
                carries,
                needs,
                device_mtu,
            } => format!(
                "{interface} carries {carries} bytes, but packets of {device_mtu} bytes must cross it and come to {needs}: larger packets than fit are lost"
            ),
            Problem::UnderlayBelowMtu {
                interface,
                carries,
                configured,
            } => format!(
                "{interface} carries {carries} bytes, and Backend.MTU of the net-conf is {configured}: nodes that carry that much send larger packets than arrive here"
            ),
            Problem::FlannelLeftOver { device, address } => format!(
                "{device}, a VXLAN device that flannel left, holds {} inside the cluster network: with its routes it takes packets past the overlay",
                address.addr()
            ),
            Problem::BridgeOtherSubnet { bridge, subnets } => format!(
                "the bridge {} has {}, which lies in no subnet of this node ({}): its pods cannot be reached, and the bridge plugin refuses new ones",
                bridge.name,
                bridge.address,
                list(subnets)
            ),
            Problem::PeersUnreachable {
                first,
                address,
                more,
                ours,
            } => {
                let more = and_more(*more);
                format!("no packet can go to {first} ({address}){more}: this node has only {ours}")
            }
            Problem::PeerOtherVni { node, vni, ours } => format!(
                "{node} sends datagrams of VXLAN network {vni}, and this node's is {ours}: all of them are dropped (WrongVni)"
            ),
            Problem::PeerSilent {
                peer,
                address,
                since,
            } => format!(
                "{peer} is silent since {}: {address} answers no probe, and nothing else of it arrives",
                time_of_day(*since)
            ),
            Problem::PeerOneWay { peer, address } => format!(
                "{peer} does not hear this node (one way): its packets arrive, and no probe to {address} is answered"
            ),
            Problem::ReversePathFilter { interface, astray } => match astray.is_empty() {
                true => format!(
                    "the reverse-path filter of {interface} is strict: what a peer sends from its node's own address is dropped"
                ),
                false => format!(
                    "the reverse-path filter of {interface} is strict, and the way back to peers leads elsewhere ({}): what they send is dropped",
                    list(astray)
                ),
            },
            Problem::BridgeNetfilterOff { bridges, .. } => format!(
                "packets between pods on {} do not meet kube-proxy's rules: a pod that asks a Service whose endpoint is on the same bridge gets no answer",
                list(bridges)
            ),
            Problem::FlannelRulesLeft { rules } => format!(
                "flannel's rules are still in the packet filter ({}), and no flanneld runs: they masquerade and accept by the networks of a configuration that may be old",
                list(rules)
            ),
            Problem::ChecksumErrors => "datagrams arrive with a wrong checksum and are dropped by the kernel: a sender's or a network card's checksum offload is broken".to_owned(),
            Problem::ClockSetBack { path } => format!(
                "the clock was set back, for {} was written in the future: leases of a registry seem to last longer than they do, and certificates not to be valid yet",
                path.display()
            ),
            Problem::PeerNarrow {
                peer,
                address,
                measured,
                configured,
            } => format!(
                "the path to {peer} is narrow: packets to {address} of up to {measured} bytes arrive, and this node's come to {configured}; pods are told to send smaller ones"
            ),
            Problem::PeerRefused { peer, address } => format!(
                "{peer} refuses what is sent to {address}: no process of its host has the port"
            ),
            Problem::PeerUnreachable {
                peer,
                address,
                reason,
            } => format!("{peer} is unreachable at {address}: {reason}"),
            Problem::PeerWrongMac { peer, seen } => format!(
                "{peer} sends to the VTEP MAC {seen}, which is not this node's: all of that is dropped (NotOurMac)"
            ),
            Problem::PeerProbes { reason } => {
                format!("the paths to peers are not probed: {reason}")
            }
            Problem::PeerUnknownAddress {
                node,
                outer,
                listed,
            } => format!(
                "packets of pods of {node} arrive from {outer}, and its entry has {listed}: they are dropped (UnknownPeer)"
            ),
            Problem::FamilyWithoutSubnets {
                family,
                first,
                more,
            } => {
                let family = family_name(*family);
                let (has, pods) = match more {
                    0 => ("has", "its pods"),
                    _ => ("have", "their pods"),
                };
                let more = and_more(*more);
                format!(
                    "the cluster has an {family} network, and {first}{more} {has} no subnet of it: {pods} have no {family} address"
                )
            }
            Problem::PeerLostFamily { lost, more } => {
                let what = match lost.is_of_address {
                    true => "underlay address",
                    false => "subnet",
                };
                let (family, more) = (family_name(lost.family), and_more(*more));
                format!(
                    "{} had an {family} {what} beside the other family's and has none any more{more}",
                    lost.node
                )
            }
            Problem::VtepMacChanged { peer, changed } => {
                let macs: Vec<String> = changed.iter().map(changed_mac).collect();
                format!(
                    "{peer} has another VTEP MAC than its lease, and discards what is sent to the old one: {}",
                    list(&macs)
                )
            }
            Problem::FlanneldRunning(flanneld) => format!(
                "flanneld runs beside Tartan, and takes this node's device, port and lease from it: {flanneld}"
            ),
            Problem::PodsStranded { pods } => {
                let (shown, rest) = pods.split_at(pods.len().min(PODS_SHOWN));
                format!(
                    "stranded pods, with addresses in no subnet of this node: {}{}",
                    list(shown),
                    and_more(rest.len())
                )
            }
            Problem::DirectRouting(senders) => format!(
                "{}; what arrives so is not checked by Tartan, neither its source nor its destination",
                direct_senders(senders)
            ),
            Problem::DirectRoutingFiltered(senders) => format!(
                "{}, and the kernel drops the IPv4 packets: rp_filter of {} is 1, and the route back leads into the tunnel",
                direct_senders(senders),
                senders.interface
            ),
            Problem::RouteBypasses(bypass) => route_bypasses(bypass),
            Problem::MoreOfAKind { more, what, .. } => format!("{more} more {what}"),
            Problem::ApiThread { reason } => {
                format!("the thread that answers the API does not run: {reason}")
            }
            Problem::KernelPathOff { reason, .. } => {
                format!("the kernel path is not in use: {reason}")
            }
            Problem::RecordRefused { file, reason } => {
                format!("the attachment record {file} is refused: {reason}")
            }
        }
    }

    fn underlay_socket(&self) -> String {
        let Problem::UnderlaySocket {
            wanted,
            fault,
            kept,
            kept_is_of,
        } = self
        else {
            return String::new();
        };
        let (address, port, format) = (wanted.address, wanted.port, wanted.format);
        let fault = match fault {
            UnderlayFault::NotOnHost => {
                format!("no interface of this host has the address {address}")
            }
            UnderlayFault::PortTaken(None) => {
                format!("UDP port {port} of {address} (format {format}) is taken")
            }
            UnderlayFault::PortTaken(Some(holder)) => {
                format!(
                    "UDP port {port} of {address} (format {format}) is taken: {holder} holds it"
                )
            }
            UnderlayFault::Refused(reason) => {
                format!("the kernel refuses the UDP socket {address}:{port}: {reason}")
            }
        };
        let Some(kept) = kept else {
            return fault;
        };
        let unreached = match kept_is_of {
            Some(node) => {
                format!("; until then {node} is not reached, which {kept} belongs to now")
            }
            None => String::new(),
        };
        format!(
            "this node's underlay address is {address} now, and packets still leave from and arrive at {kept}: {fault}{unreached}"
        )
    }
}

const fn net_conf_in_force(cached: bool) -> &'static str {
    if cached {
        " and the one from cache stays in force"
    } else {
        ""
    }
}

fn route_bypasses(bypass: &Bypass) -> String {
    let way = match (&bypass.device, bypass.gateway) {
        (Some(device), Some(gateway)) => format!("via {gateway} dev {device}"),
        (Some(device), None) => format!("dev {device}"),
        (None, _) => "refused or discarded".to_owned(),
    };
    let (prefix, protocol) = (bypass.prefix, bypass.protocol);
    format!("{prefix} bypasses Tartan: {way} (protocol {protocol})")
}

fn changed_mac(changed: &ChangedMac) -> String {
    let ChangedMac { inner, lease, seen } = changed;
    let family = match inner {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    format!("{family} comes from {seen}, the lease says {lease}")
}

fn and_more(more: usize) -> String {
    match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    }
}

fn list(items: &[impl Display]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}

fn direct_senders(senders: &DirectSenders) -> String {
    let families = match (senders.filter_v4.is_some(), senders.v6) {
        (true, true) => "IPv4 and IPv6",
        (false, true) => "IPv6",
        (_, false) => "IPv4",
    };
    let (shown, rest) = senders.peers.split_at(senders.peers.len().min(NODES_SHOWN));
    format!(
        "with DirectRouting {}{}, on the link of {}, may send {families} packets unencapsulated",
        list(shown),
        and_more(rest.len()),
        senders.interface
    )
}

/// As `22:40:05 UTC`.
fn time_of_day(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs()) % (24 * 60 * 60);
    let (minutes, second) = (seconds / 60, seconds % 60);
    format!("{:02}:{:02}:{second:02} UTC", minutes / 60, minutes % 60)
}

/// Of the nodes that a list lacks, a sentence names the first.
const NODES_SHOWN: usize = 3;
/// A change of subnets strands every pod of the node; a sentence names the first.
const PODS_SHOWN: usize = 3;
