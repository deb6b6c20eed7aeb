//! Which key this node writes: flannel's rules (flannel `pkg/subnet/etcd/local_manager.go`, `tryAcquireLease`), as a pure
//! function of the table.
//!
//! 1. The lease that has this node's address is its own. Its subnet is kept where the cluster's configuration allows it;
//!    otherwise the key is deleted and the next rule applies.
//! 2. The subnet that this node had last, where it is allowed and free.
//! 3. One of the first [`CHOICE`] free subnets, drawn at random, so that nodes that start together seldom meet.
//!
//! The families are decided alone. What flannel does not know: a lease that this process holds is its own by its revision,
//! whatever the address in it, so a node whose address changes keeps its subnet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::families::PublicAddresses;
use encap::Family;
use ipnet::IpNet;

use super::key::SubnetKey;
use super::table::{Record, Table};
use crate::config::{NetConf, SubnetRange};

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This key is this node's.
    Keep(SubnetKey),
    /// This key is this node's, and its subnet is not allowed: delete it.
    Delete(SubnetKey),
    /// Create this key.
    Create(SubnetKey),
    /// No subnet of this family is free.
    Exhausted(Family),
}

/// The key that this process holds, at the revision at which it wrote or saw it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) subnet: SubnetKey,
    pub(super) mod_revision: i64,
}

/// Decides for the node at `public` that had the subnets `previous` last. `random` is drawn anew for each decision.
pub(super) fn decide(
    table: &Table,
    held: Option<Held>,
    public: PublicAddresses,
    previous: &[IpNet],
    net_conf: &NetConf,
    random: u64,
) -> Step {
    let own = own(table, held, public, previous);
    let allowed = own.iter().find(|key| is_allowed(&key.subnets(), net_conf));
    if let Some(key) = allowed {
        return Step::Keep(*key);
    }
    if let Some(wrong) = own.first() {
        return Step::Delete(*wrong);
    }
    let leased = table.leased();
    let leased = leased.iter().flat_map(|(_, key, _)| key.subnets());
    let leased: Vec<IpNet> = leased.collect();
    let mut chosen = Vec::new();
    for (family, range) in ranges(net_conf) {
        let taken = Taken::new(&leased, family);
        let last = previous.iter().find(|subnet| {
            Family::of(subnet.network()) == family
                && is_in(**subnet, range)
                && taken.is_free(block(**subnet))
        });
        let subnet = match last {
            Some(last) => Some(*last),
            None => draw(&taken.free(range), random),
        };
        match subnet {
            Some(subnet) => chosen.push(subnet),
            None => return Step::Exhausted(family),
        }
    }
    match SubnetKey::of(&chosen) {
        Some(key) => Step::Create(key),
        // A configuration has one family at least.
        None => Step::Exhausted(Family::V4),
    }
}

/// This node's keys: the one that it holds first, then the one that it had last.
fn own(
    table: &Table,
    held: Option<Held>,
    public: PublicAddresses,
    previous: &[IpNet],
) -> Vec<SubnetKey> {
    let is_held = |key: &SubnetKey, record: &Record| {
        held.is_some_and(|held| held.subnet == *key && held.mod_revision == record.mod_revision)
    };
    let is_ours = |record: &Record| {
        let theirs = record.attrs.as_ref().map(|attrs| attrs.public());
        theirs.is_some_and(|theirs| same_node(theirs, public))
    };
    let leased = table.leased().into_iter();
    let found = leased.filter(|(_, key, record)| is_held(key, record) || is_ours(record));
    let mut found: Vec<_> = found.map(|(_, key, _)| key).collect();
    let is_last = |key: &SubnetKey| key.subnets().iter().all(|subnet| previous.contains(subnet));
    found.sort_by_key(|key| (held.is_none_or(|held| held.subnet != *key), !is_last(key)));
    found
}

/// flannel compares the IPv4 addresses; a node without one is told by its IPv6 address.
pub(super) fn same_node(a: PublicAddresses, b: PublicAddresses) -> bool {
    a.first() == b.first()
}

/// Whether a lease of `subnets` has what the configuration demands: one of each family, of the right length, in range.
fn is_allowed(subnets: &[IpNet], net_conf: &NetConf) -> bool {
    let ranges = ranges(net_conf);
    subnets.len() == ranges.len()
        && ranges
            .iter()
            .all(|(_, range)| subnets.iter().any(|subnet| is_in(*subnet, *range)))
}

fn ranges(net_conf: &NetConf) -> Vec<(Family, SubnetRange)> {
    let v4 = net_conf.subnets.map(|range| (Family::V4, range));
    let v6 = net_conf.ipv6_subnets.map(|range| (Family::V6, range));
    v4.into_iter().chain(v6).collect()
}

fn is_in(subnet: IpNet, range: SubnetRange) -> bool {
    subnet.network() == subnet.addr()
        && subnet.addr().is_ipv4() == range.min.is_ipv4()
        && subnet.prefix_len() == range.len
        && (range.min..=range.max).contains(&subnet.addr())
}

fn draw(free: &[IpNet], random: u64) -> Option<IpNet> {
    let count = u64::try_from(free.len()).ok().filter(|count| *count > 0)?;
    free.get(usize::try_from(random % count).ok()?).copied()
}

/// The addresses of one family that are leased: blocks from first to last, sorted, disjoint.
struct Taken {
    family: Family,
    blocks: Vec<(u128, u128)>,
}

impl Taken {
    fn new(leased: &[IpNet], family: Family) -> Taken {
        let ours = leased
            .iter()
            .filter(|net| Family::of(net.network()) == family);
        let mut sorted: Vec<_> = ours.map(|net| block(*net)).collect();
        sorted.sort_unstable();
        let mut blocks: Vec<(u128, u128)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match blocks.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => blocks.push((first, last)),
            }
        }
        Taken { family, blocks }
    }

    fn is_free(&self, (first, last): (u128, u128)) -> bool {
        self.overlapping(first, last).is_none()
    }

    /// The last address of a block that overlaps.
    fn overlapping(&self, first: u128, last: u128) -> Option<u128> {
        let next = self.blocks.partition_point(|block| block.1 < first);
        let block = self.blocks.get(next).filter(|block| block.0 <= last)?;
        Some(block.1)
    }

    /// The first [`CHOICE`] free subnets. Each step finds one or leaves a block behind.
    fn free(&self, range: SubnetRange) -> Vec<IpNet> {
        let bits = match self.family {
            Family::V4 => 32,
            Family::V6 => 128,
        };
        let size = 1u128 << (bits - u32::from(range.len)).min(127);
        let (mut base, most) = (number(range.min), number(range.max));
        let mut free = Vec::new();
        while base <= most && free.len() < CHOICE {
            let taken = self.overlapping(base, base.saturating_add(size - 1));
            if taken.is_none() {
                free.extend(IpNet::new(self.address(base), range.len));
            }
            let end = taken.unwrap_or(base).max(base);
            // The first subnet that begins behind `end`; none where the address space ends.
            let Some(next) = (end / size)
                .checked_add(1)
                .and_then(|n| n.checked_mul(size))
            else {
                break;
            };
            base = next;
        }
        free
    }

    fn address(&self, number: u128) -> IpAddr {
        match (self.family, u32::try_from(number)) {
            (Family::V4, Ok(number)) => IpAddr::V4(Ipv4Addr::from_bits(number)),
            _ => IpAddr::V6(Ipv6Addr::from_bits(number)),
        }
    }
}

fn block(net: IpNet) -> (u128, u128) {
    (number(net.network()), number(net.broadcast()))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Free subnets among which one is drawn (flannel `allocateSubnet`).
const CHOICE: usize = 100;

#[cfg(test)]
mod tests;
