//! What each source may take of a worker while others wait: one flooding pod is not to stall its neighbours.
//!
//! Theory of operation: device and sockets hold the packets of all pods in one queue, and the kernel drops what finds
//! that full, from any pod. The only way to keep a queue short for one pod is to empty it fast. So a worker counts in
//! *rounds*: a round begins with the first packet, and ends when the worker has found its sources empty, or after
//! [`ROUND`]. In each, a source has a *quantum* of small packets and of bytes ([`QUANTUM_PACKETS`], [`QUANTUM_BYTES`]), as in
//! deficit round robin (Shreedhar and Varghese, 1995); what it has waiting beyond that is read and dropped, which costs a
//! fraction of its forwarding. A worker that others keep from its core forwards less than that in a round: in the second
//! half quanta of small packets are smaller ([`LATE_SHARE`]). A pod that sends little never comes near its quantum, and waits at most for
//! the quanta of the others. Where several take all of theirs, in the next round all share one.
//!
//! A source that is the only one, because no other was seen for [`ALONE_AFTER`], has [`ALONE_QUANTA`]. Without that bound
//! the first packet of another would wait behind all that the device's queue can hold.
//!
//! A source is an inner source address that has passed the checks of sources. So a pod of `tartan-cni` has the quanta of
//! its own addresses and of those that it is allowed to send from. A pod on a bridge is not checked: it has a quantum for
//! each address of the node's range that it sends from, and can spend a neighbour's. No bound on all sources together
//! would help there, because it would drop the neighbours' packets as well. The table has a fixed size, and its hash a
//! key, so that no one can choose addresses that share a place; a place is free to another source in each round.

use std::net::{IpAddr, Ipv4Addr};

use crate::limits::{
    ALONE_AFTER, ALONE_QUANTA, FAIR_PROBES, FAIR_SOURCES, LATE_SHARE, QUANTUM_BYTES,
    QUANTUM_PACKETS, ROUND, SMALL_PACKET,
};
use crate::now::Now;
use crate::sent::mix;

/// The quanta of one direction.
pub(crate) struct FairShares {
    places: Box<[Place]>,
    key: u64,
    round: u64,
    /// When the first packet of the round came; `None` until then.
    began: Option<Now>,
    /// When the round before ended.
    ended: Now,
    /// Sources that have used up their quantum in this round, and in the one before.
    heavy: usize,
    heavy_before: usize,
    /// The latest source, and when.
    latest: Option<(IpAddr, Now)>,
    /// When another than the latest was seen.
    other: Option<Now>,
}

/// What a source has used in a round.
#[derive(Clone, Copy)]
struct Place {
    source: IpAddr,
    round: u64,
    packets: usize,
    bytes: usize,
}

impl FairShares {
    /// `key` is random: no one else can compute a place.
    pub(crate) fn new(key: u64) -> FairShares {
        let free = Place {
            source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            round: 0,
            packets: 0,
            bytes: 0,
        };
        FairShares {
            places: vec![free; FAIR_SOURCES].into(),
            key,
            round: 1,
            began: None,
            ended: Now(0),
            heavy: 0,
            heavy_before: 0,
            latest: None,
            other: None,
        }
    }

    /// Ends the round, if it has begun: nothing waits any more.
    pub(crate) fn end_round(&mut self, now: Now) {
        if self.began.take().is_none() {
            return;
        }
        self.round += 1;
        self.ended = now;
        self.heavy_before = self.heavy;
        self.heavy = 0;
    }

    /// When the round began, at the latest now.
    fn begin_round(&mut self, now: Now) -> Now {
        if self.began.is_some_and(|began| now.since(began) >= ROUND) {
            self.end_round(now);
        }
        if self.began.is_none() && now.since(self.ended) >= ROUND {
            // The floods of the round before are over.
            self.heavy_before = 0;
        }
        *self.began.get_or_insert(now)
    }

    /// Charges `source` with a packet that is `packets` on the wire and has `bytes`. Returns whether it may go on: whether
    /// the source had something left of its quantum.
    pub(crate) fn charge(
        &mut self,
        source: IpAddr,
        packets: usize,
        bytes: usize,
        now: Now,
    ) -> bool {
        self.see(source, now);
        let is_alone = self.is_alone(now);
        let quanta = if is_alone { ALONE_QUANTA } else { 1 };
        let began = self.begin_round(now);
        // What a slow worker takes in half a round is no longer a burst, though it is less than a quantum.
        let is_late = !is_alone && now.since(began) >= ROUND / 2;
        let shrunk = if is_late { LATE_SHARE } else { 1 };
        let (quanta, sources) = (quanta as usize, self.heavy_before.max(1));
        // Packets of an ordinary size cost by their bytes: TCP in bulk is no flood.
        let packets = if bytes < packets * SMALL_PACKET {
            packets
        } else {
            0
        };
        let Some(place) = self.place(source) else {
            return true;
        };
        let is_within = |place: &Place| {
            place.packets * sources * shrunk < QUANTUM_PACKETS * quanta
                && place.bytes * sources < QUANTUM_BYTES * quanta
        };
        let was_within = is_within(place);
        place.packets += packets;
        place.bytes += bytes;
        let uses_it_up = was_within && !is_within(place);
        self.heavy += usize::from(uses_it_up);
        was_within
    }

    fn see(&mut self, source: IpAddr, now: Now) {
        if let Some((latest, at)) = self.latest
            && latest != source
        {
            self.other = Some(at);
        }
        self.latest = Some((source, now));
    }

    fn is_alone(&self, now: Now) -> bool {
        self.other.is_none_or(|at| now.since(at) >= ALONE_AFTER)
    }

    /// The place of a source in this round. Where others have taken all that it could have, it shares the last.
    fn place(&mut self, source: IpAddr) -> Option<&mut Place> {
        let (first, round) = (hash(self.key, source), self.round);
        let mut probes = (first..first + FAIR_PROBES).map(|place| place % FAIR_SOURCES);
        let fits = |place: &Place| place.round != round || place.source == source;
        let found = probes.find(|place| self.places.get(*place).is_some_and(fits));
        let last = (first + FAIR_PROBES - 1) % FAIR_SOURCES;
        let place = self.places.get_mut(found.unwrap_or(last))?;
        if place.round != round {
            *place = Place {
                source,
                round,
                packets: 0,
                bytes: 0,
            };
        }
        Some(place)
    }
}

fn hash(key: u64, source: IpAddr) -> usize {
    let bits = match source {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    // The table takes the low bits.
    (mix(key ^ bits as u64, !key ^ (bits >> 64) as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const START: Now = Now(0).after(Duration::from_secs(100));
    const KEY: u64 = 0x0123_4567_89ab_cdef;
    const ALONE: usize = ALONE_QUANTA as usize;

    fn pod(host: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0af4_0100 + host).into()
    }

    /// How many of `count` packets of 100 bytes may go on.
    fn taken(shares: &mut FairShares, source: IpAddr, count: usize, now: Now) -> usize {
        (0..count)
            .filter(|_| shares.charge(source, 1, 100, now))
            .count()
    }

    #[test]
    fn beside_a_flood_others_have_all_they_send() {
        let mut shares = FairShares::new(KEY);
        assert!(shares.charge(pod(2), 1, 100, START));
        let flood = taken(&mut shares, pod(1), 10 * QUANTUM_PACKETS, START);
        assert_eq!(flood, QUANTUM_PACKETS);
        for light in 2..200 {
            assert_eq!(taken(&mut shares, pod(light), 10, START), 10, "{light}");
        }
        assert!(!shares.charge(pod(1), 1, 100, START));
    }

    #[test]
    fn a_super_packet_counts_its_wire_packets_and_bytes_count_too() {
        let mut shares = FairShares::new(KEY);
        assert!(shares.charge(pod(2), 1, 100, START));
        let fit = QUANTUM_PACKETS / 1_000 + 1;
        let supers = (0..100).filter(|_| shares.charge(pod(1), 1_000, 60_000, START));
        assert_eq!(supers.count(), fit);
        let large = (0..1_000).filter(|_| shares.charge(pod(3), 1, 1 << 16, START));
        assert_eq!(large.count(), QUANTUM_BYTES >> 16);
    }

    #[test]
    fn each_round_has_new_quanta_and_ends_by_itself() {
        let mut shares = FairShares::new(KEY);
        assert!(shares.charge(pod(2), 1, 100, START));
        taken(&mut shares, pod(1), QUANTUM_PACKETS, START);
        assert!(!shares.charge(pod(1), 1, 100, START));
        shares.end_round(START);
        assert!(shares.charge(pod(1), 1, 100, START));
        taken(&mut shares, pod(1), QUANTUM_PACKETS, START);
        assert!(!shares.charge(pod(1), 1, 100, START));
        assert!(shares.charge(pod(1), 1, 100, START.after(ROUND)));
    }

    #[test]
    fn in_the_second_half_of_a_round_quanta_are_smaller() {
        let mut shares = FairShares::new(KEY);
        assert!(shares.charge(pod(2), 1, 100, START));
        let early = QUANTUM_PACKETS / LATE_SHARE;
        assert_eq!(taken(&mut shares, pod(1), early, START), early);
        let late = START.after(ROUND / 2);
        assert!(!shares.charge(pod(1), 1, 100, late));
        assert_eq!(taken(&mut shares, pod(2), 100, late), 100);
    }

    /// A worker sleeps from the end of a round to the first packet of the next.
    #[test]
    fn a_pause_shrinks_no_share() {
        for pause in [15, 19, 20, 25, 100].map(Duration::from_millis) {
            let mut shares = FairShares::new(KEY);
            assert!(shares.charge(pod(2), 1, 100, START));
            shares.end_round(START);
            let burst = taken(&mut shares, pod(1), QUANTUM_PACKETS, START.after(pause));
            assert_eq!(burst, QUANTUM_PACKETS, "after {pause:?}");
        }
    }

    #[test]
    fn floods_that_are_over_shrink_no_share() {
        let mut shares = FairShares::new(KEY);
        assert!(shares.charge(pod(9), 1, 100, START));
        for flood in 1..=4 {
            taken(&mut shares, pod(flood), QUANTUM_PACKETS, START);
        }
        shares.end_round(START);
        // A round without a packet is none.
        shares.end_round(START);
        let during = START.after(ROUND / 4);
        let all = taken(&mut shares, pod(9), QUANTUM_PACKETS, during);
        assert_eq!(all, QUANTUM_PACKETS / 4);
        shares.end_round(during);
        let later = during.after(ROUND);
        let all = taken(&mut shares, pod(9), QUANTUM_PACKETS, later);
        assert_eq!(all, QUANTUM_PACKETS);
    }

    /// Who knows the hash but not the key finds no addresses that share a place.
    #[test]
    fn places_depend_on_the_key() {
        let places = |key| (0..64).map(move |host| hash(key, pod(host)) % FAIR_SOURCES);
        let same = places(KEY).zip(places(KEY + 1)).filter(|(a, b)| a == b);
        assert!(same.count() < 8);
    }

    #[test]
    fn the_only_source_has_more_until_another_is_seen() {
        let mut shares = FairShares::new(KEY);
        let more = ALONE * QUANTUM_PACKETS;
        assert_eq!(taken(&mut shares, pod(1), more + 9, START), more);
        shares.charge(pod(2), 1, 100, START);
        shares.end_round(START);
        let all = taken(&mut shares, pod(1), more, START);
        assert_eq!(all, QUANTUM_PACKETS);
        let later = START.after(ALONE_AFTER);
        assert_eq!(taken(&mut shares, pod(1), more, later), more);
    }

    #[test]
    fn several_floods_share_one_quantum() {
        let mut shares = FairShares::new(KEY);
        assert!(shares.charge(pod(9), 1, 100, START));
        for flood in 1..=4 {
            taken(&mut shares, pod(flood), QUANTUM_PACKETS, START);
        }
        shares.end_round(START);
        for flood in 1..=4 {
            let taken = taken(&mut shares, pod(flood), QUANTUM_PACKETS, START);
            assert_eq!(taken, QUANTUM_PACKETS / 4);
        }
    }

    #[test]
    fn more_sources_than_places_still_have_their_first_packets() {
        let mut shares = FairShares::new(KEY);
        for host in 0..8 * FAIR_SOURCES as u32 {
            assert!(shares.charge(pod(host), 1, 100, START));
        }
    }
}
