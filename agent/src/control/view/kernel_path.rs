//! The kernel path as commands show it.

use std::collections::HashMap;
use std::net::IpAddr;

use dataplane::kernel_path::{KernelPathTotals, PassReason, Traffic};
use tracing::debug;

use super::View;
use crate::api::wire;
use crate::kernel_path::KernelPathView;
use crate::kernel_path::flows::FlowTotals;

impl View {
    pub(super) fn kernel_path_status(&self) -> wire::KernelPath {
        let view = &self.kernel_path;
        let program = |(program, device): &(String, String)| wire::AttachedProgram {
            program: program.clone(),
            device: device.clone(),
        };
        wire::KernelPath {
            mode: view.mode.word().to_owned(),
            in_use: view.is_live,
            reason: view.off.clone(),
            tables: view.version,
            device: view.device.clone(),
            port: view.port,
            programs: view.programs.iter().map(program).collect(),
            flows: view.flows.as_ref().map(|counts| flows(&counts.read())),
        }
    }
}

fn flows(totals: &FlowTotals) -> wire::Flows {
    let refused = totals.refused.iter();
    let revoked = totals.revoked.iter();
    wire::Flows {
        proposed: totals.proposed,
        installed: totals.installed,
        extended: totals.extended,
        ended: totals.ended,
        pods_revoked: totals.pods_revoked,
        refused: refused
            .map(|(refusal, count)| wire::RefusedFlows {
                reason: refusal.name().to_owned(),
                count: *count,
                gloss: refusal.gloss().to_owned(),
            })
            .collect(),
        revoked: revoked
            .map(|(cause, count)| wire::RevokedFlows {
                cause: cause.name().to_owned(),
                count: *count,
                gloss: cause.to_string(),
            })
            .collect(),
    }
}

impl KernelPathView {
    /// What the programs have counted since the service started or adopted them; `None` before there were any.
    pub(crate) fn totals(&self) -> Option<KernelPathTotals> {
        let counted = self.path.as_ref().map(|path| path.lock().counters());
        let now = counted.and_then(|counted| {
            counted
                .inspect_err(|error| debug!("no counters of the kernel path: {error}"))
                .ok()
        });
        match (now, self.past) {
            (Some(now), Some(past)) => Some(past.plus(&now)),
            (now, past) => now.or(past),
        }
    }

    /// Packets that the programs have sent for this node's pods since they were loaded.
    pub(crate) fn sent(&self) -> u64 {
        let path = self.path.as_ref();
        path.and_then(|path| path.lock().sent().ok()).unwrap_or(0)
    }

    /// Packets that they passed on, by reason.
    pub(crate) fn passes(&self) -> Vec<(PassReason, u64)> {
        let Some(path) = &self.path else {
            return Vec::new();
        };
        let counted = path.lock().passes();
        counted.unwrap_or_else(|error| {
            debug!("no counters of the kernel path: {error}");
            Vec::new()
        })
    }

    /// What they carried for each peer, by its public address.
    pub(crate) fn peer_traffic(&self) -> HashMap<IpAddr, Traffic> {
        let Some(path) = &self.path else {
            return HashMap::new();
        };
        let counted = path.lock().peer_traffic().unwrap_or_else(|error| {
            debug!("no counters of the kernel path: {error}");
            Vec::new()
        });
        let by_address =
            |peer: dataplane::kernel_path::PeerTraffic| (peer.address.into(), peer.traffic);
        counted.into_iter().map(by_address).collect()
    }
}
