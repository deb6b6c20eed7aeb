//! What one packet costs in `encap`: nanoseconds and bytes per second, one core, no system call.
#![allow(missing_docs, reason = "criterion's macros make the functions")]

use std::hint::black_box;

use benches::{TCP, UDP, packet, stream, super_packet};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use encap::coalesce::{Coalescer, Place};
use encap::inner::Inner;
use encap::pull::{self, Vtep};
use encap::{Family, Format, Mac, Vni, checksum, push, segment};

fn headers(c: &mut Criterion) {
    let Some(vni) = Vni::new(1) else { return };
    let (ours, theirs) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let inner = packet([10, 0, 2, 2], [10, 0, 1, 2], 1450);
    let datagram = [
        push::vxlan(vni, theirs, ours, Family::V4).as_slice(),
        &inner,
    ]
    .concat();
    let vtep = Vtep {
        mac: ours,
        vni,
        gbp: false,
    };

    c.bench_function("push/vxlan", |b| {
        b.iter(|| {
            push::vxlan(
                black_box(vni),
                black_box(theirs),
                black_box(ours),
                Family::V4,
            )
        })
    });
    c.bench_function("pull/vxlan", |b| {
        b.iter(|| pull::vxlan(black_box(&datagram), &vtep))
    });
    c.bench_function("pull/udp", |b| {
        b.iter(|| pull::udp(black_box(&inner), false))
    });
    c.bench_function("inner/parse", |b| {
        b.iter(|| Inner::parse(black_box(&inner)))
    });
    c.bench_function("inner/flow_hash", |b| {
        let parsed = Inner::parse(&inner);
        b.iter(|| black_box(&parsed).as_ref().map(Inner::flow_hash))
    });
}

fn checksums(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    // A worker's first deed: from then on the widest instructions are used.
    drop(benches::worker(1, Format::Vxlan));
    for length in [20usize, 64, 576, 1_410, 9_000, 65_535] {
        let bytes = vec![0x5a; length];
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_with_input(BenchmarkId::new("sum", length), &bytes, |b, bytes| {
            b.iter(|| checksum::sum(black_box(bytes)))
        });
        group.bench_with_input(BenchmarkId::new("portable", length), &bytes, |b, bytes| {
            b.iter(|| checksum::portable(black_box(bytes)))
        });
    }
    group.finish();
    let segment = stream(TCP, 0, 1, 1_398).remove(0);
    let Ok(inner) = Inner::parse(&segment) else {
        return;
    };
    c.bench_function("checksum/transport/1450", |b| {
        b.iter(|| checksum::transport(black_box(&segment), &inner))
    });
}

/// Every header of one super-packet.
fn segments(c: &mut Criterion) {
    let mut group = c.benchmark_group("segment");
    for (name, protocol, count, payload) in SHAPES {
        let packet = super_packet(protocol, 0, count, payload);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_with_input(name, &packet, |b, packet| {
            let mut header = [0; segment::MAX_HEADER];
            b.iter(|| {
                let inner = Inner::parse(packet).ok()?;
                let plan = segment::plan(packet, &inner, payload).ok()?;
                let headers = plan.headers(packet)?;
                for i in 0..plan.count() {
                    headers.write(black_box(packet), i, &mut header)?;
                    black_box(&header);
                }
                Some(())
            })
        });
    }
}

/// One batch in and out, checksums judged before.
fn coalesced(c: &mut Criterion) {
    let mut group = c.benchmark_group("coalesce");
    for (name, protocol, count, payload) in SHAPES {
        bench_batch(&mut group, name, &stream(protocol, 0, count, payload));
    }
    let turns = |flows: u16, each| {
        let streams: Vec<_> = (0..flows)
            .map(|flow| stream(TCP, flow, each, 1_398))
            .collect();
        let at = |i| streams.iter().filter_map(move |stream| stream.get(i));
        (0..each).flat_map(at).cloned().collect::<Vec<_>>()
    };
    bench_batch(&mut group, "tcp 8 flows in turn", &turns(8, 20));
    bench_batch(&mut group, "udp 100 flows, one each", &{
        let one = |flow| stream(UDP, flow, 1, 64);
        (0..100).flat_map(one).collect::<Vec<_>>()
    });
}

fn bench_batch(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    name: &str,
    packets: &[Vec<u8>],
) {
    let judged: Vec<_> = packets
        .iter()
        .filter_map(|packet| {
            let inner = Inner::parse(packet).ok()?;
            Some((packet, inner, checksum::transport(packet, &inner)))
        })
        .collect();
    let mut coalescer = Coalescer::new(1_024, 256);
    group.throughput(Throughput::Elements(judged.len() as u64));
    group.bench_function(name, |b| {
        b.iter(|| {
            for (packet, inner, verdict) in &judged {
                let place = Place {
                    frame: 0,
                    len: inner.len as u16,
                    start: 0,
                };
                let _ = coalescer.push(black_box(packet), inner, *verdict, place, 0);
            }
            coalescer.drain(|packet| {
                black_box((packet.header, packet.pieces().count()));
            });
        })
    });
}

/// Name, protocol, packets and payload of a run of one flow.
const SHAPES: [(&str, u8, usize, u16); 4] = [
    ("tcp 44 x 1398", TCP, 44, 1_398),
    ("tcp 12 x 1398", TCP, 12, 1_398),
    ("udp 44 x 1422", UDP, 44, 1_422),
    ("udp 64 x 64", UDP, 64, 64),
];

criterion_group!(benches, headers, checksums, segments, coalesced);
criterion_main!(benches);
