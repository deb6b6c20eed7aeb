//! What this node knows, and what it decided from it: the leases, the attachments, the kernel's facts.
//!
//! Every change goes through [`Node::decide`], which compares with what was decided last, so nothing is
//! published or written without a difference.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cni_shim::{Attachment, NodeFile};
use dataplane::families::{PerFamily, PublicAddresses};
use dataplane::spec::Spec;
use encap::Family;

use super::facts::Facts;
use crate::api::wire::RefusedRecord;
use crate::attachments;
use crate::config::{NetConf, NodeConfig};
use crate::host::{Host, HostError, Picture};
use crate::last_good::{self, LastGoodError};
use crate::lease::{Lease, default_vtep_mac};
use crate::reconcile::{Desired, Inputs, reconcile};
use crate::registry::Update;

/// What a decision is made from.
#[derive(Debug)]
pub struct Known {
    /// This node's configuration; fixed for the life of the service.
    pub config: NodeConfig,
    /// The cluster's configuration; fixed for the life of the service.
    pub net_conf: NetConf,
    /// The text it was read from.
    pub net_conf_text: String,
    /// Every lease, ours among them.
    pub leases: Arc<[Lease]>,
    /// Our own, as the list has it.
    pub own: Lease,
    /// The addresses that our sockets have.
    pub bound: PublicAddresses,
    /// Attachments adopted.
    pub attachments: Vec<Attachment>,
    /// What the kernel says.
    pub facts: Facts,
}

impl Known {
    /// The addresses that we are to send from and receive on.
    pub fn wanted(&self) -> PublicAddresses {
        self.config.underlay(self.own.public)
    }

    /// Reads the kernel again; what it does not tell stays as it was, and why is returned.
    pub async fn refresh(&mut self, host: &Host) -> Option<HostError> {
        match host.picture().await {
            Ok(picture) => self.see(&picture),
            Err(error) => Some(error),
        }
    }

    /// Takes the kernel's facts from a picture; what it does not show stays as it was, and why is returned.
    pub fn see(&mut self, picture: &Picture) -> Option<HostError> {
        let device = &self.config.device_name;
        let Known { facts, own, .. } = self;
        facts.see(picture, &self.net_conf, own, device, self.bound)
    }

    /// Our own lease as peers can use it. A listed address that our sockets do not have yet is not in it, but the one that
    /// they have, and the VTEP MAC that follows from that: whoever has not heard of the new address goes on as before.
    /// Where the configuration names a local address, what others know us by is the list's, wherever our sockets are.
    pub fn own_in_force(&self) -> Lease {
        let mut own = self.own.clone();
        let listed = own.public;
        let in_force = |family| {
            let bound = self.bound.of(family)?;
            let known_by_list = self.config.names_local(family);
            listed.of(family).filter(|_| known_by_list).or(Some(bound))
        };
        let each = [Family::V4, Family::V6].into_iter().filter_map(in_force);
        if let Some(public) = PublicAddresses::collect(each) {
            own.public = public;
        }
        let first = listed.first();
        let derived = PerFamily::each(|_| default_vtep_mac(first));
        if let Some(address) = in_force(Family::of(first)).filter(|_| own.vtep_mac == derived) {
            own.vtep_mac = PerFamily::each(|_| default_vtep_mac(address));
        }
        own
    }

    /// Attachments with an address that lies in no subnet of ours.
    pub fn stranded(&self) -> impl Iterator<Item = &Attachment> {
        let is_stranded = |a: &&Attachment| !attachments::stranded(a, &self.own.subnets).is_empty();
        self.attachments.iter().filter(is_stranded)
    }

    fn decide(&self, version: u64, previous: Option<&Desired>) -> Desired {
        let inputs = Inputs {
            net_conf: &self.net_conf,
            config: &self.config,
            leases: &self.leases,
            own: &self.own_in_force(),
            bound: self.bound,
            attachments: &self.attachments,
            kernel_prefixes: &self.facts.prefixes,
            released: &self.facts.released,
            host_addresses: &self.facts.addresses,
            underlay_mtu: self.facts.underlay.mtu,
            version,
        };
        reconcile(&inputs, previous)
    }
}

/// What is known from the last good state alone, because the file that should say it cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// The leases: their age when they were read.
    pub leases: Option<Duration>,
    /// The net-conf: why the file is not used.
    pub net_conf: Option<String>,
}

impl Cached {
    /// Whether anything is, so that nothing may be withdrawn from the host.
    pub fn is_any(&self) -> bool {
        self.leases.is_some() || self.net_conf.is_some()
    }
}

/// The node's knowledge and its last decision.
#[derive(Debug)]
pub struct Node {
    /// What is known.
    pub known: Known,
    /// What was decided.
    pub desired: Desired,
    /// When the leases were read.
    pub leases_read: Instant,
    /// What comes from the last good state.
    pub cached: Cached,
    /// Why the registry's present content is not used.
    pub refused_leases: Option<String>,
    /// Attachment records that were not adopted.
    pub refused_records: Vec<RefusedRecord>,
    /// When the directory of records had changed, as of the last listing; unknown while it may change again
    /// within the clock's grain.
    records_of: Option<SystemTime>,
}

impl Node {
    /// The first decision. Versions go on above `past`, which earlier services used up.
    pub fn new(mut known: Known, past: u64) -> Node {
        let records_of = settled_change(&known);
        let refused_records = adopt_records(&mut known);
        Node {
            desired: known.decide(past.saturating_add(1), None),
            known,
            leases_read: Instant::now(),
            cached: Cached::default(),
            refused_leases: None,
            refused_records,
            records_of,
        }
    }

    /// How long ago the registry gave the leases in force.
    pub fn leases_age(&self) -> Duration {
        self.leases_read.elapsed() + self.cached.leases.unwrap_or_default()
    }

    /// Writes the last good state.
    ///
    /// # Errors
    /// [`LastGoodError::Write`].
    pub fn save(&self) -> Result<(), LastGoodError> {
        let known = &self.known;
        let now = SystemTime::now();
        last_good::write(
            &known.config.state_dir(),
            &known.config.node_name,
            &known.net_conf_text,
            &known.leases,
            now.checked_sub(self.leases_age()).unwrap_or(now),
        )
    }

    /// Takes what the registry says. A refusal leaves everything as it is but the reason.
    pub fn learn(&mut self, update: Update) {
        match update {
            Update::Refused { line, reason } => {
                self.refused_leases = Some(refusal(&self.known.config, line, &reason));
            }
            Update::Leases(leases) => {
                let name = &self.known.config.node_name;
                // A registry yields no list without our own entry.
                let Some(own) = leases.iter().find(|lease| lease.name == *name).cloned() else {
                    return;
                };
                self.known.own = own;
                self.known.leases = leases.into();
                self.leases_read = Instant::now();
                self.cached.leases = None;
                self.refused_leases = None;
                self.reread_records();
            }
        }
    }

    /// Lists the attachment records again.
    pub fn reread_records(&mut self) {
        self.records_of = settled_change(&self.known);
        self.refused_records = adopt_records(&mut self.known);
    }

    /// Reads the record of one attachment again, whose caller says that it changed, and all where that one alone does not
    /// tell. Another that changed is found at the next look, which the directory's own change calls for.
    pub fn reread_record(&mut self, container: &str, ifname: &str) {
        let known = &mut self.known;
        let run = known.config.run_dir();
        let (subnets, adopted) = (&known.own.subnets, &mut known.attachments);
        // One that was refused may be served once another is gone.
        let alone = self.refused_records.is_empty()
            && attachments::rescan(&run, subnets, container, ifname, adopted);
        if !alone {
            self.reread_records();
        }
    }

    /// Lists them if the directory has changed since.
    pub fn reread_changed_records(&mut self) {
        if self.have_records_changed() {
            self.reread_records();
        }
    }

    /// Whether the directory of records has changed since it was listed, or may have: a plugin that cannot reach us, or a
    /// person, writes there without asking.
    pub fn have_records_changed(&self) -> bool {
        self.records_of.is_none() || settled_change(&self.known) != self.records_of
    }

    /// When their directory changed, as of the last listing; none while it may be changing still.
    pub fn records_of(&self) -> Option<SystemTime> {
        self.records_of
    }

    /// Decides anew. `Some` tables to publish when they differ from the last.
    pub fn decide(&mut self) -> Option<&Spec> {
        let before = &self.desired.spec;
        let mut desired = self.known.decide(before.version, Some(&self.desired));
        let mut released = before.local.attachments.iter().copied();
        let gone = |address: &IpAddr| {
            desired
                .spec
                .local
                .attachments
                .binary_search(address)
                .is_err()
        };
        if let Some(first) = released.find(gone) {
            let further = released.filter(gone);
            self.known
                .facts
                .released
                .extend(std::iter::once(first).chain(further));
            desired = self.known.decide(before.version, Some(&self.desired));
        }
        let differs = !Arc::ptr_eq(&desired.spec.cluster, &before.cluster)
            || !Arc::ptr_eq(&desired.spec.local, &before.local);
        if differs {
            desired.spec.version = before.version.saturating_add(1);
        }
        self.desired = desired;
        differs.then_some(&self.desired.spec)
    }

    /// What the plugin should know.
    pub fn node_file(&self) -> NodeFile {
        NodeFile {
            subnets: self.known.own.subnets.clone(),
            cluster: self.known.net_conf.cluster(),
            mtu: self.desired.host.mtu,
        }
    }
}

/// Why the list of nodes is not used, with its place.
pub(super) fn refusal(config: &NodeConfig, line: Option<usize>, reason: &str) -> String {
    let file = config.node_file.display();
    match line {
        Some(line) => format!("{file} line {line}: {reason}"),
        None => format!("{file}: {reason}"),
    }
}

/// When the directory of records changed last, if that is long enough ago for a further change to show.
fn settled_change(known: &Known) -> Option<SystemTime> {
    let found = known.config.run_dir().attachments().metadata().ok()?;
    let changed = found.modified().ok()?;
    (changed.elapsed().ok()? > MTIME_GRAIN).then_some(changed)
}

/// Adopts what the directory of records holds; returns what was refused.
fn adopt_records(known: &mut Known) -> Vec<RefusedRecord> {
    let scan = attachments::scan(&known.config.run_dir(), &known.own.subnets);
    known.attachments = scan.adopted;
    scan.refused
        .into_iter()
        .map(|refused| RefusedRecord {
            file: refused.path.display().to_string(),
            reason: refused.reason,
        })
        .collect()
}

/// Far above a tick of the kernel's clock, by which files are dated.
const MTIME_GRAIN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
