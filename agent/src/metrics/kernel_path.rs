//! The programs in the kernel that repeat what user space decided. What they carried is counted as that of a worker.

use std::fmt;

use super::facts::Facts;
use super::metric::Metric;
use super::page::Page;
use crate::kernel_path::UserSpaceReason;

pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let view = &facts.view.kernel_path;
    let mode = [("mode", view.mode.word())];
    page.family(&IN_USE, [(mode, u64::from(view.is_live))])?;
    page.one(&PROGRAMS, view.programs.len() as u64)?;
    page.one(&VERSION, view.version)?;
    let user_space = UserSpaceReason::ALL.map(|reason| {
        let reasons = view.in_user_space.values();
        let count = reasons.filter(|found| **found == reason).count();
        ([("reason", reason.name())], count as u64)
    });
    page.family(&USER_SPACE_PEERS, user_space)?;
    let passes = facts.passes.iter();
    let passes = passes.map(|(reason, count)| ([("reason", reason.name())], *count));
    page.family(&PASSED, passes)?;
    let flows = facts.flows.as_ref();
    page.known(&PROPOSED, flows.map(|flows| flows.proposed))?;
    page.known(&INSTALLED, flows.map(|flows| flows.installed))?;
    page.known(&EXTENDED, flows.map(|flows| flows.extended))?;
    page.known(&ENDED, flows.map(|flows| flows.ended))?;
    page.known(&PODS_REVOKED, flows.map(|flows| flows.pods_revoked))?;
    let refused = flows.into_iter().flat_map(|flows| &flows.refused);
    let refused = refused.map(|(refusal, count)| ([("reason", refusal.name())], *count));
    page.family(&REFUSED, refused)?;
    let revoked = flows.into_iter().flat_map(|flows| &flows.revoked);
    let revoked = revoked.map(|(cause, count)| ([("cause", cause.name())], *count));
    page.family(&REVOKED, revoked)
}

pub(super) const IN_USE: Metric = Metric::gauge(
    "tartan_kernel_path_in_use",
    "Whether the programs of the kernel path act. 0 with mode=\"off\" is as configured; with another mode tartan_problems has kernel-path-off, and user space carries every packet.",
);
pub(super) const PROGRAMS: Metric = Metric::gauge(
    "tartan_kernel_path_programs",
    "Programs of the kernel path that are attached to devices.",
);
pub(super) const VERSION: Metric = Metric::gauge(
    "tartan_kernel_path_tables_version",
    "Version of the tables that the programs follow. Below tartan_tables_version for longer than a moment, they pass packets on to user space.",
);
pub(super) const USER_SPACE_PEERS: Metric = Metric::gauge(
    "tartan_kernel_path_user_space_peers",
    "Peers that user space sends to while the kernel path is in use, by reason. announced: the peer's probes say that its own is not in use. docs/json.md names the others.",
);
pub(super) const PASSED: Metric = Metric::counter(
    "tartan_kernel_path_passed_packets_total",
    "Packets that a program passed on to user space or the host's stack, by reason; a super-packet is one, and none is lost. docs/drops.md explains the reasons.",
);
pub(super) const PROPOSED: Metric = Metric::counter(
    "tartan_flows_proposed_total",
    "Flows that the programs proposed to carry past the host's stack. A flow is one direction of a connection. Since the service started; only with kernel-path auto.",
);
pub(super) const INSTALLED: Metric = Metric::counter(
    "tartan_flows_installed_total",
    "Flows that were installed: each time one changed to the short path. Since the service started.",
);
pub(super) const EXTENDED: Metric = Metric::counter(
    "tartan_flows_extended_total",
    "Installed flows that were checked again and go on. Since the service started.",
);
pub(super) const ENDED: Metric = Metric::counter(
    "tartan_flows_ended_total",
    "Connections whose flows were removed because connection tracking forgot them. Since the service started.",
);
pub(super) const PODS_REVOKED: Metric = Metric::counter(
    "tartan_flow_pods_revoked_total",
    "Pods whose flows were all revoked because their interface or route changed. Since the service started.",
);
pub(super) const REFUSED: Metric = Metric::counter(
    "tartan_flows_refused_total",
    "Proposed flows that were refused, by reason: they keep the way through the host's stack. Since the service started.",
);
pub(super) const REVOKED: Metric = Metric::counter(
    "tartan_flow_revocations_total",
    "How often all flows were revoked at once, by cause. Since the service started. If it keeps growing, a program keeps changing rules or routes.",
);
