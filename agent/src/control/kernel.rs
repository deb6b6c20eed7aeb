//! The kernel's side of the node: watched, read, brought to the desired state, and repaired.
//!
//! [`Kernel::apply`] is set-up and repair in one. What it changes while the desired state is the one that it applied
//! before was changed by another process, and is a repair; everything else is set-up.

use std::collections::HashSet;
use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use cni_shim::{Attachment, RunDir};
use futures_util::StreamExt;
use ipnet::IpNet;
use tracing::{info, warn};

use super::repair_log::RepairLog;
use crate::host::{
    self, Change, Host, HostError, HostEvent, HostState, MendedPods, Picture, Watch,
};
use crate::problems::{HostProblem, Problem};

/// The kernel, as the loop works on it.
pub struct Kernel {
    /// The host's interfaces, routes, rules and settings.
    pub host: Host,
    /// What was repaired.
    pub repairs: Repairs,
    log: RepairLog,
    watch: Option<Watch>,
    /// The state that the kernel was brought to last.
    applied: HostState,
}

/// Things that another process changed and that were put back.
#[derive(Clone, Debug, Default)]
pub struct Repairs {
    /// How many since the service started.
    pub count: u64,
    /// The latest of them, as a sentence.
    pub last: Option<Arc<str>>,
}

/// What one [`Kernel::apply`] came to.
#[derive(Debug, Default)]
pub struct Applied {
    /// What was refused.
    pub problems: Vec<Problem>,
    /// Bridges of another plugin that the node answers on for pods of ours; `None` where the kernel did not report.
    pub bridges: Option<Vec<String>>,
    /// The tunnel device is gone.
    pub device_is_gone: bool,
}

impl Kernel {
    /// The kernel that was brought to `applied` before. Announces changes from here on; what came before is for the
    /// caller to read. Without a watch the clock makes up for it, and each refresh tries again.
    pub fn watched(host: Host, applied: HostState) -> Kernel {
        Kernel {
            host,
            repairs: Repairs::default(),
            log: RepairLog::default(),
            watch: host::watch().ok(),
            applied,
        }
    }

    /// Waits for a change of the kernel's tables. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        let event: Option<HostEvent> = match &mut self.watch {
            Some(watch) => watch.next().await,
            None => pending().await,
        };
        if event.is_none() {
            warn!("the watch on the kernel has ended and is started anew");
            self.watch = None;
        }
    }

    /// Starts the watch again if it has ended.
    pub fn keep_watching(&mut self) {
        if self.watch.is_none() {
            self.watch = host::watch().ok();
        }
    }

    /// From here on changes of these neighbours, by interface and address, are followed: they are next hops to peers.
    pub fn follow_next_hops(&mut self, next_hops: HashSet<(u32, IpAddr)>) {
        if let Some(watch) = &mut self.watch {
            watch.set_next_hops(next_hops);
        }
    }

    /// Whether a next hop may have changed since the last call: always, where nothing is announced.
    pub fn take_next_hop_change(&mut self) -> bool {
        let watch = self.watch.as_mut();
        watch.is_none_or(Watch::take_next_hop_change)
    }

    /// Whether every kind of change is announced.
    pub fn is_watched(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_complete)
    }

    /// Whether the kernel was brought to `desired`.
    pub fn is_applied(&self, desired: &HostState) -> bool {
        self.applied == *desired
    }

    /// Repairs the links of complete attachments.
    pub async fn mend_pods(
        &mut self,
        picture: &Picture,
        run: &RunDir,
        attachments: &[Arc<Attachment>],
    ) -> MendedPods {
        let mut mended = self.host.mend_pods(picture, run, attachments).await;
        mended.set_up.iter().for_each(set_up);
        self.note_repairs(&mended.repairs);
        // Those of before stay watched where it is not known which are needed now.
        if let (Some(watch), Some(needed)) = (&mut self.watch, mended.neighbours.take()) {
            watch.set_neighbours(needed);
        }
        mended
    }

    /// Brings the kernel to `desired`, from a picture of it; `bridged` are the subnets whose pods are answered for on the
    /// bridges of other plugins. What is refused keeps nothing else from being done.
    pub async fn apply(
        &mut self,
        picture: Result<Picture, HostError>,
        desired: &HostState,
        bridged: &[IpNet],
    ) -> Applied {
        let mut outcome = Applied::default();
        let mut changes = Vec::new();
        let mut refused = Vec::new();
        let mut is_applied = false;
        match picture {
            Ok(picture) => {
                let bridges = self.host.set_proxy_arp_on_bridges(&picture, bridged);
                match bridges {
                    Ok((bridges, made)) => {
                        outcome.bridges = Some(bridges);
                        made.iter().for_each(set_up);
                    }
                    Err(error) => refused.push(error),
                }
                match self.host.apply_to(picture, desired).await {
                    Ok(made) => {
                        changes = made;
                        is_applied = true;
                    }
                    Err(error) => refused.insert(0, error),
                }
            }
            Err(error) => refused.push(error),
        }
        let (more, beside) = self.host.apply_firewall_and_subnet_env(desired).await;
        changes.extend(more);
        refused.extend(beside);
        if self.applied == *desired {
            self.note_repairs(&changes);
        } else {
            changes.iter().for_each(set_up);
            if is_applied {
                self.applied = desired.clone();
            }
        }
        outcome.device_is_gone = refused
            .iter()
            .any(|error| matches!(error, HostError::NoDevice { .. }));
        outcome.problems = problems(&refused);
        outcome
    }

    /// Logs changes of the kernel that set something up.
    pub fn note_set_up(&mut self, changes: &[Change]) {
        changes.iter().for_each(set_up);
    }

    /// Notes changes of the kernel that put something right.
    pub fn note_repairs(&mut self, changes: &[Change]) {
        for change in changes {
            self.note_repair(&change.to_string());
        }
    }

    /// Notes something that was put right.
    pub fn note_repair(&mut self, what: &str) {
        if let Some(line) = self.log.note(what, Instant::now()) {
            warn!("{line}");
        }
        self.repairs.count = self.repairs.count.saturating_add(1);
        self.repairs.last = Some(what.into());
    }

    /// Logs how often things were repaired again since their line in the log.
    pub fn log_repeats(&mut self) {
        for line in self.log.due(Instant::now()) {
            warn!("{line}");
        }
    }
}

/// Each error as a problem.
pub fn problems<'a>(errors: impl IntoIterator<Item = &'a HostError>) -> Vec<Problem> {
    let problem = |error: &HostError| Problem::Host(HostProblem::of(error));
    errors.into_iter().map(problem).collect()
}

fn set_up(change: &Change) {
    info!("set up: {change}");
}
