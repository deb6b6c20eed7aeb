//! Whole steps of one worker, from the device to the underlay and back.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use benches::cluster::spec;
use benches::packets::Shape;
use benches::repeat::{Worker, carry, receiver, sender};
use criterion::{BenchmarkId, Criterion, Throughput};
use dataplane::capture::{CaptureFilter, Captures, Stages};
use dataplane::counters::{Counters, Flow};
use dataplane::now::Now;
use dataplane::snapshot::Snapshot;
use encap::Format;

use super::SHAPES;

pub(super) fn outbound(c: &mut Criterion) {
    let mut group = c.benchmark_group("outbound");
    for format in [Format::Vxlan, Format::Udp] {
        let snapshot = Snapshot::new(&spec(10, format), None);
        for shape in SHAPES {
            let counters = Counters::create(1).unwrap();
            let mut worker = sender(shape, &counters, 0);
            prove(&mut worker, &snapshot, shape, || {
                let flow = counters.read().workers[0].outbound;
                (flow, flow.sent)
            });
            group.throughput(Throughput::Elements((TIMES * shape.count) as u64));
            group.bench_function(BenchmarkId::new(format.to_string(), shape.name), |b| {
                b.iter(|| carry(&mut worker, &snapshot, TIMES))
            });
        }
    }
}

pub(super) fn inbound(c: &mut Criterion) {
    let mut group = c.benchmark_group("inbound");
    for format in [Format::Vxlan, Format::Udp] {
        let snapshot = Snapshot::new(&spec(10, format), None);
        for shape in SHAPES {
            let counters = Counters::create(1).unwrap();
            let mut worker = receiver(shape, flows(shape), format, &counters, 0);
            prove(&mut worker, &snapshot, shape, || {
                let flow = counters.read().workers[0].inbound;
                (flow, flow.delivered)
            });
            group.throughput(Throughput::Elements((TIMES * shape.count) as u64));
            group.bench_function(BenchmarkId::new(format.to_string(), shape.name), |b| {
                b.iter(|| carry(&mut worker, &snapshot, TIMES))
            });
        }
    }
}

/// The same in the format `vxlan` while flows are counted: what a watcher costs.
pub(super) fn watched(c: &mut Criterion) {
    let snapshot = Snapshot::new(&spec(10, Format::Vxlan), None);
    for shape in SHAPES {
        let counters = Counters::create(1).unwrap();
        let out = sender(shape, &counters, 0);
        let back = receiver(shape, flows(shape), Format::Vxlan, &counters, 0);
        for (way, mut worker) in [("outbound", out), ("inbound", back)] {
            worker.flows().watch(Now(u64::MAX));
            let mut group = c.benchmark_group("watched");
            group.throughput(Throughput::Elements((TIMES * shape.count) as u64));
            group.bench_function(BenchmarkId::new(way, shape.name), |b| {
                b.iter(|| carry(&mut worker, &snapshot, TIMES))
            });
            let counted = worker.flows().read(Now(0));
            assert!(!counted.is_empty());
            group.finish();
        }
    }
}

/// The same in the format `vxlan` while everything is captured and another thread reads it.
pub(super) fn captured(c: &mut Criterion) {
    let snapshot = Snapshot::new(&spec(10, Format::Vxlan), None);
    for shape in SHAPES {
        let counters = Counters::create(1).unwrap();
        let out = sender(shape, &counters, 0);
        let back = receiver(shape, flows(shape), Format::Vxlan, &counters, 0);
        for (way, mut worker) in [("outbound", out), ("inbound", back)] {
            let captures = Captures::of_points([worker.capture_point()]);
            let filter = CaptureFilter {
                snap_length: 256,
                ..CaptureFilter::all(Stages::ALL)
            };
            let mut capture = captures.start(filter).unwrap();
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut stream = Vec::new();
                    while !done.load(Relaxed) {
                        stream.clear();
                        capture.drain(&mut stream, 256 << 10);
                        thread::sleep(Duration::from_millis(1));
                    }
                });
                let mut group = c.benchmark_group("captured");
                group.throughput(Throughput::Elements((TIMES * shape.count) as u64));
                group.bench_function(BenchmarkId::new(way, shape.name), |b| {
                    b.iter(|| carry(&mut worker, &snapshot, TIMES))
                });
                group.finish();
                done.store(true, Relaxed);
            });
            assert!(capture.counts().all().offered > 0);
        }
    }
}

/// Datagrams that come one by one belong to as many flows: nothing is gathered.
pub(super) fn flows(shape: Shape) -> u16 {
    if shape.count > 1 { 1 } else { 64 }
}

/// A first round, which fills the buffers: what is measured afterwards carries packets, and drops none.
pub(super) fn prove(
    worker: &mut Worker,
    snapshot: &Snapshot,
    shape: Shape,
    arrived: impl Fn() -> (Flow, u64),
) {
    carry(worker, snapshot, TIMES);
    let (flow, arrived) = arrived();
    let packets = (TIMES * shape.count) as u64;
    assert_eq!((arrived, flow.dropped(), flow.held), (packets, 0, 0));
}

/// Packets, or super-packets, of one round: several batches.
pub(super) const TIMES: usize = 128;
