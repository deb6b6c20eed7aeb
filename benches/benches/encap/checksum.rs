//! Checksums, by the portable twin and by the widest instructions that this processor has.

use std::hint::black_box;

use benches::packets::{IN, Shape};
use benches::repeat;
use criterion::{BenchmarkId, Criterion, Throughput};
use dataplane::counters::Counters;
use encap::checksum;
use encap::inner::Inner;
use encap::protocol::{TCP, UDP};
use encap::transport::checksum_state;

pub(super) fn sum(c: &mut Criterion) {
    use_wide_instructions();
    let mut group = c.benchmark_group("checksum");
    for length in [20usize, 64, 256, 576, 1_410, 4_096, 9_000, 65_535] {
        let bytes = vec![0x5a; length];
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_with_input(BenchmarkId::new("wide", length), &bytes, |b, bytes| {
            b.iter(|| checksum::sum(black_box(bytes)))
        });
        group.bench_with_input(BenchmarkId::new("portable", length), &bytes, |b, bytes| {
            b.iter(|| checksum::portable(black_box(bytes)))
        });
    }
}

pub(super) fn transport(c: &mut Criterion) {
    use_wide_instructions();
    let packet = Shape::new("", TCP, 1, 1_398).stream(IN, 0).remove(0);
    let inner = Inner::parse(&packet).unwrap();
    c.bench_function("checksum/transport/1450", |b| {
        b.iter(|| checksum_state(black_box(&packet), &inner))
    });
}

/// A new worker selects the widest instructions. Sums of fewer than a few hundred bytes use the portable code all the same.
fn use_wide_instructions() {
    let counters = Counters::create(1).unwrap();
    drop(repeat::sender(Shape::new("", UDP, 1, 64), &counters, 0));
}
