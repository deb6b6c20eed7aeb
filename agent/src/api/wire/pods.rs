//! What is said of attachments.

use std::net::IpAddr;

use cni_shim::Bandwidth;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::drops::Dropped;
use super::top::Carried;

/// What is delivered on this node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pods {
    /// Attachments adopted.
    pub pods: Vec<Pod>,
    /// Prefixes of ours that the kernel holds on other devices: delivered too.
    pub kernel_prefixes: Vec<IpNet>,
    /// Records that were not adopted.
    pub refused: Vec<RefusedRecord>,
}

/// The agent would serve an ADD; whether there are addresses the plugin knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// Attachments adopted.
    pub attachments: usize,
    /// The name of the agent among those of the node; absent where it has none.
    #[serde(default)]
    pub instance: Option<String>,
    /// Why this node does not carry the packets of its pods, as `/readyz` gives it; empty where it does.
    #[serde(default = "unknown_readiness")]
    pub not_ready: Vec<String>,
}

fn unknown_readiness() -> Vec<String> {
    vec!["the agent that runs is of a release that does not tell".to_owned()]
}

/// How far an attachment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodState {
    /// It holds its addresses; its interface is being made.
    Reserved,
    /// All of it is there.
    Attached,
    /// With an address that lies in no subnet of this node.
    Stranded,
    /// The host's side of its link is not as it should be, and cannot be put right.
    Faulty,
    /// Its interface is gone. A runtime deletes it now, or the agent does after a while (`reclaim-after`).
    Leaving,
}

/// What the kernel counts at the host's end, seen from the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodTraffic {
    /// Packets from the pod; a super-packet is one.
    pub sent_packets: u64,
    /// Their bytes, Ethernet headers included.
    pub sent_bytes: u64,
    /// Packets to the pod; a super-packet is one.
    pub received_packets: u64,
    /// Their bytes, Ethernet headers included.
    pub received_bytes: u64,
}

/// An attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pod {
    /// How far it is.
    pub state: PodState,
    /// Name of the CNI network.
    pub network: String,
    /// Absent where the host's end is.
    pub traffic: Option<PodTraffic>,
    /// Packets from it and to it that the workers dropped, since the service started or it was attached.
    #[serde(default)]
    pub dropped: Dropped,
    /// What the programs of the kernel path carried between it and peers, inner wire packets and their bytes; absent where
    /// they have no table of it.
    #[serde(default)]
    pub in_kernel: Option<Carried>,
    /// Limits in bits per second and bits, `ingress` to the pod and `egress` from it.
    pub bandwidth: Option<Bandwidth>,
    /// `namespace/name`, where the runtime named it.
    pub pod: Option<String>,
    /// The runtime's container id.
    pub container: String,
    /// Name of the interface inside the pod.
    pub ifname: String,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Those of them that lie in no subnet of this node, as after a change of its subnets: nothing is delivered to
    /// them, and nothing that they send is taken. Delete and recreate the pod.
    pub stranded: Vec<IpAddr>,
    /// MAC of the pod's end.
    pub mac: String,
    /// Name of the interface's end on the host.
    pub host_ifname: String,
    /// When it was attached, in Unix seconds.
    pub created: u64,
    /// What is wrong with the host's side of its link; absent where nothing is.
    #[serde(default)]
    pub fault: Option<String>,
}

/// A record that was not adopted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRecord {
    /// The record's file.
    pub file: String,
    /// Why, with the remedy.
    pub reason: String,
}
