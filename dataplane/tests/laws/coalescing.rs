//! Devices with offloads: what arrives together is written as few packets as can be, and comes out as it came in.

use std::net::IpAddr;
use std::time::Duration;

use dataplane::device::memory::Memory;
use dataplane::drops::DropReason;
use dataplane::now::Now;
use dataplane::underlay::memory::Datagram;
use encap::Ecn;
use etherparse::{PacketBuilder, TcpHeader};

use crate::reasons::node;
use crate::world::node::Node;
use crate::world::packets::{edit_v4, pattern, plain, tcp, udp, unfinished, vxlan, with_ecn};
use crate::world::plan::{pod, pod6};

/// A node whose device has offloads, whatever the run.
fn offloading() -> Node {
    let mut node = node();
    node.worker.device_mut().offloads = true;
    node
}

/// `count` segments of one TCP flow in order, of `size` bytes each.
fn flow(from: IpAddr, to: IpAddr, port: u16, count: usize, size: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| {
            let mut header = TcpHeader::new(port, 80, (i * size) as u32, 500);
            header.ack = true;
            let mut bytes = Vec::new();
            let step = match (from, to) {
                (IpAddr::V4(a), IpAddr::V4(b)) => PacketBuilder::ipv4(a.octets(), b.octets(), 64),
                (IpAddr::V6(a), IpAddr::V6(b)) => PacketBuilder::ipv6(a.octets(), b.octets(), 64),
                _ => panic!("two families"),
            };
            let step = step.tcp_header(header);
            step.write_to_vec(&mut bytes, &vec![i as u8; size]).unwrap();
            if from.is_ipv4() {
                edit_v4(&mut bytes, |ip| ip.identification = i as u16);
            }
            bytes
        })
        .collect()
}

fn hand(node: &mut Node, packets: &[Vec<u8>]) {
    for packet in packets {
        node.hand(vxlan(2, 1, packet), 1);
    }
}

/// Runs, and returns what was delivered and in how many super-packets.
fn deliver(node: &mut Node, now: Now) -> (Vec<Vec<u8>>, usize) {
    let before = device(node).cuts;
    let (_, delivered) = node.run(now);
    assert_eq!(node.audit(), [""; 0]);
    (delivered, device(node).cuts - before)
}

/// Runs, and demands that exactly `packets` are delivered, with so many super-packets among the writes.
fn expect(node: &mut Node, now: Now, packets: &[Vec<u8>], cuts: usize) {
    let (delivered, made) = deliver(node, now);
    assert_eq!((delivered.len(), made), (packets.len(), cuts));
    assert!(delivered == packets, "other packets are delivered");
}

fn device(node: &mut Node) -> &mut Memory {
    node.worker.device_mut()
}

#[test]
fn a_flow_is_written_as_one() {
    for (from, to) in [(pod(2, 0), pod(1, 0)), (pod6(2, 0), pod6(1, 0))] {
        let tcp = flow(from, to, 1000, 16, 1_200);
        let udp: Vec<_> = (0..16).map(|i| udp(from, to, &[i; 700])).collect();
        for packets in [tcp, udp] {
            // These datagrams over IPv4 may be fragmented and count no identifications.
            let cuts = usize::from(packets[0][0] >> 4 == 6 || packets[0][9] == 6);
            let mut node = offloading();
            hand(&mut node, &packets);
            expect(&mut node, Now(0), &packets, cuts);
            let traffic = node.traffic().next().unwrap();
            assert_eq!(traffic.received_packets, 16);
        }
    }
}

/// Flows that share a batch do not disturb each other, and a packet that cannot join keeps its place in its flow.
#[test]
fn order_is_kept_within_a_flow() {
    let (from, to) = (pod(2, 0), pod(1, 0));
    let a = flow(from, to, 1000, 8, 1_000);
    let b = flow(from, to, 1001, 7, 900);
    let mut marked = a[4].clone();
    marked = with_ecn(marked, Ecn::Ect0);
    let mut packets = Vec::new();
    for i in 0..7 {
        packets.push(if i == 4 { marked.clone() } else { a[i].clone() });
        packets.push(b[i].clone());
    }
    let mut node = offloading();
    hand(&mut node, &packets);
    let (delivered, cuts) = deliver(&mut node, Now(0));
    let of = |port: u16, packets: &[Vec<u8>]| {
        let same = |packet: &&Vec<u8>| packet[20..22] == port.to_be_bytes();
        packets.iter().filter(same).cloned().collect::<Vec<_>>()
    };
    for port in [1000, 1001] {
        assert!(of(port, &delivered) == of(port, &packets));
    }
    // Four and two of the one, and the marked one alone; all of the other.
    assert_eq!(cuts, 3);
}

/// More flows than there is room for chains: what is full is written, and nothing is lost or passed.
#[test]
fn more_flows_than_room() {
    let (from, to) = (pod(2, 0), pod(1, 0));
    let flows: Vec<_> = (0..600).map(|port| flow(from, to, port, 2, 100)).collect();
    let mut node = offloading();
    for round in 0..2 {
        for chunk in flows.chunks(40) {
            let parts = chunk.iter().map(|flow| vxlan(2, 1, &flow[round]));
            node.hand(merged_buffer(parts), chunk.len() as u64);
        }
    }
    let (mut delivered, _) = deliver(&mut node, Now(0));
    assert_eq!(delivered.len(), 1_200);
    for flow in &flows {
        let own: Vec<_> = delivered
            .extract_if(.., |packet| packet[20..22] == flow[0][20..22])
            .collect();
        assert!(&own == flow);
    }
}

/// As `UDP_GRO` hands over datagrams of one size.
fn merged_buffer(parts: impl IntoIterator<Item = Datagram>) -> Datagram {
    let mut parts = parts.into_iter();
    let mut merged_buffer = parts.next().unwrap();
    merged_buffer.segment = Some(merged_buffer.payload.len() as u16);
    merged_buffer
        .payload
        .extend(parts.flat_map(|part| part.payload));
    merged_buffer
}

/// A kernel peer's super-packet is written as it came, behind what was gathered of its flow.
#[test]
fn a_super_packet_is_written_straight_through() {
    for (from, to) in [(pod(2, 0), pod(1, 0)), (pod6(2, 0), pod6(1, 0))] {
        let whole = tcp(from, to, &pattern(14_000));
        for packet in [unfinished(whole.clone()), whole] {
            let mut node = offloading();
            let weight = 14_000usize.div_ceil(1_450 - if from.is_ipv4() { 52 } else { 72 });
            node.hand(vxlan(2, 1, &packet), weight as u64);
            let (delivered, cuts) = deliver(&mut node, Now(0));
            assert_eq!((delivered.len(), cuts), (weight, 1));
        }
        let mut datagram = plain(2, 1, &unfinished(udp(from, to, &pattern(12_000))));
        if from.is_ipv4() {
            let mut node = offloading();
            datagram.segment = Some(1_200);
            node.hand(datagram, 10);
            let (delivered, cuts) = deliver(&mut node, Now(0));
            assert_eq!((delivered.len(), cuts), (10, 1));
        }
    }
}

/// A device that segments always makes a checksum, and may copy CWR to every segment.
#[test]
fn what_the_device_would_cut_otherwise_is_cut_here() {
    let (from, to) = (pod(2, 0), pod(1, 0));
    let mut absent = udp(from, to, &pattern(12_000));
    absent[26..28].fill(0);
    let mut reduced = tcp(from, to, &pattern(14_000));
    reduced[33] |= 0x80;
    let reduced = unfinished(reduced);
    for (packet, mark, weight) in [(absent, Some(1_200), 10), (reduced, None, 11)] {
        let mut node = offloading();
        // Behind a packet of its flow that waits to be gathered.
        let first = [&packet[..]].concat();
        let datagram = || Datagram {
            segment: mark,
            ..vxlan(2, 1, &first)
        };
        node.hand(datagram(), weight);
        node.hand(datagram(), weight);
        let (delivered, cuts) = deliver(&mut node, Now(0));
        assert_eq!((delivered.len() as u64, cuts), (2 * weight, 0));
        let marks = delivered.iter().filter(|packet| packet[33] & 0x80 != 0);
        assert!(mark.is_some() || marks.count() == 2);
    }
}

#[test]
fn what_waits_goes_before_what_is_cut_here() {
    let (from, to) = (pod(2, 0), pod(1, 0));
    let mut reduced = tcp(from, to, &pattern(14_000));
    reduced[33] |= 0x80;
    let mut node = offloading();
    let first = tcp(from, to, &pattern(100));
    node.hand(vxlan(2, 1, &first), 1);
    node.hand(vxlan(2, 1, &unfinished(reduced)), 11);
    let (delivered, cuts) = deliver(&mut node, Now(0));
    assert_eq!((delivered.len(), cuts), (12, 0));
    assert!(delivered[0] == first);
}

/// A single unfinished packet is left to the device.
#[test]
fn an_unfinished_packet_is_finished_by_the_device() {
    for (from, to) in [(pod(2, 0), pod(1, 0)), (pod6(2, 0), pod6(1, 0))] {
        for packet in [tcp(from, to, b"in"), udp(from, to, b"in")] {
            let mut node = offloading();
            node.hand(vxlan(2, 1, &unfinished(packet.clone())), 1);
            expect(&mut node, Now(0), &[packet], 0);
        }
    }
}

/// A kernel that refuses what it granted: nothing is lost, and after three failures the offload is off for a minute.
#[test]
fn refused_super_packets_are_written_as_they_came() {
    let (from, to) = (pod(2, 0), pod(1, 0));
    let packets = flow(from, to, 1000, 8, 1_000);
    let through = unfinished(tcp(from, to, &pattern(14_000)));
    let mut node = offloading();
    device(&mut node).refuses_cuts = true;
    for failures in 1..=3 {
        if failures == 2 {
            node.hand(vxlan(2, 1, &through), 11);
            assert_eq!(deliver(&mut node, Now(1)).0.len(), 11);
        } else {
            hand(&mut node, &packets);
            expect(&mut node, Now(1), &packets, 0);
        }
        assert_eq!(given_up(&mut node), u64::from(failures == 3));
    }
    // Given up: even what would be taken now is written plain.
    device(&mut node).refuses_cuts = false;
    hand(&mut node, &packets);
    node.hand(vxlan(2, 1, &through), 11);
    let (delivered, cuts) = deliver(&mut node, Now(2));
    assert_eq!((delivered.len(), cuts), (19, 0));
    assert!(delivered[..8] == packets);
    // And taken up again.
    let later = Now(2).after(Duration::from_secs(61));
    hand(&mut node, &packets);
    expect(&mut node, later, &packets, 1);
}

/// A device that is down refuses everything: that proves nothing against its offloads.
#[test]
fn a_device_that_is_down_keeps_its_offloads() {
    let mut node = offloading();
    let packets = flow(pod(2, 0), pod(1, 0), 1000, 8, 1_000);
    for _ in 0..5 {
        device(&mut node).down = true;
        hand(&mut node, &packets);
        expect(&mut node, Now(1), &[], 0);
    }
    let refused = node.totals().inbound.drops_of(DropReason::DeviceRefused);
    assert_eq!((refused, given_up(&mut node)), (40, 0));
    assert_eq!(node.refused().next().unwrap(), 40);
    device(&mut node).down = false;
    hand(&mut node, &packets);
    expect(&mut node, Now(1), &packets, 1);
}

fn given_up(node: &mut Node) -> u64 {
    dataplane::device::Device::given_up(device(node))
}

/// A datagram with a good checksum, and bytes behind it that no checksum covers: none of them becomes a packet.
#[test]
fn bytes_behind_a_datagram_become_no_packets() {
    let mut packet = udp(pod(2, 0), pod(1, 0), &pattern(20));
    packet.extend(vec![0xee; 4_000]);
    let length = packet.len() as u16;
    edit_v4(&mut packet, |ip| ip.total_len = length);
    for offloads in [false, true] {
        let mut node = node();
        node.worker.device_mut().offloads = offloads;
        let mut datagram = plain(2, 1, &packet);
        datagram.segment = Some(1_000);
        node.hand(datagram, 1);
        assert_eq!(deliver(&mut node, Now(0)), (vec![], 0));
        let flow = node.totals().inbound;
        assert_eq!(flow.drops_of(DropReason::BadSuperPacket), 1);
    }
}
