//! The outer headers put on and taken off, and what the inner packet is.

use std::hint::black_box;

use benches::cluster::{MAC, PEERS_MAC, vni};
use benches::packets::{IN, Shape};
use criterion::{BenchmarkId, Criterion};
use encap::inner::Inner;
use encap::protocol::TCP;
use encap::pull::{self, Vtep};
use encap::{Family, push as outer};

use super::SHAPES;

pub(super) fn push(c: &mut Criterion) {
    c.bench_function("push/vxlan", |b| {
        b.iter(|| {
            let (ours, theirs) = (black_box(MAC), black_box(PEERS_MAC));
            outer::vxlan(black_box(vni()), ours, theirs, Family::V4)
        })
    });
}

pub(super) fn pull(c: &mut Criterion) {
    let inner = packet();
    let header = outer::vxlan(vni(), PEERS_MAC, MAC, Family::V4);
    let datagram = [header.as_slice(), &inner].concat();
    let vtep = Vtep {
        mac: MAC,
        mac_v6: MAC,
        vni: vni(),
        gbp: false,
    };
    c.bench_function("pull/vxlan", |b| {
        b.iter(|| pull::vxlan(black_box(&datagram), &vtep))
    });
    c.bench_function("pull/udp", |b| {
        b.iter(|| pull::udp(black_box(&inner), false))
    });
}

pub(super) fn inner(c: &mut Criterion) {
    let mut group = c.benchmark_group("inner");
    for shape in [SHAPES[0], SHAPES[3]] {
        let packet = shape.stream(IN, 0).remove(0);
        let name = if shape.protocol == TCP { "tcp" } else { "udp" };
        group.bench_with_input(BenchmarkId::new("parse", name), &packet, |b, packet| {
            b.iter(|| Inner::parse(black_box(packet)))
        });
    }
    let packet = packet();
    let parsed = Inner::parse(&packet);
    group.bench_function("flow hash", |b| {
        b.iter(|| black_box(&parsed).as_ref().map(Inner::flow_hash))
    });
}

fn packet() -> Vec<u8> {
    Shape::new("", TCP, 1, 1_398).stream(IN, 0).remove(0)
}
