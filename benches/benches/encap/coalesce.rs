//! One batch of wire packets in, super-packets out; checksums are checked before.

use std::hint::black_box;

use benches::packets::{IN, Shape};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use encap::coalesce::{Coalescer, FrameSlice};
use encap::inner::Inner;
use encap::protocol::{TCP, UDP};
use encap::transport;

use super::SHAPES;

pub(super) fn coalesce(c: &mut Criterion) {
    let mut group = c.benchmark_group("coalesce");
    for shape in SHAPES {
        batch(&mut group, shape.name, &shape.stream(IN, 0));
    }
    batch(&mut group, "tcp 8 flows in turn", &{
        let streams: Vec<_> = (0..8)
            .map(|flow| Shape::new("", TCP, 20, 1_398).stream(IN, flow))
            .collect();
        let at = |i| streams.iter().filter_map(move |stream| stream.get(i));
        (0..20).flat_map(at).cloned().collect::<Vec<_>>()
    });
    batch(&mut group, "udp 100 flows, one each", &{
        let one = |flow| Shape::new("", UDP, 1, 64).stream(IN, flow);
        (0..100).flat_map(one).collect::<Vec<_>>()
    });
}

fn batch(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, packets: &[Vec<u8>]) {
    let checked: Vec<_> = packets
        .iter()
        .filter_map(|packet| {
            let inner = Inner::parse(packet).ok()?;
            Some((packet, inner, transport::checksum_state(packet, &inner)))
        })
        .collect();
    let mut coalescer = Coalescer::new(1_024, 256);
    group.throughput(Throughput::Elements(checked.len() as u64));
    group.bench_function(name, |b| {
        b.iter(|| {
            for (packet, inner, verdict) in &checked {
                let place = FrameSlice {
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
