//! What a list of nodes says, and where it says it.

use dataplane::families::{PerFamily, PublicAddresses};
use encap::Family;

use super::fault::NodeListFault;
use crate::lease::Lease;

/// A lease, and where in the text its parts stand.
pub(super) struct ParsedNode {
    pub(super) lease: Lease,
    pub(super) name_at: usize,
    /// Of `public-ip` and `public-ipv6`; where there is only the first, both are its place.
    pub(super) address_at: PerFamily<usize>,
    /// Of `vtep-mac` and `vtep-mac-v6`, or of what they come from.
    pub(super) mac_at: PerFamily<usize>,
    pub(super) subnets_at: Vec<usize>,
    pub(super) sources_at: Vec<usize>,
}

impl ParsedNode {
    /// The key under which the public address of `family` stands.
    pub(super) fn address_key(&self, family: Family) -> &'static str {
        match (self.lease.public, family) {
            (PublicAddresses::Dual(..), Family::V6) => "public-ipv6",
            _ => "public-ip",
        }
    }
}

/// A fault and where in the text it stands.
pub(super) type FaultAt = (usize, NodeListFault);
