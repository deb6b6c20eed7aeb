//! `tartan trace`: what becomes of one packet of a pod, stage by stage, on this node and on the other.
//!
//! Theory of operation. Nothing is sent in a pod's name. The kernel is asked for the packet's route; the packet filter is
//! read; the workers' own decision is asked of the snapshot that they forward by ([`dataplane::decision`]); and the peer is
//! asked by a probe that names the packet and carries none ([`question`](crate::peer_health::question)). The stages come in
//! the order in which the packet would meet them, and end with the first on this node that drops it. Each is worded by a
//! pure function ([`stages`]). A packet to a Service goes on as one to an endpoint ([`service`]).
//!
//! *Limits.* What is not known is said not to be: rules that ask for more than addresses, tables of iptables-legacy, to
//! what others than kube-proxy translate, what the node does with its own packets, the rules of the other node, a peer that says nothing. A trace takes a second and a half at most,
//! most of it for a peer that does not answer.

mod service;
mod stages;

use std::net::{IpAddr, SocketAddr};
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
use crate::host::{KernelReader, KernelRoute, RoutedTo, ServiceFate};
use crate::peer_health::report::PathReport;
use service::Behind;
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

/// What a trace has found so far.
#[derive(Debug, Default)]
struct Found {
    stages: Vec<TraceStage>,
    peer: Option<String>,
    endpoints: Vec<SocketAddr>,
    endpoint: Option<SocketAddr>,
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
        let mut found = Found::default();
        self.stages(&sender, &packet, &mut found).await;
        let Found {
            stages,
            peer,
            endpoints,
            endpoint,
        } = found;
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
            endpoints,
            endpoint,
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

    /// Fills `found`, until a stage drops the packet or nothing more is known.
    async fn stages(&self, sender: &Sender, packet: &TracedPacket, found: &mut Found) {
        found.stages.push(self.pod_stage(sender));
        let Some(mut route) = self.route(sender, packet, found).await else {
            return;
        };
        if sender.interface.starts_with(HOST_IFNAME_PREFIX) {
            let interface = &sender.interface;
            let check = stages::source_check(packet.source, interface, route.is_routed_back);
            let is_refused = check.result == Refuses;
            found.stages.push(check);
            if is_refused {
                return;
            }
        }
        let fate = self.service(packet).await;
        let is_unread = fate == ServiceFate::Unread;
        let is_no_service = fate == ServiceFate::NoService;
        let mut packet = *packet;
        match service::service(fate, &packet, |to| self.is_remote(&packet, to.ip())) {
            Behind::AsAsked => {}
            Behind::Ends(stage) => return found.stages.push(stage),
            Behind::Translated {
                stage,
                endpoints,
                traced,
            } => {
                found.stages.push(stage);
                (found.endpoints, found.endpoint) = (endpoints, Some(traced));
                (packet.destination, packet.port) = (traced.ip(), traced.port());
                match self.route(sender, &packet, found).await {
                    Some(translated) => route = translated,
                    None => return,
                }
            }
        }
        let is_forwarded = route.to != RoutedTo::ThisNode;
        let is_pods = self.is_in_cluster(packet.destination);
        let is_past_kube_proxy = found.endpoint.is_some() || is_no_service && is_pods;
        let (source, destination) = (packet.source, packet.destination);
        let filter = self
            .kernel
            .filter_verdict(source, destination, is_forwarded, is_past_kube_proxy)
            .await;
        if let Ok(filter) = &filter
            && let Some(chain) = filter.service.as_ref().filter(|_| found.endpoint.is_none())
        {
            return found.stages.push(service::by_a_chain(&packet, chain));
        }
        let way = self.route_stage(&route, &packet);
        let is_overlay = way.code == "overlay";
        let ends = way.result == Refuses;
        found.stages.push(way);
        if ends {
            return;
        }
        match &filter {
            Ok(verdict) => {
                let translation = verdict.translates.as_ref().map(stages::translation);
                found.stages.extend(translation);
                let judged = stages::filter(verdict);
                let is_refused = judged.result == Refuses;
                found.stages.push(judged);
                if is_unread && !is_overlay {
                    found.stages.push(stage(
                        "service",
                        NotKnown,
                        "maps",
                        "kube-proxy's nftables table has maps of another version: if this is a Service's address, it is translated",
                        "trace to the addresses of the endpoints: `kubectl get endpointslices -A`",
                    ));
                }
                if is_refused {
                    return;
                }
            }
            Err(error) => {
                let not_read = stage("filter", NotKnown, "not-read", causes(error), "");
                found.stages.push(not_read);
            }
        }
        if is_overlay {
            found.peer = self.overlay(&packet, &mut found.stages).await;
        }
    }

    /// The kernel's route of the packet; `None`, and a stage, where it does not say.
    async fn route(
        &self,
        sender: &Sender,
        packet: &TracedPacket,
        found: &mut Found,
    ) -> Option<KernelRoute> {
        let (source, destination) = (packet.source, packet.destination);
        let asked = self
            .kernel
            .route_of_packet(&sender.interface, source, destination);
        match asked.await {
            Ok(route) => Some(route),
            Err(error) => {
                let not_read = stage("route", NotKnown, "not-read", causes(&error), "");
                found.stages.push(not_read);
                None
            }
        }
    }

    /// What kube-proxy does with the packet. Rules that cannot be read are told by the stage of the filter.
    async fn service(&self, packet: &TracedPacket) -> ServiceFate {
        let addresses = (packet.source, packet.destination);
        let asked = self
            .kernel
            .service_fate(addresses, packet.protocol, packet.port);
        asked.await.unwrap_or(ServiceFate::Unread)
    }

    /// Whether the workers would send it to another node.
    fn is_remote(&self, packet: &TracedPacket, endpoint: IpAddr) -> bool {
        let pair = (packet.source, endpoint);
        let snapshot = &self.view.snapshot;
        let departure = snapshot.departure(pair, packet.size.into(), false, self.clock.now());
        departure.is_ok()
    }

    /// Whether it is an address of the pods' networks.
    fn is_in_cluster(&self, address: IpAddr) -> bool {
        let mut networks = self.view.service.cluster.iter();
        networks.any(|network| network.contains(&address))
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
                match self.is_in_cluster(destination) {
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
        stages.push(self.kernel_path_stage(peer));
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

    fn kernel_path_stage(&self, peer: &dataplane::peers::Peer) -> TraceStage {
        let path = &self.view.kernel_path;
        let (code, words) = match (&path.off, path.is_live) {
            (_, true) if path.user_space(peer.public).is_some() => {
                let why = path.user_space(peer.public);
                let why = why.map_or_else(String::new, |why| why.to_string());
                (
                    "off",
                    format!("the workers carry it to {}: {why}", peer.name),
                )
            }
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
            traffic.sent_packets,
            traffic.received_packets,
            peer.refused()
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
