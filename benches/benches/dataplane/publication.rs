//! What control pays to hand changed tables to the workers, from the spec to the pointer they adopt.
//!
//! Freeing what was replaced is control's too, but waits for the workers, so it is measured apart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::cluster::dual_stack;
use criterion::{BenchmarkId, Criterion};
use dataplane::families::PerFamily;
use dataplane::publication::Publication;
use dataplane::spec::{PeerSpec, Spec};
use encap::{Format, Mac};

/// A change of the cluster or of its first node.
type Change = fn(&mut Spec, u64);

pub(super) fn publish(c: &mut Criterion) {
    bench(c, "publication", |publication, spec| {
        let start = Instant::now();
        publication.publish(spec);
        let taken = start.elapsed();
        publication.free(spec.version);
        taken
    });
}

pub(super) fn free(c: &mut Criterion) {
    bench(c, "publication free", |publication, spec| {
        publication.publish(spec);
        let start = Instant::now();
        publication.free(spec.version);
        start.elapsed()
    });
}

fn bench(c: &mut Criterion, name: &str, measured: fn(&Publication, &Spec) -> Duration) {
    let mut group = c.benchmark_group(name);
    let changes: [(&str, Change); 4] = [
        ("pod", pod),
        ("lease", lease),
        ("two leases far apart", two_leases),
        ("node's own address", own),
    ];
    for (name, change) in changes {
        for peers in [10, 5_000] {
            let mut spec = dual_stack(peers);
            let publication = Publication::new(&spec);
            group.bench_function(BenchmarkId::new(name, peers), |b| {
                b.iter_custom(|rounds| {
                    let mut taken = Duration::ZERO;
                    for _ in 0..rounds {
                        spec.version += 1;
                        let round = spec.version;
                        change(&mut spec, round);
                        taken += measured(&publication, &spec);
                    }
                    taken
                })
            });
        }
    }
}

/// A pod comes, or goes.
fn pod(spec: &mut Spec, round: u64) {
    let mut local = (*spec.local).clone();
    if round.is_multiple_of(2) {
        local.attachments.push([10, 0, 1, 200].into());
    } else {
        local.attachments.pop();
    }
    spec.local = Arc::new(local);
}

/// A node in the middle of the list has another MAC and another subnet.
fn lease(spec: &mut Spec, round: u64) {
    let middle = spec.cluster.peers.len() / 2;
    change_peer(spec, middle, round);
}

fn two_leases(spec: &mut Spec, round: u64) {
    let last = spec.cluster.peers.len() - 1;
    change_peer(spec, 0, round);
    change_peer(spec, last, round);
}

/// Every header changes.
fn own(spec: &mut Spec, round: u64) {
    let mut cluster = (*spec.cluster).clone();
    cluster.node.vtep_mac = PerFamily::each(|_| Mac([2, 0, 0, 0, 1, round as u8]));
    spec.cluster = Arc::new(cluster);
}

fn change_peer(spec: &mut Spec, index: usize, round: u64) {
    let mut cluster = (*spec.cluster).clone();
    let mut peer = PeerSpec::clone(&cluster.peers[index]);
    peer.format = if round.is_multiple_of(2) {
        Format::Udp
    } else {
        Format::Vxlan
    };
    if peer.subnets.len() > 2 {
        peer.subnets.truncate(2);
    } else {
        peer.subnets
            .push(format!("10.200.{}.0/24", index % 256).parse().unwrap());
    }
    cluster.peers[index] = Arc::new(peer);
    spec.cluster = Arc::new(cluster);
}
