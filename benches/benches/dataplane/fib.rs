//! Route lookup, from ten nodes to a hundred thousand.
//!
//! Destinations come in no order, so that a large table is paid for in full: each lookup touches another line of it.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use criterion::{BenchmarkId, Criterion, Throughput};
use dataplane::fib::Fib;
use dataplane::peers::PeerId;
use encap::Family;
use ipnet::IpNet;

pub(super) fn lookup(c: &mut Criterion) {
    let mut group = c.benchmark_group("fib");
    group.throughput(Throughput::Elements(DESTINATIONS as u64));
    for (name, family, network) in KINDS {
        for routes in [10, 1_000, 5_000, 100_000] {
            let fib = table(family, network, routes);
            let destinations: Vec<IpAddr> = scattered(routes)
                .map(|node| address(family, node, 2))
                .collect();
            group.bench_function(BenchmarkId::new(name, routes), |b| {
                b.iter(|| {
                    for destination in &destinations {
                        black_box(fib.lookup(black_box(*destination)));
                    }
                })
            });
        }
    }
}

/// What control pays for the first table.
pub(super) fn build(c: &mut Criterion) {
    let mut group = c.benchmark_group("fib build");
    group.sample_size(10);
    for routes in [1_000, 100_000] {
        group.bench_function(BenchmarkId::new("v4", routes), |b| {
            b.iter(|| table(Family::V4, KINDS[0].2, routes))
        });
    }
}

/// A route for each of nodes 0 to `routes`, in one cluster network or in none.
fn table(family: Family, network: Option<&str>, routes: u32) -> Fib {
    let subnet = |node| IpNet::new(address(family, node, 0), length(family)).ok();
    let routes: Vec<_> = (0..routes)
        .filter_map(|node| Some((subnet(node)?, PeerId(node))))
        .collect();
    let networks: Vec<IpNet> = network
        .and_then(|text| text.parse().ok())
        .into_iter()
        .collect();
    Fib::new(&networks, &routes)
}

/// Host `host` of node `node`.
fn address(family: Family, node: u32, host: u16) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(0x0a00_0000 + (node << 6) + u32::from(host)).into(),
        Family::V6 => {
            let [high, low] = [(node >> 16) as u16, node as u16];
            Ipv6Addr::from([0xfd00, 0x10, 0x240 + high, low, 0, 0, 0, host]).into()
        }
    }
}

fn length(family: Family) -> u8 {
    match family {
        Family::V4 => 26,
        Family::V6 => 64,
    }
}

/// Node numbers below `count`, by a linear congruential generator (Numerical Recipes).
fn scattered(count: u32) -> impl Iterator<Item = u32> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(Some(1), next)
        .map(move |state| ((u64::from(state) * u64::from(count)) >> 32) as u32)
        .take(DESTINATIONS)
}

/// As many as touch every line of the largest table.
const DESTINATIONS: usize = 16_384;

/// Subnets of one length in a network that the direct index covers; without a network, only the longest-prefix match
/// answers.
const KINDS: [(&str, Family, Option<&str>); 4] = [
    ("v4", Family::V4, Some("10.0.0.0/8")),
    ("v6", Family::V6, Some("fd00:10:240::/44")),
    ("v4 longest match", Family::V4, None),
    ("v6 longest match", Family::V6, None),
];
