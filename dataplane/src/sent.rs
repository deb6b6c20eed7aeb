//! The large datagrams that were sent lately: what a report of a path MTU must quote to count.
//!
//! Theory of operation: addresses, ports, VNI and MACs of a datagram are public, so that a report quotes them proves
//! nothing. It must quote the inner packet too, as it was sent a moment ago through the socket that the report came to.
//! Each worker remembers a fingerprint of the first [`REMEMBERED_OF_MESSAGE`] datagrams of each message that it sends,
//! if they are so large that a report about them can be believed. A fingerprint is a keyed hash of the inner packet's
//! first [`INNER_START`] bytes, of the destination and of the socket. It overwrites an older one in a table of fixed
//! size, and counts for [`REMEMBERED_FOR`]. To send costs a few nanoseconds for each such datagram and takes no memory.
//!
//! A pod that floods overwrites such a table within a round trip, and then the others' reports would not count. So there
//! are two places for each fingerprint: one among all, and one among the [`REMEMBERED_OF_SOURCE`] of those whose inner
//! source has the same hash. Few sources share those with a flood.
//!
//! A router drops and reports of a burst the first datagrams too, so these few are enough. Only a worker itself writes
//! its table. All read all of them: the sockets of the `udp` format have one address and port, and the kernel gives a
//! report to any of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use encap::Format;

use crate::limits::{INNER_START, REMEMBERED_DATAGRAMS, REMEMBERED_FOR, REMEMBERED_OF_SOURCE};
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

/// Of each datagram the high half of its fingerprint, and in the low half the time, units of [`TIME_UNIT`].
struct Table {
    /// By the low bits of the fingerprint.
    of_all: Box<[AtomicU64]>,
    /// As many, in sets of [`REMEMBERED_OF_SOURCE`]: by the hash of the inner source, then by the fingerprint.
    of_sources: Box<[AtomicU64]>,
}

/// What is remembered of a datagram.
#[derive(Clone, Copy)]
struct Print {
    fingerprint: u64,
    /// Hash of the inner source.
    source: u64,
}

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
        let print = self.print(start, route);
        let places = self.own().into_iter().flat_map(|table| table.places(print));
        for place in places {
            place.store(entry(print.fingerprint, now), Relaxed);
        }
    }

    /// The fingerprint of a datagram whose inner packet begins like `quote`, if one was sent lately on that route.
    pub(crate) fn find(&self, quote: &[u8], route: Route, now: Now) -> Option<u64> {
        let print = self.print(quote.first_chunk()?, route);
        let of_all = route.port.format == Format::Udp;
        let others = self.tables.iter().filter(|_| of_all);
        let mut tables = self.own().into_iter().chain(others);
        tables
            .any(|table| table.holds(print, now))
            .then_some(print.fingerprint)
    }

    fn own(&self) -> Option<&Table> {
        self.tables.get(self.index)
    }

    fn print(&self, start: &InnerStart, route: Route) -> Print {
        Print {
            fingerprint: self.fingerprint(start, route),
            source: mix(self.key ^ source_bits(start), THIRD),
        }
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
        let empty = || {
            (0..REMEMBERED_DATAGRAMS)
                .map(|_| AtomicU64::new(0))
                .collect()
        };
        Table {
            of_all: empty(),
            of_sources: empty(),
        }
    }

    fn places(&self, print: Print) -> impl Iterator<Item = &AtomicU64> {
        let Print {
            fingerprint,
            source,
        } = print;
        let first = source as usize % SETS * REMEMBERED_OF_SOURCE;
        let of_source = first + fingerprint as usize % REMEMBERED_OF_SOURCE;
        let of_all = self.of_all.get(fingerprint as usize % REMEMBERED_DATAGRAMS);
        of_all.into_iter().chain(self.of_sources.get(of_source))
    }

    fn holds(&self, print: Print, now: Now) -> bool {
        self.places(print).any(|place| {
            let held = place.load(Relaxed);
            // The clock of another worker may be a little ahead.
            let age = time(now).wrapping_sub(held as u32).cast_signed().max(0);
            let is_it = held >> 32 == print.fingerprint >> 32;
            held != 0 && is_it && age.cast_unsigned() <= REMEMBERED_UNITS
        })
    }
}

/// The inner source, or half of an IPv6 one: the host.
fn source_bits(start: &InnerStart) -> u64 {
    let bits = |bytes: Option<&[u8]>| {
        let bytes = bytes.into_iter().flatten();
        bytes.fold(0, |bits, byte| bits << 8 | u64::from(*byte))
    };
    match start.first().map(|byte| byte >> 4) {
        Some(4) => bits(start.get(12..16)),
        _ => bits(start.get(16..24)),
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
const SETS: usize = REMEMBERED_DATAGRAMS / REMEMBERED_OF_SOURCE;
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

    /// The clock of the worker that sent it may be ahead of the clock of the one that reads the report.
    #[test]
    fn what_another_worker_sent_a_moment_later_is_found() {
        let sent = &SentDatagrams::group(1, 7)[0];
        let unit = Duration::from_nanos(1 << TIME_UNIT);
        let earlier = Now(0).after(unit * 9);
        sent.note(&start(1), ROUTE, earlier.after(unit));
        assert!(sent.find(&start(1), ROUTE, earlier).is_some());
    }

    /// The inner source is `.host`, and `number` tells packets of it apart.
    fn packet(host: u8, number: u32) -> InnerStart {
        let mut start = start(0);
        start[0] = 0x45;
        start[12..16].copy_from_slice(&[10, 244, 1, host]);
        start[20..24].copy_from_slice(&number.to_ne_bytes());
        start
    }

    #[test]
    fn a_flood_of_one_source_leaves_what_the_others_sent() {
        let sent = &SentDatagrams::group(1, 7)[0];
        for host in 2..=251 {
            sent.note(&packet(host, 0), ROUTE, Now(0));
        }
        for number in 0..20 * REMEMBERED_DATAGRAMS as u32 {
            sent.note(&packet(1, number), ROUTE, Now(0));
        }
        let found = (2..=251).filter(|host| sent.find(&packet(*host, 0), ROUTE, Now(0)).is_some());
        // Two of 250 share a set with the flood, on average, and some of those that are left a place with each other.
        let found = found.count();
        assert!(found >= 240, "{found} of 250");
        let last = 20 * REMEMBERED_DATAGRAMS as u32 - 1;
        assert!(sent.find(&packet(1, last), ROUTE, Now(0)).is_some());
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
