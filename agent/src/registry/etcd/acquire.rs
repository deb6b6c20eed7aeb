//! Which key this node writes: flannel's rules (flannel `pkg/subnet/etcd/local_manager.go`, `tryAcquireLease`), as a pure
//! function of the table.
//!
//! 1. The lease that has this node's address is its own. Its subnet is kept where the cluster's configuration allows it.
//! 2. The subnet that this node had last, where it is allowed and free.
//! 3. One of the first [`CHOICE`] free subnets, drawn at random, so that nodes that start together seldom meet.
//!
//! The families are decided alone. What flannel does not know: a lease that this process holds is its own by its revision,
//! whatever the address in it, and so is one of a subnet that this node had last with this node's VTEP MAC, or with a value
//! that cannot be read. So a node whose address changes keeps its subnet, running or not.
//!
//! Pods have addresses of the subnet, so a change of the configuration takes none away that is in use. A lease of this
//! node's that the configuration does not allow is deleted in one case only: a process that holds none yet finds it, and
//! the last good state does not name it. A key of other families than the configuration has is replaced then too, by one
//! with the same subnets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::families::{PerFamily, PublicAddresses};
use encap::{Family, Mac};
use ipnet::IpNet;

use super::key::SubnetKey;
use super::table::{Record, Table};
use super::value::LeaseAttrs;
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

/// What this node knows of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThisNode<'a> {
    pub(super) held: Option<Held>,
    pub(super) public: PublicAddresses,
    /// The MACs that it has written, else those announced.
    pub(super) vtep_mac: PerFamily<Mac>,
    /// The subnets that this process had last; empty where it had none yet.
    pub(super) last: &'a [IpNet],
    /// Those of services before.
    pub(super) previous: &'a [IpNet],
}

impl ThisNode<'_> {
    fn is_held(&self, key: &SubnetKey) -> bool {
        self.held.is_some_and(|held| held.subnet == *key)
    }

    /// Whether it had the subnets of `key` last.
    fn had(&self, key: &SubnetKey) -> bool {
        let mut subnets = key.subnets().into_iter();
        subnets.all(|subnet| self.last.contains(&subnet) || self.previous.contains(&subnet))
    }

    /// Whether `record` is this node's by what it had last: written before it got its address, or no lease at all.
    pub(super) fn remembers(&self, key: &SubnetKey, record: &Record) -> bool {
        let is_ours = |attrs: &LeaseAttrs| {
            let found = attrs.vtep_mac();
            let same = |family| {
                let mac: Option<Mac> = *found.of(family);
                mac.is_none_or(|mac| mac == *self.vtep_mac.of(family))
            };
            found != PerFamily::default() && same(Family::V4) && same(Family::V6)
        };
        self.had(key) && record.attrs.as_ref().is_none_or(is_ours)
    }

    /// Its keys: the one that it holds first, then the one that it had last.
    fn keys(&self, table: &Table) -> Vec<SubnetKey> {
        let is_same = |key: &SubnetKey, record: &Record| {
            let held = self.held.filter(|held| held.subnet == *key);
            held.is_some_and(|held| held.mod_revision == record.mod_revision)
        };
        let has_address = |record: &Record| {
            let theirs = record.attrs.as_ref().map(LeaseAttrs::public);
            theirs.is_some_and(|theirs| same_node(theirs, self.public))
        };
        let leased = table.leased().into_iter();
        let found = leased.filter(|(_, key, record)| {
            is_same(key, record) || has_address(record) || self.remembers(key, record)
        });
        let mut found: Vec<_> = found.map(|(_, key, _)| key).collect();
        found.sort_by_key(|key| (!self.is_held(key), !self.had(key)));
        found
    }

    /// What to do with its keys; `None` where it has none that is of use.
    fn choose(&self, table: &Table, net_conf: &NetConf) -> Option<Step> {
        let keys = self.keys(table);
        let find = |fits: &dyn Fn(&SubnetKey) -> bool| keys.iter().find(|key| fits(key)).copied();
        let is_first = self.last.is_empty();
        if let Some(held) = find(&|key| self.is_held(key)) {
            return Some(Step::Keep(held));
        }
        let had = find(&|key| self.had(key));
        if let Some(outgrown) = had.filter(|key| is_first && is_outgrown(&key.subnets(), net_conf))
        {
            return Some(Step::Delete(outgrown));
        }
        let is_in_use = |key: &SubnetKey| !is_first && is_inside(&key.subnets(), net_conf);
        let kept = had
            .or_else(|| find(&|key| is_allowed(&key.subnets(), net_conf)))
            .or_else(|| find(&is_in_use));
        match kept {
            Some(key) => Some(Step::Keep(key)),
            None => {
                let wrong = keys.first().filter(|_| is_first);
                wrong.map(|wrong| Step::Delete(*wrong))
            }
        }
    }
}

/// Decides for `node`. `random` is drawn anew for each decision.
pub(super) fn decide(table: &Table, node: &ThisNode<'_>, net_conf: &NetConf, random: u64) -> Step {
    if let Some(step) = node.choose(table, net_conf) {
        return step;
    }
    let leased = table.leased();
    let leased = leased.iter().flat_map(|(_, key, _)| key.subnets());
    let leased: Vec<IpNet> = leased.collect();
    let mut chosen = Vec::new();
    for (family, range) in ranges(net_conf) {
        let taken = Taken::new(&leased, family);
        let is_free = |subnet: &IpNet| {
            Family::of(subnet.network()) == family && taken.is_free(block(*subnet))
        };
        // Its pods have addresses of it, whatever the range is now.
        let used = node
            .last
            .iter()
            .find(|subnet| is_free(subnet) && is_inside(std::slice::from_ref(*subnet), net_conf));
        let had = || {
            let mut previous = node.previous.iter();
            previous.find(|subnet| is_free(subnet) && is_in(**subnet, range))
        };
        let subnet = match used.or_else(had) {
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

/// Whether the cluster has these subnets.
fn is_inside(subnets: &[IpNet], net_conf: &NetConf) -> bool {
    let cluster = net_conf.cluster();
    let mut subnets = subnets.iter();
    subnets.all(|subnet| cluster.iter().any(|network| network.contains(subnet)))
}

/// Whether nothing is wrong with a lease of `subnets` but that the configuration has a family more or less.
fn is_outgrown(subnets: &[IpNet], net_conf: &NetConf) -> bool {
    let ranges = ranges(net_conf);
    let range_of = |subnet: &IpNet| {
        let family = Family::of(subnet.network());
        let mut ranges = ranges.iter();
        ranges.find(|(of, _)| *of == family)
    };
    let stay: Vec<_> = subnets
        .iter()
        .filter_map(|s| Some((s, range_of(s)?)))
        .collect();
    let are_right = stay
        .iter()
        .all(|(subnet, (_, range))| is_in(**subnet, *range));
    let changed = stay.len() < subnets.len() || stay.len() < ranges.len();
    are_right && changed && !stay.is_empty()
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
