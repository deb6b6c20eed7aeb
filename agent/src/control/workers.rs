//! How many workers, and on which cores.
//!
//! Theory of operation: unless the configuration says otherwise there is a worker for every second physical core that this
//! process may use, one at least and four at most: the other half is for the pods, whose packets the kernel handles on
//! their own cores too. Two threads of one physical core would share what a worker needs most.
//!
//! A pinned worker keeps its caches, and waits for its core while another stands idle. So workers are pinned where they
//! leave half of the physical cores to everybody else, who can be moved away from theirs, and there are several: a single
//! one is where the scheduler finds room. Nodes may share a machine (containers as nodes, a lab), and each of them sees
//! all of its cores: each begins at another one, by its name. Named cores are used as they are named.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};
use tracing::{info, warn};

use crate::config::NodeConfig;
use crate::lease::fnv1a;
use crate::takeover::device::Obtained;

/// The workers that run.
#[derive(Debug)]
pub struct Workforce {
    /// The kind of their device.
    pub(crate) device: &'static str,
    /// For each its core, where it is pinned to one.
    pub(crate) cores: Vec<Option<usize>>,
    /// Why there are fewer than was asked for, in words.
    pub(crate) fewer: Option<String>,
    /// What of the configuration cannot be used, in words.
    pub(crate) problem: Option<String>,
}

impl Workforce {
    /// Gives each worker, of whom one has each share of `device`, its place.
    pub(crate) fn place(device: &Obtained, machine: &Machine, config: &NodeConfig) -> Workforce {
        let workers = device.tunnels.len();
        let (cores, problem) = machine.places(workers, config);
        info!(workers, ?cores, "placed");
        if let Some(problem) = &problem {
            warn!("{problem}");
        }
        Workforce {
            device: device.kind,
            cores,
            fewer: device.fewer.clone(),
            problem,
        }
    }
}

/// The processors that this process may use.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Numbers of the threads of each physical core.
    cores: Vec<Vec<usize>>,
    /// How many processors' worth of time there is: a control group may grant less than the mask.
    time: usize,
}

impl Machine {
    /// What the kernel says; without it, a single core.
    pub(crate) fn read() -> Machine {
        let mask = sched_getaffinity(None).ok();
        let usable = |id: &usize| mask.is_some_and(|mask| mask.is_set(*id));
        Machine {
            cores: physical(Path::new(TOPOLOGY), (0..CpuSet::MAX_CPU).filter(usable)),
            time: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// How many workers there are to be.
    pub(crate) fn workers(&self, config: &NodeConfig) -> usize {
        let half = self.cores.len().min(self.time) / 2;
        config
            .workers
            .map_or(half.clamp(1, DEFAULT_MOST), usize::from)
    }

    /// A core for each of `workers`, or none, and what of the configuration cannot be used, in words.
    pub(crate) fn places(
        &self,
        workers: usize,
        config: &NodeConfig,
    ) -> (Vec<Option<usize>>, Option<String>) {
        if config.cores.is_empty() {
            return (self.chosen(workers, &config.node_name), None);
        }
        let usable = |core: &usize| self.cores.iter().any(|threads| threads.contains(core));
        let named = config
            .cores
            .iter()
            .take(workers)
            .map(|core| usize::from(*core));
        let places: Vec<_> = named
            .clone()
            .map(|core| Some(core).filter(usable))
            .collect();
        let beyond: Vec<String> = named
            .filter(|core| !usable(core))
            .map(|core| core.to_string())
            .collect();
        let problem = (!beyond.is_empty()).then(|| {
            format!(
                "cores names {}, which this host has not or this service may not use, so a worker is not pinned: name \
                 others, or widen the service's affinity (taskset -p {})",
                beyond.join(", "),
                std::process::id()
            )
        });
        (places, problem)
    }

    fn chosen(&self, workers: usize, node: &str) -> Vec<Option<usize>> {
        let cores = self.cores.len();
        if workers < 2 || workers > cores.min(self.time) / 2 {
            return vec![None; workers];
        }
        let first = fnv1a(node.as_bytes()) as usize % cores;
        let from_first = self.cores.iter().cycle().skip(first).take(workers);
        from_first.map(|threads| threads.first().copied()).collect()
    }
}

/// The usable processors by the physical core that each is a thread of, in the order of their numbers. Where the kernel
/// does not tell, each is one.
fn physical(topology: &Path, usable: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
    let mut cores: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for id in usable {
        let siblings = topology.join(format!("cpu{id}/topology/thread_siblings_list"));
        let first = fs::read_to_string(siblings).ok().and_then(|list| {
            let digits = list.trim().split([',', '-']).next()?;
            digits.parse().ok()
        });
        cores.entry(first.unwrap_or(id)).or_default().push(id);
    }
    cores.into_values().collect()
}

const TOPOLOGY: &str = "/sys/devices/system/cpu";
/// Workers that nobody asked for.
const DEFAULT_MOST: usize = 4;

#[cfg(test)]
mod tests;
