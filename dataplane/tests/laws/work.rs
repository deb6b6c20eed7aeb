//! What a step says that it has moved, by which the worker's thread decides whether packets gather.

use dataplane::drops::DropReason;
use dataplane::limits::{OVER_SHARE_PACKETS, QUANTUM_PACKETS};
use dataplane::now::Now;
use dataplane::worker::{Amount, Work};

use dataplane::underlay::memory::Datagram;

use crate::reasons::node;
use crate::world::node::Node;
use crate::world::packets::{pattern, udp, vxlan};
use crate::world::plan;
use crate::world::plan::pod;

fn amount(packets: usize, bytes: usize) -> Amount {
    Amount { packets, bytes }
}

fn latest(node: &mut Node, worker: usize) -> Work {
    node.step(worker, Now(0));
    node.worker_at(worker).latest()
}

#[test]
fn a_step_reports_what_it_moved_each_way() {
    let mut node = node();
    let out = udp(pod(1, 0), pod(2, 0), b"out");
    (0..3).for_each(|_| node.push(out.clone()));
    let outbound = amount(3, 3 * out.len());
    let inbound = Amount::default();
    assert_eq!(
        latest(&mut node, 0),
        Work {
            outbound,
            inbound,
            probes: 0
        }
    );
    let datagram = vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in"));
    let inbound = amount(2, 2 * datagram.payload.len());
    (0..2).for_each(|_| node.hand(datagram.clone(), 1));
    let outbound = Amount::default();
    assert_eq!(
        latest(&mut node, 0),
        Work {
            outbound,
            inbound,
            probes: 0
        }
    );
    assert_eq!(latest(&mut node, 0), Work::default());
}

/// A GRO buffer is as many datagrams as the kernel joined; a super-packet of a pod, marked alike, is one.
#[test]
fn a_gro_buffer_is_many_and_a_super_packet_is_one() {
    let mut node = node();
    let packet = vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), &pattern(1_000)));
    let merged = Datagram {
        segment: Some(packet.payload.len() as u16),
        payload: packet.payload.repeat(5),
        ..packet
    };
    let super_packet = Datagram {
        segment: Some(1_000),
        ..vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), &pattern(5_000)))
    };
    for (datagram, packets) in [(merged, 5), (super_packet, 1)] {
        let bytes = datagram.payload.len();
        node.hand(datagram, 5);
        assert_eq!(latest(&mut node, 0).inbound, amount(packets, bytes));
        node.take_delivered();
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// What would begin another GRO buffer is left to the next step, so that no few packets go apart.
#[test]
fn a_step_ends_with_a_full_gso_batch() {
    let floods = |length, steps: &[usize], peers: &[u8]| {
        let mut node = node();
        let to = peers.iter().cycle().take(steps.iter().sum());
        let packets = to.map(|peer| udp(pod(1, 0), pod(*peer, 0), &pattern(length)));
        packets.for_each(|packet| node.push(packet));
        for step in steps.iter().chain(&[0]) {
            assert_eq!(latest(&mut node, 0).outbound.packets, *step, "{length}");
        }
        assert_eq!(node.run(Now(0)).0.len(), steps.iter().sum::<usize>());
        assert_eq!(node.audit(), [""; 0]);
    };
    floods(1_400, &[45, 45, 12], &[2]);
    floods(1_400, &[45, 45, 12], &[3]);
    floods(64, &[63, 63, 4], &[2]);
    // GSO batches of two that grow side by side are filled by none of the packets of a step.
    floods(1_400, &[64, 6], &[2, 3]);
}

/// A packet that goes nowhere fills nothing, whatever was filled before it.
#[test]
fn refused_packets_end_no_step() {
    // GSO batches that are filled by the last packet of a step, and by one that is too early to end it.
    for (length, filling, steps) in [(1_400, 45, [45, 64, 36]), (3_000, 21, [64, 57, 0])] {
        let mut node = node();
        node.configure(|spec| plan::cluster(spec).node.underlay_mtu = 9_000);
        for _ in 0..filling {
            node.push(udp(pod(1, 0), pod(2, 0), &pattern(length)));
        }
        for _ in 0..100 {
            node.push(udp(pod(1, 0), pod(77, 0), b"to nobody"));
        }
        for step in steps {
            assert_eq!(latest(&mut node, 0).outbound.packets, step, "{length}");
        }
        assert_eq!(node.run(Now(0)).0.len(), filling);
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// Beyond the share of a pod a step reads on, to the packet of another, which leaves.
#[test]
fn a_flood_ends_no_step_and_holds_up_nobody() {
    let mut node = node();
    let light = udp(pod(1, 1), pod(2, 0), b"light");
    node.push(light.clone());
    for _ in 0..QUANTUM_PACKETS + 3 * OVER_SHARE_PACKETS {
        node.push(udp(pod(1, 0), pod(2, 0), b"flood"));
    }
    node.push(light.clone());
    let steps: Vec<_> = std::iter::repeat_with(|| latest(&mut node, 0).outbound.packets)
        .take_while(|packets| *packets > 0)
        .collect();
    assert!(
        steps
            .iter()
            .all(|packets| *packets <= 64 + OVER_SHARE_PACKETS)
    );
    assert!(steps.contains(&OVER_SHARE_PACKETS), "{steps:?}");
    let sent = node.take_sent();
    let of_light = sent.iter().filter(|sent| sent.payload.ends_with(&light));
    assert_eq!((of_light.count(), sent.len()), (2, 2 + QUANTUM_PACKETS));
    let dropped = node.totals().outbound.drops_of(DropReason::OverShare);
    assert_eq!(dropped, 3 * OVER_SHARE_PACKETS as u64);
    assert_eq!(node.audit(), [""; 0]);
}
