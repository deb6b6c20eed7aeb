//! One entry of a list of nodes: its lease, and where in the text each part is.

use dataplane::families::{PerFamily, PublicAddresses};
use encap::Family;

use super::fault::NodeListFault;
use crate::lease::Lease;

/// A lease and the byte offset of each of its parts in the text.
pub(super) struct ParsedNode {
    pub(super) lease: Lease,
    pub(super) name_at: usize,
    /// Of `public-ip` and `public-ipv6`; without the second, both are the offset of the first.
    pub(super) address_at: PerFamily<usize>,
    /// Of `vtep-mac` and `vtep-mac-v6`, or of the key that their default is computed from.
    pub(super) mac_at: PerFamily<usize>,
    pub(super) subnets_at: Vec<usize>,
    pub(super) sources_at: Vec<usize>,
}

impl ParsedNode {
    /// The key that holds the public address of `family`.
    pub(super) fn address_key(&self, family: Family) -> &'static str {
        match (self.lease.public, family) {
            (PublicAddresses::Dual(..), Family::V6) => "public-ipv6",
            _ => "public-ip",
        }
    }
}

/// A fault and its byte offset in the text.
pub(super) type FaultAt = (usize, NodeListFault);
