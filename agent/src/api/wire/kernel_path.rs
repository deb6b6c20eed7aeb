//! The kernel path.

use serde::{Deserialize, Serialize};

/// The programs in the kernel that repeat what user space decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPath {
    /// As configured: `off`, `stateless` or `auto`.
    pub mode: String,
    /// Whether the programs act.
    pub in_use: bool,
    /// Why they do not.
    pub reason: Option<String>,
    /// Version of the tables that they follow.
    pub tables: u64,
    /// The VXLAN device that has the port of the format meanwhile.
    pub device: Option<String>,
    /// The UDP port at which user space receives what they pass on.
    pub port: Option<u16>,
    /// Programs that are attached.
    pub programs: Vec<AttachedProgram>,
    /// Flows that leave the host's stack out, with `auto`.
    #[serde(default)]
    pub flows: Option<Flows>,
    /// Peers that user space sends to meanwhile, by reason.
    #[serde(default)]
    pub user_space_peers: Vec<UserSpacePeers>,
}

/// A reason for which the programs do not send to peers, and to how many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserSpacePeers {
    /// The reason's name.
    pub reason: String,
    /// Peers.
    pub count: u64,
    /// What it means, in a clause about a peer.
    pub gloss: String,
}

/// Flows that leave the host's stack out, counted since the service started. A flow is one direction of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// How often the programs proposed one.
    pub proposed: u64,
    /// Flows that were installed: each time one changed to the short path.
    pub installed: u64,
    /// Installed flows that were checked again and go on.
    pub extended: u64,
    /// Connections whose flows were removed because connection tracking forgot them.
    pub ended: u64,
    /// Pods whose flows were all revoked because their interface or route changed.
    pub pods_revoked: u64,
    /// Proposals that were refused, by reason.
    pub refused: Vec<RefusedFlows>,
    /// How often all flows were revoked, by cause.
    pub revoked: Vec<RevokedFlows>,
}

/// A reason for which proposed flows are not installed, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedFlows {
    /// The reason's name.
    pub reason: String,
    /// Proposals.
    pub count: u64,
    /// What it means, in a clause.
    pub gloss: String,
}

/// A cause for which all flows were revoked, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedFlows {
    /// The cause's name.
    pub cause: String,
    /// Times.
    pub count: u64,
    /// What it means, in a clause.
    pub gloss: String,
}

/// A program that is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedProgram {
    /// Its name.
    pub program: String,
    /// The device.
    pub device: String,
}

/// A reason for which programs passed packets on to user space or the host's stack, and its count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// The reason's name.
    pub reason: String,
    /// Packets, as the kernel has them: a super-packet is one.
    pub count: u64,
    /// What it means, in a sentence.
    pub gloss: String,
}
