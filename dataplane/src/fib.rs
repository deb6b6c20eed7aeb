//! Inner destination → peer.
//!
//! Theory of operation: the truth is a longest-prefix-match trie per family. In front of it stands, per cluster
//! network, one array indexed by the address bits between a block of the network and the length that most subnets have:
//! the common case is one load, whether the cluster has ten nodes or five thousand. The block is the smallest that holds
//! all subnets, so a network of a few nodes has an array of a few slots; what lies outside of it, or in a slot whose
//! answer a longer prefix could change, is asked of the trie. Built by control, never changed: when routes change, a copy
//! is made in which only the slots of those routes are computed anew.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;

use crate::limits::{DIRECT_SLOTS, DIRECT_SLOTS_PER_ROUTE};
use crate::peer_id::PeerId;

/// The forwarding table of one snapshot.
#[derive(Clone, Default)]
pub struct Fib {
    direct: Vec<Direct>,
    trie: Trie,
    /// Some prefix has two peers: the last one stands, and the other is forgotten.
    contested: bool,
}

impl Fib {
    /// A table of `routes`, with a direct index for each of the cluster `networks`.
    pub fn new(networks: &[IpNet], routes: &[(IpNet, PeerId)]) -> Fib {
        let mut fib = Fib::default();
        for (prefix, peer) in routes {
            fib.insert(*prefix, *peer);
        }
        fib.direct = networks
            .iter()
            .map(|network| Direct::new(network.trunc(), &fib.trie))
            .collect();
        fib
    }

    /// A copy without the routes `removed`, which are in this table, and with those `added`. `None` where it is not known
    /// what stands behind a route that goes: then the table must be made anew.
    pub fn changed(&self, removed: &[(IpNet, PeerId)], added: &[(IpNet, PeerId)]) -> Option<Fib> {
        if self.contested {
            return None;
        }
        if removed == added {
            return Some(self.clone());
        }
        let mut fib = self.clone();
        for (prefix, _) in removed {
            fib.trie.remove(prefix.trunc());
        }
        for (prefix, peer) in added {
            fib.insert(*prefix, *peer);
        }
        if fib.contested {
            return None;
        }
        let prefix = |(prefix, _): &(IpNet, PeerId)| prefix.trunc();
        for direct in &mut fib.direct {
            direct.change(
                removed.iter().map(prefix),
                added.iter().map(prefix),
                &fib.trie,
            );
        }
        Some(fib)
    }

    fn insert(&mut self, prefix: IpNet, peer: PeerId) {
        let other = self.trie.insert(prefix.trunc(), peer);
        self.contested |= other.is_some_and(|other| other != peer);
    }

    /// The peer whose longest prefix contains `destination`.
    pub fn lookup(&self, destination: IpAddr) -> Option<PeerId> {
        let key = Key::of(destination);
        for direct in &self.direct {
            match direct.slot(key) {
                Some(NONE) => return None,
                Some(TRIE) => break,
                Some(peer) => return Some(PeerId(peer)),
                None => {}
            }
        }
        self.trie.longest(IpNet::from(destination))
    }
}

/// Every route, by family.
#[derive(Clone, Default)]
struct Trie {
    v4: PrefixMap<Ipv4Net, PeerId>,
    v6: PrefixMap<Ipv6Net, PeerId>,
}

impl Trie {
    fn insert(&mut self, prefix: IpNet, peer: PeerId) -> Option<PeerId> {
        match prefix {
            IpNet::V4(v4) => self.v4.insert(v4, peer),
            IpNet::V6(v6) => self.v6.insert(v6, peer),
        }
    }

    fn remove(&mut self, prefix: IpNet) {
        match prefix {
            IpNet::V4(v4) => self.v4.remove(&v4),
            IpNet::V6(v6) => self.v6.remove(&v6),
        };
    }

    /// The peer of the longest prefix that contains all of `prefix`.
    fn longest(&self, prefix: IpNet) -> Option<PeerId> {
        match prefix {
            IpNet::V4(v4) => self.v4.get_lpm(&v4).map(|(_, peer)| *peer),
            IpNet::V6(v6) => self.v6.get_lpm(&v6).map(|(_, peer)| *peer),
        }
    }

    /// The routes inside `prefix`, each after those that contain it.
    fn inside(&self, prefix: IpNet) -> impl Iterator<Item = (IpNet, PeerId)> {
        let (v4, v6) = match prefix {
            IpNet::V4(v4) => (Some(self.v4.children(&v4)), None),
            IpNet::V6(v6) => (None, Some(self.v6.children(&v6))),
        };
        let v4 = v4.into_iter().flatten();
        let v6 = v6.into_iter().flatten();
        v4.map(|(net, peer)| (IpNet::V4(net), *peer))
            .chain(v6.map(|(net, peer)| (IpNet::V6(net), *peer)))
    }
}

/// One array over a block of one cluster network.
#[derive(Clone)]
struct Direct {
    v6: bool,
    first: u128,
    /// Bits right of the index.
    shift: u32,
    /// Empty where an array would be too large for what it saves.
    slots: Box<[u32]>,
    network: IpNet,
    lengths: Box<Lengths>,
}

impl Direct {
    fn new(network: IpNet, trie: &Trie) -> Direct {
        let mut lengths = Lengths::default();
        trie.inside(network)
            .for_each(|(prefix, _)| lengths.add(prefix));
        let mut direct = Direct {
            v6: matches!(network, IpNet::V6(_)),
            first: 0,
            shift: 0,
            slots: Box::default(),
            network,
            lengths: Box::new(lengths),
        };
        direct.fill(trie);
        direct
    }

    /// Takes in that routes went and came, which `trie` shows already.
    fn change(
        &mut self,
        removed: impl Iterator<Item = IpNet> + Clone,
        added: impl Iterator<Item = IpNet> + Clone,
        trie: &Trie,
    ) {
        let length = self.lengths.commonest();
        let network = self.network;
        let inside = |prefix: &IpNet| network.contains(prefix);
        removed
            .clone()
            .filter(inside)
            .for_each(|prefix| self.lengths.remove(prefix));
        added
            .clone()
            .filter(inside)
            .for_each(|prefix| self.lengths.add(prefix));
        let stale = self.lengths.commonest() != length || {
            let mut changed = removed.clone().chain(added.clone());
            changed.any(|prefix| {
                prefix.contains(&network)
                    || (network.contains(&prefix) && self.range(prefix).is_none())
            })
        };
        if stale {
            return self.fill(trie);
        }
        for prefix in removed.chain(added).filter(inside) {
            for index in self.range(prefix).unwrap_or_default() {
                let slot = self.answer(index, trie);
                if let Some(place) = self.slots.get_mut(index) {
                    *place = slot;
                }
            }
        }
    }

    /// Chooses the block and computes every slot.
    fn fill(&mut self, trie: &Trie) {
        self.slots = Box::default();
        let Some((block, length)) = self.block(trie) else {
            return;
        };
        let Some(count) = 1u32.checked_shl(u32::from(length - block.prefix_len())) else {
            return;
        };
        if count > DIRECT_SLOTS.min(self.lengths.count().saturating_mul(DIRECT_SLOTS_PER_ROUTE)) {
            return;
        }
        self.first = Key::of(block.network()).bits;
        self.shift = 128 - u32::from(length);
        let outer = trie.longest(block).map_or(NONE, |peer| peer.0);
        self.slots = vec![outer; count as usize].into();
        for (prefix, peer) in trie.inside(block) {
            let slot = if prefix.prefix_len() > length {
                TRIE
            } else {
                peer.0
            };
            let range = self.range(prefix).unwrap_or_default();
            if let Some(slots) = self.slots.get_mut(range) {
                slots.fill(slot);
            }
        }
    }

    /// The smallest block of the network with all its routes, and the length of a slot's prefix.
    fn block(&self, trie: &Trie) -> Option<(IpNet, u8)> {
        let length = self.lengths.commonest()?;
        let (mut low, mut high) = (u128::MAX, 0);
        for (prefix, _) in trie.inside(self.network) {
            let start = Key::of(prefix.network()).bits;
            low = low.min(start);
            high = high.max(start | behind(prefix.prefix_len()));
        }
        let common = u8::try_from((low ^ high).leading_zeros()).ok()?;
        let block = Key {
            v6: self.v6,
            bits: low,
        }
        .prefix(common.min(length))?;
        Some((block, length))
    }

    /// What the slot at `index` holds.
    fn answer(&self, index: usize, trie: &Trie) -> u32 {
        let bits = self.first + ((index as u128) << self.shift);
        let length = u8::try_from(128 - self.shift).unwrap_or_default();
        let Some(prefix) = Key { v6: self.v6, bits }.prefix(length) else {
            return TRIE;
        };
        if trie.inside(prefix).any(|(inside, _)| inside != prefix) {
            return TRIE;
        }
        trie.longest(prefix).map_or(NONE, |peer| peer.0)
    }

    /// The slots that `prefix`, of the network, has a say in; `None` where the block does not hold it.
    fn range(&self, prefix: IpNet) -> Option<std::ops::Range<usize>> {
        let start = Key::of(prefix.network()).bits;
        let index = |bits: u128| usize::try_from(bits.checked_sub(self.first)? >> self.shift).ok();
        let range = index(start)?..index(start | behind(prefix.prefix_len()))? + 1;
        (range.end <= self.slots.len()).then_some(range)
    }

    fn slot(&self, key: Key) -> Option<u32> {
        if key.v6 != self.v6 {
            return None;
        }
        let index = key.bits.checked_sub(self.first)? >> self.shift;
        self.slots.get(usize::try_from(index).ok()?).copied()
    }
}

/// How many routes of each length a network has.
#[derive(Clone)]
struct Lengths([u32; 129]);

impl Default for Lengths {
    fn default() -> Lengths {
        Lengths([0; 129])
    }
}

impl Lengths {
    fn add(&mut self, prefix: IpNet) {
        if let Some(count) = self.0.get_mut(usize::from(prefix.prefix_len())) {
            *count += 1;
        }
    }

    fn remove(&mut self, prefix: IpNet) {
        if let Some(count) = self.0.get_mut(usize::from(prefix.prefix_len())) {
            *count = count.saturating_sub(1);
        }
    }

    fn count(&self) -> u32 {
        self.0.iter().sum()
    }

    fn commonest(&self) -> Option<u8> {
        let (length, most) = (0u8..).zip(self.0).max_by_key(|(_, count)| *count)?;
        (most > 0).then_some(length)
    }
}

/// An address as 128 bits; IPv4 stands in the upper 32.
#[derive(Clone, Copy)]
struct Key {
    v6: bool,
    bits: u128,
}

impl Key {
    fn of(address: IpAddr) -> Key {
        match address {
            IpAddr::V4(v4) => Key {
                v6: false,
                bits: u128::from(v4.to_bits()) << 96,
            },
            IpAddr::V6(v6) => Key {
                v6: true,
                bits: v6.to_bits(),
            },
        }
    }

    /// The prefix of `length` bits that holds it.
    fn prefix(self, length: u8) -> Option<IpNet> {
        let address = if self.v6 {
            IpAddr::V6(self.bits.into())
        } else {
            IpAddr::V4(((self.bits >> 96) as u32).into())
        };
        IpNet::new(address, length).ok().map(|net| net.trunc())
    }
}

/// The bits behind the first `length`, set.
fn behind(length: u8) -> u128 {
    u128::MAX.checked_shr(length.into()).unwrap_or(0)
}

/// No peer.
const NONE: u32 = u32::MAX;
/// Ask the trie.
const TRIE: u32 = u32::MAX - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn linear(routes: &[(IpNet, PeerId)], destination: IpAddr) -> Option<PeerId> {
        let mut best: Option<(u8, PeerId)> = None;
        for (prefix, peer) in routes
            .iter()
            .filter(|(prefix, _)| prefix.contains(&destination))
        {
            if best.is_none_or(|(length, _)| prefix.prefix_len() >= length) {
                best = Some((prefix.prefix_len(), *peer));
            }
        }
        best.map(|(_, peer)| peer)
    }

    fn route() -> impl Strategy<Value = (IpNet, PeerId)> {
        let v4 = (any::<u16>(), prop_oneof![4 => Just(24u8), 1 => 12..=32u8]).prop_map(
            |(host, length)| {
                IpNet::new(
                    IpAddr::from([10, 244, (host >> 8) as u8, host as u8]),
                    length,
                )
                .unwrap()
            },
        );
        let v6 = (any::<u16>(), prop_oneof![4 => Just(64u8), 1 => 44..=128u8]).prop_map(
            |(net, length)| {
                IpNet::new(
                    IpAddr::from([0xfd00, 0, 0, net & 0xff, net, 0, 0, 1]),
                    length,
                )
                .unwrap()
            },
        );
        (prop_oneof![v4, v6], 0..50u32).prop_map(|(prefix, peer)| (prefix.trunc(), PeerId(peer)))
    }

    proptest! {
        #[test]
        fn equals_a_linear_scan(
            routes in proptest::collection::vec(route(), 0..60),
            low in any::<[u8; 2]>(), net in any::<u16>(), outside in any::<u32>(),
        ) {
            // Of a prefix that two peers claim the last insert wins, here as in the scan.
            let networks = ["10.244.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()];
            let fib = Fib::new(&networks, &routes);
            let probes = [
                IpAddr::from([10, 244, low[0], low[1]]),
                IpAddr::from(outside.to_be_bytes()),
                IpAddr::from([0xfd00, 0, 0, net & 0xff, net, 0, 0, 1]),
            ];
            for probe in probes.into_iter().chain(routes.iter().map(|(prefix, _)| prefix.addr())) {
                prop_assert_eq!(fib.lookup(probe), linear(&routes, probe));
            }
        }
    }

    proptest! {
        /// However routes come and go, the copies answer as a table made at once of those that are left.
        #[test]
        fn a_changed_copy_equals_a_new_table(
            mut routes in proptest::collection::vec(route(), 0..60),
            changes in proptest::collection::vec((0..60usize, 0..4usize, proptest::collection::vec(route(), 0..4)), 1..8),
        ) {
            let networks = ["10.244.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()];
            let once = |routes: &mut Vec<(IpNet, PeerId)>| {
                let mut seen = std::collections::HashSet::new();
                routes.retain(|(prefix, _)| seen.insert(*prefix));
            };
            once(&mut routes);
            let mut fib = Fib::new(&networks, &routes);
            for (start, count, mut added) in changes {
                let start = start.min(routes.len());
                let removed: Vec<_> = routes.drain(start..(start + count).min(routes.len())).collect();
                once(&mut added);
                added.retain(|(prefix, _)| routes.iter().all(|(other, _)| other != prefix));
                routes.extend(&added);
                fib = fib.changed(&removed, &added).unwrap();
                let new = Fib::new(&networks, &routes);
                let ends = |prefix: IpNet| [prefix.network(), prefix.broadcast()];
                let all = routes.iter().chain(&removed).flat_map(|(prefix, _)| ends(*prefix));
                for probe in all {
                    prop_assert_eq!(fib.lookup(probe), linear(&routes, probe), "{}", probe);
                    prop_assert_eq!(new.lookup(probe), linear(&routes, probe), "{}", probe);
                }
            }
        }
    }

    #[test]
    fn a_prefix_with_two_peers_is_not_changed_in_place() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let twice = [
            (net("10.244.1.0/24"), PeerId(1)),
            (net("10.244.1.0/24"), PeerId(2)),
        ];
        let fib = Fib::new(&[net("10.244.0.0/16")], &twice);
        assert!(fib.changed(&twice[1..], &[]).is_none());
        let fib = Fib::new(&[net("10.244.0.0/16")], &twice[..1]);
        assert!(fib.changed(&[], &twice[1..]).is_none());
        assert!(fib.changed(&twice[..1], &twice[1..]).is_some());
    }

    #[test]
    fn two_subnets_far_apart_have_no_array() {
        let routes = [("fd00::/64", 1), ("fd00:0:0:ffff::/64", 2)]
            .map(|(prefix, peer)| (prefix.parse().unwrap(), PeerId(peer)));
        let fib = Fib::new(&["fd00::/48".parse().unwrap()], &routes);
        assert!(fib.direct[0].slots.is_empty());
        assert_eq!(
            fib.lookup("fd00:0:0:ffff::1".parse().unwrap()),
            Some(PeerId(2))
        );
    }

    #[test]
    fn a_thousand_equal_subnets_are_one_load_each() {
        let routes: Vec<_> = (0..1000u32)
            .map(|i| {
                (
                    IpNet::new(IpAddr::from([10, (i >> 8) as u8, i as u8, 0]), 24).unwrap(),
                    PeerId(i),
                )
            })
            .collect();
        let fib = Fib::new(&["10.0.0.0/8".parse().unwrap()], &routes);
        assert_eq!(
            fib.direct[0].slots.len(),
            1024,
            "of the 65,536 that the network has"
        );
        assert!(!fib.direct[0].slots.contains(&TRIE));
    }
}
