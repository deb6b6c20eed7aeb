//! TCP between pods arrives intact whatever the network does, and every packet has one fate.

use std::time::Duration;

use dataplane::drops::DropReason;
use dataplane::peers::PeerTraffic;
use encap::Format;
use smoltcp::socket::udp;
use smoltcp::wire::{IpAddress, IpEndpoint};

use crate::world::network::Faults;
use crate::world::node::sum;
use crate::world::plan;
use crate::world::plan::{ClusterPlan, PODS, dual, v4, v6};
use crate::world::{Seed, World};

#[test]
fn no_fault() {
    run(Faults::NONE, 4 * MIB, 0x100..0x110);
}

#[test]
fn loss() {
    run(
        Faults {
            loss: 0.03,
            ..Faults::NONE
        },
        MIB,
        0x200..0x210,
    );
}

#[test]
fn delay() {
    let delay = Duration::from_millis(120);
    run(
        Faults {
            delay,
            ..Faults::NONE
        },
        MIB,
        0x300..0x310,
    );
}

#[test]
fn reordering() {
    let jitter = Duration::from_millis(3);
    run(
        Faults {
            jitter,
            ..Faults::NONE
        },
        MIB,
        0x400..0x410,
    );
}

#[test]
fn duplication() {
    run(
        Faults {
            duplication: 0.2,
            ..Faults::NONE
        },
        MIB,
        0x500..0x510,
    );
}

#[test]
fn corruption() {
    run(
        Faults {
            corruption: 0.03,
            ..Faults::NONE
        },
        MIB,
        0x600..0x610,
    );
}

#[test]
fn truncation() {
    run(
        Faults {
            truncation: 0.03,
            ..Faults::NONE
        },
        MIB,
        0x700..0x710,
    );
}

#[test]
fn congestion_marks() {
    run(
        Faults {
            congestion: 0.03,
            ..Faults::NONE
        },
        MIB,
        0x800..0x810,
    );
}

#[test]
fn gro() {
    run(
        Faults {
            gro: true,
            ..Faults::NONE
        },
        2 * MIB,
        0x900..0x910,
    );
}

#[test]
fn everything_at_once() {
    let faults = Faults {
        loss: 0.01,
        delay: Duration::from_millis(4),
        jitter: Duration::from_millis(1),
        duplication: 0.02,
        corruption: 0.01,
        truncation: 0.01,
        congestion: 0.01,
        gro: true,
    };
    run(faults, MIB, 0xa00..0xa10);
}

/// A flow never reorders: where the network keeps the order, so does the dataplane, however its datagrams arrive.
#[test]
fn order() {
    for gro in [false, true] {
        let plan = ClusterPlan {
            formats: vec![
                vec![Format::Udp, Format::Vxlan],
                vec![Format::Udp, Format::Vxlan],
            ],
            ..ClusterPlan::new(2, Format::Udp)
        };
        let mut world = World::new(
            &plan,
            Faults {
                gro,
                ..Faults::NONE
            },
            0,
        );
        let (one, two) = (0, usize::from(PODS));
        let sockets = [one, two].map(|pod| (pod, world.pods[pod].bind(2000, NUMBERS)));
        for (from, to) in [(0, 1), (1, 0)] {
            let to: IpEndpoint = (
                IpAddress::from(world.pods[sockets[to].0].addresses[0]),
                2000,
            )
                .into();
            let (pod, socket) = sockets[from];
            let socket = world.pods[pod].socket::<udp::Socket>(socket);
            for number in 0..NUMBERS {
                // Mostly of one size, so that they are merged.
                let mut payload = vec![0; if number % 7 == 0 { 100 } else { 1200 }];
                payload[..8].copy_from_slice(&number.to_be_bytes());
                socket.send_slice(&payload, to).unwrap();
            }
        }
        world.settle(LIMIT);
        for (pod, socket) in sockets {
            let socket = world.pods[pod].socket::<udp::Socket>(socket);
            for number in 0..NUMBERS {
                let (payload, _) = socket.recv().unwrap();
                assert_eq!(payload[..8], number.to_be_bytes());
            }
        }
        assert_eq!(world.audit(), [""; 0]);
        assert_eq!(world.network.merged > NUMBERS as u64, gro);
    }
}

/// Several transfers of `bytes` bytes each way in the cluster of every seed, to their end.
fn run(faults: Faults, bytes: usize, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let _told = Seed(seed);
        let mut world = cluster(faults, bytes, seed);
        world.complete_transfers(LIMIT);
        world.abort_transfers();
        world.settle(LIMIT);
        assert_eq!(world.audit(), [""; 0]);
        peers_agree(&world);
        let carried: u64 = world.nodes.iter().map(|n| n.outside.delivered).sum();
        let least = 2 * bytes / 1450;
        assert!(
            carried >= least as u64,
            "only {carried} packets crossed the dataplane"
        );
    }
}

/// What `tartan` shows of each peer adds up to what the worker counted.
fn peers_agree(world: &World) {
    for node in &world.nodes {
        let totals = node.totals();
        let of = |count: fn(&PeerTraffic) -> u64| node.traffic().map(|t| count(&t)).sum::<u64>();
        assert_eq!(of(|t| t.sent_packets), totals.outbound.sent);
        assert_eq!(of(|t| t.received_packets), totals.inbound.delivered);
        // Every datagram here comes from a peer, and what is dropped of it is its, but for what is over a pod's share.
        let over = totals.inbound.drops_of(DropReason::OverShare);
        assert_eq!(node.refused().sum::<u64>(), totals.inbound.dropped() - over);
        // Nothing here is refused before it is routed, so that the peer of every drop is known both ways.
        let [peers, pods] = node.dropped().map(|dropped| sum(&dropped));
        assert_eq!(peers.inbound, totals.inbound.drops);
        assert_eq!(peers.outbound, totals.outbound.drops);
        assert!(pods.sum() <= peers.sum());
    }
}

/// Two to five nodes, both formats or a mixture, any underlay, one to three transfers of either family.
fn cluster(faults: Faults, bytes: usize, seed: u64) -> World {
    let mut random = fastrand::Rng::with_seed(seed);
    let nodes = random.u8(2..=5);
    let mut plan = ClusterPlan::new(nodes, Format::Vxlan);
    // Nodes of one family, of both, and a mixture of both kinds.
    let underlay = random.u8(..5);
    plan = plan.over(|i| match (underlay, i % 2) {
        (0, _) | (3, 0) => v4(i),
        (1, _) | (4, 0) => v6(i),
        _ => dual(i),
    });
    // By turns, so that a few seeds meet all three.
    for format in plan.formats.iter_mut().flatten() {
        *format = match seed % 3 {
            0 => Format::Udp,
            1 => Format::Vxlan,
            _ => random.choice([Format::Udp, Format::Vxlan]).unwrap(),
        };
    }
    let mut world = World::new(&plan, faults, seed);
    let v6_everywhere = random.bool();
    for node in &mut world.nodes {
        node.configure(|spec| plan::cluster(spec).node.ipv6_over_udp = v6_everywhere);
    }
    let flows = random.u8(1..=3);
    for _ in 0..flows {
        let from = random.u8(1..=nodes);
        let to = (from - 1 + random.u8(1..nodes)) % nodes + 1;
        let both = [(from, to), (to, from)];
        let vxlan = both
            .iter()
            .all(|(i, j)| plan.formats[usize::from(i - 1)][usize::from(j - 1)] == Format::Vxlan);
        let pod = |node: u8, n: u8| usize::from((node - 1) * PODS + n);
        let (from, to) = (pod(from, random.u8(..PODS)), pod(to, random.u8(..PODS)));
        let v6 = (vxlan || v6_everywhere) && random.bool();
        world.transfer(from, to, v6, bytes / usize::from(flows));
    }
    world
}

/// Virtual time that a run may take.
const LIMIT: Duration = Duration::from_secs(3600);
const MIB: usize = 1 << 20;
/// Datagrams of the order test, each way: several batches of every kind.
const NUMBERS: usize = 500;
