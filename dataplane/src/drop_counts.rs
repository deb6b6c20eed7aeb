//! Drops of one peer or one pod, by direction and reason, beside the exact totals of the workers.
//!
//! Theory of operation. The stage that drops a packet names its peer and its pod, as far as it knows them
//! ([`Parties`]); [`Tally::drop`](crate::counters) counts it in all three places. *Inbound* the peer is the one
//! whose source address the datagram came from, and the pod the one that has the inner destination. *Outbound* the peer is
//! the one that the packet was routed to, and the pod the one that has the inner source. A packet that is refused before
//! it is routed has no peer; a datagram whose inner packet was not read has no pod; what is no attachment (the node itself,
//! a prefix that the kernel routes) has no counts.
//!
//! Several workers count at one peer, so a count is an atomic addition, once for each drop and never for a packet that
//! goes on. The worker's total is written before, with release order, so a reader who reads peers and pods first and totals
//! after them never finds the sum over peers, or over pods, above the total. Counts begin at 0 with the service, and with
//! each new peer or pod.

use std::array::from_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

use crate::drops::{Direction, DropReason};

/// The drops of one peer or pod since the service started, or it came. Wire packets.
#[derive(Debug)]
pub struct DropCounts {
    outbound: [AtomicU64; DropReason::COUNT],
    inbound: [AtomicU64; DropReason::COUNT],
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Pod → peer, by the reason's number.
    pub outbound: [u64; DropReason::COUNT],
    /// Peer → pod.
    pub inbound: [u64; DropReason::COUNT],
}

/// The peer and the pod that a dropped packet is of, as far as they are known where it is dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parties<'a> {
    pub(crate) peer: Option<&'a DropCounts>,
    pub(crate) pod: Option<&'a DropCounts>,
}

impl Default for DropCounts {
    fn default() -> DropCounts {
        DropCounts {
            outbound: from_fn(|_| AtomicU64::new(0)),
            inbound: from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl DropCounts {
    /// All counts.
    pub fn read(&self) -> Dropped {
        let read = |counts: &[AtomicU64; DropReason::COUNT]| {
            // A place of the array for each reason.
            from_fn(|place| counts.get(place).map_or(0, |count| count.load(Acquire)))
        };
        Dropped {
            outbound: read(&self.outbound),
            inbound: read(&self.inbound),
        }
    }

    /// Drops inbound for which `of` holds.
    pub(crate) fn inbound_where(&self, of: impl Fn(DropReason) -> bool) -> u64 {
        let each = self.inbound.iter().zip(DropReason::ALL);
        let chosen = each.filter(|(_, reason)| of(*reason));
        chosen.map(|(count, _)| count.load(Acquire)).sum()
    }

    fn add(&self, direction: Direction, reason: DropReason, packets: u64) {
        let counts = match direction {
            Direction::Outbound => &self.outbound,
            Direction::Inbound => &self.inbound,
        };
        if let Some(count) = counts.get(reason as usize) {
            count.fetch_add(packets, Release);
        }
    }
}

impl Dropped {
    /// Nothing.
    pub const NONE: Dropped = Dropped {
        outbound: [0; DropReason::COUNT],
        inbound: [0; DropReason::COUNT],
    };

    /// Drops of a direction, by the reason's number.
    pub fn of(&self, direction: Direction) -> &[u64; DropReason::COUNT] {
        match direction {
            Direction::Outbound => &self.outbound,
            Direction::Inbound => &self.inbound,
        }
    }

    /// Both directions and all reasons together.
    pub fn sum(&self) -> u64 {
        self.outbound.iter().chain(&self.inbound).sum()
    }

    /// What is not 0, with its direction and reason: outbound first, then by the reason's number.
    pub fn each(&self) -> impl Iterator<Item = (Direction, DropReason, u64)> {
        let of = |direction| {
            let counts = self.of(direction).iter().copied();
            let counts = DropReason::ALL.into_iter().zip(counts);
            counts.map(move |(reason, count)| (direction, reason, count))
        };
        let all = of(Direction::Outbound).chain(of(Direction::Inbound));
        all.filter(|(_, _, count)| *count > 0)
    }
}

impl Parties<'_> {
    /// Counts the drop at both.
    pub(crate) fn count(self, direction: Direction, reason: DropReason, packets: u64) {
        for counts in [self.peer, self.pod].into_iter().flatten() {
            counts.add(direction, reason, packets);
        }
    }
}

/// Source and destination of what should be an IP packet, if its header is there. They are not validated: they
/// only select a counter.
pub(crate) fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| {
        let bytes: &[u8; 4] = packet.get(at..)?.first_chunk()?;
        Some(IpAddr::from(*bytes))
    };
    let v6 = |at: usize| {
        let bytes: &[u8; 16] = packet.get(at..)?.first_chunk()?;
        Some(IpAddr::from(*bytes))
    };
    match packet.first()? >> 4 {
        4 => v4(V4_SOURCE).zip(v4(V4_DESTINATION)),
        6 => v6(V6_SOURCE).zip(v6(V6_DESTINATION)),
        _ => None,
    }
}

// Offsets of the addresses in the headers (RFC 791 section 3.1, RFC 8200 section 3).
const V4_SOURCE: usize = 12;
const V4_DESTINATION: usize = 16;
const V6_SOURCE: usize = 8;
const V6_DESTINATION: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_counts_at_both_parties_by_direction_and_reason() {
        let (peer, pod) = (DropCounts::default(), DropCounts::default());
        let both = Parties {
            peer: Some(&peer),
            pod: Some(&pod),
        };
        both.count(Direction::Inbound, DropReason::NotOurs, 3);
        Parties { peer: None, ..both }.count(Direction::Outbound, DropReason::ProbeLimit, 1);
        Parties::default().count(Direction::Outbound, DropReason::TooBig, 9);
        let inbound = (Direction::Inbound, DropReason::NotOurs, 3);
        let outbound = (Direction::Outbound, DropReason::ProbeLimit, 1);
        assert_eq!(peer.read().each().collect::<Vec<_>>(), [inbound]);
        assert_eq!(pod.read().each().collect::<Vec<_>>(), [outbound, inbound]);
        assert_eq!((peer.read().sum(), pod.read().sum()), (3, 4));
        assert_eq!(pod.inbound_where(|reason| reason != DropReason::NotOurs), 0);
        assert_eq!(DropCounts::default().read(), Dropped::NONE);
    }

    #[test]
    fn addresses_are_read_of_whole_headers_alone() {
        let mut v4 = [0; 20];
        (v4[0], v4[15], v4[19]) = (0x45, 1, 2);
        let of = |text: &str| text.parse::<IpAddr>().unwrap();
        let pair = Some((of("0.0.0.1"), of("0.0.0.2")));
        assert_eq!(addresses(&v4), pair);
        let mut v6 = [0; 40];
        (v6[0], v6[23], v6[39]) = (0x60, 1, 2);
        assert_eq!(addresses(&v6), Some((of("::1"), of("::2"))));
        assert_eq!(addresses(&v4[..19]), None);
        assert_eq!(addresses(&v6[..39]), None);
        assert_eq!((addresses(&[]), addresses(&[0x55; 60])), (None, None));
    }
}
