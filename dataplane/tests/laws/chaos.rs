//! Everything changes while traffic flows: who the peers are, where they live, how they are spoken to, what the kernel
//! takes; and strangers, peers and pods send random traffic. The law holds at every rest, and afterwards the traffic arrives.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dataplane::counters::WorkerTotals;
use dataplane::drops::DropReason;
use dataplane::families::PublicAddresses;
use encap::Format;

use crate::random_traffic;
use crate::world::network::Faults;
use crate::world::plan;
use crate::world::plan::{ClusterPlan, PODS, dual, v4};
use crate::world::{Seed, World};

#[test]
fn the_law_survives_everything() {
    let mut reached = BTreeSet::new();
    let mut held = false;
    for seed in 0xc000..0xc080 {
        let _told = Seed(seed);
        let mut chaos = Chaos::new(seed);
        for _ in 0..60 {
            let span = Duration::from_micros(chaos.random.u64(..30_000));
            chaos.world.pass(span);
            chaos.act();
            // Seen to at once, so that the weight of a buffer does not hang on what changes next.
            chaos.world.pass(Duration::ZERO);
            chaos.audit();
        }
        chaos.heal();
        chaos.world.complete_transfers(LIMIT);
        chaos.world.abort_transfers();
        chaos.world.settle(LIMIT);
        assert_eq!(chaos.world.audit(), [""; 0]);
        reached.extend(chaos.reached());
        held |= chaos.held;
    }
    // A chaos in which little happens proves little.
    assert!(held && reached.len() >= 20, "only {reached:?}");
}

/// Both formats are received at all times: a switch of the backend, one way or both, loses not one packet.
#[test]
fn a_format_switch_loses_nothing() {
    for seed in 0xd000..0xd008 {
        let _told = Seed(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = busy_world(Faults::NONE, seed);
        for _ in 0..40 {
            world.pass(Duration::from_micros(random.u64(..3_000)));
            let node = random.usize(..world.nodes.len());
            world.nodes[node].configure(|spec| {
                let index = random.usize(..spec.cluster.peers.len());
                let format = &mut plan::peer(spec, index).format;
                *format = if *format == Format::Udp {
                    Format::Vxlan
                } else {
                    Format::Udp
                };
            });
        }
        world.complete_transfers(LIMIT);
        world.abort_transfers();
        world.settle(LIMIT);
        assert_eq!(world.audit(), [""; 0]);
        let totals: Vec<_> = world.nodes.iter().map(|node| node.totals()).collect();
        let sum = |of: fn(&WorkerTotals) -> u64| totals.iter().map(of).sum::<u64>();
        assert_eq!(sum(|t| t.outbound.dropped() + t.inbound.dropped()), 0);
        assert_eq!(sum(|t| t.outbound.received), sum(|t| t.inbound.delivered));
    }
}

/// A node leaves and comes back, and moves to another address: its connections stall, and go on.
#[test]
fn connections_survive_a_peer_that_leaves_and_moves() {
    let _told = Seed(0xe000);
    let mut world = busy_world(Faults::NONE, 0xe000);
    world.pass(Duration::from_millis(2));
    let removed = Arc::clone(&world.nodes[0].spec.cluster.peers[0]);
    world.nodes[0].configure(|spec| drop(plan::cluster(spec).peers.remove(0)));
    world.pass(Duration::from_secs(3));
    assert!(world.nodes[0].totals().outbound.dropped() > 0);
    world.nodes[0].configure(|spec| plan::cluster(spec).peers.insert(0, removed));
    world.pass(Duration::from_millis(2));
    move_node(&mut world, 1, v4(201));
    world.complete_transfers(LIMIT);
    world.abort_transfers();
    world.settle(LIMIT);
    assert_eq!(world.audit(), [""; 0]);
}

/// A world under change.
struct Chaos {
    world: World,
    random: fastrand::Rng,
    moves: u8,
    /// A node was seen to hold something at a rest.
    held: bool,
}

impl Chaos {
    fn new(seed: u64) -> Chaos {
        let mut random = fastrand::Rng::with_seed(seed);
        let faults = faults(&mut random);
        Chaos {
            world: busy_world(faults, seed),
            random,
            moves: 0,
            held: false,
        }
    }

    /// One change, or some random traffic.
    fn act(&mut self) {
        let index = self.random.usize(..self.world.nodes.len());
        let random = &mut self.random;
        let node = &mut self.world.nodes[index];
        match random.u8(..13) {
            0 => node.configure(|spec| {
                let peers = &mut plan::cluster(spec).peers;
                if !peers.is_empty() {
                    peers.remove(random.usize(..peers.len()));
                }
            }),
            1 => self.heal_tables(),
            2 => node.configure(|spec| {
                for peer in &mut plan::cluster(spec).peers {
                    Arc::make_mut(peer).format =
                        random.choice([Format::Udp, Format::Vxlan]).unwrap();
                }
            }),
            3 if self.moves < 100 => {
                self.moves += 1;
                let to = match (
                    random.u8(..3),
                    dual(100 + self.moves),
                    node.spec.cluster.node.public,
                ) {
                    (0, ..) => v4(100 + self.moves),
                    (1, PublicAddresses::Dual(new, _), PublicAddresses::Dual(_, kept)) => {
                        PublicAddresses::Dual(new, kept)
                    }
                    (_, dual, _) => dual,
                };
                move_node(&mut self.world, index, to);
            }
            4 => node.give_room(Some(random.usize(..20))),
            5 => node.give_room(None),
            6 => {
                let errors = [
                    libc::ECONNREFUSED,
                    libc::ENOBUFS,
                    libc::EMSGSIZE,
                    libc::EPERM,
                    libc::EAGAIN,
                ];
                let errors = (0..random.u8(1..9)).map(|_| random.choice(errors).unwrap());
                node.worker.underlay_mut().errors.extend(errors);
            }
            7 => node.worker.device_mut().down ^= true,
            8 => {
                let faults = faults(random);
                self.world.network.become_like(faults);
            }
            9 => random_traffic::report(node, random),
            10 => random_traffic::from_strangers(node, random),
            11 => random_traffic::from_peers(node, random),
            _ => random_traffic::from_pods(node, index as u8 + 1, random),
        }
    }

    /// The law at a rest in the middle of things.
    fn audit(&mut self) {
        for node in &mut self.world.nodes {
            let held = node.totals().outbound.held;
            // From outside one only sees when nothing can be held: while there is room, and no error in the way.
            let underlay = node.worker.underlay_mut();
            assert!(held == 0 || underlay.room == Some(0) || node.deadline().is_some());
            self.held |= held > 0;
            node.outside.held = held;
            assert_eq!(node.audit(), [""; 0]);
            node.outside.held = 0;
        }
    }

    /// Each drop counter that is not zero anywhere.
    fn reached(&self) -> impl Iterator<Item = (bool, u8)> {
        let totals = self.world.nodes.iter().map(|node| node.totals());
        let flows = totals.flat_map(|t| [(true, t.outbound), (false, t.inbound)]);
        flows.flat_map(|(out, flow)| {
            let reasons = DropReason::ALL.into_iter();
            let reasons = reasons.filter(move |reason| flow.drops_of(*reason) > 0);
            reasons.map(move |reason| (out, reason as u8))
        })
    }

    /// Every node is a peer of every other again, at its present addresses.
    fn heal_tables(&mut self) {
        let nodes = self.world.nodes.len() as u8;
        let addresses: Vec<_> = self
            .world
            .nodes
            .iter()
            .map(|n| n.spec.cluster.node.public)
            .collect();
        for (i, node) in (1..).zip(&mut self.world.nodes) {
            let whole = ClusterPlan::new(nodes, Format::Vxlan).spec(i);
            node.configure(|spec| {
                let peers = &mut plan::cluster(spec).peers;
                peers.clone_from(&whole.cluster.peers);
                for (peer, j) in peers.iter_mut().zip((1..=nodes).filter(|j| *j != i)) {
                    Arc::make_mut(peer).public = addresses[usize::from(j - 1)];
                }
            });
        }
    }

    fn heal(&mut self) {
        self.heal_tables();
        self.world.network.become_like(Faults::NONE);
        for node in &mut self.world.nodes {
            node.worker.device_mut().down = false;
            node.worker.underlay_mut().errors.clear();
            node.give_room(None);
        }
    }
}

/// Three or four nodes with a connection between every two neighbours.
fn busy_world(faults: Faults, seed: u64) -> World {
    let nodes = 3 + (seed % 2) as u8;
    let mut plan = ClusterPlan::new(nodes, Format::Vxlan);
    if seed & 2 != 0 {
        plan = plan.over(dual);
    }
    let mut world = World::new(&plan, faults, seed);
    for node in &mut world.nodes {
        node.configure(|spec| {
            plan::cluster(spec).node.ipv6_over_udp = true;
            // Who gets an IPv6 address later carries whole packets over it too.
            plan::cluster(spec).node.underlay_mtu = 1_520;
        });
    }
    for i in 0..nodes {
        let (from, to) = (i * PODS, (i + 1) % nodes * PODS + 1);
        world.transfer(
            from.into(),
            to.into(),
            ((seed >> 2) + u64::from(i)) % 2 == 1,
            150_000,
        );
    }
    world
}

/// Node number `index` gets other addresses on the underlay, and so does its entry at all its peers.
fn move_node(world: &mut World, index: usize, new: PublicAddresses) {
    let old = world.nodes[index].spec.cluster.node.public;
    assert_ne!(new, old);
    for (i, node) in world.nodes.iter_mut().enumerate() {
        node.configure(|spec| {
            if i == index {
                plan::cluster(spec).node.public = new;
                plan::local(spec).addresses = new.iter().collect();
            }
            let peers = plan::cluster(spec).peers.iter_mut();
            for peer in peers.filter(|peer| peer.public == old) {
                Arc::make_mut(peer).public = new;
            }
        });
    }
}

fn faults(random: &mut fastrand::Rng) -> Faults {
    let mut some = |most: f64| {
        if random.bool() {
            random.f64() * most
        } else {
            0.0
        }
    };
    Faults {
        loss: some(0.05),
        delay: Duration::from_micros(some(5_000.0) as u64),
        jitter: Duration::from_micros(some(2_000.0) as u64),
        duplication: some(0.1),
        corruption: some(0.1),
        truncation: some(0.1),
        congestion: some(0.1),
        gro: some(1.0) > 0.0,
    }
}

/// Virtual time that recovery may take: timers have backed off, and a path MTU is believed for ten minutes.
const LIMIT: Duration = Duration::from_secs(3600);
