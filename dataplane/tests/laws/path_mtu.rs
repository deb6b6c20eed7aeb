//! Path MTU is per peer and ours: learned when the kernel refuses a datagram, reported to the sender by ICMP or met by fragments,
//! believed for ten minutes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dataplane::drops::DropReason;
use dataplane::limits::QUOTE;
use dataplane::limits::{OUTBOUND_BYTES, PATH_MTU_LIFE};
use dataplane::now::Now;
use dataplane::spec::Spec;
use dataplane::underlay::ErrorReport;
use dataplane::underlay::memory::Datagram;
use encap::Format;
use etherparse::Ipv4Header;
use libc::{ECONNREFUSED, EMSGSIZE};
use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, Ipv6Packet};

use crate::reasons::node;
use crate::world::node::Node;
use crate::world::packets::{checksums_hold, dont_fragment, pattern, udp};
use crate::world::plan;
use crate::world::plan::{ip, pod, pod6};

#[test]
fn our_kernel_refuses_and_the_sender_gets_an_icmp_error() {
    for (peer, format, overhead) in [(2, Format::Vxlan, 50), (3, Format::Udp, 28)] {
        let mut node = node();
        let packet = dont_fragment(udp(pod(1, 0), pod(peer, 0), &pattern(1_400)));
        refuse(&mut node, report(peer, format, 1_400));
        node.push(packet.clone());
        let (sent, answers) = node.run(Now(0));
        assert_eq!(sent, []);
        assert_eq!(frag_needed(&answers), (1_400 - overhead, &packet[..548]));
        // From now on the kernel is not asked: no error is waiting, and the ICMP error is the same.
        node.push(packet.clone());
        let (sent, answers) = node.run(Now(0));
        assert_eq!(sent, []);
        assert_eq!(frag_needed(&answers).0, 1_400 - overhead);
        assert_eq!(node.totals().outbound.drops_of(DropReason::TooBig), 2);
        // What fits goes.
        let most = usize::from(1_400 - overhead) - 28;
        node.push(dont_fragment(udp(pod(1, 0), pod(peer, 0), &pattern(most))));
        assert_eq!(node.run(Now(0)).0.len(), 1);
        assert_eq!(node.audit(), [""; 0]);
    }
}

#[test]
fn ipv6_senders_get_packet_too_big() {
    let mut node = node();
    let packet = udp(pod6(1, 0), pod6(2, 0), &pattern(1_390));
    refuse(&mut node, report(2, Format::Vxlan, 1_400));
    node.push(packet.clone());
    let (sent, answers) = node.run(Now(0));
    assert_eq!((sent.len(), answers.len()), (0, 1));
    let ip6 = Ipv6Packet::new_checked(&answers[0][..]).unwrap();
    assert_eq!(
        (ip6.src_addr(), ip6.dst_addr()).0,
        "fd00:10:244:1::".parse::<std::net::Ipv6Addr>().unwrap()
    );
    let icmp = Icmpv6Packet::new_checked(&answers[0][40..]).unwrap();
    assert!(icmp.verify_checksum(&ip6.src_addr(), &ip6.dst_addr()));
    assert_eq!(answers[0][40..42], [2, 0]);
    assert_eq!(answers[0][44..48], 1_350u32.to_be_bytes());
    assert_eq!(answers[0][48..], packet[..1_232]);
    assert_eq!(node.audit(), [""; 0]);
}

#[test]
fn without_df_the_inner_packet_is_fragmented() {
    for (peer, format, overhead) in [(2, Format::Vxlan, 50), (3, Format::Udp, 28)] {
        let mut node = node();
        let packet = udp(pod(1, 0), pod(peer, 0), &pattern(1_400));
        refuse(&mut node, report(peer, format, 700));
        // Once when the kernel refuses, once when it is known.
        for _ in 0..2 {
            node.push(packet.clone());
            let (sent, answers) = node.run(Now(0));
            assert_eq!(answers, [[0; 0]; 0]);
            assert_eq!(sent.len(), 3);
            let fragments = inner(&sent);
            assert!(fragments.iter().all(|f| f.len() <= 700 - overhead));
            assert_eq!(reassemble(&fragments), packet);
        }
        let flow = node.totals().outbound;
        assert_eq!((flow.received, flow.originated, flow.sent), (2, 4, 6));
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// A flow never reorders: what is cut again keeps its place before the packets behind it.
#[test]
fn fragments_keep_their_packets_place() {
    let mut node = node();
    // Once as a GSO batch, twice alone.
    refuse(&mut node, report(2, Format::Vxlan, 700));
    node.worker.underlay_mut().errors.push_back(EMSGSIZE);
    let large = udp(pod(1, 0), pod(2, 0), &pattern(1_400));
    let small = |n: u8| udp(pod(1, 0), pod(2, 0), &[n; 9]);
    for packet in [large.clone(), small(1), small(2)] {
        node.push(packet);
    }
    let (sent, _) = node.run(Now(0));
    let packets = inner(&sent);
    assert_eq!(packets.len(), 5);
    assert_eq!(reassemble(&packets[..3]), large);
    assert_eq!(packets[3..], [small(1), small(2)]);
    assert_eq!(node.audit(), [""; 0]);
}

/// Packets far larger than the path fill a batch early; the rest waits in the device queue.
#[test]
fn a_burst_of_large_packets_loses_nothing() {
    let mut node = node();
    learn(&mut node, report(2, Format::Vxlan, 626), Now(0));
    let packets: Vec<_> = (0..20)
        .map(|n| udp(pod(1, 0), pod(2, 0), &pattern(60_000 + n)))
        .collect();
    packets.iter().for_each(|packet| node.push(packet.clone()));
    let fragments = inner(&node.run(Now(0)).0);
    assert!(fragments.iter().all(|fragment| fragment.len() <= 576));
    let each = 60_008usize.div_ceil(552);
    let arrived: Vec<_> = fragments.chunks(each).map(reassemble).collect();
    assert!(arrived == packets);
    assert_eq!(node.audit(), [""; 0]);
}

/// A whole batch of the largest packets that proves too large only at the kernel: every packet's fragments find a place.
#[test]
fn the_fragments_of_a_whole_batch_find_their_place() {
    let mut node = node();
    node.configure(|spec| plan::cluster(spec).node.underlay_mtu = 65_535);
    let packet = udp(pod(1, 0), pod(2, 0), &pattern(65_400));
    // The budget of bytes lets in no more of these.
    let count = OUTBOUND_BYTES.div_ceil(packet.len());
    (0..count).for_each(|_| node.push(packet.clone()));
    let underlay = node.worker.underlay_mut();
    underlay
        .error_reports
        .push_back(report(2, Format::Vxlan, 626));
    let mut sent = Vec::new();
    let each = 65_408usize.div_ceil(552);
    for _ in 0..count {
        // The kernel refuses the packet at the head, takes its fragments, and is full.
        node.worker.underlay_mut().errors.extend([EMSGSIZE; 2]);
        node.give_room(Some(each));
        sent.extend(node.run(Now(0)).0);
    }
    let fragments = inner(&sent);
    assert_eq!(fragments.len(), count * each);
    assert!(
        fragments
            .chunks(each)
            .all(|fragments| reassemble(fragments) == packet)
    );
    assert_eq!(node.audit(), [""; 0]);
}

/// A packet that the kernel refuses, though we thought it fits, and about which nothing can be learned, is dropped.
#[test]
fn a_refusal_without_a_reason_is_tried_once_more() {
    let mut node = node();
    node.worker.underlay_mut().errors.extend([EMSGSIZE; 4]);
    node.push(udp(pod(1, 0), pod(2, 0), b"small"));
    let (sent, _) = node.run(Now(0));
    assert_eq!(sent, []);
    assert_eq!(node.totals().outbound.drops_of(DropReason::TooBig), 1);
    assert_eq!(node.audit(), [""; 0]);
}

#[test]
fn what_was_learned_is_forgotten() {
    let mut node = node();
    learn(&mut node, report(2, Format::Vxlan, 1_000), Now(0));
    assert_eq!(
        path_mtu(
            &mut node,
            2,
            Now(0).after(PATH_MTU_LIFE - Duration::from_nanos(1))
        ),
        950
    );
    assert_eq!(path_mtu(&mut node, 2, Now(0).after(PATH_MTU_LIFE)), 1_450);
}

#[test]
fn it_is_the_peers_alone_and_outlives_a_snapshot() {
    let mut node = node();
    learn(&mut node, report(2, Format::Vxlan, 1_000), Now(0));
    assert_eq!(path_mtu(&mut node, 3, Now(0)), 1_472);
    // Another peer comes before it, and it is spoken to in the other format.
    node.configure(|spec| {
        plan::cluster(spec).peers.reverse();
        plan::peer(spec, 1).format = Format::Udp;
    });
    assert_eq!(path_mtu(&mut node, 2, Now(0)), 972);
    node.configure(|spec| plan::peer(spec, 1).public = ip("192.0.2.9").into());
    assert_eq!(path_mtu(&mut node, 2, Now(0)), 1_472);
}

/// Another address or interface of ours is another path.
#[test]
fn what_was_learned_starts_anew_when_our_own_end_changes() {
    let changes: [fn(&mut Spec); 2] = [
        |spec| plan::cluster(spec).node.public = ip("192.0.2.99").into(),
        |spec| plan::cluster(spec).node.underlay_mtu = 1_501,
    ];
    for change in changes {
        let mut node = node();
        learn(&mut node, report(2, Format::Vxlan, 1_000), Now(0));
        node.configure(|spec| plan::local(spec).addresses.push(ip("192.0.2.98")));
        assert_eq!(path_mtu(&mut node, 2, Now(0)), 950);
        node.configure(change);
        assert!(path_mtu(&mut node, 2, Now(0)) >= 1_450);
    }
}

#[test]
fn no_report_makes_packets_smaller_than_every_host_must_take() {
    for mtu in [68, 100, 300, 576] {
        let mut node = node();
        learn(&mut node, report(2, Format::Vxlan, mtu), Now(0));
        assert_eq!(path_mtu(&mut node, 2, Now(0)), 576);
    }
    for mtu in [0, 1, 67, 65_536, u32::MAX] {
        let mut node = node();
        learn(&mut node, report(2, Format::Vxlan, mtu), Now(0));
        assert_eq!(path_mtu(&mut node, 2, Now(0)), 1_450, "{mtu}");
    }
}

/// A path narrower than that: what our kernel refuses is dropped, and the sender of a DF packet gets the least MTU.
#[test]
fn a_path_too_narrow_for_the_least_packets() {
    let least = dont_fragment(udp(pod(1, 0), pod(2, 0), &pattern(548)));
    let fits = dont_fragment(udp(pod(1, 0), pod(2, 0), &pattern(500 - 50 - 28)));
    let mut node = node();
    // Twice: with what is known, too, it is tried first.
    for _ in 0..2 {
        refuse(&mut node, report(2, Format::Vxlan, 500));
        node.push(least.clone());
        let (sent, answers) = node.run(Now(0));
        assert_eq!(sent, []);
        assert_eq!(frag_needed(&answers), (576, &least[..548]));
    }
    refuse(&mut node, report(2, Format::Vxlan, 500));
    node.push(udp(pod(1, 0), pod(2, 0), &pattern(548)));
    assert_eq!(node.run(Now(0)), (vec![], vec![]));
    assert_eq!(node.totals().outbound.drops_of(DropReason::TooBig), 3);
    // The kernel takes what fits, and takes all if the report was a lie.
    for packet in [fits, least] {
        node.push(packet);
        assert_eq!(node.run(Now(0)).0.len(), 1);
    }
    assert_eq!(node.audit(), [""; 0]);
}

/// IPv6 packets of 1,280 bytes are to be carried everywhere (RFC 8200 section 5); no sender needs to make smaller ones.
#[test]
fn a_path_too_narrow_for_the_least_ipv6_packets() {
    let mut node = node();
    refuse(&mut node, report(2, Format::Vxlan, 1_300));
    node.push(udp(pod6(1, 0), pod6(2, 0), &pattern(1_232)));
    let (sent, answers) = node.run(Now(0));
    assert_eq!((sent.len(), answers.len()), (0, 1));
    assert_eq!(answers[0][40..42], [2, 0]);
    assert_eq!(answers[0][44..48], 1_280u32.to_be_bytes());
    assert_eq!(node.audit(), [""; 0]);
}

/// A report of our own kernel about a datagram to a peer.
pub fn report(peer: u8, format: Format, mtu: u32) -> (Format, ErrorReport) {
    // As Linux reports its own refusals on an unconnected IPv4 socket: without the port.
    let to = SocketAddr::new(ip(&format!("192.0.2.{peer}")), 0);
    let failure = ErrorReport {
        to,
        socket: 0,
        local: true,
        errno: EMSGSIZE,
        info: mtu,
        quote: [0; QUOTE],
        quoted: 0,
    };
    (format, failure)
}

/// The kernel refuses the next datagram, twice, and says why.
fn refuse(node: &mut Node, report: (Format, ErrorReport)) {
    let underlay = node.worker.underlay_mut();
    underlay.error_reports.push_back(report);
    underlay.errors.extend([EMSGSIZE; 2]);
}

/// Has the node read a report while it sends something else, which gets through.
pub fn learn(node: &mut Node, report: (Format, ErrorReport), now: Now) {
    let peer = if report.0 == Format::Vxlan { 2 } else { 3 };
    let underlay = node.worker.underlay_mut();
    underlay.error_reports.push_back(report);
    underlay.errors.push_back(ECONNREFUSED);
    node.push(udp(pod(1, 0), pod(peer, 0), b"carrier"));
    let (sent, _) = node.run(now);
    assert_eq!(sent.len(), 1);
    assert!(node.worker.underlay_mut().error_reports.is_empty());
}

/// The largest inner packet that goes to pod 0 of a peer in one piece.
pub fn path_mtu(node: &mut Node, peer: u8, now: Now) -> usize {
    path_mtu_between(node, pod(1, 0), pod(peer, 0), now)
}

/// The largest inner packet that goes from a pod of node 1 to another pod in one piece.
pub fn path_mtu_between(node: &mut Node, from: IpAddr, to: IpAddr, now: Now) -> usize {
    let headers = if from.is_ipv4() { 28 } else { 48 };
    let whole = |node: &mut Node, length: usize| {
        node.push(udp(from, to, &pattern(length - headers)));
        node.run(now).0.len() == 1
    };
    let (mut fits, mut too_big) = (headers, 3_000);
    while too_big - fits > 1 {
        let middle = (fits + too_big) / 2;
        if whole(node, middle) {
            fits = middle
        } else {
            too_big = middle
        }
    }
    assert_eq!(node.audit(), [""; 0]);
    fits
}

/// The MTU and the quoted bytes of the only answer, a "fragmentation needed" to pod 0.
fn frag_needed(answers: &[Vec<u8>]) -> (u16, &[u8]) {
    let [answer] = answers else {
        panic!("{} answers", answers.len())
    };
    assert_eq!(answer[12..20], [10, 244, 1, 0, 10, 244, 1, 2]);
    assert_eq!(answer[20..22], [3, 4]);
    assert!(
        Icmpv4Packet::new_checked(&answer[20..])
            .unwrap()
            .verify_checksum()
    );
    (u16::from_be_bytes([answer[26], answer[27]]), &answer[28..])
}

pub fn inner(sent: &[Datagram]) -> Vec<Vec<u8>> {
    sent.iter()
        .map(|d| d.payload[d.format.header_len()..].to_vec())
        .collect()
}

/// The packet that fragments in order are fragments of, as RFC 791 puts it together.
pub fn reassemble(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (i, fragment) in fragments.iter().enumerate() {
        let (header, rest) = Ipv4Header::from_slice(fragment).unwrap();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!(usize::from(header.total_len), fragment.len());
        assert_eq!(
            usize::from(header.fragment_offset.value()) * 8,
            payload.len()
        );
        assert_eq!(header.more_fragments, i + 1 < fragments.len());
        payload.extend(rest);
    }
    let (mut header, _) = Ipv4Header::from_slice(&fragments[0]).unwrap();
    header.more_fragments = false;
    header.set_payload_len(payload.len()).unwrap();
    header.header_checksum = header.calc_header_checksum();
    let packet = [&header.to_bytes()[..], &payload].concat();
    assert!(checksums_hold(&packet));
    packet
}
