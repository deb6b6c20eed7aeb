//! `tartan pods`: what is attached to this node.

use cni_shim::{Attachment, State};
use dataplane::drop_counts::DropCounts;
use dataplane::spec::PodId;
use ipnet::IpNet;

use super::View;
use super::drops::dropped;
use super::kernel_path::carried_for;
use crate::api::wire::{self, PodState};
use crate::attachments::{pod_name, stranded};
use crate::control::records::key;
use crate::host::{LinkStats, PodLinks};
use crate::reconcile::pod_id;

impl View {
    /// What is attached. `links` are the interfaces of pods as the kernel lists them.
    pub fn pods(&self, links: &PodLinks) -> wire::Pods {
        let programs = self.kernel_path.pod_traffic();
        let line = |attachment: &Attachment| wire::Pod {
            state: self.state_of(attachment),
            network: attachment.network.clone(),
            traffic: links.stats(attachment).map(traffic),
            dropped: dropped(self.drops_of(
                pod_id(&attachment.container, &attachment.ifname),
                &attachment.addresses,
            )),
            in_kernel: carried_for(attachment, &programs),
            bandwidth: attachment.bandwidth,
            pod: pod_name(attachment),
            container: attachment.container.clone(),
            ifname: attachment.ifname.clone(),
            addresses: attachment.addresses.clone(),
            stranded: stranded(attachment, &self.own.subnets),
            mac: attachment.mac.clone(),
            host_ifname: attachment.host_ifname.clone(),
            created: attachment.created,
            fault: self.faulty.get(&key(attachment)).cloned(),
        };
        wire::Pods {
            pods: self.attachments.iter().map(|a| line(a)).collect(),
            kernel_prefixes: self.spec.local.kernel_prefixes.clone(),
            refused: self.refused_records.to_vec(),
        }
    }

    /// The drops of a pod that claims `addresses`, which count together. An address that another pod claims too, as while
    /// one goes and the other comes, counts for one of them.
    pub fn drops_of(&self, pod: PodId, addresses: &[IpNet]) -> Option<&DropCounts> {
        let mut addresses = addresses.iter().map(IpNet::addr);
        addresses.find_map(|address| self.snapshot.pods.drops_of(pod, address))
    }

    fn state_of(&self, attachment: &Attachment) -> PodState {
        if self.leaving.contains(&key(attachment)) {
            return PodState::Leaving;
        }
        if !stranded(attachment, &self.own.subnets).is_empty() {
            return PodState::Stranded;
        }
        if self.faulty.contains_key(&key(attachment)) {
            return PodState::Faulty;
        }
        match attachment.state {
            State::Reserved => PodState::Reserved,
            State::Attached => PodState::Attached,
        }
    }
}

/// The kernel counts from where it stands: what it received at the host's end the pod sent.
fn traffic(stats: LinkStats) -> wire::PodTraffic {
    wire::PodTraffic {
        sent_packets: stats.rx_packets,
        sent_bytes: stats.rx_bytes,
        received_packets: stats.tx_packets,
        received_bytes: stats.tx_bytes,
    }
}
