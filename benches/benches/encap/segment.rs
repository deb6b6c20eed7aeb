//! Every header of one super-packet.

use std::hint::black_box;

use benches::packets::IN;
use criterion::{Criterion, Throughput};
use encap::inner::Inner;
use encap::segment::{self, MAX_HEADER};

use super::SHAPES;

pub(super) fn segment(c: &mut Criterion) {
    let mut group = c.benchmark_group("segment");
    for shape in SHAPES {
        let packet = shape.super_packet(IN, 0);
        group.throughput(Throughput::Elements(shape.count as u64));
        group.bench_with_input(shape.name, &packet, |b, packet| {
            let mut header = [0; MAX_HEADER];
            b.iter(|| {
                let inner = Inner::parse(packet).ok()?;
                let plan = segment::plan(packet, &inner, shape.payload).ok()?;
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
