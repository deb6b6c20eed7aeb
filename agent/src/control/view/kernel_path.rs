//! The kernel path as commands show it.

use std::collections::HashMap;
use std::net::IpAddr;

use cni_shim::Attachment;
use dataplane::families::PublicAddresses;
use dataplane::kernel_path::{KernelPathTotals, PassReason, Traffic};
use encap::Family;
use tracing::debug;

use super::View;
use crate::api::wire::{self, Carried};
use crate::kernel_path::flows::FlowTotals;
use crate::kernel_path::{KernelPathView, UserSpaceReason};

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
            user_space_peers: user_space_peers(view),
        }
    }
}

fn user_space_peers(view: &KernelPathView) -> Vec<wire::UserSpacePeers> {
    let count = |reason| {
        let reasons = view.in_user_space.values();
        reasons.filter(|found| **found == reason).count() as u64
    };
    let all = UserSpaceReason::ALL.into_iter();
    let counted = all.map(|reason| (reason, count(reason)));
    counted
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| wire::UserSpacePeers {
            reason: reason.name().to_owned(),
            count,
            gloss: reason.gloss().to_owned(),
        })
        .collect()
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

    /// Why they do not send to the peer with one of these public addresses; `None` where they do, or do not act.
    pub(crate) fn user_space(&self, public: PublicAddresses) -> Option<UserSpaceReason> {
        let Some(IpAddr::V4(address)) = public.of(Family::V4) else {
            return None;
        };
        self.in_user_space.get(&address).copied()
    }

    /// What they carried for each peer, by its public address; nothing where the kernel does not say.
    pub(crate) fn peer_traffic(&self) -> HashMap<IpAddr, Traffic> {
        self.counted_peer_traffic().unwrap_or_default()
    }

    /// The same; `None` where the kernel does not say.
    pub(crate) fn counted_peer_traffic(&self) -> Option<HashMap<IpAddr, Traffic>> {
        let Some(path) = &self.path else {
            return Some(HashMap::new());
        };
        let counted = path.lock().peer_traffic();
        let counted = counted
            .inspect_err(|error| debug!("no counters of the kernel path: {error}"))
            .ok()?;
        let by_address =
            |peer: dataplane::kernel_path::PeerTraffic| (peer.address.into(), peer.traffic);
        Some(counted.into_iter().map(by_address).collect())
    }

    /// What they carried for each pod, by its address.
    pub(crate) fn pod_traffic(&self) -> HashMap<IpAddr, Traffic> {
        let Some(path) = &self.path else {
            return HashMap::new();
        };
        let counted = path.lock().pod_traffic().unwrap_or_else(|error| {
            debug!("no counters of the kernel path: {error}");
            Vec::new()
        });
        let by_address =
            |pod: dataplane::kernel_path::PodTraffic| (pod.address.into(), pod.traffic);
        counted.into_iter().map(by_address).collect()
    }
}

/// What the programs carried for a pod, of what they did for each address; `None` where they know none of its addresses.
pub(super) fn carried_for(
    attachment: &Attachment,
    programs: &HashMap<IpAddr, Traffic>,
) -> Option<Carried> {
    let addresses = attachment.addresses.iter();
    let known = addresses.filter_map(|net| programs.get(&net.addr()));
    known.map(carried).reduce(|a, b| Carried {
        sent_packets: a.sent_packets.saturating_add(b.sent_packets),
        sent_bytes: a.sent_bytes.saturating_add(b.sent_bytes),
        received_packets: a.received_packets.saturating_add(b.received_packets),
        received_bytes: a.received_bytes.saturating_add(b.received_bytes),
    })
}

pub(super) fn carried(traffic: &Traffic) -> Carried {
    Carried {
        sent_packets: traffic.sent_packets,
        sent_bytes: traffic.sent_bytes,
        received_packets: traffic.received_packets,
        received_bytes: traffic.received_bytes,
    }
}
