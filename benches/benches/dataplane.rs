//! What one packet costs in the engine: route lookup, and a whole worker step between memory devices.
#![allow(missing_docs, reason = "criterion's macros make the functions")]

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};

use benches::{packet, spec, worker};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dataplane::limits::OUTBOUND_PACKETS;
use dataplane::now::Now;
use dataplane::snapshot::Snapshot;
use dataplane::underlay::Port;
use dataplane::underlay::memory::Datagram;
use dataplane::worker::Source;
use encap::{Ecn, Family, Format};

fn lookup(c: &mut Criterion) {
    let mut group = c.benchmark_group("fib");
    for peers in [10, 1_000, 60_000] {
        let snapshot = Snapshot::new(&spec(peers, Format::Vxlan), None);
        group.bench_with_input(
            BenchmarkId::from_parameter(peers),
            &snapshot,
            |b, snapshot| {
                let mut node = 0;
                b.iter(|| {
                    node = (node + 7) % peers;
                    let address = IpAddr::from((0x0a00_0002 + ((node + 2) << 8)).to_be_bytes());
                    black_box(snapshot.fib.lookup(black_box(address)))
                })
            },
        );
    }
}

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    group.throughput(Throughput::Elements(OUTBOUND_PACKETS as u64));
    for format in [Format::Udp, Format::Vxlan] {
        group.bench_function(BenchmarkId::new("outbound", format), |b| {
            let (mut worker, snapshot) = worker(10, format);
            let sample = packet([10, 0, 1, 2], [10, 0, 5, 2], 92);
            b.iter(|| {
                worker
                    .device_mut()
                    .to_worker
                    .extend((0..OUTBOUND_PACKETS).map(|_| sample.clone()));
                worker.wake(Source::Device);
                worker.step(&snapshot, Now(0));
                worker.underlay_mut().sent.drain(..).count()
            })
        });
    }
    group.bench_function(BenchmarkId::new("inbound", Format::Udp), |b| {
        let (mut worker, snapshot) = worker(10, Format::Udp);
        let (from, to) = (IpAddr::from([192, 0, 0, 2]), IpAddr::from([192, 0, 0, 1]));
        let sample = Datagram {
            from: SocketAddr::new(from, 8285),
            to: SocketAddr::new(to, 8285),
            format: Format::Udp,
            ecn: Ecn::NotEct,
            segment: None,
            payload: packet([10, 0, 2, 2], [10, 0, 1, 2], 92),
        };
        b.iter(|| {
            worker
                .underlay_mut()
                .to_worker
                .extend((0..OUTBOUND_PACKETS).map(|_| sample.clone()));
            worker.wake(Source::Port(Port::new(Format::Udp, Family::V4)));
            worker.step(&snapshot, Now(0));
            worker.step(&snapshot, Now(0));
            worker.device_mut().delivered.drain(..).count()
        })
    });
}

criterion_group!(benches, lookup, step);
criterion_main!(benches);
