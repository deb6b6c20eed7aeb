//! `tartan status`: the node at a glance.

use std::time::{Duration, SystemTime};

use dataplane::counters::{Flow, Totals};

use super::offloads::{given_up, in_use};
use super::{View, second};
use crate::api::wire;
use crate::gathering::GatheringFacts;
use crate::problems::Posted;

impl View {
    /// The node at a glance. `device_queue` is the length of the tunnel device's queue, where the kernel reports it.
    pub fn status(&self, totals: &Totals, device_queue: Option<u32>) -> wire::Status {
        let programs = self.kernel_path.totals();
        let sum = |count: fn(&Flow, &Flow) -> u64| {
            let workers = totals.workers.iter();
            let workers = workers.map(|worker| (&worker.outbound, &worker.inbound));
            let programs = programs.iter().map(|all| (&all.outbound, &all.inbound));
            let all = workers.chain(programs);
            all.map(|(outbound, inbound)| count(outbound, inbound))
                .sum()
        };
        let service = &self.service;
        let leases_age = self.leases_read.elapsed() + self.leases_cached.unwrap_or_default();
        wire::Status {
            problems: self.problems.iter().map(problem).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.own.name.clone(),
            public_ip: self.own.public.first(),
            public_ipv6: second(self.own.public),
            underlay: self.underlay.name.clone(),
            underlay_mtu: self.underlay.mtu,
            subnets: self.own.subnets.clone(),
            cluster: service.cluster.clone(),
            format: self.own.format.to_string(),
            device: service.config.device_name.clone(),
            device_kind: service.workers.device.to_owned(),
            device_type: service.device_type.to_owned(),
            device_mtu: self.device_mtu,
            device_queue,
            offloads: in_use(totals),
            offloads_given_up: given_up(totals),
            workers: totals.running,
            fewer_workers: service.workers.fewer.clone(),
            cores: self.cores.clone(),
            kernel_path: self.kernel_path_status(),
            peers: self.spec.cluster.peers.len(),
            attachments: self.attachments.len(),
            stranded: self.stranded,
            registry: service.registry.clone(),
            registry_age: leases_age.as_secs(),
            registry_cached: self.is_registry_cached,
            registry_answers: self.in_touch.answers,
            registry_since: self.in_touch.since.map(|since| since.elapsed().as_secs()),
            registry_last_refused: self.in_touch.last_refused.as_ref().map(|(reason, at)| {
                wire::LastRefused {
                    reason: reason.to_string(),
                    age: at.elapsed().as_secs(),
                }
            }),
            snapshot: self.spec.version,
            snapshot_adopted: totals
                .of_running()
                .all(|worker| worker.snapshot >= self.spec.version),
            service_pid: std::process::id(),
            uptime: service.started.elapsed().as_secs(),
            restarts: service.restarts,
            last_end: service.last_end.clone(),
            upgraded: service.upgraded.as_ref().map(|upgraded| wire::Upgraded {
                from: upgraded.from.clone(),
                at: upgraded.at,
            }),
            repairs: self.repairs,
            last_repair: self.last_repair.as_deref().map(str::to_owned),
            reclaimed: self.reclaimed,
            last_reclaimed: self.last_reclaimed.as_deref().map(str::to_owned),
            gathering: gathering(&self.gathering),
            sent: sum(|outbound, inbound| outbound.sent + inbound.sent),
            delivered: sum(|outbound, inbound| outbound.delivered + inbound.delivered),
            dropped: sum(|outbound, inbound| outbound.dropped() + inbound.dropped()),
        }
    }
}

fn gathering(facts: &GatheringFacts) -> wire::Gathering {
    let unqueued = match (facts.is_on, facts.queue) {
        (true, Err(reason)) => Some(reason.to_string()),
        _ => None,
    };
    wire::Gathering {
        on: facts.is_on,
        interfaces: facts.ends,
        refused: facts.refused.as_deref().map(str::to_owned),
        queues: facts.is_on && facts.queue.is_ok(),
        no_queues: unqueued,
        flooding: facts.floods.flooding(),
        floods: facts.floods.floods(),
        no_threads: facts.floods.refused(),
    }
}

pub(super) fn problem(posted: &Posted) -> wire::Problem {
    let Posted { problem, since } = posted;
    let since = since.duration_since(SystemTime::UNIX_EPOCH);
    wire::Problem {
        code: problem.code().to_owned(),
        subject: problem.subject(),
        since: since.unwrap_or(Duration::ZERO).as_secs(),
        severity: problem.severity().name().to_owned(),
        sentence: problem.sentence(),
        remedy: problem.remedy(),
    }
}
