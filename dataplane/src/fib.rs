//! Inner destination → peer.
//!
//! Theory of operation: the truth is a longest-prefix-match trie per family. In front of it stands, per cluster
//! network, one array indexed by the address bits between the network's length and the length that most subnets have:
//! the common case is one load, whether the cluster has ten nodes or five thousand. A slot whose answer a longer prefix
//! could change points back to the trie. Built once by control, never changed.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;

use crate::limits::DIRECT_SLOTS;
use crate::peer_id::PeerId;

/// The forwarding table of one snapshot.
#[derive(Default)]
pub struct Fib {
    direct: Vec<Direct>,
    v4: PrefixMap<Ipv4Net, PeerId>,
    v6: PrefixMap<Ipv6Net, PeerId>,
}

impl Fib {
    /// A table of `routes`, with a direct index for each of the cluster `networks`.
    pub fn new(networks: &[IpNet], routes: &[(IpNet, PeerId)]) -> Fib {
        let mut fib = Fib::default();
        for (prefix, peer) in routes {
            match prefix.trunc() {
                IpNet::V4(v4) => fib.v4.insert(v4, *peer),
                IpNet::V6(v6) => fib.v6.insert(v6, *peer),
            };
        }
        fib.direct = networks
            .iter()
            .filter_map(|network| Direct::new(*network, routes, &fib))
            .collect();
        fib
    }

    /// The peer whose longest prefix contains `destination`.
    pub fn lookup(&self, destination: IpAddr) -> Option<PeerId> {
        let key = Key::of(destination);
        for direct in &self.direct {
            match direct.slot(key) {
                Some(NOBODY) => return None,
                Some(TRIE) => break,
                Some(peer) => return Some(PeerId(peer)),
                None => {}
            }
        }
        self.longest(destination)
    }

    fn longest(&self, destination: IpAddr) -> Option<PeerId> {
        match destination {
            IpAddr::V4(v4) => self.v4.get_lpm(&Ipv4Net::from(v4)).map(|(_, peer)| *peer),
            IpAddr::V6(v6) => self.v6.get_lpm(&Ipv6Net::from(v6)).map(|(_, peer)| *peer),
        }
    }

    /// Whether a prefix longer than `prefix` lies inside it.
    fn has_longer(&self, prefix: IpNet) -> bool {
        match prefix {
            IpNet::V4(v4) => self
                .v4
                .children(&v4)
                .any(|(p, _)| p.prefix_len() > v4.prefix_len()),
            IpNet::V6(v6) => self
                .v6
                .children(&v6)
                .any(|(p, _)| p.prefix_len() > v6.prefix_len()),
        }
    }
}

/// One array over one cluster network.
struct Direct {
    v6: bool,
    first: u128,
    /// Bits right of the index.
    shift: u32,
    slots: Box<[u32]>,
}

impl Direct {
    fn new(network: IpNet, routes: &[(IpNet, PeerId)], fib: &Fib) -> Option<Direct> {
        let network = network.trunc();
        let length = commonest_length(network, routes)?;
        let count = 1u32
            .checked_shl(u32::from(length - network.prefix_len()))
            .filter(|n| *n <= DIRECT_SLOTS)?;
        let key = Key::of(network.network());
        let shift = 128 - u32::from(length);
        let slots = (0..count).map(|index| {
            let prefix = key.at(key.bits + (u128::from(index) << shift), length);
            match prefix {
                Some(prefix) if fib.has_longer(prefix) => TRIE,
                Some(prefix) => fib.longest(prefix.network()).map_or(NOBODY, |peer| peer.0),
                None => TRIE,
            }
        });
        Some(Direct {
            v6: key.v6,
            first: key.bits,
            shift,
            slots: slots.collect(),
        })
    }

    fn slot(&self, key: Key) -> Option<u32> {
        if key.v6 != self.v6 {
            return None;
        }
        let index = key.bits.checked_sub(self.first)? >> self.shift;
        self.slots.get(usize::try_from(index).ok()?).copied()
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

    /// The prefix of `length` bits at `bits`, in this key's family.
    fn at(self, bits: u128, length: u8) -> Option<IpNet> {
        let address = if self.v6 {
            IpAddr::V6(bits.into())
        } else {
            IpAddr::V4(((bits >> 96) as u32).into())
        };
        IpNet::new(address, length).ok()
    }
}

fn commonest_length(network: IpNet, routes: &[(IpNet, PeerId)]) -> Option<u8> {
    let mut counts = [0u32; 129];
    for (prefix, _) in routes.iter().filter(|(prefix, _)| network.contains(prefix)) {
        if let Some(count) = counts.get_mut(usize::from(prefix.prefix_len())) {
            *count += 1;
        }
    }
    let (length, most) = (0u8..).zip(counts).max_by_key(|(_, count)| *count)?;
    (most > 0).then_some(length)
}

/// No peer.
const NOBODY: u32 = u32::MAX;
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
            // A prefix that two peers claim never reaches the table: the last insert wins here as in the scan.
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
        assert_eq!(fib.direct[0].slots.len(), 65536);
        assert!(!fib.direct[0].slots.contains(&TRIE));
    }
}
