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
use tracing::info;

use crate::config::NodeConfig;
use crate::lease::fnv1a;
use crate::problems::Problem;

/// The workers that run.
#[derive(Debug)]
pub struct WorkerPlacement {
    /// The kind of their device.
    pub(crate) device: &'static str,
    /// For each its core, where it is pinned to one.
    pub(crate) cores: Vec<Option<usize>>,
    /// Why there are fewer than was asked for, in words.
    pub(crate) fewer: Option<String>,
    /// Cores of the configuration that the service cannot use.
    pub(crate) unusable: Vec<usize>,
}

impl WorkerPlacement {
    /// Gives each worker its core. `device` is the kind of their device, with the reason why there are fewer workers than
    /// were asked for.
    pub(crate) fn place(
        workers: usize,
        (device, fewer): (&'static str, Option<String>),
        machine: &Machine,
        config: &NodeConfig,
    ) -> WorkerPlacement {
        let (cores, unusable) = machine.places(workers, config);
        info!(workers, ?cores, "workers placed");
        WorkerPlacement {
            device,
            cores,
            fewer,
            unusable,
        }
    }

    /// For each worker the core that it is pinned to, if it is; the kernel refused that to the `unpinned`.
    pub(crate) fn pinned_cores(&self, unpinned: impl Iterator<Item = usize>) -> Vec<Option<usize>> {
        let mut cores = self.cores.clone();
        for worker in unpinned {
            if let Some(core) = cores.get_mut(worker) {
                *core = None;
            }
        }
        cores
    }

    /// What of the configuration cannot be used.
    pub(crate) fn unusable(&self) -> Option<Problem> {
        let cores = self.unusable.clone();
        (!cores.is_empty()).then_some(Problem::CoresUnusable { cores })
    }

    /// That the kernel refused these workers their cores: one went offline, or the control group's set has shrunk, since
    /// they were chosen.
    pub(crate) fn unpinned(&self, workers: impl Iterator<Item = usize>) -> Option<Problem> {
        let core = |worker| (worker, self.cores.get(worker).copied().flatten());
        let workers: Vec<_> = workers.map(core).collect();
        (!workers.is_empty()).then_some(Problem::WorkersNotPinned { workers })
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

    /// A core for each of `workers`, or none, and the cores of the configuration that cannot be used.
    pub(crate) fn places(
        &self,
        workers: usize,
        config: &NodeConfig,
    ) -> (Vec<Option<usize>>, Vec<usize>) {
        if config.cores.is_empty() {
            return (self.chosen(workers, &config.node_name), Vec::new());
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
        let unusable = named.filter(|core| !usable(core)).collect();
        (places, unusable)
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
/// The most workers without a configured number.
const DEFAULT_MOST: usize = 4;

#[cfg(test)]
mod tests;
