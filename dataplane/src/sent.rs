//! The large datagrams that were sent lately: what a report of a path MTU must quote to count.
//!
//! Theory of operation: addresses, ports, VNI and MACs of a datagram are public, so that a report quotes them proves
//! nothing. It must quote the inner packet too, as it was sent a moment ago through the socket that the report came to.
//! Each worker remembers a fingerprint of the first [`REMEMBERED_OF_MESSAGE`] datagrams of each message that it sends,
//! if they are so large that a report about them can be believed. A fingerprint is a keyed hash of the inner packet's
//! first [`INNER_START`] bytes, of the destination and of the socket. It overwrites an older one in a table of fixed
//! size, and counts for [`REMEMBERED_FOR`]. To send costs a few nanoseconds for each such datagram and takes no memory.
//!
//! A router drops and reports of a burst the first datagrams too, so these few are enough. Only a worker itself writes
//! its table. All read all of them: the sockets of the `udp` format have one address and port, and the kernel gives a
//! report to any of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use encap::Format;

use crate::limits::{INNER_START, REMEMBERED_DATAGRAMS, REMEMBERED_FOR};
use crate::now::Now;
use crate::underlay::Port;

#[cfg(doc)]
use crate::limits::REMEMBERED_OF_MESSAGE;

/// The first bytes of an inner packet.
pub(crate) type InnerStart = [u8; INNER_START];

/// A worker's view of what all workers of a node sent.
pub struct SentDatagrams {
    /// The worker.
    index: usize,
    key: u64,
    tables: Arc<[Table]>,
}

/// By the low bits of the fingerprint: its high half, and in the low half the time, units of [`TIME_UNIT`].
struct Table(Box<[AtomicU64]>);

/// Where a datagram went, and which socket sent it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// Outer destination.
    pub(crate) to: IpAddr,
    /// The port that it left by.
    pub(crate) port: Port,
    /// The number of the socket, as in [`Underlay::socket`](crate::underlay::Underlay::socket).
    pub(crate) socket: usize,
}

impl SentDatagrams {
    /// One for each of `workers` workers, in their order. `key` is random: no one else can compute a fingerprint.
    pub fn group(workers: usize, key: u64) -> Vec<SentDatagrams> {
        let tables: Arc<[Table]> = (0..workers).map(|_| Table::new()).collect();
        let part = |index| SentDatagrams {
            index,
            key,
            tables: Arc::clone(&tables),
        };
        (0..workers).map(part).collect()
    }

    /// A random key for another hash of this worker.
    pub(crate) fn another_key(&self) -> u64 {
        mix(self.key ^ THIRD, SECOND ^ self.index as u64)
    }

    /// Remembers a datagram that the kernel took.
    pub(crate) fn note(&self, start: &InnerStart, route: Route, now: Now) {
        let fingerprint = self.fingerprint(start, route);
        if let Some(place) = self.own().and_then(|table| table.place(fingerprint)) {
            place.store(entry(fingerprint, now), Relaxed);
        }
    }

    /// The fingerprint of a datagram whose inner packet begins like `quote`, if one was sent lately on that route.
    pub(crate) fn find(&self, quote: &[u8], route: Route, now: Now) -> Option<u64> {
        let fingerprint = self.fingerprint(quote.first_chunk()?, route);
        let of_all = route.port.format == Format::Udp;
        let others = self.tables.iter().filter(|_| of_all);
        let mut tables = self.own().into_iter().chain(others);
        tables
            .any(|table| table.holds(fingerprint, now))
            .then_some(fingerprint)
    }

    fn own(&self) -> Option<&Table> {
        self.tables.get(self.index)
    }

    fn fingerprint(&self, start: &InnerStart, Route { to, port, socket }: Route) -> u64 {
        let to = match to {
            IpAddr::V4(v4) => u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let from = (port.index() as u64) << 8 | socket as u64;
        let mut hash = mix(self.key ^ to as u64, SECOND ^ (to >> 64) as u64);
        let (pairs, _) = start.as_chunks::<16>();
        for pair in pairs {
            let pair = u128::from_ne_bytes(*pair);
            hash = mix(pair as u64 ^ hash, (pair >> 64) as u64 ^ THIRD);
        }
        mix(hash ^ from, self.key ^ SECOND)
    }
}

impl Table {
    fn new() -> Table {
        Table(
            (0..REMEMBERED_DATAGRAMS)
                .map(|_| AtomicU64::new(0))
                .collect(),
        )
    }

    fn place(&self, fingerprint: u64) -> Option<&AtomicU64> {
        self.0.get(fingerprint as usize % REMEMBERED_DATAGRAMS)
    }

    fn holds(&self, fingerprint: u64, now: Now) -> bool {
        let held = self
            .place(fingerprint)
            .map_or(0, |place| place.load(Relaxed));
        let age = time(now).wrapping_sub(held as u32);
        held != 0 && held >> 32 == fingerprint >> 32 && age <= REMEMBERED_UNITS
    }
}

fn entry(fingerprint: u64, now: Now) -> u64 {
    fingerprint & HIGH | u64::from(time(now))
}

/// Never 0 as long as a fingerprint's high half is not: 0 is an empty place.
fn time(now: Now) -> u32 {
    (now.0 >> TIME_UNIT) as u32
}

/// A folded multiplication, as in wyhash.
pub(crate) fn mix(one: u64, two: u64) -> u64 {
    let product = u128::from(one) * u128::from(two);
    product as u64 ^ (product >> 64) as u64
}

/// Nanoseconds of a unit of time, as a power of two: 67 ms.
const TIME_UNIT: u32 = 26;
const REMEMBERED_UNITS: u32 = (REMEMBERED_FOR.as_nanos() >> TIME_UNIT) as u32 + 1;
const HIGH: u64 = !0 << 32;
/// Any numbers with as many ones as zeros: digits of pi.
const SECOND: u64 = 0x243f_6a88_85a3_08d3;
/// See [`SECOND`].
const THIRD: u64 = 0x1319_8a2e_0370_7344;

#[cfg(test)]
mod tests {
    use super::*;
    use encap::Family;
    use std::time::Duration;

    const ROUTE: Route = Route {
        to: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)),
        port: Port::new(Format::Vxlan, Family::V4),
        socket: 1,
    };

    fn start(number: u8) -> InnerStart {
        std::array::from_fn(|place| number.wrapping_add(place as u8))
    }

    #[test]
    fn what_was_sent_is_found_for_a_while() {
        let [sent] = &SentDatagrams::group(1, 7)[..] else {
            panic!("not one")
        };
        assert_eq!(sent.find(&start(1), ROUTE, Now(0)), None);
        sent.note(&start(1), ROUTE, Now(0));
        assert!(sent.find(&start(1), ROUTE, Now(0)).is_some());
        let last = Now(0).after(REMEMBERED_FOR);
        assert!(sent.find(&start(1), ROUTE, last).is_some());
        let late = last.after(Duration::from_millis(200));
        assert_eq!(sent.find(&start(1), ROUTE, late), None);
    }

    #[test]
    fn every_part_of_it_counts() {
        let sent = &SentDatagrams::group(1, 7)[0];
        sent.note(&start(1), ROUTE, Now(0));
        for place in 0..INNER_START {
            let mut other = start(1);
            other[place] ^= 1;
            assert_eq!(sent.find(&other, ROUTE, Now(0)), None);
        }
        let others = [
            Route { socket: 0, ..ROUTE },
            Route {
                to: "192.0.2.3".parse().unwrap(),
                ..ROUTE
            },
            Route {
                port: Port::new(Format::Udp, Family::V4),
                ..ROUTE
            },
        ];
        for other in others {
            assert_eq!(sent.find(&start(1), other, Now(0)), None, "{other:?}");
        }
        let short = &start(1)[..INNER_START - 1];
        assert_eq!(sent.find(short, ROUTE, Now(0)), None);
    }

    #[test]
    fn another_key_makes_other_fingerprints() {
        let [one, other] = [7, 8].map(|key| SentDatagrams::group(1, key).remove(0));
        for node in [&one, &other] {
            node.note(&start(1), ROUTE, Now(0));
        }
        let found = [&one, &other].map(|node| node.find(&start(1), ROUTE, Now(0)));
        assert_ne!(found[0], found[1]);
    }

    /// The kernel gives a report about a datagram of the `udp` format to any worker's socket.
    #[test]
    fn any_worker_knows_what_the_others_sent_by_udp() {
        let group = SentDatagrams::group(2, 7);
        let udp = Route {
            port: Port::new(Format::Udp, Family::V4),
            socket: 0,
            ..ROUTE
        };
        group[0].note(&start(1), udp, Now(0));
        group[0].note(&start(1), ROUTE, Now(0));
        assert!(group[1].find(&start(1), udp, Now(0)).is_some());
        // Transmit sockets are a worker's own.
        assert_eq!(group[1].find(&start(1), ROUTE, Now(0)), None);
    }
}
