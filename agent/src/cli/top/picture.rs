//! What `tartan top` shows: the counters of one moment, and what has changed since the moment before.
//!
//! A rate is the difference of two counts by the time between them. Where a counter began anew in between (a new service, a
//! new keeper, a pod's new interface) there is none until the next sample: `None`, never a guess.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use serde::Serialize;

use crate::api::wire::{self, Batches, Carried, Problem, Top, TopFlow, TopWorker};

/// The node's traffic, as `-o json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Picture {
    /// The node's name.
    pub(super) node: String,
    /// Tartan's version.
    pub(super) version: String,
    /// How peers send to this node.
    pub(super) format: String,
    /// The tunnel device.
    pub(super) device: String,
    /// Process id of the service.
    pub(super) service_pid: u32,
    /// Seconds since the service started.
    pub(super) uptime: u64,
    /// Seconds between the two samples.
    pub(super) interval: Option<f64>,
    /// What is wrong.
    pub(super) problems: Vec<Problem>,
    /// The way of packets.
    pub(super) path: Path,
    /// The other nodes.
    pub(super) peers: Vec<Peer>,
    /// The pods of this node.
    pub(super) pods: Vec<Pod>,
    /// The heaviest flows.
    pub(super) flows: Vec<Flow>,
    /// The workers, the kernel path last.
    pub(super) workers: Vec<Worker>,
    /// Sockets that receive.
    pub(super) sockets: Vec<Socket>,
    /// Reasons that have dropped something, then what the kernel path passed on, then what the kernel counts.
    pub(super) drops: Vec<Drop>,
}

/// A counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Count {
    /// As it stands.
    pub(super) total: u64,
    /// What it grew by in a second; absent without a sample before.
    pub(super) per_second: Option<f64>,
}

/// Packets and bytes both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Traffic {
    /// Packets to the peer, or from the pod.
    pub(super) sent_packets: Count,
    /// Bytes of those.
    pub(super) sent_bytes: Count,
    /// Packets from the peer, or to the pod.
    pub(super) received_packets: Count,
    /// Bytes of those.
    pub(super) received_bytes: Count,
}

/// The way of packets through the node: all workers together, and beside them the kernel path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Path {
    /// Pod to peer.
    pub(super) outbound: Way,
    /// Peer to pod.
    pub(super) inbound: Way,
    /// Packets on the way from one worker to another.
    pub(super) in_rings: u64,
    /// The same of the programs in the kernel, where they are in use.
    pub(super) kernel_path: Option<KernelWays>,
    /// Datagrams that the kernel dropped because a socket was full.
    pub(super) socket_drops: Count,
    /// Packets from pods that the kernel dropped because the device's queue was full.
    pub(super) device_drops: Count,
}

/// Both ways through the kernel path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct KernelWays {
    /// Pod to peer.
    pub(super) outbound: Way,
    /// Peer to pod.
    pub(super) inbound: Way,
}

/// One direction. Inner wire packets since the keeper started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Way {
    /// Read.
    pub(super) received: Count,
    /// Made by Tartan.
    pub(super) originated: Count,
    /// Sent to peers.
    pub(super) sent: Count,
    /// Written to the device.
    pub(super) delivered: Count,
    /// Dropped.
    pub(super) dropped: Count,
    /// In hand.
    pub(super) held: u64,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Peer {
    /// Its name.
    pub(super) name: String,
    /// Its underlay address.
    pub(super) public_ip: IpAddr,
    /// How we send to it.
    pub(super) format: String,
    /// The state of its worst path.
    pub(super) state: String,
    /// All of its traffic, since the service started.
    pub(super) traffic: Traffic,
    /// The part of it that the kernel path carried.
    pub(super) in_kernel: Traffic,
    /// Packets from it that were dropped.
    pub(super) refused: Count,
}

/// A pod of this node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Pod {
    /// `namespace/name`, or the container's id.
    pub(super) pod: String,
    /// Its addresses.
    pub(super) addresses: Vec<IpAddr>,
    /// Name of its interface's end on the host.
    pub(super) host_ifname: String,
    /// What the kernel counts at that end, traffic within the node included; absent where it is gone.
    pub(super) traffic: Option<Traffic>,
    /// What the kernel path carried for it; absent where it has no table of it.
    pub(super) in_kernel: Option<Traffic>,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Flow {
    /// `outbound` (pod to peer) or `inbound`.
    pub(super) direction: String,
    /// Inner source.
    pub(super) source: IpAddr,
    /// Its port; null where the protocol has none, or the packets are fragments.
    pub(super) source_port: Option<u16>,
    /// Inner destination.
    pub(super) destination: IpAddr,
    /// Its port.
    pub(super) destination_port: Option<u16>,
    /// `tcp`, `udp`, `icmp` and the like, or the IANA number.
    pub(super) protocol: String,
    /// The pod of this node, if it is a known one.
    pub(super) pod: Option<String>,
    /// The other node.
    pub(super) peer: Option<String>,
    /// Inner wire packets since it is counted.
    pub(super) packets: Count,
    /// Bytes of those.
    pub(super) bytes: Count,
    /// Seconds since it is counted.
    pub(super) age: f64,
}

/// A worker, or the programs in the kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Worker {
    /// Its number, or `kernel-path`.
    pub(super) name: String,
    /// The core that it is pinned to.
    pub(super) core: Option<usize>,
    /// The share of its time in which it had work, 0 to 1.
    pub(super) busy: Option<f64>,
    /// Pod to peer.
    pub(super) outbound: Way,
    /// Peer to pod.
    pub(super) inbound: Way,
    /// Its batches of packets from the device.
    pub(super) outbound_batches: Option<BatchSizes>,
    /// Its batches of datagrams from peers.
    pub(super) inbound_batches: Option<BatchSizes>,
    /// Bytes of memory that wait in its sockets.
    pub(super) queued: Option<u64>,
    /// The most that may wait there.
    pub(super) queue_limit: Option<u64>,
}

/// Batches: what one step of a worker reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct BatchSizes {
    /// How many.
    pub(super) batches: Count,
    /// Packets of one on average, super-packets as one; absent without a batch between the samples.
    pub(super) packets_of_one: Option<f64>,
    /// Bytes of one on average.
    pub(super) bytes_of_one: Option<f64>,
}

/// A socket that receives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Socket {
    /// Its name.
    pub(super) name: String,
    /// Number of the worker that reads it.
    pub(super) worker: usize,
    /// Bytes of memory that what waits in it takes.
    pub(super) queued: u32,
    /// The most that it may take.
    pub(super) limit: u32,
}

/// Packets that did not go on, or not this way, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Drop {
    /// `outbound`, `inbound`, `passed` by the kernel path, or the kernel's socket or device.
    pub(super) place: String,
    /// The reason's name, or the kernel's counter.
    pub(super) reason: String,
    /// Packets.
    pub(super) count: Count,
    /// What it means, in a sentence.
    pub(super) gloss: String,
}

/// Two samples, the later one first, and the seconds between them.
#[derive(Clone, Copy)]
struct Samples<'a> {
    now: &'a Top,
    /// None before the first second sample.
    before: Option<&'a Top>,
    seconds: f64,
}

impl Picture {
    /// What `now` shows, with the changes since `before`.
    pub(super) fn new(before: Option<&Top>, now: &Top) -> Picture {
        let apart = before.map(|before| now.clock.saturating_sub(before.clock));
        let samples = Samples {
            now,
            before: before.filter(|before| before.clock < now.clock),
            seconds: apart.unwrap_or_default() as f64 / 1e9,
        };
        samples.picture()
    }
}

impl<'a> Samples<'a> {
    fn picture(self) -> Picture {
        let now = self.now;
        Picture {
            node: now.node.clone(),
            version: now.version.clone(),
            format: now.format.clone(),
            device: now.device.clone(),
            service_pid: now.service_pid,
            uptime: now.uptime,
            interval: self.before.map(|_| self.seconds),
            problems: now.problems.clone(),
            path: self.path(),
            peers: self.peers(),
            pods: self.pods(),
            flows: self.flows(),
            workers: self.workers(),
            sockets: now.sockets.iter().map(socket).collect(),
            drops: self.drops(),
        }
    }

    fn count(self, before: Option<u64>, total: u64) -> Count {
        let grown = before.and_then(|before| total.checked_sub(before));
        Count {
            total,
            per_second: grown.map(|grown| grown as f64 / self.seconds),
        }
    }

    /// The sample before, for what is counted since the service started: one of the same service.
    fn same_service(self) -> Option<&'a Top> {
        let pid = self.now.service_pid;
        self.before.filter(|before| before.service_pid == pid)
    }

    fn traffic(self, before: Option<Carried>, now: Carried) -> Traffic {
        let count = |of: fn(&Carried) -> u64| self.count(before.as_ref().map(of), of(&now));
        Traffic {
            sent_packets: count(|traffic| traffic.sent_packets),
            sent_bytes: count(|traffic| traffic.sent_bytes),
            received_packets: count(|traffic| traffic.received_packets),
            received_bytes: count(|traffic| traffic.received_bytes),
        }
    }

    fn way(self, before: Option<wire::Flow>, now: &wire::Flow) -> Way {
        let count = |of: fn(&wire::Flow) -> u64| self.count(before.as_ref().map(of), of(now));
        Way {
            received: count(|flow| flow.received),
            originated: count(|flow| flow.originated),
            sent: count(|flow| flow.sent),
            delivered: count(|flow| flow.delivered),
            dropped: count(dropped),
            held: now.held,
        }
    }

    fn path(self) -> Path {
        let ways = |top: &Top, is_shown: fn(&TopWorker) -> bool| {
            let workers = top.workers.iter().filter(|worker| is_shown(worker));
            let sum = workers.map(|worker| (&worker.outbound, &worker.inbound));
            sum.fold(
                None,
                |sum: Option<(wire::Flow, wire::Flow)>, (outbound, inbound)| {
                    let (all_out, all_in) = sum.unwrap_or_default();
                    Some((plus(all_out, outbound), plus(all_in, inbound)))
                },
            )
        };
        let both = |is_shown: fn(&TopWorker) -> bool| {
            let now = ways(self.now, is_shown)?;
            let before = self.before.and_then(|before| ways(before, is_shown));
            let (outbound, inbound) = before.unzip();
            Some((self.way(outbound, &now.0), self.way(inbound, &now.1)))
        };
        let (outbound, inbound) = both(|worker| !is_kernel_path(worker)).unwrap_or_default();
        let kernel_path = both(is_kernel_path);
        let lost = |counter: &str| {
            let sum = |top: &Top| -> u64 {
                let counters = top.kernel.iter().filter(|kernel| kernel.counter == counter);
                counters.map(|kernel| kernel.count).sum()
            };
            self.count(self.before.map(sum), sum(self.now))
        };
        Path {
            outbound,
            inbound,
            in_rings: self.now.in_rings,
            kernel_path: kernel_path.map(|(outbound, inbound)| KernelWays { outbound, inbound }),
            socket_drops: lost("drops"),
            device_drops: lost("tx_dropped"),
        }
    }

    fn peers(self) -> Vec<Peer> {
        let peers = self
            .same_service()
            .map(|before| before.peers.as_slice())
            .unwrap_or_default();
        let before = by(peers, |peer| peer.name.as_str());
        let peer = |peer: &wire::TopPeer| {
            let before = before.get(peer.name.as_str());
            let all = |peer: &wire::TopPeer| both(peer.in_user_space, peer.in_kernel);
            Peer {
                name: peer.name.clone(),
                public_ip: peer.public_ip,
                format: peer.format.clone(),
                state: peer.state.clone(),
                traffic: self.traffic(before.map(|before| all(before)), all(peer)),
                in_kernel: self.traffic(before.map(|before| before.in_kernel), peer.in_kernel),
                refused: self.count(before.map(|before| before.refused), peer.refused),
            }
        };
        self.now.peers.iter().map(peer).collect()
    }

    fn pods(self) -> Vec<Pod> {
        let pods = self
            .before
            .map(|before| before.pods.as_slice())
            .unwrap_or_default();
        // A pod that was made anew has another interface, or other counters.
        let key = |pod: &wire::TopPod| (pod.pod.clone(), pod.host_ifname.clone());
        let before: HashMap<_, _> = pods.iter().map(|pod| (key(pod), pod)).collect();
        let pod = |pod: &wire::TopPod| {
            let before = before.get(&key(pod));
            let in_kernel = before.and_then(|before| before.in_kernel);
            let before = before.and_then(|before| before.traffic);
            Pod {
                pod: pod.pod.clone(),
                addresses: pod.addresses.clone(),
                host_ifname: pod.host_ifname.clone(),
                traffic: pod.traffic.map(|traffic| self.traffic(before, traffic)),
                in_kernel: pod
                    .in_kernel
                    .map(|traffic| self.traffic(in_kernel, traffic)),
            }
        };
        self.now.pods.iter().map(pod).collect()
    }

    fn flows(self) -> Vec<Flow> {
        let flows = self
            .same_service()
            .map(|before| before.flows.as_slice())
            .unwrap_or_default();
        let before = by(flows, flow_key);
        let flow = |flow: &TopFlow| {
            let before = before.get(&flow_key(flow));
            let age = flow.age as f64 / 1e9;
            let is_new = self.before.is_some() && age <= self.seconds;
            let count = |of: fn(&TopFlow) -> u64| {
                // One that began between the samples had nothing before.
                let known = before
                    .map(|before| of(before))
                    .filter(|before| *before <= of(flow));
                self.count(if is_new { Some(0) } else { known }, of(flow))
            };
            let has_ports = (flow.source_port, flow.destination_port) != (0, 0);
            Flow {
                direction: if flow.is_outbound {
                    "outbound"
                } else {
                    "inbound"
                }
                .to_owned(),
                source: flow.source,
                source_port: has_ports.then_some(flow.source_port),
                destination: flow.destination,
                destination_port: has_ports.then_some(flow.destination_port),
                protocol: protocol(flow.protocol),
                pod: flow.pod.clone(),
                peer: flow.peer.clone(),
                packets: count(|flow| flow.packets),
                bytes: count(|flow| flow.bytes),
                age,
            }
        };
        self.now.flows.iter().map(flow).collect()
    }

    fn workers(self) -> Vec<Worker> {
        let workers = self
            .before
            .map(|before| before.workers.as_slice())
            .unwrap_or_default();
        let before = by(workers, |worker| worker.name.as_str());
        let worker = |worker: &TopWorker| {
            let before = before.get(worker.name.as_str()).copied();
            let own = |socket: &&wire::TopSocket| worker.name == socket.worker.to_string();
            let sockets = || self.now.sockets.iter().filter(own);
            let is_program = is_kernel_path(worker);
            Worker {
                name: worker.name.clone(),
                core: worker.core,
                busy: before.and_then(|before| busy(before, worker)),
                outbound: self.way(before.map(|w| w.outbound.clone()), &worker.outbound),
                inbound: self.way(before.map(|w| w.inbound.clone()), &worker.inbound),
                outbound_batches: worker
                    .outbound_batches
                    .map(|now| self.batches(before.and_then(|w| w.outbound_batches), now)),
                inbound_batches: worker
                    .inbound_batches
                    .map(|now| self.batches(before.and_then(|w| w.inbound_batches), now)),
                queued: (!is_program)
                    .then(|| sockets().map(|socket| u64::from(socket.queued)).sum()),
                queue_limit: (!is_program)
                    .then(|| sockets().map(|socket| u64::from(socket.limit)).sum()),
            }
        };
        self.now.workers.iter().map(worker).collect()
    }

    fn batches(self, before: Option<Batches>, now: Batches) -> BatchSizes {
        let batches = self.count(before.map(|before| before.count), now.count);
        let grown = |of: fn(&Batches) -> u64| of(&now).checked_sub(of(&before?));
        let of_one = |of: fn(&Batches) -> u64| {
            let count = grown(|batches| batches.count).filter(|count| *count > 0)?;
            Some(grown(of)? as f64 / count as f64)
        };
        BatchSizes {
            batches,
            packets_of_one: of_one(|batches| batches.packets),
            bytes_of_one: of_one(|batches| batches.bytes),
        }
    }

    fn drops(self) -> Vec<Drop> {
        let before: HashMap<_, _> = self
            .before
            .map(counters)
            .unwrap_or_default()
            .into_iter()
            .collect();
        let rows = counters(self.now).into_iter();
        let row = |(key, (total, gloss)): (Cause, Counted<'_>)| {
            // A reason that is not in the sample before had dropped nothing.
            let known = self
                .before
                .map(|_| before.get(&key).map_or(0, |(total, _)| *total));
            let (place, reason) = key;
            Drop {
                place,
                reason,
                count: self.count(known, total),
                gloss: gloss.to_owned(),
            }
        };
        rows.map(row).collect()
    }
}

/// A place and a reason.
type Cause = (String, String);
/// Packets, and what the reason means.
type Counted<'a> = (u64, &'a str);

/// Counters of packets by place and reason, with what each means.
fn counters(top: &Top) -> Vec<(Cause, Counted<'_>)> {
    let drops = top.drops.iter().map(|reason| {
        let key = (reason.direction.clone(), reason.reason.clone());
        (key, (reason.count, reason.gloss.as_str()))
    });
    let passed = top.passed.iter().map(|passed| {
        let key = ("passed".to_owned(), passed.reason.clone());
        (key, (passed.count, passed.gloss.as_str()))
    });
    let lost = top.kernel.iter().filter(|kernel| kernel.count > 0);
    let kernel = lost
        .filter(|kernel| !is_traffic(&kernel.counter))
        .map(|kernel| {
            let key = (kernel.place.clone(), kernel.counter.clone());
            (key, (kernel.count, kernel.gloss.as_str()))
        });
    drops.chain(passed).chain(kernel).collect()
}

/// Counters of the device that count what went on.
fn is_traffic(counter: &str) -> bool {
    matches!(
        counter,
        "rx_packets" | "tx_packets" | "rx_bytes" | "tx_bytes"
    )
}

fn socket(socket: &wire::TopSocket) -> Socket {
    Socket {
        name: socket.name.clone(),
        worker: socket.worker,
        queued: socket.queued,
        limit: socket.limit,
    }
}

/// The share of the time between two samples in which a worker had work. A sleeping worker counts when it wakes, at the
/// latest after half a second.
fn busy(before: &TopWorker, now: &TopWorker) -> Option<f64> {
    let busy = now.busy?.checked_sub(before.busy?)?;
    let idle = now.idle?.checked_sub(before.idle?)?;
    match busy.saturating_add(idle) {
        0 => Some(0.0),
        all => Some(busy as f64 / all as f64),
    }
}

fn is_kernel_path(worker: &TopWorker) -> bool {
    worker.busy.is_none()
}

fn dropped(flow: &wire::Flow) -> u64 {
    flow.dropped
        .values()
        .fold(0, |sum, count| sum.wrapping_add(*count))
}

fn plus(mut all: wire::Flow, more: &wire::Flow) -> wire::Flow {
    all.received = all.received.wrapping_add(more.received);
    all.originated = all.originated.wrapping_add(more.originated);
    all.sent = all.sent.wrapping_add(more.sent);
    all.delivered = all.delivered.wrapping_add(more.delivered);
    all.held = all.held.wrapping_add(more.held);
    for (reason, count) in &more.dropped {
        let sum = all.dropped.entry(reason.clone()).or_default();
        *sum = sum.wrapping_add(*count);
    }
    all
}

fn both(one: Carried, other: Carried) -> Carried {
    Carried {
        sent_packets: one.sent_packets.wrapping_add(other.sent_packets),
        sent_bytes: one.sent_bytes.wrapping_add(other.sent_bytes),
        received_packets: one.received_packets.wrapping_add(other.received_packets),
        received_bytes: one.received_bytes.wrapping_add(other.received_bytes),
    }
}

fn by<'a, T, K: Hash + Eq>(rows: &'a [T], key: impl Fn(&'a T) -> K) -> HashMap<K, &'a T> {
    rows.iter().map(|row| (key(row), row)).collect()
}

fn flow_key(flow: &TopFlow) -> (bool, IpAddr, u16, IpAddr, u16, u8) {
    let TopFlow {
        is_outbound,
        source,
        source_port,
        destination,
        destination_port,
        protocol,
        ..
    } = flow;
    (
        *is_outbound,
        *source,
        *source_port,
        *destination,
        *destination_port,
        *protocol,
    )
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        132 => "sctp".to_owned(),
        other => other.to_string(),
    }
}
