//! Several workers, and a peer whose flows all come to one of them: each flow has one owner, which delivers it whatever
//! the others do.

use dataplane::drops::DropReason;
use dataplane::limits::{
    FULL_INBOX_WAIT, INBOUND_BUFFERS, INBOX, STEERED_BATCHES, TICK, steered_batches,
};
use dataplane::now::Now;
use dataplane::underlay::memory::{Datagram, member};
use dataplane::worker::Next;
use encap::inner::Inner;

use crate::world::node::Node;
use crate::world::packets::{edit_v4, pattern, plain, tcp, udp, unfinished, vxlan};
use crate::world::plan;
use crate::world::plan::{ClusterPlan, ip, pod};

/// Which of `workers` workers delivers `packet` when it came in the `udp` format.
pub fn owner(packet: &[u8], workers: usize) -> usize {
    let hash = Inner::parse(packet).unwrap().flow_hash();
    ((u64::from(hash) * workers as u64) >> 32) as usize
}

/// Node 1 of three, with `workers` workers.
fn node(workers: usize) -> Node {
    Node::with_workers(ClusterPlan::new(3, encap::Format::Udp).spec(1), workers)
}

/// The worker that all datagrams of node 2 come to.
fn receiver(workers: usize) -> usize {
    member(&plain(2, 1, b""), workers)
}

/// A packet from node 2 to pod 0 that `owner` of `workers` delivers; different for every `number`.
fn packet_of(owner_wanted: usize, workers: usize, number: usize) -> Vec<u8> {
    let hosts = (2..).map(|host: u8| udp(ip(&format!("10.244.2.{host}")), pod(1, 0), b"in"));
    let mut packets = hosts.filter(|packet| owner(packet, workers) == owner_wanted);
    packets.nth(number).unwrap()
}

/// Packets that each worker has received and delivered.
fn counts(node: &Node) -> Vec<(u64, u64)> {
    let workers = node.counters().workers.into_iter();
    workers
        .map(|worker| (worker.inbound.received, worker.inbound.delivered))
        .collect()
}

#[test]
fn every_flow_has_one_worker_and_every_worker_flows() {
    for workers in [2, 4] {
        let mut node = node(workers);
        let mut used = vec![false; workers];
        for host in 2..130 {
            let packet = udp(ip(&format!("10.244.2.{host}")), pod(1, 0), b"in");
            let owner = owner(&packet, workers);
            used[owner] = true;
            for _turn in 0..3 {
                let mut before = counts(&node);
                node.hand(plain(2, 1, &packet), 1);
                node.run(Now(0));
                assert_eq!(node.audit(), [""; 0]);
                before[owner].0 += 1;
                before[owner].1 += 1;
                assert_eq!(counts(&node), before);
            }
        }
        assert!(used.iter().all(|used| *used));
    }
}

/// The kernel spreads VXLAN: what a worker receives it delivers.
#[test]
fn vxlan_stays_where_it_was_received() {
    let mut node = node(4);
    for port in 0..64 {
        let packet = udp(pod(2, 0), pod(1, 0), b"in");
        let mut datagram = vxlan(2, 1, &packet);
        datagram.from.set_port(50_000 + port);
        let mut before = counts(&node);
        let own = member(&datagram, 4);
        node.hand(datagram, 1);
        node.step(own, Now(0));
        before[own].0 += 1;
        before[own].1 += 1;
        assert_eq!(counts(&node), before);
        node.run(Now(0));
    }
    assert_eq!(node.audit(), [""; 0]);
}

/// One buffer with the datagrams of two flows by turns becomes one super-packet at each owner.
#[test]
fn owners_coalesce_their_shares() {
    let mut node = node(2);
    for worker in 0..2 {
        node.worker_at(worker).device_mut().offloads = true;
    }
    let flow = |owned: usize| {
        let mut hosts = (2..).map(|host| ip(&format!("10.244.2.{host}")));
        let from = hosts.find(|from| owner(&tcp(*from, pod(1, 0), b""), 2) == owned);
        let from = from.unwrap();
        (0..16u32).map(move |number| {
            let mut packet = tcp(from, pod(1, 0), &pattern(1_000));
            packet[24..28].copy_from_slice(&(number * 1_000).to_be_bytes());
            packet[33] = 0x10;
            edit_v4(&mut packet, |ip| ip.identification = number as u16);
            finished(packet)
        })
    };
    let flows = [flow(0).collect::<Vec<_>>(), flow(1).collect::<Vec<_>>()];
    let size = flows[0][0].len();
    let payload: Vec<u8> = flows[0]
        .iter()
        .zip(&flows[1])
        .flat_map(|(one, two)| [&one[..], two].concat())
        .collect();
    let merged = Datagram {
        segment: Some(size as u16),
        ..plain(2, 1, &payload)
    };
    node.hand(merged, 32);
    let (_, delivered) = node.run(Now(0));
    assert_eq!(node.audit(), [""; 0]);
    assert_eq!(delivered, flows.concat());
    for worker in 0..2 {
        assert_eq!(node.worker_at(worker).device_mut().cuts, 1);
    }
}

/// A checksum that `unfinished` has been through, finished by hand.
fn finished(packet: Vec<u8>) -> Vec<u8> {
    let mut packet = unfinished(packet);
    let inner = Inner::parse(&packet).unwrap();
    encap::checksum::finish(&mut packet, inner.transport, 16).unwrap();
    packet
}

/// A packet that is many, with its checksum done or not: nothing is written where others read.
#[test]
fn a_super_packet_is_delivered_by_its_owner() {
    for offloads in [false, true] {
        for done in [false, true] {
            for host in 2..20 {
                let whole = tcp(ip(&format!("10.244.2.{host}")), pod(1, 0), &pattern(4_000));
                let sent = if done { whole } else { unfinished(whole) };
                let mut delivered = [1, 2].map(|workers| {
                    let mut node = node(workers);
                    for worker in 0..workers {
                        node.worker_at(worker).device_mut().offloads = offloads;
                    }
                    node.hand(plain(2, 1, &sent), 3);
                    let (_, delivered) = node.run(Now(0));
                    assert_eq!(node.audit(), [""; 0]);
                    assert_eq!(delivered.len(), 3);
                    delivered
                });
                let alone = std::mem::take(&mut delivered[0]);
                assert_eq!(delivered[1], alone);
            }
        }
    }
}

/// Single packets with an unfinished checksum, by a device that takes none.
#[test]
fn an_unfinished_checksum_is_finished_by_the_owner() {
    for host in 2..20 {
        let whole = udp(ip(&format!("10.244.2.{host}")), pod(1, 0), &pattern(77));
        let mut node = node(2);
        for worker in 0..2 {
            node.worker_at(worker).device_mut().offloads = false;
        }
        node.hand(plain(2, 1, &unfinished(whole.clone())), 1);
        let (_, delivered) = node.run(Now(0));
        assert_eq!(delivered, [whole]);
    }
}

/// An owner that stalls for long loses what its ring has no room for; no other worker loses anything.
#[test]
fn a_full_ring_costs_other_workers_nothing() {
    let (workers, receiver) = (4, receiver(4));
    let mut node = node(workers);
    let still = (receiver + 1) % workers;
    let moving = (receiver + 2) % workers;
    let mut now = Now(0);
    let rounds = 3 * steered_batches(workers) as u64;
    for round in 0..rounds {
        for (owned, payload) in [still, moving, receiver].into_iter().zip(0..) {
            node.hand(plain(2, 1, &packet_of(owned, workers, payload)), 1);
        }
        let waited = node.step(receiver, now);
        if round == INBOX as u64 {
            // The ring is full: for a while the socket keeps what has come.
            assert_eq!(waited, Next::Held(FULL_INBOX_WAIT));
            now = now.after(FULL_INBOX_WAIT);
            node.step(receiver, now);
        }
        node.step(moving, now);
        let worker = &node.counters().workers;
        assert_eq!(worker[moving].inbound.delivered, round + 1);
        assert_eq!(worker[receiver].inbound.delivered, round + 1);
    }
    let lost = rounds - INBOX as u64;
    let totals = node.totals();
    assert_eq!(totals.inbound.drops_of(DropReason::RingFull), lost);
    assert_eq!(node.counters().in_rings, INBOX as u64);
    node.run(now);
    assert_eq!(node.audit(), [""; 0]);
    let delivered = node.counters().workers[still].inbound.delivered;
    assert_eq!(delivered, INBOX as u64);
}

/// Six owners that stall for long, with a batch for every share that they keep, cost the others nothing.
#[test]
fn several_full_rings_cost_other_workers_nothing() {
    for workers in [2, 3, 4, 7, 8, 32] {
        let receiver = receiver(workers);
        let still: Vec<_> = (0..workers)
            .filter(|worker| *worker != receiver)
            .take(6)
            .collect();
        let mut node = node(workers);
        let mut now = Now(0);
        for owned in &still {
            for _ in 0..INBOX {
                node.hand(plain(2, 1, &packet_of(*owned, workers, 0)), 1);
                node.step(receiver, now);
            }
            // Each is waited for by itself.
            assert_eq!(node.step(receiver, now), Next::Held(FULL_INBOX_WAIT));
            now = now.after(FULL_INBOX_WAIT);
        }
        let kept = (still.len() * INBOX) as u64;
        assert_eq!(node.counters().in_rings, kept);
        for round in 1..=3 * STEERED_BATCHES as u64 {
            for owned in still.iter().chain([&receiver]) {
                node.hand(plain(2, 1, &packet_of(*owned, workers, 0)), 1);
                node.step(receiver, now);
            }
            let totals = node.totals().inbound;
            assert_eq!(totals.delivered, round);
            let lost = round * still.len() as u64;
            assert_eq!(totals.drops_of(DropReason::RingFull), lost);
        }
        node.run(now);
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// The same where they stall in the middle of a share.
#[test]
fn six_stalled_workers_leave_batches_for_the_rest() {
    for workers in 2..=32 {
        let still = (workers - 1).min(6);
        assert!(steered_batches(workers) > still * (INBOX + 1));
    }
}

/// An owner that stalls for a moment loses nothing: what its ring has no room for waits in the socket.
#[test]
fn a_short_stall_loses_nothing() {
    let receiver = receiver(2);
    let mut node = node(2);
    let sent = 10 * INBOX;
    for _ in 0..sent {
        node.hand(plain(2, 1, &packet_of(1 - receiver, 2, 0)), 1);
        node.step(receiver, Now(0));
    }
    assert!(node.worker_at(receiver).may_sleep());
    node.step(1 - receiver, Now(1_000_000));
    // A place in the ring wakes it.
    assert!(!node.worker_at(receiver).may_sleep());
    node.worker_at(receiver).mark_awake();
    node.run(Now(1_000_000));
    assert_eq!(node.audit(), [""; 0]);
    assert_eq!(node.totals().inbound.delivered, sent as u64);
}

/// While one owner stalls for long, another that stalls for a moment loses nothing.
#[test]
fn the_wait_for_each_owner_is_independent() {
    let (workers, receiver) = (4, receiver(4));
    let mut node = node(workers);
    let [still, slow] = [1, 2].map(|next| (receiver + next) % workers);
    let send = |node: &mut Node, owners: &[usize], now| {
        for owned in owners {
            node.hand(plain(2, 1, &packet_of(*owned, workers, 0)), 1);
        }
        node.step(receiver, now)
    };
    let lost = |node: &Node| node.totals().inbound.drops_of(DropReason::RingFull);
    send(&mut node, &[still], Now(0));
    for _ in 1..INBOX {
        send(&mut node, &[still, slow], Now(0));
    }
    let late = Now(0).after(FULL_INBOX_WAIT);
    // The last that `slow` has room for; `still` has had none for too long.
    let next = send(&mut node, &[still, slow], late);
    assert_eq!((lost(&node), next), (1, Next::Held(FULL_INBOX_WAIT)));

    let sent = 3 * INBOX as u64;
    for _ in INBOX as u64..sent {
        let next = send(&mut node, &[slow], late);
        assert_eq!((lost(&node), next), (1, Next::Held(FULL_INBOX_WAIT)));
    }
    assert!(node.worker_at(receiver).may_sleep());
    // A place at the one that is waited for wakes it, whatever the other does.
    node.step(slow, late);
    assert!(!node.worker_at(receiver).may_sleep());
    for _ in 0..sent {
        node.step(receiver, late);
        node.step(slow, late);
    }
    assert_eq!(node.counters().workers[slow].inbound.delivered, sent);
    node.run(late);
    assert_eq!(node.audit(), [""; 0]);
    assert_eq!(lost(&node), 1);
}

/// A worker whose batches are all borrowed does not read its socket and may sleep; when one is returned it goes on.
#[test]
fn a_worker_without_batches_waits_for_one() {
    // More than there are batches for.
    let (workers, receiver) = (16, receiver(16));
    let mut node = node(workers);
    let others: Vec<_> = (0..workers).filter(|worker| *worker != receiver).collect();
    let sent = STEERED_BATCHES + 3;
    for number in 0..sent {
        // One step receives all that there is.
        node.hand(
            plain(2, 1, &packet_of(others[number % others.len()], workers, 0)),
            1,
        );
        let next = node.step(receiver, Now(0));
        let may_sleep = node.worker_at(receiver).may_sleep();
        node.worker_at(receiver).mark_awake();
        let expected = if number + 1 < STEERED_BATCHES {
            // A short batch was all that the socket had.
            (Next::Idle, true)
        } else {
            (Next::Held(TICK), true)
        };
        assert_eq!((next, may_sleep), expected);
    }
    assert_eq!(node.counters().in_rings, STEERED_BATCHES as u64);
    assert_eq!(node.step(others[0], Now(0)), Next::Now);
    assert!(!node.worker_at(receiver).may_sleep());
    node.run(Now(0));
    assert_eq!(node.audit(), [""; 0]);
    assert_eq!(node.totals().inbound.delivered, sent as u64);
}

/// Packets in the rings when the service was killed are counted as lost, like all that it held.
#[test]
fn a_kill_loses_what_is_in_the_rings() {
    let receiver = receiver(2);
    let mut node = node(2);
    for number in 0..INBOUND_BUFFERS {
        node.hand(plain(2, 1, &packet_of(1 - receiver, 2, number)), 1);
    }
    node.step(receiver, Now(0));
    assert_eq!(node.counters().in_rings, INBOUND_BUFFERS as u64);
    assert_eq!(node.restart(), INBOUND_BUFFERS as u64);
    assert_eq!(node.audit(), [""; 0]);
    assert_eq!(node.restart(), 0);
}

/// Before a stop nothing more is read, and what was read is delivered.
#[test]
fn a_drain_leaves_nothing_in_the_rings() {
    let receiver = receiver(2);
    let mut node = node(2);
    for _ in 0..INBOX {
        node.hand(plain(2, 1, &packet_of(1 - receiver, 2, 0)), 1);
        node.step(receiver, Now(0));
    }
    for left in (0..INBOX).rev() {
        assert_eq!(node.drain(Now(0)), left > 0);
    }
    node.take_delivered();
    assert_eq!(node.audit(), [""; 0]);
    assert_eq!(node.totals().inbound.delivered, INBOX as u64);
}

/// An owner uses the snapshot that it has when it delivers.
#[test]
fn an_owner_delivers_by_its_own_snapshot() {
    let receiver = receiver(2);
    let mut node = node(2);
    node.hand(plain(2, 1, &packet_of(1 - receiver, 2, 0)), 1);
    node.step(receiver, Now(0));
    node.configure(|spec| {
        plan::cluster(spec)
            .peers
            .retain(|peer| peer.name != "node2")
    });
    node.run(Now(0));
    assert_eq!(node.audit(), [""; 0]);
    let inbound = node.counters().workers[1 - receiver].inbound;
    assert_eq!(inbound.drops_of(DropReason::UnknownPeer), 1);
}

/// Datagrams of no peer do not enter the rings.
#[test]
fn datagrams_of_no_peer_stay_with_the_receiver() {
    let receiver = member(&stranger(b""), 2);
    let mut node = node(2);
    for number in 0..4 {
        node.hand(stranger(&packet_of(1 - receiver, 2, number)), 1);
    }
    node.hand(stranger(b"no packet"), 1);
    node.step(receiver, Now(0));
    let inbound = node.counters().workers[receiver].inbound;
    assert_eq!(inbound.drops_of(DropReason::UnknownPeer), 5);
}

fn stranger(packet: &[u8]) -> Datagram {
    let mut datagram = plain(2, 1, packet);
    datagram.from.set_ip(ip("192.0.2.77"));
    datagram
}
