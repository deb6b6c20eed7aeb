//! The same steps by several workers at once, each on a thread of its own.
//!
//! Workers share a snapshot and the page of counters, nothing else, so on as many cores the time for one round stays what
//! it is. With more workers than cores there is a time but no rate: it says what the scheduler adds, not what they carry.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use benches::cluster::spec;
use benches::packets::Shape;
use benches::repeat::{Worker, carry, receiver, sender};
use criterion::{BenchmarkId, Criterion, Throughput};
use dataplane::counters::Counters;
use dataplane::snapshot::Snapshot;
use encap::Format;

use super::SHAPES;
use super::step::{TIMES, flows, prove};

pub(super) fn outbound(c: &mut Criterion) {
    bench(c, "workers outbound", sender);
}

pub(super) fn inbound(c: &mut Criterion) {
    bench(c, "workers inbound", |shape, counters, index| {
        receiver(shape, flows(shape), FORMAT, counters, index)
    });
}

fn bench(c: &mut Criterion, name: &str, worker: impl Fn(Shape, &Counters, usize) -> Worker) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let snapshot = Snapshot::new(&spec(10, FORMAT), None);
    for shape in [SHAPES[0], SHAPES[1], SHAPES[4]] {
        for count in [1, 2, 4, 8, 16] {
            // A throughput that was set stays for the rest of a group.
            let mut group = c.benchmark_group(format!("{name}/{}", shape.name));
            if count <= cores {
                let packets = count * TIMES * shape.count;
                group.throughput(Throughput::Elements(packets as u64));
            }
            let counters = Counters::create(count).unwrap();
            let mut workers: Vec<_> = (0..count)
                .map(|index| worker(shape, &counters, index))
                .collect();
            for (index, worker) in workers.iter_mut().enumerate() {
                prove(worker, &snapshot, shape, || {
                    let totals = counters.read().workers[index];
                    let outbound = totals.outbound.received > 0;
                    let flow = if outbound {
                        totals.outbound
                    } else {
                        totals.inbound
                    };
                    (flow, flow.sent + flow.delivered)
                });
            }
            group.bench_function(BenchmarkId::from_parameter(count), |b| {
                b.iter_custom(|rounds| together(&mut workers, &snapshot, rounds))
            });
        }
    }
}

/// From when the first worker begins until the last has carried `rounds` rounds.
fn together(workers: &mut [Worker], snapshot: &Snapshot, rounds: u64) -> Duration {
    let start = Barrier::new(workers.len());
    let carry_all = |worker: &mut Worker| {
        start.wait();
        let begin = Instant::now();
        for _ in 0..rounds {
            carry(worker, snapshot, TIMES);
        }
        (begin, Instant::now())
    };
    let times: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| scope.spawn(|| carry_all(worker)))
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    });
    let begin = times.iter().map(|(begin, _)| *begin).min();
    let end = times.iter().map(|(_, end)| *end).max();
    begin
        .zip(end)
        .map_or(Duration::ZERO, |(begin, end)| end - begin)
}

const FORMAT: Format = Format::Vxlan;
