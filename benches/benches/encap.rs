//! What one packet costs in `encap`: nanoseconds and bytes per second, one core, no system call.
#![allow(missing_docs, reason = "criterion's macros make the functions")]

use std::hint::black_box;

use benches::packet;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use encap::inner::Inner;
use encap::pull::{self, Vtep};
use encap::{Family, Mac, Vni, checksum, push};

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
    for length in [64usize, 576, 1450, 9000, 65_535] {
        let bytes = vec![0x5a; length];
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_with_input(BenchmarkId::from_parameter(length), &bytes, |b, bytes| {
            b.iter(|| checksum::sum(black_box(bytes)))
        });
    }
}

criterion_group!(benches, headers, checksums);
criterion_main!(benches);
