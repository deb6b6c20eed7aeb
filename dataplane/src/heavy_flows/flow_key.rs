//! What makes packets one flow.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use encap::Family;
use encap::inner::{Fragment, Inner};

use crate::drops::Direction;
use crate::sent::mix;

/// A flow: packets of one direction with the same addresses, protocol and ports. Fragments have no ports here, the first as
/// little as the later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// Whether it goes to a peer.
    pub is_outbound: bool,
    /// Inner source.
    pub source: IpAddr,
    /// Inner destination.
    pub destination: IpAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// Source and destination port; 0 where there are none.
    pub ports: (u16, u16),
}

impl FlowKey {
    pub(crate) fn of(direction: Direction, inner: &Inner) -> FlowKey {
        let whole = inner.fragment == Fragment::Whole;
        FlowKey {
            is_outbound: direction == Direction::Outbound,
            source: inner.source,
            destination: inner.destination,
            protocol: inner.protocol,
            ports: inner.ports.filter(|_| whole).unwrap_or_default(),
        }
    }

    /// A hash with a secret: who does not know `key` finds no flows of one hash.
    pub(super) fn hash(&self, key: [u64; 2]) -> u64 {
        let [source, source_low, destination, destination_low, rest] = self.words();
        let ends = match self.source {
            IpAddr::V4(_) => source_low << 32 | destination_low & 0xffff_ffff,
            IpAddr::V6(_) => {
                let first = mix(source ^ key[0], source_low ^ key[1]);
                let second = mix(destination ^ key[1], destination_low ^ key[0]);
                first ^ second.rotate_left(32)
            }
        };
        mix(ends ^ key[0], rest ^ key[1])
    }

    /// As an entry of the table holds it.
    pub(super) fn words(&self) -> [u64; WORDS] {
        let halves = |address: IpAddr| match address {
            IpAddr::V4(address) => (0, u64::from(address.to_bits())),
            IpAddr::V6(address) => ((address.to_bits() >> 64) as u64, address.to_bits() as u64),
        };
        let (source, source_low) = halves(self.source);
        let (destination, destination_low) = halves(self.destination);
        let rest = u64::from(self.ports.0)
            | u64::from(self.ports.1) << 16
            | u64::from(self.protocol) << 32
            | u64::from(self.is_outbound) << 40
            | u64::from(Family::of(self.source) == Family::V6) << 41;
        [source, source_low, destination, destination_low, rest]
    }

    /// The flow of such words.
    pub(super) fn of_words(words: [u64; WORDS]) -> FlowKey {
        let [source, source_low, destination, destination_low, rest] = words;
        let address = |high: u64, low: u64| match rest >> 41 & 1 {
            0 => IpAddr::V4(Ipv4Addr::from_bits(low as u32)),
            _ => IpAddr::V6(Ipv6Addr::from_bits(
                u128::from(high) << 64 | u128::from(low),
            )),
        };
        FlowKey {
            is_outbound: rest >> 40 & 1 != 0,
            source: address(source, source_low),
            destination: address(destination, destination_low),
            protocol: (rest >> 32) as u8,
            ports: (rest as u16, (rest >> 16) as u16),
        }
    }
}

/// Words of a key.
pub(super) const WORDS: usize = 5;
