//! The network between the underlays: loses, delays, reorders, doubles and damages datagrams, by seed.

use std::collections::BTreeMap;
use std::time::Duration;

use dataplane::now::Now;
use dataplane::underlay::memory::Datagram;
use encap::Ecn;

/// How bad the network is. Probabilities are per datagram.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Probability that it never arrives.
    pub loss: f64,
    /// How long it travels.
    pub delay: Duration,
    /// How much longer at most, each datagram for itself: above zero, they overtake each other.
    pub jitter: Duration,
    /// Probability that it arrives twice.
    pub duplication: f64,
    /// Probability that one bit of it is wrong.
    pub corruption: f64,
    /// Probability that its end is missing.
    pub truncation: f64,
    /// Probability that a router marks congestion, whether the sender understands it or not.
    pub congestion: f64,
    /// Neighbours of one size arrive as one buffer with a mark, as `UDP_GRO` hands them over.
    pub gro: bool,
}

impl Faults {
    /// A network without fault.
    pub const NONE: Faults = Faults {
        loss: 0.0,
        delay: Duration::from_micros(500),
        jitter: Duration::ZERO,
        duplication: 0.0,
        corruption: 0.0,
        truncation: 0.0,
        congestion: 0.0,
        gro: false,
    };
}

/// Datagrams in flight.
pub struct Network {
    faults: Faults,
    random: fastrand::Rng,
    /// By arrival, then by departure.
    flying: BTreeMap<(Now, u64), Flight>,
    departures: u64,
    /// Datagrams that arrived in a buffer with others.
    pub merged: u64,
}

struct Flight {
    datagram: Datagram,
    /// As it was sent: only such ones pass the kernel's checksum and are merged.
    intact: bool,
}

impl Network {
    /// An empty network.
    pub fn new(faults: Faults, seed: u64) -> Network {
        Network {
            faults,
            random: fastrand::Rng::with_seed(seed),
            flying: BTreeMap::new(),
            departures: 0,
            merged: 0,
        }
    }

    /// From now on it is as bad as `faults`.
    pub fn become_like(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// A datagram departs.
    pub fn depart(&mut self, datagram: Datagram, now: Now) {
        if self.happens(self.faults.loss) {
            return;
        }
        if self.happens(self.faults.duplication) {
            self.fly(datagram.clone(), now);
        }
        self.fly(datagram, now);
    }

    /// The moment of the next arrival.
    pub fn next(&self) -> Option<Now> {
        self.flying.first_key_value().map(|((at, _), _)| *at)
    }

    /// What has arrived by `now`, each buffer with the number of datagrams in it.
    pub fn arrive(&mut self, now: Now) -> Vec<(Datagram, u64)> {
        let mut buffers: Vec<(Datagram, u64, bool)> = Vec::new();
        while let Some(first) = self.flying.first_entry()
            && first.key().0 <= now
        {
            let Flight { datagram, intact } = first.remove();
            match buffers.last_mut() {
                Some((merged, count, open))
                    if self.faults.gro && intact && *open && joins(merged, &datagram) =>
                {
                    let size = size(merged);
                    // A shorter one ends the GRO buffer.
                    *open = datagram.payload.len() == size;
                    merged.segment = Some(size as u16);
                    merged.payload.extend(datagram.payload);
                    *count += 1;
                    self.merged += 1;
                }
                _ => buffers.push((datagram, 1, intact)),
            }
        }
        buffers
            .into_iter()
            .map(|(datagram, count, _)| (datagram, count))
            .collect()
    }

    fn fly(&mut self, mut datagram: Datagram, now: Now) {
        let mut intact = true;
        if self.happens(self.faults.corruption) && !datagram.payload.is_empty() {
            let place = self.random.usize(..datagram.payload.len());
            datagram.payload[place] ^= 1 << self.random.u8(..8);
            intact = false;
        }
        if self.happens(self.faults.truncation) {
            datagram
                .payload
                .truncate(self.random.usize(..=datagram.payload.len()));
            intact = false;
        }
        if self.happens(self.faults.congestion) {
            datagram.ecn = Ecn::Ce;
        }
        let jitter = self.random.u64(..=self.faults.jitter.as_nanos() as u64);
        let at = now.after(self.faults.delay + Duration::from_nanos(jitter));
        // Arrivals within a tick are handed over together, as an interrupt does.
        let at = Now(at.0.next_multiple_of(TICK));
        self.flying
            .insert((at, self.departures), Flight { datagram, intact });
        self.departures += 1;
    }

    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.f64() < probability
    }
}

/// Whether `next` may be merged into the GRO buffer: one sender, one port, one mark, and not larger than the first.
fn joins(merged: &Datagram, next: &Datagram) -> bool {
    let alike = (merged.from, merged.to, merged.ecn) == (next.from, next.to, next.ecn);
    let fits = merged.payload.len() + next.payload.len() <= LONGEST_GRO_BUFFER;
    alike && fits && (1..=size(merged)).contains(&next.payload.len())
}

/// Bytes of each datagram of a GRO buffer but the last.
fn size(merged: &Datagram) -> usize {
    merged.segment.map_or(merged.payload.len(), usize::from)
}

/// Nanoseconds between two looks at what has arrived.
const TICK: u64 = 20_000;
/// Bytes of a merged buffer at most.
const LONGEST_GRO_BUFFER: usize = 60_000;
