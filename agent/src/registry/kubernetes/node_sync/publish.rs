//! Makes the own Node say what is announced, and the list of leases of all Nodes.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{DEBOUNCE, FORBIDDEN, NodeSync, Stop, UNAUTHORIZED};
use crate::registry::kubernetes::annotations;
use crate::registry::kubernetes::api::{Api, ApiError};
use crate::registry::kubernetes::node_table::place;
use crate::registry::kubernetes::own_node::{self, OwnNodeFault, Plan};
use crate::registry::{RegistrySettings, own, records};

impl NodeSync {
    /// Makes this node's record what is announced, and reports the list.
    pub(super) async fn evaluate(&mut self, api: &Api) -> Result<(), Stop> {
        self.due = None;
        let began = Instant::now();
        self.pace.made(began);
        if !self.report_settings().await? {
            return Ok(());
        }
        let Some(plan) = self.own_record(api).await? else {
            return Ok(());
        };
        self.report_leases(plan).await?;
        let took = began.elapsed().saturating_mul(IDLE_SHARE);
        self.not_before = Instant::now() + took.min(LONGEST_DEBOUNCE);
        if !self.reports.is_refused() {
            self.set_condition(api).await?;
        }
        Ok(())
    }

    /// Reports what the own Node says. Returns whether it can be used: there is one, and what it says can be read.
    async fn report_settings(&mut self) -> Result<bool, Stop> {
        let Some(node) = self.table.get(&self.node_name) else {
            let name = &self.node_name;
            let reason = format!(
                "no Node is named {name:?}: start the kubelet of this node, or set node-name to the name that kubectl get nodes shows for it"
            );
            self.reports.refuse(place(name), reason).await?;
            return Ok(false);
        };
        match annotations::pair(&node.metadata.annotations, &self.names.node_public) {
            Ok((public_v4, public_v6)) => {
                let settings = RegistrySettings {
                    net_conf: None,
                    public_v4,
                    public_v6,
                };
                self.reports.settings(settings).await?;
                Ok(true)
            }
            Err(fault) => {
                let place = place(&self.node_name);
                self.reports.refuse(place, fault.to_string()).await?;
                Ok(false)
            }
        }
    }

    /// Makes the own Node's annotations what is announced. `None` while nothing is announced or it cannot be done.
    async fn own_record(&mut self, api: &Api) -> Result<Option<Plan>, Stop> {
        let (Some(announced), Some(node)) = (&self.announced, self.table.get(&self.node_name))
        else {
            return Ok(None);
        };
        let now = Instant::now();
        let plan = match self.own.plan(node, &self.names, announced, now) {
            Ok(plan) => plan,
            Err(fault) => {
                if let OwnNodeFault::Contested { .. } = fault {
                    self.due = self.own.next_write_back();
                }
                let place = place(&self.node_name);
                self.reports.refuse(place, fault.to_string()).await?;
                return Ok(None);
            }
        };
        if plan.differing.is_empty() {
            return Ok(Some(plan));
        }
        if plan.by_others {
            let found = own_node::found(&node.metadata.annotations, &plan.differing);
            tracing::warn!(
                "another program changed this node's annotations, which are written back: {found}"
            );
        }
        let patch = own_node::annotation_patch(&plan.differing);
        match api.patch_status(&self.node_name, &patch).await {
            Ok(node) => {
                self.writes.reset();
                self.own.written(&plan, now);
                self.table.apply(node);
                Ok(Some(plan))
            }
            Err(error) => {
                self.cannot_write(error).await?;
                Ok(None)
            }
        }
    }

    /// A patch failed: it is tried again after a pause. What is refused for good, or often, is reported.
    async fn cannot_write(&mut self, error: ApiError) -> Result<(), Stop> {
        let reason = match error.code() {
            None | Some(UNAUTHORIZED) => return Err(Stop::Api(error)),
            Some(FORBIDDEN) => Some(forbidden(&error)),
            Some(_) if self.writes.failures() >= SILENT_FAILURES => Some(format!(
                "cannot write this node's annotations, which is tried again: {error}"
            )),
            Some(_) => None,
        };
        let pause = self.writes.next();
        self.make_due(pause.max(error.asked_to_wait().unwrap_or_default()));
        if let Some(reason) = reason {
            self.reports.refuse(place(&self.node_name), reason).await?;
        }
        Ok(())
    }

    /// Makes the list of leases and reports it, if this node's own lease is among them.
    async fn report_leases(&mut self, plan: Plan) -> Result<(), Stop> {
        let Some(announced) = &self.announced else {
            return Ok(());
        };
        let net_conf = &announced.net_conf;
        let (candidates, mut refused) = self.table.candidates(plan.lease, &self.names, net_conf);
        let (leases, conflicting) = records::check(candidates, net_conf);
        refused.extend(conflicting);
        let own_place = place(&self.node_name);
        let own_fault = match refused.iter().find(|record| record.place == own_place) {
            Some(record) => Some(record.reason.clone()),
            None => own(&leases, &announced.node_name).err(),
        };
        match own_fault {
            Some(reason) => Ok(self.reports.refuse(own_place, reason).await?),
            None => {
                self.reports.refused_records(refused).await?;
                Ok(self.reports.leases(leases).await?)
            }
        }
    }

    /// Says once that pods of this node have a network, if that is wanted.
    async fn set_condition(&mut self, api: &Api) -> Result<(), Stop> {
        let Some(node) = self.table.get(&self.node_name) else {
            return Ok(());
        };
        let uid = node.metadata.uid.clone();
        if !self.config.set_network_unavailable || self.condition_set.as_ref() == Some(&uid) {
            return Ok(());
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = own_node::condition_patch(&now);
        match api.patch_status(&self.node_name, &patch).await {
            Ok(node) => {
                self.condition_set = Some(uid);
                if self.table.apply(node) {
                    self.make_due(DEBOUNCE);
                }
            }
            Err(error) if error.code() == Some(FORBIDDEN) => {
                self.condition_set = Some(uid);
                tracing::warn!(
                    "cannot set the condition NetworkUnavailable: {}",
                    forbidden(&error)
                );
            }
            Err(error) if error.code().is_some() => {
                let pause = self.writes.next();
                self.make_due(pause);
            }
            Err(error) => return Err(Stop::Api(error)),
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
