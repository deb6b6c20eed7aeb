//! No packet costs an allocation: once a worker is warm, neither direction takes memory or gives any back, alone or
//! among several that hand flows to each other.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use allocation_counter::measure;
use benches::cluster;
use benches::packets::Shape;
use benches::repeat::{Worker, carry, receiver, sender};
use dataplane::capture::{CaptureFilter, Captures, Stages};
use dataplane::counters::Counters;
use dataplane::now::Now;
use dataplane::publication::Publication;
use dataplane::snapshot::Snapshot;
use dataplane::steer::Steering;
use dataplane::underlay::Port;
use dataplane::worker::Source;
use encap::protocol::{TCP, UDP};
use encap::{Family, Format};

const SHAPES: [Shape; 3] = [
    Shape::new("tcp", TCP, 40, 1_398),
    Shape::new("udp", UDP, 40, 1_200),
    Shape::new("small", UDP, 1, 64),
];

/// What `work` allocates in a thread of its own, once it has been done before.
fn allocations(mut work: impl FnMut()) -> u64 {
    (0..WARM_UP).for_each(|_| work());
    let info = measure(|| (0..ROUNDS).for_each(|_| work()));
    info.count_total
}

/// The measure sees what there is to see.
#[test]
fn an_allocation_is_counted() {
    let mut kept = Vec::new();
    assert!(allocations(|| kept.push(Box::new(1))) >= ROUNDS as u64);
}

#[test]
fn outbound_allocates_nothing() {
    for shape in SHAPES {
        for format in [Format::Udp, Format::Vxlan] {
            let counters = Counters::create(1).unwrap();
            let snapshot = Snapshot::new(&cluster::spec(10, format), None);
            let mut worker = sender(shape, &counters, 0);
            let count = allocations(|| carry(&mut worker, &snapshot, 100));
            assert_eq!(count, 0, "{} {format}", shape.name);
            let sent = counters.read().workers[0].outbound.sent;
            assert_eq!(sent, (WARM_UP + ROUNDS) as u64 * 100 * shape.count as u64);
        }
    }
}

#[test]
fn inbound_allocates_nothing() {
    for shape in SHAPES {
        for format in [Format::Udp, Format::Vxlan] {
            let counters = Counters::create(1).unwrap();
            let snapshot = Snapshot::new(&cluster::spec(10, format), None);
            let mut worker = receiver(shape, 8, format, &counters, 0);
            let count = allocations(|| carry(&mut worker, &snapshot, 100));
            assert_eq!(count, 0, "{} {format}", shape.name);
            let delivered = counters.read().workers[0].inbound.delivered;
            assert_eq!(
                delivered,
                (WARM_UP + ROUNDS) as u64 * 100 * shape.count as u64
            );
        }
    }
}

/// A drop counts at its peer and its pod without taking memory.
#[test]
fn drops_allocate_nothing() {
    let no_peer = cluster::spec(0, Format::Vxlan);
    let mut no_subnets = cluster::spec(10, Format::Vxlan);
    for peer in &mut Arc::make_mut(&mut no_subnets.cluster).peers {
        Arc::make_mut(peer).subnets.clear();
    }
    let pod = IpAddr::from([10, 0, 1, 2]);
    for shape in SHAPES {
        for (spec, peers) in [(&no_peer, 0), (&no_subnets, 1)] {
            let snapshot = Snapshot::new(spec, None);
            let counters = Counters::create(2).unwrap();
            let mut out = sender(shape, &counters, 0);
            let mut back = receiver(shape, 8, Format::Vxlan, &counters, 1);
            let count = allocations(|| {
                carry(&mut out, &snapshot, 100);
                carry(&mut back, &snapshot, 100);
            });
            assert_eq!(count, 0, "{}", shape.name);
            let dropped = snapshot.pods.drops(pod).unwrap().read();
            let [sent, received] =
                [dropped.outbound, dropped.inbound].map(|of| of.iter().sum::<u64>());
            let workers = counters.read().workers;
            assert_eq!(sent, workers[0].outbound.dropped(), "{}", shape.name);
            assert_eq!(received, workers[1].inbound.dropped(), "{}", shape.name);
            assert!(sent > 0 && received > 0, "{}", shape.name);
            let of_peers = snapshot
                .cluster
                .peers
                .iter()
                .map(|peer| peer.drops().read().sum());
            assert_eq!(of_peers.sum::<u64>(), peers * received, "{}", shape.name);
        }
    }
}

/// Flows are counted in places that the watcher has made.
#[test]
fn counting_flows_allocates_nothing() {
    for shape in SHAPES {
        let counters = Counters::create(1).unwrap();
        let snapshot = Snapshot::new(&cluster::spec(10, Format::Vxlan), None);
        for mut worker in [
            sender(shape, &counters, 0),
            receiver(shape, 64, Format::Vxlan, &counters, 0),
        ] {
            worker.flows().watch(Now(u64::MAX));
            let count = allocations(|| carry(&mut worker, &snapshot, 100));
            assert_eq!(count, 0, "{}", shape.name);
            assert!(!worker.flows().read(Now(0)).is_empty());
        }
    }
}

/// A capture of everything costs the worker no allocation, whether its ring has room or not.
#[test]
fn capturing_allocates_nothing() {
    for shape in SHAPES {
        let counters = Counters::create(1).unwrap();
        let snapshot = Snapshot::new(&cluster::spec(10, Format::Vxlan), None);
        for mut worker in [
            sender(shape, &counters, 0),
            receiver(shape, 64, Format::Vxlan, &counters, 0),
        ] {
            let captures = Captures::of_points([worker.capture_point()]);
            let filter = CaptureFilter {
                snap_length: 256,
                ..CaptureFilter::all(Stages::ALL)
            };
            let mut capture = captures.start(filter).unwrap();
            let mut stream = Vec::with_capacity(64 << 20);
            let count = allocations(|| {
                carry(&mut worker, &snapshot, 100);
                stream.clear();
                capture.drain(&mut stream, 32 << 20);
            });
            assert_eq!(count, 0, "{}", shape.name);
            assert_eq!(capture.counts().all().lost, 0);
            // Until the ring is full; of super-packets it takes a sample, which does not fill it.
            for _ in 0..if shape.count > 1 { 2 } else { 20 } {
                let count = allocations(|| carry(&mut worker, &snapshot, 500));
                assert_eq!(count, 0, "{}", shape.name);
                if capture.counts().all().lost > 0 {
                    break;
                }
            }
            assert!(capture.counts().all().lost > 0 || shape.count > 1);
        }
    }
}

/// One worker receives for four. Every one of them is looked at.
#[test]
fn steering_allocates_nothing() {
    for shape in SHAPES {
        let counters = Counters::create(WORKERS).unwrap();
        let snapshot = Snapshot::new(&cluster::spec(10, Format::Udp), None);
        let mut workers: Vec<Worker> = Steering::group(WORKERS)
            .into_iter()
            .enumerate()
            .map(|(index, steering)| {
                receiver(shape, 64, Format::Udp, &counters, index).with_steering(steering)
            })
            .collect();
        let count = allocations(|| {
            for _ in 0..10 {
                carry(&mut workers[0], &snapshot, 10);
                for worker in &mut workers[1..] {
                    worker.step(&snapshot, Now(0));
                }
            }
        });
        assert_eq!(count, 0, "{}", shape.name);
        let totals = counters.read();
        let delivered: Vec<u64> = totals.workers.iter().map(|w| w.inbound.delivered).collect();
        let all = (WARM_UP + ROUNDS) as u64 * 100 * shape.count as u64;
        assert_eq!(delivered.iter().sum::<u64>(), all);
        assert!(delivered.iter().all(|worker| *worker > 0), "{delivered:?}");
        assert_eq!(totals.in_rings, 0);
    }
}

/// The same on threads: one lends batches, the other returns them. Of small packets, which the underlay of the bench
/// lays into any buffer without a note.
#[test]
fn steering_between_threads_allocates_nothing() {
    let counters = Counters::create(2).unwrap();
    let snapshot = Snapshot::new(&cluster::spec(10, Format::Udp), None);
    let worker = |(index, steering)| {
        receiver(SHAPES[2], 64, Format::Udp, &counters, index).with_steering(steering)
    };
    let mut workers = Steering::group(2).into_iter().enumerate().map(worker);
    let (mut first, mut second) = (workers.next().unwrap(), workers.next().unwrap());
    let (snapshot, port) = (&snapshot, Port::new(Format::Udp, Family::V4));
    let (warm, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut receive = || {
                first.underlay_mut().waiting = 100;
                first.wake(Source::Port(port));
                while first.underlay_mut().waiting > 0 {
                    first.step(snapshot, Now(0));
                }
            };
            (0..WARM_UP).for_each(|_| receive());
            warm.store(true, Relaxed);
            let info = measure(|| (0..LONG).for_each(|_| receive()));
            done.store(true, Relaxed);
            assert_eq!(info.count_total, 0);
        });
        scope.spawn(|| {
            let mut step_until = |moment: &AtomicBool| {
                while !moment.load(Relaxed) {
                    second.step(snapshot, Now(0));
                }
            };
            step_until(&warm);
            let info = measure(|| step_until(&done));
            assert_eq!(info.count_total, 0);
            while second.drain(snapshot, Now(0)) {}
        });
    });
    let totals = counters.read();
    let inbound = totals.workers.iter().map(|worker| worker.inbound);
    let ended: u64 = inbound.map(|flow| flow.delivered + flow.dropped()).sum();
    assert_eq!((ended, totals.in_rings), ((WARM_UP + LONG) as u64 * 100, 0));
    assert!(totals.workers[1].inbound.delivered > 0);
}

/// Tables that change under a worker that forwards cost it nothing: control makes them, and frees what they replace once
/// the worker has noted that it has the next.
#[test]
fn adopting_tables_allocates_and_frees_nothing() {
    let (mine, all) = adopted_under_way(true);
    assert_eq!((mine.count_total, mine.count_current), (0, 0));
    assert_eq!(all, PUBLISHED);
    // The measure sees what there is to see: without control's share, the worker's is the last.
    let (mine, _) = adopted_under_way(false);
    assert!(mine.count_current < 0, "{mine:?}");
}

/// What a worker allocates and frees while tables are published, and how many snapshots were freed by control, which
/// keeps a share of them if it is `kept` until the worker has adopted the next.
fn adopted_under_way(kept: bool) -> (allocation_counter::AllocationInfo, u64) {
    let counters = Counters::create(1).unwrap();
    let mut spec = cluster::dual_stack(10);
    let publication = Publication::new(&spec);
    let mut worker = receiver(SHAPES[2], 8, Format::Vxlan, &counters, 0);
    let (warm, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let forwarding = scope.spawn(|| {
            let mut adopted = publication.adopt();
            (0..WARM_UP).for_each(|_| carry(&mut worker, adopted.load(), 10));
            warm.store(true, Relaxed);
            measure(|| {
                while !done.load(Relaxed) {
                    carry(&mut worker, adopted.load(), 10);
                }
            })
        });
        while !warm.load(Relaxed) {
            thread::yield_now();
        }
        let mut freed = 0;
        for round in 0..PUBLISHED {
            spec.version += 1;
            let mut changed = (*spec.cluster).clone();
            changed.node.inner_mtu.v4 = 1_400 + (round % 2) as u16;
            changed.peers.rotate_left(1);
            spec.cluster = Arc::new(changed);
            let mut local = (*spec.local).clone();
            let allowed = IpAddr::from([10, 9, 9, round as u8]);
            local.allowed_sources = vec![allowed.into()];
            spec.local = Arc::new(local);
            publication.publish(&spec);
            if !kept {
                publication.free(spec.version);
            }
            while counters.read().workers[0].snapshot < spec.version {
                thread::yield_now();
            }
            freed += publication.waiting() as u64;
            publication.free(spec.version);
            assert_eq!(publication.waiting(), 0);
        }
        done.store(true, Relaxed);
        (forwarding.join().unwrap(), freed)
    })
}

/// Tables published to a worker on its way.
const PUBLISHED: u64 = 200;
/// Rounds of the threads: enough for them to meet.
const LONG: usize = 2_000;
const WORKERS: usize = 4;
const WARM_UP: usize = 20;
const ROUNDS: usize = 20;
