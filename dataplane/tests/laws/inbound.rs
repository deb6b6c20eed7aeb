//! Peer → pod: what is let in arrives as it was sent, with its checksums finished and congestion carried inward.

use dataplane::limits::INBOUND_BUFFERS;
use dataplane::now::Now;
use dataplane::worker::Next;
use encap::Ecn;
use proptest::prelude::*;

use crate::reasons::node;
use crate::world::node::Node;
use crate::world::packets::{
    checksums_hold, edit_v4, pattern, plain, tcp, udp, unfinished, vxlan, with_ecn,
};
use crate::world::plan;
use crate::world::plan::{ip, net, pod, pod6};

#[test]
fn both_formats_are_received_at_all_times() {
    let mut node = node();
    let packets = [
        udp(pod(2, 0), pod(1, 0), b"two"),
        tcp(pod(3, 0), pod(1, 1), b"three"),
    ];
    for (from, packet) in [(2, &packets[0]), (3, &packets[1])] {
        node.hand(vxlan(from, 1, packet), 1);
        node.hand(plain(from, 1, packet), 1);
    }
    let mut delivered = deliver(&mut node);
    delivered.sort();
    let mut expected = [&packets[..], &packets[..]].concat();
    expected.sort();
    assert_eq!(delivered, expected);
}

#[test]
fn a_port_is_read_again_only_after_a_full_batch() {
    let packet = udp(pod(2, 0), pod(1, 0), b"short");
    for (queued, steps) in [
        (1, 1),
        (INBOUND_BUFFERS - 1, 1),
        (INBOUND_BUFFERS, 2),
        (INBOUND_BUFFERS + 1, 2),
        (2 * INBOUND_BUFFERS, 3),
    ] {
        let mut node = node();
        (0..queued).for_each(|_| node.hand(vxlan(2, 1, &packet), 1));
        let taken = (1..10).find(|_| node.step(0, Now(0)) == Next::Idle);
        assert_eq!(taken, Some(steps), "{queued}");
        assert_eq!(deliver(&mut node).len(), queued);
    }
}

/// A pod may be allowed a prefix in which others live: they speak on.
#[test]
fn what_a_pod_was_allowed_takes_nothing_from_peers() {
    let mut node = node();
    node.configure(|spec| {
        plan::local(spec).allowed_sources = vec![net("10.0.0.0/8"), net("fd00::/8")]
    });
    let packets = [
        udp(pod(2, 0), pod(1, 0), b"four"),
        udp(pod6(2, 0), pod6(1, 0), b"six"),
    ];
    packets
        .iter()
        .for_each(|packet| node.hand(vxlan(2, 1, packet), 1));
    assert_eq!(deliver(&mut node), packets);
}

/// A kernel VXLAN sender on the same host leaves checksums to hardware that there is none of; even the SYN comes so.
#[test]
fn an_unfinished_checksum_is_finished() {
    for length in (0..200).chain([1000, 1397, 1398]) {
        for (from, to) in [(pod(2, 0), pod(1, 0)), (pod6(2, 0), pod6(1, 0))] {
            let length = if from.is_ipv6() {
                length.min(1378)
            } else {
                length
            };
            for packet in [
                tcp(from, to, &pattern(length)),
                udp(from, to, &pattern(length)),
            ] {
                let mut node = node();
                node.hand(vxlan(2, 1, &unfinished(packet.clone())), 1);
                let delivered = deliver(&mut node);
                assert_eq!(delivered, [packet], "{length}");
                assert!(checksums_hold(&delivered[0]));
            }
        }
    }
}

#[test]
fn an_unfinished_checksum_is_finished_in_the_udp_format_too() {
    let packet = udp(pod(2, 0), pod(1, 0), &pattern(77));
    let mut node = node();
    node.hand(plain(2, 1, &unfinished(packet.clone())), 1);
    assert_eq!(deliver(&mut node), [packet]);
}

/// The pod checks a single packet's checksum itself: it is neither repaired nor dropped.
#[test]
fn a_wrong_or_absent_checksum_is_passed_on() {
    let mut wrong = tcp(pod(2, 0), pod(1, 0), b"data");
    wrong[37] ^= 1;
    let mut absent = udp(pod(2, 0), pod(1, 0), b"data");
    absent[26..28].fill(0);
    let mut node = node();
    node.hand(vxlan(2, 1, &wrong), 1);
    node.hand(vxlan(2, 1, &absent), 1);
    assert_eq!(deliver(&mut node), [wrong, absent]);
}

/// A fragment has no checksum of its own; what stands in the field's place is data.
#[test]
fn fragments_are_left_alone() {
    let mut first = unfinished(udp(pod(2, 0), pod(1, 0), &pattern(64)));
    edit_v4(&mut first, |ip| ip.more_fragments = true);
    let mut later = first.clone();
    edit_v4(&mut later, |ip| ip.fragment_offset = 9.try_into().unwrap());
    let mut node = node();
    node.hand(vxlan(2, 1, &first), 1);
    node.hand(vxlan(2, 1, &later), 1);
    assert_eq!(deliver(&mut node), [first, later]);
}

/// Ethernet pads short frames; the inner packet ends where its own length says.
#[test]
fn padding_is_cut_off() {
    let packet = udp(pod(2, 0), pod(1, 0), b"short");
    let mut node = node();
    let mut datagram = vxlan(2, 1, &packet);
    datagram.payload.resize(60, 0xaa);
    node.hand(datagram, 1);
    assert_eq!(deliver(&mut node), [packet]);
}

/// Neighbours in a batch differ in one thing each: who sent them, from which pod, to which.
#[test]
fn every_datagram_of_a_batch_is_checked_by_itself() {
    let (ours, nobodys) = (pod(1, 0), ip("10.244.1.77"));
    let rows = [
        (2, pod(2, 0), ours, true),
        (2, pod(3, 0), ours, false),
        (3, pod(3, 0), ours, true),
        (3, pod(3, 0), nobodys, false),
        (3, pod(3, 0), pod(1, 1), true),
        (2, pod(3, 0), pod(1, 1), false),
        (2, pod(2, 0), pod(1, 1), true),
        (9, pod(2, 0), pod(1, 1), false),
        (2, pod(2, 0), pod(1, 1), true),
    ];
    let mut node = node();
    let mut expected = Vec::new();
    for (from, source, destination, is_let_in) in rows {
        let packet = udp(source, destination, b"one");
        node.hand(vxlan(from, 1, &packet), 1);
        expected.extend(is_let_in.then_some(packet));
    }
    assert_eq!(deliver(&mut node), expected);
}

/// RFC 6040 section 4.2, figure 4; `None` is a drop.
#[test]
fn congestion_is_carried_inward_as_rfc_6040_says() {
    use Ecn::{Ce, Ect0, Ect1, NotEct};
    let outers = [NotEct, Ect0, Ect1, Ce];
    let rows = [
        (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
        (Ect0, [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]),
        (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
        (Ce, [Some(Ce), Some(Ce), Some(Ce), Some(Ce)]),
    ];
    for (inner, results) in rows {
        for (outer, expected) in outers.into_iter().zip(results) {
            let plain_v4 = udp(pod(2, 0), pod(1, 0), b"ecn");
            let v4 = |ecn| with_ecn(plain_v4.clone(), ecn);
            let v6 = |ecn: Ecn| {
                let mut packet = udp(pod6(2, 0), pod6(1, 0), b"ecn");
                packet[1] |= (ecn as u8) << 4;
                packet
            };
            let mut node = node();
            for packet in [v4(inner), v6(inner)] {
                let mut datagram = vxlan(2, 1, &packet);
                datagram.ecn = outer;
                node.hand(datagram, 1);
            }
            let expected: Vec<_> = expected
                .into_iter()
                .flat_map(|ecn| [v4(ecn), v6(ecn)])
                .collect();
            assert_eq!(
                deliver(&mut node),
                expected,
                "inner {inner:?} outer {outer:?}"
            );
        }
    }
}

/// Stock peers of the `udp` format do no ECN: there the outer codepoint means nothing.
#[test]
fn the_udp_format_carries_no_congestion() {
    for inner in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
        let packet = with_ecn(udp(pod(2, 0), pod(1, 0), b"ecn"), inner);
        let mut node = node();
        let mut datagram = plain(2, 1, &packet);
        datagram.ecn = Ecn::Ce;
        node.hand(datagram, 1);
        assert_eq!(deliver(&mut node), [packet]);
    }
}

/// What belongs to a peer beside its pods: its tunnel and bridge, its node address, and what its entry lists.
#[test]
fn a_peers_own_sources_are_let_in() {
    let mut node = node();
    node.configure(|spec| {
        plan::peer(spec, 0)
            .accept_sources
            .push(net("198.51.100.0/24"))
    });
    let sources = [
        "10.244.2.0",
        "10.244.2.1",
        "10.244.2.200",
        "192.0.2.2",
        "198.51.100.7",
    ];
    let packets = sources.map(|source| udp(ip(source), pod(1, 0), b"in"));
    for packet in &packets {
        node.hand(vxlan(2, 1, packet), 1);
    }
    assert_eq!(deliver(&mut node), packets);
    // They are that peer's alone.
    for packet in &packets {
        node.hand(vxlan(3, 1, packet), 1);
    }
    assert_eq!(deliver(&mut node), [[0; 0]; 0]);
}

#[test]
fn a_peers_further_addresses_are_let_in_where_listed() {
    let mut node = node();
    let packet = udp(pod(2, 0), pod(1, 0), b"in");
    let from_elsewhere = || {
        let mut datagram = vxlan(2, 1, &packet);
        datagram.from = "203.0.113.5:1234".parse().unwrap();
        datagram
    };
    node.hand(from_elsewhere(), 1);
    assert_eq!(deliver(&mut node), [[0; 0]; 0]);
    node.configure(|spec| plan::peer(spec, 0).underlay_sources.push(ip("203.0.113.5")));
    node.hand(from_elsewhere(), 1);
    assert_eq!(deliver(&mut node), [packet]);
}

#[test]
fn the_tunnel_address_is_ours_and_kernel_prefixes_are() {
    let mut node = node();
    node.configure(|spec| {
        plan::local(spec)
            .kernel_prefixes
            .push(net("10.244.1.64/26"))
    });
    let packets =
        ["10.244.1.0", "10.244.1.64", "10.244.1.126"].map(|to| udp(pod(2, 0), ip(to), b"in"));
    for packet in &packets {
        node.hand(vxlan(2, 1, packet), 1);
    }
    // No pod has the broadcast address of a prefix.
    node.hand(vxlan(2, 1, &udp(pod(2, 0), ip("10.244.1.127"), b"in")), 1);
    assert_eq!(deliver(&mut node), packets);
}

#[test]
fn group_policy_bits_are_tolerated_where_the_cluster_says_so() {
    let mut node = node();
    let packet = udp(pod(2, 0), pod(1, 0), b"in");
    let tagged = || {
        let mut datagram = vxlan(2, 1, &packet);
        datagram.payload[0] = 0x88;
        datagram.payload[2..4].copy_from_slice(&[0x12, 0x34]);
        datagram
    };
    node.hand(tagged(), 1);
    assert_eq!(deliver(&mut node), [[0; 0]; 0]);
    node.configure(|spec| plan::cluster(spec).node.gbp = true);
    node.hand(tagged(), 1);
    assert_eq!(deliver(&mut node), [packet]);
}

#[test]
fn ipv6_in_the_udp_format_is_let_in_where_allowed() {
    let mut node = node();
    node.configure(|spec| plan::cluster(spec).node.ipv6_over_udp = true);
    let packet = tcp(pod6(2, 0), pod6(1, 1), b"in");
    node.hand(plain(2, 1, &packet), 1);
    assert_eq!(deliver(&mut node), [packet]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever a stranger sends, nothing of it gets in, and nothing is answered.
    #[test]
    fn no_datagram_of_an_unknown_source_is_delivered(
        payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..8),
        framed in any::<bool>(),
    ) {
        let mut node = node();
        for payload in &payloads {
            let mut datagram = if framed { vxlan(2, 1, payload) } else { plain(2, 1, payload) };
            datagram.from = "203.0.113.9:8472".parse().unwrap();
            node.hand(datagram, 1);
        }
        let (sent, delivered) = node.run(Now(0));
        prop_assert_eq!((sent.len(), delivered.len()), (0, 0));
        prop_assert_eq!(node.audit(), [""; 0]);
    }
}

/// One damaged bit of a good datagram, any: it is dropped, or what arrives differs in that bit alone.
#[test]
fn one_damaged_bit_stays_one() {
    let good = vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), &pattern(40)));
    let mut node = node();
    let mut arrived = 0;
    for (place, bit) in
        (0..good.payload.len()).flat_map(|place| (0..8).map(move |bit| (place, bit)))
    {
        let mut datagram = good.clone();
        datagram.payload[place] ^= 1 << bit;
        let damaged = datagram.payload[22..].to_vec();
        node.hand(datagram, 1);
        for packet in deliver(&mut node) {
            // The inner length is the packet's own word: with it, the end may be missing.
            assert!(damaged.starts_with(&packet), "byte {place} bit {bit}");
            arrived += 1;
        }
    }
    // At least the payload, the ports and the lengths of UDP are for the pod alone to check.
    assert!(arrived >= 48 * 8);
}

fn deliver(node: &mut Node) -> Vec<Vec<u8>> {
    let (sent, delivered) = node.run(Now(0));
    assert_eq!(sent, []);
    assert_eq!(node.audit(), [""; 0]);
    delivered
}
