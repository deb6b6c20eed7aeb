//! What the agent answers: one consistent view, made between two turns of the control loop.

use std::net::IpAddr;
use std::path::Path;

use cni_shim::{Attachment, State};
use dataplane::counters::Flow;
use dataplane::families::PublicAddresses;
use encap::Family;
use serde::Serialize;
use tokio::sync::oneshot;

use super::control::{Control, Restart};
use super::counts::{given_up, offloads};
use crate::api::server::Call;
use crate::api::wire::{self, PodState, RefusedRecord, Reply, Request, RouteKind};
use crate::attachments::{pod_name, stranded};
use crate::host::LinkStats;

impl Control {
    pub(super) async fn answer(&mut self, call: Call) -> Result<(), Restart> {
        let reply = match call.request {
            Request::Status => value(&self.status().await),
            Request::Peers => value(&self.peers()),
            Request::Routes => value(&self.routes()),
            Request::Pods => value(&self.pods().await),
            Request::Ready => self.readiness(),
            Request::Drops => value(&self.drops().await),
            Request::Adopt { container, ifname } => {
                self.adopt(&container, &ifname, call.answer).await;
                return Ok(());
            }
            Request::Release { container, ifname } => {
                self.release(&container, &ifname, call.answer);
                return Ok(());
            }
        };
        // A caller that has left does not mind.
        let _ = call.answer.send(reply);
        Ok(())
    }

    /// The directory of records is the database: the record is read again, whoever asks. A pod's limits are in force
    /// before it is delivered to.
    async fn adopt(&mut self, container: &str, ifname: &str, answer: oneshot::Sender<Reply>) {
        self.node.reread_record(container, ifname);
        let refused = match self.why_not_adopted(container, ifname) {
            None => self.limit(container, ifname).await.err(),
            reason => reason,
        };
        let Some(reason) = refused else {
            self.publish();
            return self.when_adopted(answer);
        };
        // A caller that has left does not mind.
        let _ = answer.send(Reply::Error(reason));
    }

    /// Whether an attachment would be delivered to.
    fn readiness(&self) -> Reply {
        match self.stale() {
            Some(reason) => Reply::Error(reason),
            None => value(&wire::Readiness {
                attachments: self.node.known.attachments.len(),
            }),
        }
    }

    fn why_not_adopted(&self, container: &str, ifname: &str) -> Option<String> {
        let known = &self.node.known;
        let mut adopted = known.attachments.iter();
        if let Some(found) = adopted.find(|a| (&*a.container, &*a.ifname) == (container, ifname)) {
            let outside = *stranded(found, &known.own.subnets).first()?;
            return Some(format!(
                "{outside} lies in no subnet of this node, as after a change of its subnets: delete and recreate its pod"
            ));
        }
        let name = Attachment::file_name(container, ifname);
        let mut refused = self.node.refused_records.iter();
        let is_its = |refused: &&RefusedRecord| Path::new(&refused.file).ends_with(&name);
        match refused.find(is_its) {
            Some(refused) => Some(refused.reason.clone()),
            None => Some(format!("there is no record {name}; write it before asking")),
        }
    }

    fn release(&mut self, container: &str, ifname: &str, answer: oneshot::Sender<Reply>) {
        self.node.reread_record(container, ifname);
        self.publish();
        let kept = self.node.known.attachments.iter();
        if kept
            .into_iter()
            .any(|a| (&*a.container, &*a.ifname) == (container, ifname))
        {
            let reason = "its record is still there; remove the record before asking".to_owned();
            // A caller that has left does not mind.
            let _ = answer.send(Reply::Error(reason));
        } else {
            self.when_adopted(answer);
        }
    }

    fn state_of(&self, attachment: &Attachment) -> PodState {
        if self.tending.orphans.is_leaving(attachment) {
            return PodState::Leaving;
        }
        if !stranded(attachment, &self.node.known.own.subnets).is_empty() {
            return PodState::Stranded;
        }
        match attachment.state {
            State::Reserved => PodState::Reserved,
            State::Attached => PodState::Attached,
        }
    }

    /// For each worker the core that it is pinned to, if it is.
    fn cores(&self) -> Vec<Option<usize>> {
        let mut cores = self.workforce.cores.clone();
        for worker in self.engine.unpinned() {
            if let Some(core) = cores.get_mut(worker) {
                *core = None;
            }
        }
        cores
    }

    async fn status(&self) -> wire::Status {
        let known = &self.node.known;
        let totals = self.quiet_totals().await;
        let sum = |count: fn(&Flow, &Flow) -> u64| {
            totals
                .workers
                .iter()
                .map(|worker| count(&worker.outbound, &worker.inbound))
                .sum()
        };
        let spec = &self.node.desired.spec;
        wire::Status {
            problems: self.problems(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: known.own.name.clone(),
            public_ip: known.own_in_force().public.first(),
            public_ipv6: second(known.own_in_force().public),
            underlay: known.facts.underlay.name.clone(),
            underlay_mtu: known.facts.underlay.mtu,
            subnets: known.own.subnets.clone(),
            cluster: known.net_conf.cluster(),
            format: known.own.format.to_string(),
            device: known.config.device_name.clone(),
            device_kind: self.workforce.device.to_owned(),
            device_mtu: self.node.desired.host.mtu,
            device_queue: self.device_queue().await,
            offloads: offloads(&totals),
            offloads_given_up: given_up(&totals),
            workers: totals.running,
            fewer_workers: self.workforce.fewer.clone(),
            cores: self.cores(),
            peers: spec.cluster.peers.len(),
            attachments: known.attachments.len(),
            stranded: known.stranded().count(),
            registry: format!("file {}", known.config.node_file.display()),
            registry_age: self.node.leases_age().as_secs(),
            registry_cached: self.node.cached.leases.is_some(),
            snapshot: spec.version,
            snapshot_adopted: self.engine.adopted(spec.version),
            service_pid: std::process::id(),
            uptime: self.started.elapsed().as_secs(),
            restarts: self.table.restarts,
            last_end: self.table.last_end.clone(),
            repairs: self.repairs,
            last_repair: self.last_repair.clone(),
            reclaimed: self.tending.reclaimed,
            last_reclaimed: self.tending.last_reclaimed.clone(),
            sent: sum(|outbound, inbound| outbound.sent + inbound.sent),
            delivered: sum(|outbound, inbound| outbound.delivered + inbound.delivered),
            dropped: sum(|outbound, inbound| outbound.dropped() + inbound.dropped()),
        }
    }

    fn peers(&self) -> wire::Peers {
        let snapshot = self.engine.snapshot();
        let now = self.engine.now();
        let line = |peer: &dataplane::peers::Peer| {
            let traffic = peer.traffic();
            wire::Peer {
                name: peer.name.clone(),
                public_ip: peer.public.first(),
                public_ipv6: second(peer.public),
                format: peer.format.to_string(),
                subnets: peer.subnets.clone(),
                vtep_mac: peer.vtep_mac.v4.to_string(),
                vtep_mac_v6: peer.vtep_mac.v6.to_string(),
                path_mtu: peer.path_mtu(Family::of(peer.public.first()), now),
                path_mtu_v6: second(peer.public).and_then(|_| peer.path_mtu(Family::V6, now)),
                sent_packets: traffic.sent_packets,
                sent_bytes: traffic.sent_bytes,
                received_packets: traffic.received_packets,
                received_bytes: traffic.received_bytes,
                refused: traffic.refused,
            }
        };
        let mut peers: Vec<_> = snapshot.cluster.peers.iter().map(line).collect();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        wire::Peers {
            peers,
            refused_sources: self.refused.list(),
        }
    }

    fn routes(&self) -> wire::Routes {
        let known = &self.node.known;
        let own = known.own.subnets.iter().map(|prefix| wire::Route {
            prefix: *prefix,
            kind: RouteKind::Own,
            via: known.config.device_name.clone(),
            format: String::new(),
            node: known.own.name.clone(),
        });
        let spec = &self.node.desired.spec;
        let peers = spec.cluster.peers.iter().flat_map(|peer| {
            peer.subnets.iter().map(|prefix| {
                let inner = Family::of(prefix.addr());
                let way = spec.cluster.node.public.way_to(peer.public, inner);
                wire::Route {
                    prefix: *prefix,
                    kind: way.map_or(RouteKind::NoWay, |_| RouteKind::Peer),
                    via: way.map_or(peer.public.to_string(), |address| address.to_string()),
                    format: peer.format.to_string(),
                    node: peer.name.clone(),
                }
            })
        });
        let bypassing = known.facts.bypassing.iter().map(|bypass| wire::Route {
            prefix: bypass.prefix,
            kind: RouteKind::Bypass,
            via: match (&bypass.gateway, &bypass.device) {
                (Some(gateway), _) => gateway.to_string(),
                (None, Some(device)) => device.clone(),
                (None, None) => "refused".to_owned(),
            },
            format: String::new(),
            node: String::new(),
        });
        let mut routes: Vec<_> = own.chain(peers).chain(bypassing).collect();
        routes.sort_by_key(|route| route.prefix);
        wire::Routes { routes }
    }

    async fn pods(&self) -> wire::Pods {
        let links = self.pod_links().await;
        let line = |attachment: &Attachment| wire::Pod {
            state: self.state_of(attachment),
            network: attachment.network.clone(),
            traffic: links.stats(&attachment.host_ifname).map(traffic),
            bandwidth: attachment.bandwidth,
            pod: pod_name(attachment),
            container: attachment.container.clone(),
            ifname: attachment.ifname.clone(),
            addresses: attachment.addresses.clone(),
            stranded: stranded(attachment, &self.node.known.own.subnets),
            mac: attachment.mac.clone(),
            host_ifname: attachment.host_ifname.clone(),
            created: attachment.created,
        };
        wire::Pods {
            pods: self.node.known.attachments.iter().map(line).collect(),
            kernel_prefixes: self.node.desired.spec.local.kernel_prefixes.clone(),
            refused: self.node.refused_records.clone(),
        }
    }
}

/// The kernel counts from where it stands: what it received at the host's end the pod sent.
fn traffic(stats: LinkStats) -> wire::PodTraffic {
    wire::PodTraffic {
        sent_packets: stats.rx_packets,
        sent_bytes: stats.rx_bytes,
        received_packets: stats.tx_packets,
        received_bytes: stats.tx_bytes,
    }
}

/// The IPv6 address beside an IPv4 one.
fn second(public: PublicAddresses) -> Option<IpAddr> {
    match public {
        PublicAddresses::Dual(_, v6) => Some(v6.into()),
        PublicAddresses::V4(_) | PublicAddresses::V6(_) => None,
    }
}

fn value<T: Serialize>(answer: &T) -> Reply {
    match serde_json::to_value(answer) {
        Ok(value) => Reply::Ok(value),
        Err(error) => Reply::Error(format!("the answer cannot be written as JSON: {error}")),
    }
}
