//! What a changed lease changes: the other nodes, as peers merged from leases.
//!
//! Theory of operation: leases that share a public address are one peer, and which peer a lease joins depends on the
//! leases that share addresses with it, directly or by way of others, and on no further ones. So when leases change, the
//! peers of all that share addresses with those are merged anew, and every other peer is the one from before: the same
//! allocation, which the dataplane takes for the same peer without a look. What remains of the work for each lease is
//! one comparison. A great change is made as the first one is, from nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::families::{PerFamily, PublicAddresses};
use dataplane::spec::PeerSpec;
use encap::{Family, Format};
use ipnet::IpNet;

use super::sorted;
use crate::config::NodeConfig;
use crate::lease::Lease;

/// What the peers were merged from, and what they need in common.
#[derive(Debug)]
pub(super) struct Others {
    leases: Arc<[Lease]>,
    near: Near,
    /// By inner family: bytes of outer headers, and how many peers need as many.
    overheads: PerFamily<BTreeMap<u16, usize>>,
}

/// What of this node decides who is another, and which headers there are between the two.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Near {
    own: Lease,
    underlay: PublicAddresses,
    ipv6_over_udp: bool,
}

/// Peers in the order of their public addresses.
pub(super) type Peers = Vec<Arc<PeerSpec>>;

impl Near {
    pub(super) fn of(config: &NodeConfig, own: &Lease) -> Near {
        Near {
            own: own.clone(),
            underlay: config.underlay(own.public),
            ipv6_over_udp: config.ipv6_over_udp,
        }
    }

    /// Bytes of the widest outer headers of `inner` packets between this node and one at `to`, over the family that
    /// these ride on, in those formats of the two ends that carry them; `None` where one end lacks the family inside, or
    /// nothing carries it.
    fn overhead(
        &self,
        inner: Family,
        to: PublicAddresses,
        subnets: &[IpNet],
        format: Format,
    ) -> Option<u16> {
        let has = |subnets: &[IpNet]| subnets.iter().any(|net| family(net) == inner);
        if !has(&self.own.subnets) || !has(subnets) {
            return None;
        }
        let outer = Family::of(self.underlay.way_to(to, inner)?);
        let carries =
            |format: &Format| inner == Family::V4 || *format == Format::Vxlan || self.ipv6_over_udp;
        let formats = [self.own.format, format].into_iter().filter(carries);
        formats.map(|format| format.overhead(outer)).max()
    }

    fn is_other(&self, lease: &Lease) -> bool {
        let own = &self.own;
        lease.name != own.name && !lease.public.iter().any(|a| own.public.contains(a))
    }
}

impl Others {
    /// The peers of `leases`, merged from nothing.
    pub(super) fn new(near: Near, leases: &Arc<[Lease]>) -> (Others, Peers) {
        let peers: Peers = merge(leases.iter().filter(|lease| near.is_other(lease)))
            .map(Arc::new)
            .collect();
        let mut others = Others {
            leases: Arc::clone(leases),
            near,
            overheads: PerFamily::default(),
        };
        peers.iter().for_each(|peer| others.count(peer));
        (others, peers)
    }

    /// Whether the peers of `leases` are those that these are of.
    pub(super) fn are_of(&self, near: &Near, leases: &Arc<[Lease]>) -> bool {
        Arc::ptr_eq(&self.leases, leases) && self.near == *near
    }

    /// The peers of `leases`, where those of the leases before were `peers`. The result is that of [`Others::new`].
    pub(super) fn follow(
        &self,
        near: Near,
        leases: &Arc<[Lease]>,
        peers: &Peers,
    ) -> (Others, Peers) {
        let changed = differing(&self.leases, leases).filter(|_| self.near == near);
        let Some(changed) = changed else {
            return Others::new_like(near, leases, peers);
        };
        let concerned = sharing(&changed, leases);
        let is_concerned =
            |public: PublicAddresses| public.iter().any(|a| concerned.binary_search(&a).is_ok());
        let mut others = Others {
            leases: Arc::clone(leases),
            near,
            overheads: self.overheads.clone(),
        };
        let (gone, mut kept): (Peers, Peers) = peers
            .iter()
            .cloned()
            .partition(|peer| is_concerned(peer.public));
        gone.iter().for_each(|peer| others.discount(peer));
        let merged: Vec<PeerSpec> = {
            let near = &others.near;
            let is_merged = |l: &&Lease| is_concerned(l.public) && near.is_other(l);
            merge(leases.iter().filter(is_merged)).collect()
        };
        for peer in merged {
            let same = gone.iter().find(|before| ***before == peer);
            let peer = same.map_or_else(|| Arc::new(peer), Arc::clone);
            others.count(&peer);
            let place = kept.partition_point(|other| other.public < peer.public);
            kept.insert(place, peer);
        }
        (others, kept)
    }

    /// As [`Others::new`], but peers that `before` has too are the same allocation.
    fn new_like(near: Near, leases: &Arc<[Lease]>, before: &Peers) -> (Others, Peers) {
        let (others, mut peers) = Others::new(near, leases);
        for peer in &mut peers {
            let same = before.binary_search_by(|other| other.public.cmp(&peer.public));
            let same = same.ok().and_then(|place| before.get(place));
            if let Some(same) = same.filter(|same| **same == *peer) {
                *peer = Arc::clone(same);
            }
        }
        (others, peers)
    }

    /// The widest outer headers in use around packets of each family. Ours count without any peer, towards a node like
    /// us. A family that nothing carries has the other's.
    pub(super) fn overhead(&self) -> PerFamily<u16> {
        let (near, own) = (&self.near, &self.near.own);
        let in_use = PerFamily::each(|inner| {
            let ours = near.overhead(inner, near.underlay, &own.subnets, own.format);
            let theirs = self.overheads.of(inner).last_key_value();
            theirs.map(|(bytes, _)| *bytes).max(ours)
        });
        // With nothing to carry yet, as with the first that there could be.
        let least = own.format.overhead(Family::of(near.underlay.first()));
        let either = in_use.v4.or(in_use.v6).unwrap_or(least);
        PerFamily::each(|inner| in_use.of(inner).unwrap_or(either))
    }

    fn count(&mut self, peer: &PeerSpec) {
        let near = &self.near;
        for (inner, counts) in each_family(&mut self.overheads) {
            if let Some(bytes) = near.overhead(inner, peer.public, &peer.subnets, peer.format) {
                *counts.entry(bytes).or_default() += 1;
            }
        }
    }

    fn discount(&mut self, peer: &PeerSpec) {
        let near = &self.near;
        for (inner, counts) in each_family(&mut self.overheads) {
            let bytes = near.overhead(inner, peer.public, &peer.subnets, peer.format);
            let Some(bytes) = bytes else { continue };
            if let Some(count) = counts.get_mut(&bytes) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&bytes);
                }
            }
        }
    }
}

/// Leases that share a public address are one peer. Where they differ in what only one can say, the first by name
/// speaks; a further public address is an address that the peer is known by.
fn merge<'a>(leases: impl Iterator<Item = &'a Lease>) -> impl Iterator<Item = PeerSpec> {
    let mut leases: Vec<&Lease> = leases.collect();
    leases.sort_by(|a, b| a.name.cmp(&b.name));
    let mut merged: BTreeMap<PublicAddresses, PeerSpec> = BTreeMap::new();
    let mut owners: BTreeMap<IpAddr, PublicAddresses> = BTreeMap::new();
    for lease in leases {
        let known = lease.public.iter().find_map(|a| owners.get(&a).copied());
        let public = known.unwrap_or(lease.public);
        let peer = merged.entry(public).or_insert_with(|| PeerSpec {
            name: lease.name.clone(),
            public,
            underlay_sources: Vec::new(),
            subnets: Vec::new(),
            accept_sources: Vec::new(),
            format: lease.format,
            vtep_mac: lease.vtep_mac,
        });
        for address in lease.public.iter() {
            if *owners.entry(address).or_insert(public) == public && !public.contains(address) {
                peer.underlay_sources.push(address);
            }
        }
        peer.underlay_sources.extend(&lease.underlay_sources);
        peer.subnets.extend(&lease.subnets);
        peer.accept_sources.extend(&lease.accept_sources);
    }
    merged.into_values().map(|mut peer| {
        peer.underlay_sources = sorted(peer.underlay_sources);
        peer.subnets = sorted(peer.subnets);
        peer.accept_sources = sorted(peer.accept_sources);
        peer
    })
}

/// The leases that are in one of two lists and not in the other; `None` where they are many, or in another order.
fn differing<'a>(old: &'a [Lease], new: &'a [Lease]) -> Option<Vec<&'a Lease>> {
    let (mut old, mut new) = (old, new);
    let mut differing = Vec::new();
    while differing.len() <= MANY {
        match (old.split_first(), new.split_first()) {
            (Some((a, old_rest)), Some((b, new_rest))) if a == b => {
                (old, new) = (old_rest, new_rest);
            }
            (Some((a, old_rest)), Some((b, new_rest))) if a.name == b.name => {
                differing.extend([a, b]);
                (old, new) = (old_rest, new_rest);
            }
            // `a` comes further on: what stands in its place is new.
            (Some((a, _)), Some((b, rest))) if new.iter().take(MANY).any(|l| l.name == a.name) => {
                differing.push(b);
                new = rest;
            }
            (Some((a, rest)), _) => {
                differing.push(a);
                old = rest;
            }
            (None, Some((b, rest))) => {
                differing.push(b);
                new = rest;
            }
            (None, None) => return Some(differing),
        }
    }
    None
}

/// The public addresses of `changed`, and of all `leases` that share one with them, directly or by way of others;
/// sorted.
fn sharing(changed: &[&Lease], leases: &[Lease]) -> Vec<IpAddr> {
    let mut shared = sorted(changed.iter().flat_map(|lease| lease.public.iter()));
    loop {
        let has = |address: IpAddr| shared.binary_search(&address).is_ok();
        let mut more = Vec::new();
        for lease in leases {
            if lease.public.iter().any(has) {
                more.extend(lease.public.iter().filter(|address| !has(*address)));
            }
        }
        if more.is_empty() {
            return shared;
        }
        shared = sorted(shared.into_iter().chain(more));
    }
}

fn each_family<T>(of: &mut PerFamily<T>) -> [(Family, &mut T); 2] {
    [(Family::V4, &mut of.v4), (Family::V6, &mut of.v6)]
}

const fn family(net: &IpNet) -> Family {
    match net {
        IpNet::V4(_) => Family::V4,
        IpNet::V6(_) => Family::V6,
    }
}

/// So many leases that change at once are worth a merge from nothing.
const MANY: usize = 64;
