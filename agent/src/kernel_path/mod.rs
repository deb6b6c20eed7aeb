//! The kernel path: programs in the kernel that repeat what user space decided.
//!
//! Theory of operation. The control loop owns one [`KernelPathControl`]. It is asked at each refresh whether the kernel
//! path can be in use here ([`site`]), and brings it into use or takes it out of use ([`switching`]); at each publication
//! of tables the programs' tables follow; once a second it looks at peers, and at neighbours where one has changed, and
//! renews the programs' lease ([`upkeep`]).
//! Whatever is refused takes the kernel path out of use, with the reason in `tartan status`; user space then carries
//! every packet, and another try is made after a minute.
//!
//! ```text
//!   into use                                                 out of use
//!   1 load programs and tables, switched off                 6 switch off
//!   2 attach the programs                                    5 delete the VXLAN device
//!   3 open sockets at the private port; arrivals go there    4 open sockets at the format's port
//!   4 close the sockets at the format's port                 3 arrivals go there; close the others
//!   5 make the VXLAN device, which takes the format's port   2 detach the programs
//!   6 switch on                                              1 close programs and tables
//! ```
//!
//! At each moment what arrives has a socket that is read, or is about to be. The keeper holds programs, tables and both
//! groups of sockets, so that a service that starts in the midst goes on from there; the order of steps is the same.
//! Programs and tables are pinned too, and found there where the keeper was killed with its service ([`Pins`]).
//! A service of another build loads its own programs, makes their tables complete, and then replaces the others.

mod facts;
pub mod flows;
mod reason;
pub mod site;
mod switching;
mod upkeep;
mod user_space;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dataplane::kernel_path::{Facts, KernelPath, KernelPathTotals, Pins, UnderlayFacts};
use dataplane::snapshot::Snapshot;
use dataplane::spec::Spec;
use rustix::time::{ClockId, clock_gettime};
use tracing::{info, warn};

pub use reason::OffReason;
pub use site::{detach_left_underlay_in, free_format_port, port_without_sockets};
pub(crate) use switching::Surroundings;
pub use user_space::UserSpaceReason;

use crate::config::{KernelPathMode, NodeConfig};
use crate::control::underlay::sockets::UnderlaySockets;
use crate::host::kernel_path::Way;
use crate::host::kernel_path::filters::Hook;
use crate::host::{GatheredEnd, RoutesSeen, read_ipsec_rules};
use crate::keeper::descriptors::Descriptors;
use crate::problems::Problem;
use flows::control::Flows;
use flows::{FlowCounts, FlowPod};
use site::Site;

/// What a service before this one left with the keeper.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Programs and tables, by their names without [`PREFIX`].
    descriptors: Vec<(String, OwnedFd)>,
    /// Sockets of a move that was interrupted, or refused.
    next: Option<UnderlaySockets>,
    /// Our sockets receive at the private port, where programs that are still attached send what arrives.
    is_at_private_port: bool,
}

impl Inherited {
    /// Takes it from the keeper's table.
    pub(crate) fn take(
        table: &mut Descriptors,
        next: Option<UnderlaySockets>,
        is_at_private_port: bool,
    ) -> Inherited {
        let taken = table.take_all(|name| name.starts_with(PREFIX));
        let unprefixed = |(name, descriptor): (String, OwnedFd)| {
            let name = name.strip_prefix(PREFIX).unwrap_or(&name).to_owned();
            (name, descriptor)
        };
        Inherited {
            descriptors: taken.into_iter().map(unprefixed).collect(),
            next,
            is_at_private_port,
        }
    }
}

/// Programs and tables, shared with the thread that answers queries, which only reads them.
#[derive(Clone)]
pub struct SharedPath(Arc<Mutex<KernelPath>>);

impl SharedPath {
    fn new(path: KernelPath) -> SharedPath {
        SharedPath(Arc::new(Mutex::new(path)))
    }

    /// The tables. A thread that ended while it had them has left none of them half written: each entry is one call.
    pub fn lock(&self) -> MutexGuard<'_, KernelPath> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SharedPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedPath")
    }
}

/// The kernel path as the control loop has it.
#[derive(Debug)]
pub struct KernelPathControl {
    mode: KernelPathMode,
    /// The port at which user space receives while the kernel path is in use.
    port: u16,
    inherited: Inherited,
    /// Where programs and tables are pinned, for a service after a kill of this one and its keeper.
    pins: Pins,
    /// That was done, or is not possible.
    is_pinned: bool,
    path: Option<SharedPath>,
    /// What its tables follow beside the spec, as far as they have been given any.
    facts: Option<Facts>,
    /// The peers that the programs of the service before sent to, and when this one took them.
    sent_before: Option<(HashSet<Ipv4Addr>, Instant)>,
    /// Where it is in use, or was to be.
    site: Option<Site>,
    /// Where programs of ours are attached; `None` until that was looked for.
    hooks: Option<Vec<Hook>>,
    /// Ends of pods at which the kernel refused a program last.
    refused_ends: HashSet<Hook>,
    /// What is attached at the underlay acts by tables that this service does not have, and may send to the private port.
    is_orphaned: bool,
    /// Nothing is left of it on the host.
    is_gone: bool,
    is_live: bool,
    off: Option<OffReason>,
    /// When it was refused last.
    refused: Option<Instant>,
    /// It was to be taken out of use, and a part of that was refused.
    is_half_off: bool,
    renewed: Option<Instant>,
    /// The kernel's neighbours may differ from those that the tables have.
    are_neighbours_outdated: bool,
    ways: HashMap<Ipv4Addr, Way>,
    ways_read: Option<Instant>,
    /// The routes and the device that they go by.
    ways_of: Option<(RoutesSeen, UnderlayFacts)>,
    /// Peers that a router says our packets are too large for, and since when.
    reported: HashMap<Ipv4Addr, Instant>,
    /// Peers that the programs do not send to, as of the last look.
    in_user_space: Arc<HashMap<Ipv4Addr, UserSpaceReason>>,
    /// What the programs had sent to each peer when neighbours were used last.
    sent: HashMap<Ipv4Addr, u64>,
    neighbours_used: Option<Instant>,
    version: u64,
    /// What programs counted that this service has taken out of use.
    past: Option<KernelPathTotals>,
    /// The thread that judges flows and reads what the programs report.
    flows: Flows,
    /// The pods that it knows.
    flow_pods: HashMap<Ipv4Addr, FlowPod>,
}

/// What `tartan status` says of it.
#[derive(Clone, Debug)]
pub struct KernelPathView {
    /// As configured.
    pub mode: KernelPathMode,
    /// Why it is not in use, if it is not.
    pub off: Option<String>,
    /// The VXLAN device.
    pub device: Option<String>,
    /// The port at which user space receives what it passes on.
    pub port: Option<u16>,
    /// Version of the tables that the programs follow.
    pub version: u64,
    /// Programs that are attached, each with its device.
    pub programs: Vec<(String, String)>,
    /// The programs act.
    pub is_live: bool,
    /// Programs and tables, for their counters.
    pub path: Option<SharedPath>,
    /// What programs counted that are out of use by now.
    pub past: Option<KernelPathTotals>,
    /// Peers that the programs do not send to, while they act.
    pub in_user_space: Arc<HashMap<Ipv4Addr, UserSpaceReason>>,
    /// What became of flows, where they may leave the host's stack out.
    pub flows: Option<Arc<FlowCounts>>,
}

impl KernelPathControl {
    /// Of a service with that configuration.
    pub(crate) fn new(config: &NodeConfig, inherited: Inherited) -> KernelPathControl {
        KernelPathControl {
            mode: config.kernel_path,
            port: config.kernel_path_port,
            inherited,
            pins: Pins::below(&config.root),
            is_pinned: false,
            path: None,
            facts: None,
            sent_before: None,
            site: None,
            hooks: None,
            refused_ends: HashSet::new(),
            is_orphaned: false,
            is_gone: false,
            is_live: false,
            off: None,
            refused: None,
            is_half_off: false,
            renewed: None,
            are_neighbours_outdated: true,
            ways: HashMap::new(),
            ways_read: None,
            ways_of: None,
            reported: HashMap::new(),
            in_user_space: Arc::default(),
            sent: HashMap::new(),
            neighbours_used: None,
            version: 0,
            past: None,
            flows: Flows::default(),
            flow_pods: HashMap::new(),
        }
    }

    /// Brings the kernel path into use, keeps it in use, or takes it out of use, by what the host and the configuration
    /// say. Returns why it is not in use where it should be.
    pub(crate) async fn refresh(&mut self, mut with: Surroundings<'_>) -> Option<Problem> {
        if self.mode == KernelPathMode::Off && self.is_gone {
            return None;
        }
        let wanted = match self.mode {
            KernelPathMode::Off => Err(OffReason::Configured),
            _ => match read_ipsec_rules() {
                Ok(None) => site::of(&with).await,
                Ok(Some(rules)) => Err(OffReason::Ipsec(rules)),
                Err(error) => Err(error.into()),
            },
        };
        let is_waiting = self.refused.is_some_and(|at| at.elapsed() < TRY_AGAIN);
        let outcome = match wanted {
            Ok(_) if is_waiting && self.is_gone => return self.problem(),
            Ok(_) if is_waiting => Err(self.off.clone().unwrap_or(OffReason::Configured)),
            Ok(site) => self.go_live(&mut with, site).await,
            Err(reason) => Err(reason),
        };
        match outcome {
            Ok(()) => {
                self.off = None;
                self.refused = None;
            }
            Err(reason) => {
                self.refused = match reason {
                    // A program that exchanges keys deletes its policies and sets them again.
                    OffReason::Ipsec(_) => Some(Instant::now()),
                    _ if is_waiting => self.refused,
                    _ => reason.is_refusal().then(Instant::now),
                };
                if self.off.as_ref() != Some(&reason) && self.mode != KernelPathMode::Off {
                    warn!("the kernel path is not in use: {reason}");
                }
                self.off = Some(reason);
                match self.go_off(&mut with).await {
                    // What kept it from going off, such as an address that no interface had, has passed: no wait for it.
                    Ok(()) if std::mem::take(&mut self.is_half_off) => self.refused = None,
                    Ok(()) => {}
                    Err(error) => {
                        self.off = Some(error);
                        self.refused = Some(Instant::now());
                        self.is_half_off = true;
                    }
                }
            }
        }
        self.problem()
    }

    /// Why it is not in use where it should be.
    fn problem(&self) -> Option<Problem> {
        let reason = self.off.as_ref()?;
        (self.mode != KernelPathMode::Off || reason.is_refusal()).then(|| Problem::KernelPathOff {
            reason: reason.to_string(),
            remedy: reason.remedy(),
        })
    }

    /// Has the programs' tables follow tables that were just published.
    pub(crate) fn follow(&mut self, spec: &Spec, snapshot: Arc<Snapshot>) {
        self.inform_flows(spec, snapshot);
        let (Some(path), Some(facts)) = (&self.path, &self.facts) else {
            return;
        };
        let followed = path.lock().follow(spec, facts);
        match followed {
            Ok(followed) => self.version = followed.version,
            Err(error) => self.note_fault(error.into()),
        }
    }

    /// Something that the kernel path cannot go on without failed: switches the programs off. The next refresh takes the
    /// rest out of use.
    fn note_fault(&mut self, reason: OffReason) {
        warn!("the kernel path is switched off: {reason}");
        self.switch_off(reason);
    }

    /// Switches the programs off, and keeps tables that are published from now on from switching them on again.
    fn switch_off(&mut self, reason: OffReason) {
        if let Some(path) = &self.path
            && let Err(error) = path.lock().switch_off()
        {
            // Its lease ends in a minute at the latest.
            warn!("the kernel path cannot be switched off: {error}");
        }
        if let Some(facts) = &mut self.facts {
            facts.on = false;
        }
        self.is_live = false;
        self.off = Some(reason);
        self.refused = Some(Instant::now());
    }

    /// Ends the thread that judges flows: another service's reads what the programs report, or this service ends, whose workers
    /// leave the device. The programs go on, and with them the flows. The next refresh starts the thread again.
    pub(crate) fn pause(&mut self) {
        self.flows.stop();
    }

    /// Whether peers may send what their kernels encapsulate: the programs act, or those of the service before do until
    /// this one has decided. So a service that is started anew takes no flow of a peer's from its short path. After a kill
    /// of service and keeper only the private port shows that programs are still attached.
    pub(crate) fn is_announced(&self) -> bool {
        let is_undecided = self.mode != KernelPathMode::Off && self.off.is_none();
        let Inherited {
            descriptors,
            is_at_private_port,
            ..
        } = &self.inherited;
        self.is_live || (is_undecided && (!descriptors.is_empty() || *is_at_private_port))
    }

    /// The underlay device, while the programs receive there.
    pub(crate) fn underlay(&self) -> Option<GatheredEnd> {
        let site = self.site.as_ref().filter(|_| self.is_live)?;
        Some(GatheredEnd {
            index: site.underlay.ifindex,
            name: site.underlay_name.clone(),
        })
    }

    /// The neighbours that the programs send to, by interface and address, while the programs act.
    pub(crate) fn neighbours(&self) -> HashSet<(u32, IpAddr)> {
        let site = self.site.as_ref().filter(|_| self.is_live);
        let neighbours = site.into_iter().flat_map(|site| {
            self.ways.values().filter_map(|way| match way {
                Way::Neighbour(address) => Some((site.underlay.ifindex, IpAddr::V4(*address))),
                Way::Unknown | Way::Elsewhere => None,
            })
        });
        neighbours.collect()
    }

    /// What a view shows of it.
    pub(crate) fn view(&self) -> KernelPathView {
        let site = self.site.as_ref().filter(|_| self.is_live);
        KernelPathView {
            mode: self.mode,
            off: self.off.as_ref().map(ToString::to_string),
            device: site.map(|site| site.device.name.clone()),
            port: site.map(|_| self.port),
            version: self.version,
            programs: site.map_or_else(Vec::new, |site| {
                let device = |index| {
                    let hooks = self.hooks.iter().flatten();
                    let mut hook = hooks.filter(move |hook: &&Hook| hook.index == index);
                    hook.next().map(|hook| hook.device.clone())
                };
                let programs = site.programs().into_iter();
                programs
                    .filter_map(|(index, program)| {
                        Some((program.name().to_owned(), device(index)?))
                    })
                    .collect()
            }),
            is_live: self.is_live,
            path: self.path.clone(),
            past: self.past,
            in_user_space: match self.is_live {
                true => Arc::clone(&self.in_user_space),
                false => Arc::default(),
            },
            flows: self
                .flows
                .counts()
                .filter(|_| self.is_live && self.mode == KernelPathMode::Auto),
        }
    }

    fn note(&self, what: &str) {
        info!("kernel path: {what}");
    }
}

/// CLOCK_MONOTONIC, which the programs read too.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

/// In front of the names of programs and tables in the keeper's table.
const PREFIX: &str = "kernel-path-";
/// After a refusal.
const TRY_AGAIN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
