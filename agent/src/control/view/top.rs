//! `tartan top`: all counters of traffic at one moment.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use dataplane::counters::{Batches, Totals, WorkerTotals};
use dataplane::heavy_flows::FlowCount;
use dataplane::now::Now;
use dataplane::peers::Peer;
use rustix::time::{ClockId, clock_gettime};

use super::View;
use super::drops::KernelCounts;
use super::kernel_path::{carried, carried_for};
use super::peers::state_name;
use crate::api::wire::{self, Carried};
use crate::attachments::pod_name;
use crate::host::{LinkStats, PodLinks};

/// What is counted beside the view.
#[derive(Debug)]
pub struct Counted {
    /// When they were read: nanoseconds of the kernel's monotonic clock.
    pub clock: u64,
    /// The workers' counters.
    pub totals: Totals,
    /// The kernel's.
    pub kernel: KernelCounts,
    /// The interfaces of pods as the kernel lists them.
    pub links: PodLinks,
    /// The flows that the workers count, the heaviest first.
    pub flows: Vec<FlowCount>,
    /// The engine's time.
    pub now: Now,
}

impl View {
    /// All counters of traffic.
    pub fn top(&self, counted: Counted) -> wire::Top {
        let Counted {
            clock,
            totals,
            kernel,
            links,
            flows,
            now,
        } = counted;
        let workers = totals.running;
        let (cores, batches) = (&self.cores, &totals.workers);
        let drops = self.drops(&totals, kernel);
        let worker = |(index, drops): (usize, wire::Worker)| {
            let counted = batches.get(index);
            top_worker(drops, cores.get(index).copied().flatten(), counted)
        };
        let is_shown = |(index, drops): &(usize, wire::Worker)| {
            // Earlier, further workers are not running.
            *index < workers || drops.name == super::drops::KERNEL_PATH
        };
        wire::Top {
            clock,
            node: self.own.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            format: self.own.format.to_string(),
            device: self.service.config.device_name.clone(),
            service_pid: std::process::id(),
            uptime: self.service.started.elapsed().as_secs(),
            problems: self.problems.iter().map(super::status::problem).collect(),
            peers: self.top_peers(),
            pods: self.top_pods(&links),
            flows: self.top_flows(&flows, now),
            workers: drops
                .workers
                .into_iter()
                .enumerate()
                .filter(is_shown)
                .map(worker)
                .collect(),
            sockets: self.top_sockets(),
            in_rings: drops.in_rings,
            drops: drops
                .reasons
                .into_iter()
                .filter(|reason| reason.count > 0)
                .collect(),
            passed: drops
                .passed
                .into_iter()
                .filter(|passed| passed.count > 0)
                .collect(),
            kernel: drops.kernel,
        }
    }

    fn top_peers(&self) -> Vec<wire::TopPeer> {
        let programs = self.kernel_path.peer_traffic();
        let states = self.peer_health.states();
        let line = |peer: &Peer| {
            let state = states.get(&*peer.name).copied();
            let has_underlay = peer.underlays().next().is_some();
            let traffic = peer.traffic();
            let mut in_kernel = peer
                .public
                .iter()
                .filter_map(|address| programs.get(&address));
            wire::TopPeer {
                name: peer.name.clone(),
                public_ip: peer.public.first(),
                format: peer.format.to_string(),
                state: state_name(state, has_underlay).to_owned(),
                in_user_space: Carried {
                    sent_packets: traffic.sent_packets,
                    sent_bytes: traffic.sent_bytes,
                    received_packets: traffic.received_packets,
                    received_bytes: traffic.received_bytes,
                },
                in_kernel: in_kernel.next().map(carried).unwrap_or_default(),
                refused: peer.refused(),
            }
        };
        self.snapshot.cluster.peers.iter().map(line).collect()
    }

    fn top_pods(&self, links: &PodLinks) -> Vec<wire::TopPod> {
        let programs = self.kernel_path.pod_traffic();
        let attachments = self.attachments.iter();
        let line = |attachment: &cni_shim::Attachment| wire::TopPod {
            pod: pod_name(attachment).unwrap_or_else(|| attachment.container.clone()),
            addresses: attachment.addresses.iter().map(|net| net.addr()).collect(),
            host_ifname: attachment.host_ifname.clone(),
            traffic: links.stats(attachment).map(link_carried),
            in_kernel: carried_for(attachment, &programs),
        };
        attachments.map(|attachment| line(attachment)).collect()
    }

    fn top_flows(&self, flows: &[FlowCount], now: Now) -> Vec<wire::TopFlow> {
        let names = self.attachments.iter().flat_map(|attachment| {
            let name = pod_name(attachment);
            let addresses = attachment.addresses.iter();
            addresses.filter_map(move |net| Some((net.addr(), name.clone()?)))
        });
        let pods: HashMap<IpAddr, String> = names.collect();
        let cluster = &self.snapshot.cluster;
        let line = |count: &FlowCount| {
            let flow = count.flow;
            let (ours, theirs) = match flow.is_outbound {
                true => (flow.source, flow.destination),
                false => (flow.destination, flow.source),
            };
            let peer = cluster
                .fib
                .lookup(theirs)
                .and_then(|id| cluster.peers.peer(id));
            wire::TopFlow {
                is_outbound: flow.is_outbound,
                source: flow.source,
                destination: flow.destination,
                protocol: flow.protocol,
                source_port: flow.ports.0,
                destination_port: flow.ports.1,
                pod: pods.get(&ours).cloned(),
                peer: peer.map(|peer| peer.name.clone()),
                packets: count.packets,
                bytes: count.bytes,
                age: nanos(now.since(count.first)),
                quiet: nanos(now.since(count.last)),
            }
        };
        flows.iter().map(line).collect()
    }

    fn top_sockets(&self) -> Vec<wire::TopSocket> {
        let backlogs = self.sockets.backlogs();
        let known = backlogs.filter_map(|(name, worker, backlog)| {
            let (queued, limit) = backlog.ok()?;
            Some(wire::TopSocket {
                name,
                worker,
                queued,
                limit,
            })
        });
        known.collect()
    }
}

fn top_worker(
    drops: wire::Worker,
    core: Option<usize>,
    counted: Option<&WorkerTotals>,
) -> wire::TopWorker {
    wire::TopWorker {
        name: drops.name,
        core,
        outbound: drops.outbound,
        inbound: drops.inbound,
        outbound_batches: counted.map(|worker| batches(worker.outbound_batches)),
        inbound_batches: counted.map(|worker| batches(worker.inbound_batches)),
        busy: counted.map(|worker| worker.busy),
        idle: counted.map(|worker| worker.idle),
    }
}

fn batches(batches: Batches) -> wire::Batches {
    wire::Batches {
        count: batches.count,
        packets: batches.packets,
        bytes: batches.bytes,
    }
}

/// The kernel counts from where it stands: what it received at the host's end the pod sent.
fn link_carried(stats: LinkStats) -> Carried {
    Carried {
        sent_packets: stats.rx_packets,
        sent_bytes: stats.rx_bytes,
        received_packets: stats.tx_packets,
        received_bytes: stats.tx_bytes,
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds of the kernel's monotonic clock, which a new service goes on with.
pub fn clock() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
