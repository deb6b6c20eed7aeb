//! Makes the own Node say what is announced, and the list of leases of all Nodes.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{DEBOUNCE, FORBIDDEN, NodeSync, Stop, UNAUTHORIZED};
use crate::lease::Lease;
use crate::registry::kubernetes::annotations;
use crate::registry::kubernetes::api::{Api, ApiError};
use crate::registry::kubernetes::node_table::place;
use crate::registry::kubernetes::own_node::{self, OwnNodeFault};
use crate::registry::remote::Ended;
use crate::registry::{RegistrySettings, own, records};

/// What was made of this node's own record.
struct OwnRecord {
    lease: Lease,
    /// The Node says what is announced.
    is_written: bool,
    /// What the operator must mend, although the lease is certain.
    fault: Option<String>,
    /// The server does not answer.
    stop: Option<ApiError>,
}

impl NodeSync {
    /// Makes this node's record what is announced, and reports the list.
    ///
    /// A record that cannot be written does not hold up the list: it is reported with the own lease as announced, and the
    /// fault after it. Only before the first list a write that may succeed soon is waited for.
    pub(super) async fn evaluate(&mut self, api: &Api) -> Result<(), Stop> {
        self.due = None;
        let began = Instant::now();
        self.pace.made(began);
        if self.table.get(&self.node_name).is_none() {
            let name = &self.node_name;
            let reason = format!(
                "no Node is named {name:?}: start the kubelet of this node, or set node-name to the name that kubectl get nodes shows for it"
            );
            return Ok(self.reports.refuse(place(name), reason).await?);
        }
        let setting_fault = self.report_settings().await?;
        let Some(record) = self.own_record(api).await? else {
            if let (None, Some(reason)) = (&self.announced, setting_fault) {
                self.reports.refuse(place(&self.node_name), reason).await?;
            }
            return Ok(());
        };
        let fault = record.fault.or(setting_fault);
        let mut is_listed = false;
        if record.is_written || fault.is_some() || self.reports.has_listed() {
            is_listed = self.report_leases(record.lease, fault).await?;
        }
        if let Some(error) = record.stop {
            return Err(Stop::Api(error));
        }
        let took = began.elapsed().saturating_mul(IDLE_SHARE);
        self.not_before = Instant::now() + took.min(LONGEST_DEBOUNCE);
        if is_listed && record.is_written {
            self.set_condition(api).await?;
        }
        Ok(())
    }

    /// Reports what the own Node says. Returns why that cannot be read, if it cannot: what it said before is in force.
    async fn report_settings(&mut self) -> Result<Option<String>, Ended> {
        let Some(node) = self.table.get(&self.node_name) else {
            return Ok(None);
        };
        match annotations::pair(&node.metadata.annotations, &self.names.node_public) {
            Ok((public_v4, public_v6)) => {
                let settings = RegistrySettings {
                    net_conf: None,
                    public_v4,
                    public_v6,
                };
                self.reports.settings(settings).await?;
                Ok(None)
            }
            Err(fault) => Ok(Some(fault.to_string())),
        }
    }

    /// Makes the own Node's annotations what is announced. `None` while nothing is announced, or this node has no lease.
    async fn own_record(&mut self, api: &Api) -> Result<Option<OwnRecord>, Ended> {
        let (Some(announced), Some(node)) = (&self.announced, self.table.get(&self.node_name))
        else {
            return Ok(None);
        };
        let now = Instant::now();
        let plan = match self.own.plan(node, &self.names, announced, now) {
            Ok(plan) => plan,
            Err(fault) => {
                let place = place(&self.node_name);
                self.reports.refuse(place, fault.to_string()).await?;
                return Ok(None);
            }
        };
        let mut record = OwnRecord {
            lease: plan.lease.clone(),
            is_written: false,
            fault: plan.fault.as_ref().map(ToString::to_string),
            stop: None,
        };
        if let Some(OwnNodeFault::Contested { .. }) = plan.fault {
            self.due = self.own.next_write_back();
        } else if plan.differing.is_empty() {
            self.can_write();
            record.is_written = true;
        } else if let Some(next) = self.next_write.filter(|next| now < *next) {
            self.due = Some(next);
            record.fault = self.write_fault.clone().or(record.fault);
        } else {
            if plan.by_others {
                let found = own_node::found(&node.metadata.annotations, &plan.differing);
                tracing::warn!(
                    "another program changed this node's annotations, which are written back: {found}"
                );
            }
            let patch = own_node::annotation_patch(&plan.differing);
            match api.patch_status(&self.node_name, &patch).await {
                Ok(node) => {
                    self.can_write();
                    self.own.written(&plan, now);
                    self.table.apply(node);
                    record.is_written = true;
                }
                Err(error) => {
                    record.stop = self.cannot_write(error);
                    record.fault = self.write_fault.clone().or(record.fault);
                }
            }
        }
        Ok(Some(record))
    }

    fn can_write(&mut self) {
        self.writes.reset();
        self.next_write = None;
        self.write_fault = None;
    }

    /// A patch failed: it is tried again after a pause. What is refused for good, or often, becomes the fault. Returns the
    /// error if it ends the session.
    fn cannot_write(&mut self, error: ApiError) -> Option<ApiError> {
        match error.code() {
            None | Some(UNAUTHORIZED) => return Some(error),
            Some(FORBIDDEN) => self.write_fault = Some(forbidden(&error)),
            Some(_) if self.writes.failures() >= SILENT_FAILURES => {
                self.write_fault = Some(format!(
                    "cannot write this node's annotations, which is tried again: {error}"
                ));
            }
            Some(_) => {}
        }
        let pause = self.writes.next();
        let pause = pause.max(error.asked_to_wait().unwrap_or_default());
        self.next_write = Some(Instant::now() + pause);
        self.make_due(pause);
        None
    }

    /// Makes the list of leases and reports it with the fault beside it. Returns whether this node's own lease could be
    /// among them; else that is refused.
    async fn report_leases(&mut self, lease: Lease, fault: Option<String>) -> Result<bool, Ended> {
        let Some(announced) = &self.announced else {
            return Ok(false);
        };
        let net_conf = &announced.net_conf;
        let (candidates, mut refused) = self.table.candidates(lease, &self.names, net_conf);
        let (leases, conflicting) = records::check(candidates, net_conf);
        refused.extend(conflicting);
        let own_place = place(&self.node_name);
        let own_fault = match refused.iter().find(|record| record.place == own_place) {
            Some(record) => Some(record.reason.clone()),
            None => own(&leases, &announced.node_name).err(),
        };
        if let Some(reason) = own_fault {
            self.reports.refuse(own_place, reason).await?;
            return Ok(false);
        }
        self.reports.refused_records(refused).await?;
        let fault = fault.map(|reason| (own_place, reason));
        self.reports.leases(leases, fault).await?;
        Ok(true)
    }

    /// Says once that pods of this node have a network, if that is wanted, once they have.
    async fn set_condition(&mut self, api: &Api) -> Result<(), Stop> {
        let Some(node) = self.table.get(&self.node_name) else {
            return Ok(());
        };
        let uid = node.metadata.uid.clone();
        let is_forwarding = self.announced.as_ref().is_some_and(|now| now.forwarding);
        let is_wanted = self.config.set_network_unavailable && is_forwarding;
        if !is_wanted || self.condition_set.as_ref() == Some(&uid) {
            return Ok(());
        }
        match self.write_condition(api).await {
            Ok(()) => self.condition_set = Some(uid),
            Err(error) if error.code() == Some(FORBIDDEN) => {
                self.condition_set = Some(uid);
                tracing::warn!(
                    "cannot set the condition NetworkUnavailable: {}",
                    forbidden(&error)
                );
            }
            Err(error) if error.code().is_some() => {
                let pause = self.writes.next();
                self.make_due(pause.max(error.asked_to_wait().unwrap_or_default()));
            }
            Err(error) => return Err(Stop::Api(error)),
        }
        Ok(())
    }

    /// A condition that is there is not written again: the times in it are those of the first start.
    async fn write_condition(&mut self, api: &Api) -> Result<(), ApiError> {
        match api.conditions(&self.node_name).await {
            Ok(found) if own_node::has_condition(&found) => return Ok(()),
            // Who may patch it may not be allowed to read it.
            Err(error) if error.code() != Some(FORBIDDEN) => return Err(error),
            _ => {}
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = own_node::condition_patch(&now);
        let node = api.patch_status(&self.node_name, &patch).await?;
        if self.table.apply(node) {
            self.make_due(DEBOUNCE);
        }
        Ok(())
    }
}

/// The rights that this registry needs are those of flannel's ClusterRole.
pub(super) fn forbidden(error: &ApiError) -> String {
    format!(
        "{error}; the credentials need the rights to list and watch all nodes and to patch nodes/status, which those of a kubelet lack in many clusters: use the ServiceAccount of deploy/kubernetes/rbac.yaml, with a kubeconfig made by deploy/kubernetes/make-kubeconfig"
    )
}

/// The thread is idle this many times as long as it takes to make the list, but not longer than:
const IDLE_SHARE: u32 = 9;
const LONGEST_DEBOUNCE: Duration = Duration::from_secs(1);
/// A conflict or an overloaded server is nothing to report; these many in a row are.
const SILENT_FAILURES: u32 = 3;
