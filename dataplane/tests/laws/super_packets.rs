//! Buffers that hold more than one packet: a kernel VXLAN sender's super-packets, and GRO buffers merged by `UDP_GRO`. The
//! mark beside a buffer means two different things, and pods control the bytes at the cuts.

use dataplane::drops::DropReason;
use dataplane::families::PerFamily;
use dataplane::now::Now;
use dataplane::underlay::memory::Datagram;
use etherparse::{SlicedPacket, TransportSlice};
use proptest::prelude::*;

use crate::reasons::node;
use crate::world::node::Node;
use crate::world::packets::{checksums_hold, pattern, plain, tcp, udp, unfinished, vxlan};
use crate::world::plan;
use crate::world::plan::{pod, pod6};

#[test]
fn a_tcp_super_packet_is_cut_to_the_device() {
    for mtu in [576, 1400, 1450, 8950] {
        for length in [mtu as usize - 51, 5_000, 20_000, 65_000] {
            for (from, to, header) in [(pod(2, 0), pod(1, 0), 52), (pod6(2, 0), pod6(1, 0), 72)] {
                let whole = tcp(from, to, &pattern(length));
                for packet in [whole.clone(), unfinished(whole)] {
                    let mut node = node();
                    node.configure(|spec| {
                        plan::cluster(spec).node.inner_mtu = PerFamily::each(|_| mtu)
                    });
                    let weight = length.div_ceil(usize::from(mtu) - header);
                    node.hand(vxlan(2, 1, &packet), weight as u64);
                    let delivered = deliver(&mut node);
                    assert_eq!(delivered.len(), weight);
                    assert!(
                        delivered
                            .iter()
                            .all(|segment| segment.len() <= usize::from(mtu))
                    );
                    assert_eq!(stream(&delivered), pattern(length));
                }
            }
        }
    }
}

/// For TCP the mark is of no use: the size comes from the device and the real headers.
#[test]
fn a_tcp_super_packet_with_a_mark_is_cut_to_the_device_all_the_same() {
    let packet = unfinished(tcp(pod(2, 0), pod(1, 0), &pattern(14_000)));
    for mark in [1, 100, 1_200, 1_398, 9_000] {
        let mut node = node();
        node.hand(
            Datagram {
                segment: Some(mark),
                ..vxlan(2, 1, &packet)
            },
            11,
        );
        let delivered = deliver(&mut node);
        assert_eq!(delivered.len(), 11);
        assert_eq!(stream(&delivered), pattern(14_000));
    }
}

/// Cutting writes fresh header checksums, so a header that was damaged on the way must not be cut.
#[test]
fn a_damaged_super_packet_is_not_repaired() {
    let good = unfinished(tcp(pod(2, 0), pod(1, 0), &pattern(14_000)));
    // TOS, identification, fragment flags, TTL and the header checksum: nothing that the TCP checksum covers.
    for place in [1, 4, 5, 8, 10, 11] {
        let mut node = node();
        let mut packet = good.clone();
        packet[place] ^= 0x10;
        node.hand(vxlan(2, 1, &packet), 11);
        assert!(deliver(&mut node).is_empty(), "byte {place}");
        assert_eq!(
            node.totals().inbound.drops_of(DropReason::BadSuperPacket),
            11
        );
    }
}

/// UDP boundaries are the application's: exactly its datagrams come out, and none is invented.
#[test]
fn a_udp_super_packet_is_cut_where_its_sender_cut() {
    for (from, to) in [(pod(2, 0), pod(1, 0)), (pod6(2, 0), pod6(1, 0))] {
        for length in [12_000, 11_999, 10_801, 1_201, 60_000] {
            let payload = pattern(length);
            let mut node = node();
            let packet = unfinished(udp(from, to, &payload));
            let weight = length.div_ceil(1_200) as u64;
            node.hand(
                Datagram {
                    segment: Some(1_200),
                    ..vxlan(2, 1, &packet)
                },
                weight,
            );
            assert_eq!(
                datagrams(&deliver(&mut node)),
                payload.chunks(1_200).collect::<Vec<_>>()
            );
        }
    }
}

/// Without a mark its segment size is unknown, so it is not cut.
#[test]
fn a_large_udp_packet_without_a_mark_stays_whole() {
    let packet = udp(pod(2, 0), pod(1, 0), &pattern(4_000));
    let mut node = node();
    node.hand(vxlan(2, 1, &unfinished(packet.clone())), 1);
    assert_eq!(deliver(&mut node), [packet]);
}

/// A pod behind a kernel VXLAN peer sends what looks like datagrams at every place where a careless splitter cuts.
#[test]
fn forged_datagrams_inside_a_super_packet_deliver_nothing_else() {
    let forged = vxlan(2, 1, &udp(pod(2, 1), pod(1, 1), b"forged")).payload;
    let forged_plain = udp(pod(2, 1), pod(1, 1), b"forged");
    for headers in [0, 8, 22, 42, 50] {
        for forged in [&forged, &forged_plain] {
            let mut payload = pattern(12_000);
            for place in (0..12_000).step_by(1_200) {
                let place = place + 1_200 - headers;
                if let Some(room) = payload.get_mut(place..place + forged.len()) {
                    room.copy_from_slice(forged);
                }
            }
            payload[..forged.len()].copy_from_slice(forged);
            for packet in [
                unfinished(udp(pod(2, 0), pod(1, 0), &payload)),
                udp(pod(2, 0), pod(1, 0), &payload),
            ] {
                for datagram in [vxlan(2, 1, &packet), plain(2, 1, &packet)] {
                    let mut node = node();
                    node.hand(
                        Datagram {
                            segment: Some(1_200),
                            ..datagram
                        },
                        10,
                    );
                    let delivered = deliver(&mut node);
                    assert!(
                        delivered
                            .iter()
                            .all(|packet| packet[16..20] == [10, 244, 1, 2])
                    );
                    assert_eq!(
                        datagrams(&delivered),
                        payload.chunks(1_200).collect::<Vec<_>>()
                    );
                }
            }
        }
    }
}

/// Each datagram of a GRO buffer is checked by itself.
#[test]
fn a_gro_buffer_lets_no_other_source_through() {
    let mut node = node();
    let good = |byte: u8| udp(pod(2, 0), pod(1, 0), &[byte; 500]);
    let spoofed = udp(pod(3, 0), pod(1, 0), &[2; 500]);
    let astray = udp(pod(2, 0), pod(3, 0), &[3; 500]);
    let merged_buffer = [&good(0), &spoofed, &good(1), &astray, &good(4)];
    for framed in [true, false] {
        node.hand(join(merged_buffer, framed), 5);
        assert_eq!(deliver(&mut node), [good(0), good(1), good(4)]);
    }
}

/// A first datagram that is no packet at all must not stop the rest from being split.
#[test]
fn a_gro_buffer_that_begins_with_garbage_is_split() {
    let mut node = node();
    let good = udp(pod(2, 0), pod(1, 0), &[1; 500]);
    let noise = vec![0xff; good.len()];
    node.hand(join([&noise, &good], true), 2);
    assert_eq!(deliver(&mut node), [good]);
}

#[test]
fn a_mark_as_large_as_the_buffer_is_no_mark() {
    let packet = udp(pod(2, 0), pod(1, 0), &pattern(300));
    for mark in [0, 350, 351, 65_535] {
        let mut node = node();
        node.hand(
            Datagram {
                segment: Some(mark),
                ..vxlan(2, 1, &packet)
            },
            1,
        );
        assert_eq!(deliver(&mut node), std::slice::from_ref(&packet), "{mark}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// `UDP_GRO` merges datagrams of one size and a shorter one behind; they come apart again as they were.
    #[test]
    fn a_gro_buffer_is_split_into_its_datagrams(
        // Beside 52 bytes of headers, what fits the device: more would be a super-packet.
        size in 1usize..=1398,
        count in 2usize..20,
        last in 1usize..=1398,
        framed in any::<bool>(),
    ) {
        let length = |i| if i + 1 == count { last.min(size) } else { size };
        let packets: Vec<_> =
            (0..count).map(|i| tcp(pod(2, 0), pod(1, 0), &vec![i as u8; length(i)])).collect();
        let mut node = node();
        node.hand(join(&packets, framed), count as u64);
        prop_assert_eq!(deliver(&mut node), packets);
    }

    /// A pod's bytes stay a pod's bytes: whatever it sends through a kernel peer, whatever the mark, only its own flow
    /// comes out, with its payload complete and in order.
    #[test]
    fn a_pods_bytes_never_become_packets(
        payload in proptest::collection::vec(prop_oneof![any::<u8>(), Just(8), Just(0x45), Just(0)], 1..6_000),
        mark in 40u16..3_000,
        framed in any::<bool>(),
    ) {
        let packet = unfinished(udp(pod(2, 0), pod(1, 0), &payload));
        let datagram = if framed { vxlan(2, 1, &packet) } else { plain(2, 1, &packet) };
        let weight = if usize::from(mark) < datagram.payload.len() {
            payload.len().div_ceil(mark.into()) as u64
        } else {
            1
        };
        let mut node = node();
        node.hand(Datagram { segment: Some(mark), ..datagram }, weight);
        let delivered = deliver(&mut node);
        prop_assert!(delivered.iter().all(|packet| packet[12..24] == [10, 244, 2, 2, 10, 244, 1, 2, 3, 232, 7, 208]));
        prop_assert_eq!(datagrams(&delivered).concat(), payload);
    }
}

/// A GRO buffer of `packets` from node 2, as the kernel hands it over.
fn join<'a>(packets: impl IntoIterator<Item = &'a Vec<u8>>, framed: bool) -> Datagram {
    let frame = |packet: &Vec<u8>| {
        if framed {
            vxlan(2, 1, packet)
        } else {
            plain(2, 1, packet)
        }
    };
    let mut parts = packets.into_iter().map(frame);
    let mut merged_buffer = parts.next().unwrap();
    merged_buffer.segment = Some(merged_buffer.payload.len() as u16);
    merged_buffer
        .payload
        .extend(parts.flat_map(|part| part.payload));
    merged_buffer
}

/// The bytes of a TCP stream in segments that follow each other, every one with right checksums.
fn stream(segments: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, segment) in segments.iter().enumerate() {
        assert!(checksums_hold(segment), "segment {i}");
        let Some(TransportSlice::Tcp(tcp)) = SlicedPacket::from_ip(segment).unwrap().transport
        else {
            panic!("segment {i} is no TCP");
        };
        assert_eq!(tcp.sequence_number(), 0x1122_3344 + bytes.len() as u32);
        assert_eq!(tcp.psh(), i + 1 == segments.len(), "PSH of segment {i}");
        assert_eq!(tcp.options().len(), 12);
        if segment[0] == 0x45 {
            let identification = u16::from_be_bytes([segment[4], segment[5]]);
            assert_eq!(usize::from(identification), 0x4321 + i);
        }
        bytes.extend(tcp.payload());
    }
    bytes
}

/// The payloads of UDP packets, every one with right checksums.
fn datagrams(packets: &[Vec<u8>]) -> Vec<&[u8]> {
    packets
        .iter()
        .map(|packet| {
            assert!(checksums_hold(packet));
            match SlicedPacket::from_ip(packet).unwrap().transport {
                Some(TransportSlice::Udp(udp)) => udp.payload(),
                other => panic!("{other:?} is no UDP"),
            }
        })
        .collect()
}

fn deliver(node: &mut Node) -> Vec<Vec<u8>> {
    let (_, delivered) = node.run(Now(0));
    assert_eq!(node.audit(), [""; 0]);
    delivered
}
