//! What this node knows, and what it decided from it: the leases, the attachments, the kernel's facts.
//!
//! Every change goes through [`Model::decide`], which compares with what was decided last, so nothing is
//! published or written without a difference.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cni_shim::pod_link::PodNetworks;
use cni_shim::{Attachment, NodeFile};
use dataplane::families::{PerFamily, PublicAddresses};
use dataplane::spec::Spec;
use encap::{Family, Mac};
use ipnet::IpNet;

use super::facts::Facts;
use super::families::{self, LostFamily};
use super::records::Records;
use crate::attachments;
use crate::config::node::registry::RegistryKind;
use crate::config::{NetConf, NodeConfig};
use crate::gathering::queue;
use crate::host::external_interface::ExternalInterface;
use crate::host::{Host, HostError, Picture};
use crate::last_good::{self, LastGoodError};
use crate::lease::{Lease, default_vtep_mac};
use crate::problems::{LeasesInForce, Problem};
use crate::reconcile::{Desired, Inputs, reconcile};
use crate::registry::Update;

/// What a decision is made from, beside the attachments.
#[derive(Clone, Debug)]
pub struct Known {
    /// This node's configuration; fixed for the life of the service.
    pub config: Arc<NodeConfig>,
    /// The cluster's configuration; fixed for the life of the service.
    pub net_conf: NetConf,
    /// The text it was read from.
    pub net_conf_text: String,
    /// Every lease, ours among them.
    pub leases: Arc<[Lease]>,
    /// Our own, as the list has it.
    pub own: Lease,
    /// The interface by which this node is reached, where it announces itself to a remote registry; `None` until that has
    /// said what it wants of it.
    pub external: Option<ExternalInterface>,
    /// The addresses that our sockets have.
    pub bound: PublicAddresses,
    /// The Ethernet address that the tunnel device has, if it is a TAP; fixed for the life of the service, as its workers
    /// write it.
    pub device_mac: Option<Mac>,
    /// What the kernel says.
    pub facts: Facts,
}

impl Known {
    /// The addresses that we are to send from and receive on.
    pub fn wanted(&self) -> PublicAddresses {
        match &self.external {
            Some(external) => self.config.underlay(external.local),
            None if self.is_announced() => self.bound,
            None => self.config.underlay(self.own.public),
        }
    }

    /// Whether this node announces itself, so that no operator writes its addresses into a list.
    pub fn is_announced(&self) -> bool {
        self.config.registry.kind != RegistryKind::File
    }

    /// Reads the kernel again; what it does not report stays as it was, and why is returned.
    pub async fn refresh(&mut self, host: &Host) -> Option<HostError> {
        match host.picture().await {
            Ok(picture) => self.see(&picture),
            Err(error) => Some(error),
        }
    }

    /// Takes the kernel's facts from a picture; what it does not show stays as it was, and why is returned.
    pub fn see(&mut self, picture: &Picture) -> Option<HostError> {
        let device = &self.config.device_name;
        let Known {
            facts, own, leases, ..
        } = self;
        facts.see(picture, &self.net_conf, (own, leases), device, self.bound)
    }

    /// Our own lease as peers can use it. An address that is listed and that our sockets do not have yet is not in it, but
    /// the one that they have, and the VTEP MAC that follows from that: peers that have not learned of the new address go
    /// on as before. Where the configuration names a local address, peers know us by the listed one, wherever our sockets
    /// are.
    pub fn own_in_force(&self) -> Lease {
        let mut own = self.own.clone();
        let listed = own.public;
        let in_force = |family| {
            let bound = self.bound.of(family)?;
            let known_by_list = self.is_announced() || self.config.names_local(family);
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

    fn decide(&self, records: &Records, version: u64, previous: Option<&Desired>) -> Desired {
        // An attachment that waits for its limit is not delivered to by way of its route either.
        let released = self.facts.released.iter().copied();
        let released: Vec<IpAddr> = released.chain(records.withheld_addresses()).collect();
        let inputs = Inputs {
            net_conf: &self.net_conf,
            config: &self.config,
            leases: &self.leases,
            own: &self.own_in_force(),
            bound: self.bound,
            attachments: &records.served(),
            kernel_prefixes: &self.facts.prefixes,
            pod_links: &self.facts.pod_links,
            released: &released,
            host_addresses: &self.facts.addresses,
            underlay_mtu: self.facts.underlay.mtu,
            device_mac: self.device_mac,
            version,
        };
        reconcile(&inputs, previous)
    }
}

/// What is known from the last good state alone, because the source that should say it cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// The leases: their age when they were read.
    pub leases: Option<Duration>,
    /// The net-conf.
    pub net_conf: bool,
    /// The registry has given a list, which is held back: these leases are in force as in a service that ran all the time.
    pub is_held: bool,
}

impl Cached {
    /// Whether anything is, so that nothing may be withdrawn from the host.
    pub fn is_any(&self) -> bool {
        self.are_leases() || self.net_conf
    }

    /// Whether the leases are, because the registry gives no list that can be used.
    pub fn are_leases(&self) -> bool {
        self.leases.is_some() && !self.is_held
    }
}

/// The node's knowledge and its last decision.
#[derive(Debug)]
pub struct Model {
    /// What is known.
    pub known: Known,
    /// The attachment records.
    pub records: Records,
    /// What was decided.
    pub desired: Desired,
    /// When the leases were read.
    pub leases_read: Instant,
    /// What comes from the last good state.
    pub cached: Cached,
    /// What peers have lost since the service started.
    pub lost_families: Vec<LostFamily>,
}

impl Model {
    /// The first decision. Versions go on above `past`, which earlier services used up.
    pub fn new(known: Known, past: u64) -> Model {
        let records = Records::list(known.config.run_dir(), &known.own.subnets);
        Model {
            desired: known.decide(&records, past.saturating_add(1), None),
            known,
            records,
            leases_read: Instant::now(),
            cached: Cached::default(),
            lost_families: Vec::new(),
        }
    }

    /// When the registry gave the leases in force; they may come from a service before this one.
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

    /// Takes what the registry says. A refusal leaves everything as it is, and is returned.
    pub fn learn(&mut self, update: Update) -> Option<Problem> {
        match update {
            Update::Refused { place, reason } => {
                self.cached.is_held = false;
                Some(Problem::LeasesRefused {
                    place: place.to_string(),
                    reason,
                    in_force: match self.cached.leases {
                        Some(_) => LeasesInForce::Cache,
                        None => LeasesInForce::Earlier,
                    },
                })
            }
            Update::Leases(leases) => {
                let name = &self.known.config.node_name;
                // A registry yields no list without our own entry.
                if let Some(own) = leases.iter().find(|lease| lease.name == *name).cloned() {
                    self.lost_families =
                        families::lost(&self.known.leases, &leases, &self.lost_families);
                    self.known.own = own;
                    self.known.leases = leases.into();
                    self.leases_read = Instant::now();
                    self.cached.leases = None;
                    self.cached.is_held = false;
                    self.records.relist(&self.known.own.subnets);
                }
                None
            }
            Update::Settings(_) | Update::RefusedRecords(_) | Update::Contact(_) => None,
        }
    }

    /// Where pods of this node and of the cluster live.
    pub fn pod_networks(&self) -> PodNetworks {
        PodNetworks {
            own: self.known.own.subnets.clone(),
            cluster: self.known.net_conf.cluster(),
        }
    }

    /// Lists the attachment records again if their directory has changed.
    pub fn relist_changed_records(&mut self) {
        self.records.relist_if_changed(&self.known.own.subnets);
    }

    /// Reads the record of one attachment again.
    pub fn reread_record(&mut self, container: &str, ifname: &str) {
        let subnets = &self.known.own.subnets;
        self.records.reread(subnets, container, ifname);
    }

    /// Why an attachment is not delivered to, if it is not.
    pub fn why_not_served(&self, container: &str, ifname: &str) -> Option<String> {
        if let Some(found) = self.records.find(container, ifname) {
            let outside = *attachments::stranded(found, &self.known.own.subnets).first()?;
            return Some(format!(
                "{outside} lies in no subnet of this node, as after a change of its subnets: delete and recreate its pod"
            ));
        }
        match self.records.refusal(container, ifname) {
            Some(refused) => Some(refused.reason.clone()),
            None => {
                let name = Attachment::file_name(container, ifname);
                Some(format!("there is no record {name}; write it before asking"))
            }
        }
    }

    /// Subnets whose pods are answered for on bridges of other plugins: none without a pod of ours. A record that was
    /// refused may be a living pod's.
    pub fn bridged_subnets(&self) -> Vec<IpNet> {
        if self.records.adopted().is_empty() && self.records.refused().is_empty() {
            return Vec::new();
        }
        self.known.own.subnets.clone()
    }

    /// Attachments with an address that lies in no subnet of ours.
    pub fn stranded(&self) -> impl Iterator<Item = &Arc<Attachment>> {
        let subnets = &self.known.own.subnets;
        let is_stranded = |a: &&Arc<Attachment>| !attachments::stranded(a, subnets).is_empty();
        self.records.adopted().iter().filter(is_stranded)
    }

    /// Decides anew. `Some` tables to publish when they differ from the last.
    pub fn decide(&mut self) -> Option<&Spec> {
        self.known.facts.release(self.records.take_gone());
        let before = &self.desired.spec;
        let mut desired = (self.known).decide(&self.records, before.version, Some(&self.desired));
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
            gather: self.known.config.gather,
            pod_queue: self.known.config.gather && queue::of_this_kernel().is_ok(),
            mtu_v6: Some(self.desired.host.inner_mtu.v6).filter(|v6| *v6 < self.desired.host.mtu),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
