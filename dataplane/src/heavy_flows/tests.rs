//! The sketch against exact counts.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::limits::HEAVY_FLOWS_HALF_LIFE;

const START: Now = Now(7_000_000_000);

/// Flow number `number`; one in eight is IPv6.
fn flow(number: u64) -> FlowKey {
    let low = number as u32;
    let (source, destination) = if number % 8 == 7 {
        let address = |net: u128| Ipv6Addr::from_bits(net << 64 | u128::from(number)).into();
        (address(0xfd01), address(0xfd02))
    } else {
        let address = |net: u32| Ipv4Addr::from_bits(net | low >> 12 & 0xffff).into();
        (address(0x0af4_0000), address(0x0af5_0000))
    };
    FlowKey {
        is_outbound: number.is_multiple_of(2),
        source,
        destination,
        protocol: 6,
        ports: (low as u16 & 0xfff, (number >> 28) as u16),
    }
}

/// A recorder that is watched, and the exact counts beside it.
struct Rig {
    recorder: FlowRecorder,
    exact: HashMap<u64, (u64, u64)>,
    now: Now,
    packets: u64,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let recorder = FlowRecorder::new(seed);
        recorder
            .table()
            .watch(START.after(Duration::from_secs(3_600)));
        Rig {
            recorder,
            exact: HashMap::new(),
            now: START,
            packets: 0,
        }
    }

    /// A packet of a flow; a million come in a second, in batches of 64.
    fn packet(&mut self, number: u64, bytes: u64) {
        if self.packets.is_multiple_of(64) {
            self.recorder.end();
            self.now = self.now.after(Duration::from_micros(64));
            self.recorder.begin(self.now);
        }
        self.packets += 1;
        self.recorder.add(flow(number), 1, bytes);
        let exact = self.exact.entry(number).or_default();
        exact.0 += 1;
        exact.1 += bytes;
    }

    fn read(&mut self) -> HashMap<FlowKey, FlowCount> {
        self.recorder.end();
        let counts = self.recorder.table().read(self.now);
        counts
            .into_iter()
            .map(|count| (count.flow, count))
            .collect()
    }

    /// The largest relative error of the `top` flows by packets, and of those by bytes.
    fn errors(&mut self, top: usize) -> (f64, f64) {
        let counted = self.read();
        let worst = |of: fn(&(u64, u64)) -> u64, counted_of: fn(&FlowCount) -> u64| {
            let mut all: Vec<_> = self.exact.iter().collect();
            all.sort_by_key(|(number, exact)| std::cmp::Reverse((of(exact), **number)));
            let errors = all.iter().take(top).map(|(number, exact)| {
                let count = counted.get(&flow(**number)).map_or(0, counted_of);
                (count as f64 - of(exact) as f64).abs() / of(exact) as f64
            });
            errors.fold(0.0, f64::max)
        };
        (
            worst(|exact| exact.0, |count| count.packets),
            worst(|exact| exact.1, |count| count.bytes),
        )
    }

    /// No flow is counted with more than it carried.
    fn assert_never_more(&mut self) {
        let counted = self.read();
        let numbers: HashMap<FlowKey, u64> = self.exact.keys().map(|n| (flow(*n), *n)).collect();
        for (flow, count) in counted {
            let (packets, bytes) = self.exact[&numbers[&flow]];
            assert!(
                count.packets <= packets && count.bytes <= bytes,
                "{count:?}"
            );
        }
    }
}

/// Numbers from 0 with probabilities that fall as `1 / (number + 1) ^ skew`.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(flows: usize, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let parts = (1..=flows).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        let sums: Vec<f64> = parts.collect();
        Zipf(sums.iter().map(|part| part / sum).collect())
    }

    fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        let at = random.f64();
        self.0.partition_point(|part| *part < at) as u64
    }
}

fn size(number: u64) -> u64 {
    [64, 200, 576, 1_450, 1_450, 9_000][number as usize % 6]
}

/// 100,000 flows, twelve times as many as places.
#[test]
fn of_zipf_traffic_the_top_100_are_exact_to_one_per_cent() {
    for (seed, skew) in [(1, 1.0), (2, 1.2), (3, 0.9)] {
        let (zipf, mut rig) = (Zipf::new(100_000, skew), Rig::new(seed));
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..500_000 {
            let number = zipf.draw(&mut random);
            rig.packet(number, size(number));
        }
        let (packets, bytes) = rig.errors(100);
        assert!(
            packets < 0.01 && bytes < 0.01,
            "skew {skew}: {packets} {bytes}"
        );
        rig.assert_never_more();
    }
}

/// Uniform traffic of half as many flows as places: all of them are counted.
#[test]
fn of_uniform_traffic_that_has_room_the_top_100_are_exact_to_one_per_cent() {
    let mut rig = Rig::new(5);
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..300_000 {
        let number = random.u64(0..(SETS * WAYS / 2) as u64);
        rig.packet(number, size(number));
    }
    let (packets, bytes) = rig.errors(100);
    assert!(packets < 0.01 && bytes < 0.01, "{packets} {bytes}");
}

/// Nine of ten packets belong to flows that come once, and the heavy flows begin when the table is full of them.
#[test]
fn a_flood_of_single_packets_does_not_wash_out_what_stays() {
    let mut rig = Rig::new(6);
    let mut random = fastrand::Rng::with_seed(6);
    for single in 0..1_000_000_u64 {
        rig.packet((1 << 30) + single, 64);
        if single > 100_000 && single.is_multiple_of(9) {
            rig.packet(random.u64(0..100), 1_450);
        }
    }
    let (packets, bytes) = rig.errors(100);
    assert!(packets < 0.01 && bytes < 0.01, "{packets} {bytes}");
    rig.assert_never_more();
}

/// Flows that come in turn, more than places: nothing stays long, and nothing is counted twice.
#[test]
fn what_comes_in_turn_is_never_counted_with_more_than_it_carried() {
    let mut rig = Rig::new(7);
    for turn in 0..200_000_u64 {
        rig.packet(turn % 20_000, 1_450);
    }
    rig.assert_never_more();
}

#[test]
fn yesterdays_heavy_flows_give_way_to_todays() {
    let mut rig = Rig::new(8);
    for turn in 0..400_000_u64 {
        rig.packet(turn % (SETS * WAYS) as u64, 9_000);
    }
    rig.now = rig.now.after(HEAVY_FLOWS_HALF_LIFE * 40);
    for turn in 0..200_000_u64 {
        rig.packet((1 << 20) + turn % 200, 64);
    }
    let counted = rig.read();
    let new = (0..200).filter_map(|number| counted.get(&flow((1 << 20) + number)));
    let exact = new.filter(|count| count.packets == 1_000);
    assert_eq!(exact.count(), 200);
    let heaviest = heaviest(counted.into_values(), 200);
    assert!(heaviest.iter().all(|count| count.bytes == 1_000 * 64));
}

#[test]
fn nothing_is_counted_while_nothing_watches_and_it_goes_off_by_itself() {
    let mut recorder = FlowRecorder::new(9);
    let table = recorder.table();
    let second = |recorder: &mut FlowRecorder, at: u64| {
        recorder.begin(START.after(Duration::from_secs(at)));
        if recorder.is_on() {
            recorder.add(flow(at), 1, 100);
        }
        recorder.end();
    };
    second(&mut recorder, 0);
    assert!(table.entries.get().is_none(), "no memory without a watcher");
    table.watch(START.after(Duration::from_secs(10)));
    (1..20).for_each(|at| second(&mut recorder, at));
    assert_eq!(table.read(START).len(), 9);
    // A later watcher finds nothing of the count before.
    table.watch(START.after(Duration::from_secs(100)));
    second(&mut recorder, 50);
    let counts = table.read(START.after(Duration::from_secs(50)));
    assert_eq!(counts.len(), 1);
    assert_eq!((counts[0].flow, counts[0].packets), (flow(50), 1));
}

#[test]
fn workers_counts_of_one_flow_add_up() {
    let count = |number, packets, first| FlowCount {
        flow: flow(number),
        packets,
        bytes: packets * 100,
        first: Now(first),
        last: Now(first + 10),
        weight: packets,
    };
    let counts = [count(1, 5, 20), count(2, 7, 30), count(1, 4, 10)];
    let merged = heaviest(counts, 10);
    let expected = FlowCount {
        last: Now(30),
        ..count(1, 9, 10)
    };
    assert_eq!(merged, [expected, count(2, 7, 30)]);
    assert_eq!(heaviest(counts, 1), [expected]);
}

/// A reader beside the writer never sees the counts of one flow under another's name.
#[test]
fn a_reader_beside_the_writer_sees_whole_flows() {
    let mut recorder = FlowRecorder::new(10);
    let table = recorder.table();
    table.watch(Now(u64::MAX));
    let done = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&done);
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        while !stop.load(Relaxed) || seen == 0 {
            for count in table.read(START) {
                // Each flow sends packets of a size of its own.
                let number = u64::from(count.flow.ports.0);
                assert!(count.flow == flow(number), "{count:?}");
                assert!(count.bytes.is_multiple_of(100 + number), "{count:?}");
                seen += 1;
            }
        }
    });
    let mut random = fastrand::Rng::with_seed(10);
    for step in 0..50_000_u64 {
        recorder.begin(START.after(Duration::from_micros(step)));
        let number = random.u64(0..4_096);
        (0..8).for_each(|_| recorder.add(flow(number), 1, 100 + number));
        recorder.end();
    }
    done.store(true, Relaxed);
    reader.join().unwrap();
}

proptest! {
    /// With fewer flows than a set has ways, everything is exact, however the packets come.
    #[test]
    fn few_flows_are_exact(
        seed: u64,
        packets in proptest::collection::vec((0..WAYS as u64, 20..10_000_u64), 1..400),
    ) {
        let mut rig = Rig::new(seed);
        for (number, bytes) in packets {
            rig.packet(number, bytes);
        }
        prop_assert_eq!(rig.errors(WAYS), (0.0, 0.0));
    }

    #[test]
    fn a_key_is_the_same_in_the_table(number: u64, key: [u64; 2]) {
        let flow = flow(number);
        prop_assert_eq!(FlowKey::of_words(flow.words()), flow);
        let other = FlowKey { is_outbound: !flow.is_outbound, ..flow };
        prop_assert_ne!(flow.hash(key), other.hash(key));
    }
}
