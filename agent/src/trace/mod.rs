//! `tartan trace`: what becomes of one packet of a pod, stage by stage, on this node and on the other.
//!
//! Theory of operation. Nothing is sent in a pod's name. The kernel is asked for the packet's route; the packet filter is
//! read; the workers' own decision is asked of the snapshot that they forward by ([`dataplane::decision`]); and the peer is
//! asked by a probe that names the packet and carries none ([`question`](crate::peer_health::question)). The stages come in
//! the order in which the packet would meet them, and end with the first on this node that drops it. Each is worded by a
//! pure function ([`stages`]).
//!
//! *Limits.* What is not known is said not to be: rules that ask for more than addresses, tables of iptables-legacy, the
//! maps of kube-proxy, to what others translate, what the node does with its own packets, the rules of the other node, a peer that says nothing. A trace takes a second and a half at most,
//! most of it for a peer that does not answer.

mod stages;

use std::net::IpAddr;
use std::sync::Arc;

use cni_shim::Attachment;
use cni_shim::attachment::HOST_IFNAME_PREFIX;
use dataplane::counters::Counters;
use dataplane::drops::DropReason;
use dataplane::engine::Clock;
use dataplane::probe::Question;
use encap::Family;

use crate::api::wire::{Request, StageResult, Trace, TraceStage};
use crate::attachments::pod_name;
use crate::capture::filter::{named_pods, pod};
use crate::causes::causes;
use crate::control::records::key;
use crate::control::view::View;
use crate::host::{KernelReader, KernelRoute, RoutedTo};
use crate::peer_health::report::PathReport;
use stages::stage;

use StageResult::{NotKnown, Passes, Refuses};

/// The packet that is traced.
#[derive(Clone, Copy, Debug)]
struct TracedPacket {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    port: u16,
    size: u16,
    dont_fragment: bool,
}

/// The pod that sends it.
struct Sender {
    name: String,
    attachment: Option<Arc<Attachment>>,
    interface: String,
}

/// What a trace is made from.
pub struct Tracer<'a> {
    /// The node.
    pub view: Arc<View>,
    /// The kernel.
    pub kernel: &'a KernelReader,
    /// The workers' counters.
    pub counters: &'a Counters,
    /// The workers' clock.
    pub clock: Clock,
}

impl Tracer<'_> {
    /// Traces the packet of a request.
    ///
    /// # Errors
    /// A sentence, with the remedy, where a name is not known or the addresses are of two families.
    pub async fn trace(&self, request: &Request) -> Result<Trace, String> {
        let Request::Trace {
            from,
            to,
            source,
            protocol,
            port,
            size,
            dont_fragment,
        } = request
        else {
            return Err("this is no request for a trace".to_owned());
        };
        let pods = named_pods(&self.view);
        let (own, destination) = pair(&pod(from, &pods)?, &pod(to, &pods)?).ok_or_else(|| {
            format!("{from} and {to} have no addresses of one family; name addresses of one")
        })?;
        let source = source.unwrap_or(own);
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(
                "the source and the destination are of two families; name addresses of one"
                    .to_owned(),
            );
        }
        let packet = TracedPacket {
            source,
            destination,
            protocol: *protocol,
            port: *port,
            size: *size,
            // Routers do not fragment IPv6 (RFC 8200 section 5).
            dont_fragment: *dont_fragment || source.is_ipv6(),
        };
        let sender = self.sender(own).await?;
        let (stages, peer) = self.stages(&sender, &packet).await;
        let result = stages.iter().map(|stage| stage.result).max();
        Ok(Trace {
            from: sender.name,
            source,
            destination,
            protocol: packet.protocol,
            port: packet.port,
            size: packet.size,
            dont_fragment: packet.dont_fragment,
            result: result.unwrap_or(NotKnown),
            peer,
            stages,
        })
    }

    /// The pod with that address.
    async fn sender(&self, address: IpAddr) -> Result<Sender, String> {
        let mut attachments = self.view.attachments.iter();
        let has = |attachment: &&Arc<Attachment>| {
            attachment.addresses.iter().any(|net| net.addr() == address)
        };
        if let Some(attachment) = attachments.find(has) {
            return Ok(Sender {
                name: pod_name(attachment).unwrap_or_else(|| address.to_string()),
                interface: attachment.host_ifname.clone(),
                attachment: Some(Arc::clone(attachment)),
            });
        }
        let interface = match self.kernel.interface_towards(address).await {
            Ok(Some(interface)) if self.view.snapshot.pods.local(address).is_some() => interface,
            Ok(_) => {
                return Err(format!(
                    "no pod of this node has {address}: `tartan pods` lists them; trace from the pod's own node"
                ));
            }
            Err(error) => return Err(causes(&error)),
        };
        Ok(Sender {
            name: address.to_string(),
            attachment: None,
            interface,
        })
    }

    async fn stages(
        &self,
        sender: &Sender,
        packet: &TracedPacket,
    ) -> (Vec<TraceStage>, Option<String>) {
        let mut stages = vec![self.pod_stage(sender)];
        let (source, destination) = (packet.source, packet.destination);
        let asked = self
            .kernel
            .route_of_packet(&sender.interface, source, destination);
        let route = match asked.await {
            Ok(route) => route,
            Err(error) => {
                stages.push(stage("route", NotKnown, "not-read", causes(&error), ""));
                return (stages, None);
            }
        };
        let is_checked = sender.interface.starts_with(HOST_IFNAME_PREFIX);
        if is_checked {
            let check = stages::source_check(source, &sender.interface, route.is_routed_back);
            let is_refused = check.result == Refuses;
            stages.push(check);
            if is_refused {
                return (stages, None);
            }
        }
        let is_forwarded = route.to != RoutedTo::ThisNode;
        let filter = self
            .kernel
            .filter_verdict(source, destination, is_forwarded)
            .await;
        if let Ok(filter) = &filter
            && let Some(chain) = &filter.service
        {
            stages.push(stage(
                "service",
                NotKnown,
                "service",
                format!("{destination} is a Service's: kube-proxy's chain nft {chain} translates it, for each connection to one of the endpoints"),
                "trace to the addresses of the endpoints: `kubectl get endpointslices -A`",
            ));
            return (stages, None);
        }
        let way = self.route_stage(&route, packet);
        let is_overlay = way.code == "overlay";
        let ends = way.result == Refuses;
        stages.push(way);
        if ends {
            return (stages, None);
        }
        match &filter {
            Ok(verdict) => {
                stages.extend(verdict.translates.as_ref().map(stages::translation));
                let judged = stages::filter(verdict);
                let is_refused = judged.result == Refuses;
                stages.push(judged);
                if verdict.kube_proxy_table && !is_overlay {
                    stages.push(stage(
                        "service",
                        NotKnown,
                        "maps",
                        "kube-proxy's nftables maps are not read: if this is a Service's address, it is translated",
                        "trace to the addresses of the endpoints: `kubectl get endpointslices -A`",
                    ));
                }
                if is_refused {
                    return (stages, None);
                }
            }
            Err(error) => stages.push(stage("filter", NotKnown, "not-read", causes(error), "")),
        }
        if is_overlay {
            let peer = self.overlay(packet, &mut stages).await;
            return (stages, peer);
        }
        (stages, None)
    }

    fn pod_stage(&self, sender: &Sender) -> TraceStage {
        let Sender {
            name, interface, ..
        } = sender;
        let Some(attachment) = &sender.attachment else {
            let words = format!("{name} was attached by another plugin, on {interface}");
            return stage("pod", Passes, "kernel-route", words, "");
        };
        if let Some(fault) = self.view.faulty.get(&key(attachment)) {
            let words = format!("{name} on {interface}: {fault}");
            return stage(
                "pod",
                NotKnown,
                "faulty",
                words,
                "delete the pod, so that it is made anew",
            );
        }
        if self.view.leaving.contains(&key(attachment)) {
            let words = format!("{name}: its interface is gone");
            return stage(
                "pod",
                Refuses,
                "leaving",
                words,
                "the pod was deleted; trace from another",
            );
        }
        let stranded = crate::attachments::stranded(attachment, &self.view.own.subnets);
        if !stranded.is_empty() {
            let words = format!("{name}: its address lies in no subnet of this node");
            return stage(
                "pod",
                Refuses,
                "stranded",
                words,
                "delete the pod, so that it is made anew",
            );
        }
        let words = format!("{name} is attached by {interface}");
        stage("pod", Passes, "attached", words, "")
    }

    fn route_stage(&self, route: &KernelRoute, packet: &TracedPacket) -> TraceStage {
        let destination = packet.destination;
        match &route.to {
            RoutedTo::ThisNode => stage(
                "route",
                NotKnown,
                "this-node",
                format!(
                    "{destination} is this node's own address; rules of the input hook are not judged"
                ),
                "look at them with `nft list ruleset`, and whether a program listens there",
            ),
            RoutedTo::Nowhere(why) => stage(
                "route",
                Refuses,
                "no-route",
                format!("the kernel routes {destination} nowhere: {why}"),
                match self.view.snapshot.pods.in_own_subnet(destination) {
                    true => "no pod of this node has the address: look with `tartan pods`",
                    false => {
                        "look with `ip route get` and `tartan routes`; no node may have the address"
                    }
                },
            ),
            RoutedTo::Interface { name, gateway } => {
                let by = match gateway {
                    Some(gateway) => format!("{name}, gateway {gateway}"),
                    None => name.clone(),
                };
                let mut attachments = self.view.attachments.iter();
                let local = attachments.find(|attachment| attachment.host_ifname == *name);
                if *name == self.view.service.config.device_name {
                    return stage(
                        "route",
                        Passes,
                        "overlay",
                        format!("to {name}, the tunnel device"),
                        "",
                    );
                }
                if let Some(local) = local {
                    let pod = pod_name(local).unwrap_or_else(|| destination.to_string());
                    let words = format!(
                        "to {name}: the kernel delivers it to {pod} on this node, without the overlay"
                    );
                    return stage("route", Passes, "local-pod", words, "");
                }
                let in_cluster = self
                    .view
                    .service
                    .cluster
                    .iter()
                    .any(|net| net.contains(&destination));
                match in_cluster {
                    true => stage(
                        "route",
                        NotKnown,
                        "bypass",
                        format!("by {by}: another program's route takes it past the overlay"),
                        "`tartan routes` lists such routes; right with direct routing, else remove it",
                    ),
                    false => stage(
                        "route",
                        Passes,
                        "outside",
                        format!(
                            "by {by}: it leaves the overlay, and what lies behind is not judged"
                        ),
                        "",
                    ),
                }
            }
        }
    }

    /// The stages of the workers, and of the other node. Returns its name.
    async fn overlay(&self, packet: &TracedPacket, stages: &mut Vec<TraceStage>) -> Option<String> {
        let view = &self.view;
        let TracedPacket {
            source,
            destination,
            size,
            dont_fragment,
            ..
        } = *packet;
        let now = self.clock.now();
        let pair = (source, destination);
        // The kernel cuts what is larger than the device before the workers see it.
        let seen = size.min(view.device_mtu);
        let found = view
            .snapshot
            .departure(pair, seen.into(), dont_fragment, now);
        let departure = match found {
            Ok(departure) => departure,
            Err(reason) => {
                if reason != DropReason::SpoofedSource {
                    stages.push(source_stage(source));
                }
                stages.push(stages::refused(reason, packet));
                return None;
            }
        };
        let peer = departure.peer;
        stages.push(source_stage(source));
        let subnet = peer.subnets.iter().find(|net| net.contains(&destination));
        let subnet = subnet.map_or(String::new(), ToString::to_string);
        let words = format!("{subnet} is of {}, at {}", peer.name, departure.to.ip());
        stages.push(stage("fib", Passes, "peer", words, ""));
        let vni = view.spec.cluster.node.vni;
        stages.push(stages::format(&departure, vni.get()));
        let sized = stages::size(packet, view.device_mtu, &departure);
        let is_refused = sized.result == Refuses;
        stages.push(sized);
        if is_refused {
            return Some(peer.name.clone());
        }
        stages.push(self.kernel_path_stage());
        let paths = view.peer_health.paths();
        let paths = paths.get(&*peer.name).map_or(&[][..], Vec::as_slice);
        let of_address = |path: &&PathReport| path.address == departure.to.ip();
        let path = paths.iter().find(of_address);
        let question = Question {
            source,
            destination,
            protocol: packet.protocol,
            ports: (0, packet.port),
            size,
        };
        let outer = seen
            .min(departure.mtu)
            .saturating_add(departure.format.overhead(Family::of(departure.to.ip())));
        let tried = Some(outer).filter(|outer| *outer >= LEAST_TRIED);
        let says = view.peer_health.ask(departure.to.ip(), question, tried);
        let says = says.await;
        let is_answered = says.as_ref().is_ok_and(|says| says.is_answered);
        stages.push(stages::peer(&peer.name, path, is_answered));
        stages.push(self.counters_stage(peer));
        stages.push(match &says {
            Ok(says) => stages::other_side(&peer.name, packet, says, path),
            Err(reason) => stages::not_asked(&peer.name, reason),
        });
        Some(peer.name.clone())
    }

    fn kernel_path_stage(&self) -> TraceStage {
        let path = &self.view.kernel_path;
        let (code, words) = match (&path.off, path.is_live) {
            (_, true) => (
                "live",
                "programs in the kernel may carry it past the workers, by the same tables"
                    .to_owned(),
            ),
            (Some(why), _) => ("off", format!("the workers carry it: {why}")),
            (None, false) => ("off", "the workers carry it".to_owned()),
        };
        stage("kernel-path", Passes, code, words, "")
    }

    fn counters_stage(&self, peer: &dataplane::peers::Peer) -> TraceStage {
        let traffic = peer.traffic();
        let totals = self.counters.read();
        let mut drops: Vec<(u64, &str)> = DropReason::ALL
            .into_iter()
            .map(|reason| {
                let of_worker = |worker: &dataplane::counters::WorkerTotals| {
                    worker.outbound.drops_of(reason) + worker.inbound.drops_of(reason)
                };
                (
                    totals.workers.iter().map(of_worker).sum::<u64>(),
                    reason.name(),
                )
            })
            .filter(|(count, _)| *count > 0)
            .collect();
        drops.sort_unstable_by(|a, b| b.cmp(a));
        let drops: Vec<String> = drops
            .iter()
            .take(MOST_DROPS)
            .map(|(count, name)| format!("{name} {count}"))
            .collect();
        let drops = match drops.is_empty() {
            true => "this node has dropped nothing".to_owned(),
            false => format!("dropped by this node, of all peers: {}", drops.join(", ")),
        };
        let words = format!(
            "sent {} packets, received {}, refused {}; {drops}",
            traffic.sent_packets, traffic.received_packets, traffic.refused
        );
        stage("counters", Passes, "counted", words, "")
    }
}

fn source_stage(source: IpAddr) -> TraceStage {
    let words = format!("{source} may send from this node");
    stage("source", Passes, "allowed", words, "")
}

/// The first addresses of one family.
fn pair(from: &[IpAddr], to: &[IpAddr]) -> Option<(IpAddr, IpAddr)> {
    from.iter().find_map(|from| {
        let to = to.iter().find(|to| to.is_ipv4() == from.is_ipv4())?;
        Some((*from, *to))
    })
}

/// Datagrams smaller than that are not larger than the question is.
const LEAST_TRIED: u16 = 256;
/// Reasons that are named.
const MOST_DROPS: usize = 3;
