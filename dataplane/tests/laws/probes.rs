//! Probes of peer health: answered as data is sent, accepted as data is, never a pod's, counted exactly.

use std::net::SocketAddr;
use std::time::Duration;

use dataplane::drops::DropReason;
use dataplane::limits::{
    ANSWERS, HEARD_PROBES, KERNEL_PATH_ANNOUNCED_FOR, PROBE_BURST, PROBE_EVERY, PROBE_PORTS,
};
use dataplane::now::Now;
use dataplane::probe::{Heard, Kind, Message, REPORT_TEXT, REQUEST};
use dataplane::underlay::memory::Datagram;
use encap::{Family, Format, Mac};
use etherparse::EtherType;
use proptest::prelude::*;

use crate::reasons::node;
use crate::world::network::Faults;
use crate::world::node::Node;
use crate::world::packets::{
    answer, dont_fragment, ethernet_frame, is_probe, pattern, plain, probe, request, udp,
    unfinished, vxlan,
};
use crate::world::plan::{self, ClusterPlan, pod};
use crate::world::{Seed, World};

const FORMATS: [Format; 2] = [Format::Vxlan, Format::Udp];
const NOW: Now = Now(5_000_000_000);

/// The message in a datagram, as its receiver reads it.
fn message(datagram: &Datagram) -> Message {
    let at = datagram.format.header_len();
    Message::parse(&datagram.payload[at..]).unwrap()
}

fn drops(node: &Node, reason: DropReason) -> u64 {
    node.totals().inbound.drops_of(reason)
}

/// Nothing but probes came, and no packet went anywhere.
fn audit(node: &mut Node) {
    assert_eq!(node.audit(), [""; 0]);
    let totals = node.totals();
    assert_eq!((totals.outbound.sent, totals.outbound.originated), (0, 0));
    assert_eq!(
        (totals.inbound.delivered, totals.inbound.originated),
        (0, 0)
    );
}

/// Node 1 sends VXLAN to node 2 and `udp` to node 3, so it answers them so, whatever format asks.
#[test]
fn a_request_is_answered_to_where_data_goes() {
    for (peer, ours) in [(2, Format::Vxlan), (3, Format::Udp)] {
        for theirs in FORMATS {
            for length in [92, 93, 500, 1_472, 8_972] {
                let mut node = node();
                let asks = request(peer, 1, theirs, 77, length);
                node.hand(asks.clone(), 1);
                let (sent, delivered) = node.run(NOW);
                assert_eq!(delivered, [[0; 0]; 0]);
                let [sent] = &sent[..] else {
                    panic!("{sent:?}");
                };
                // Not to the port that the request came from.
                let port = if ours == Format::Udp { 8285 } else { 8472 };
                let to = SocketAddr::new(plan::v4(peer).first(), port);
                assert_eq!((sent.to, sent.format), (to, ours));
                let said = Message {
                    kind: Kind::Answer,
                    nonce: 77,
                    clock: 0x1111_2222,
                    length: length as u32 + 28,
                    heard: None,
                    inner_mtu: 1450,
                    flags: 0,
                    verdict: None,
                };
                assert_eq!(
                    *sent,
                    probe(1, peer, ours, said.emit().to_vec(), 0).from(sent.from)
                );
                let heard = node.take_heard();
                let expected = Heard {
                    peer: plan::v4(peer),
                    family: Family::V4,
                    at: NOW,
                    message: message(&asks),
                    length: length as u32 + 28,
                };
                assert_eq!(heard, [expected]);
                assert_eq!(node.totals().inbound.probes, 1);
                audit(&mut node);
            }
        }
    }
}

trait From {
    fn from(self, from: SocketAddr) -> Self;
}

impl From for Datagram {
    fn from(self, from: SocketAddr) -> Datagram {
        Datagram { from, ..self }
    }
}

/// A forged request draws to the peer whose address it has no more bytes, and no more datagrams, than it cost.
#[test]
fn an_answer_is_never_longer_than_its_request() {
    for peer in [2, 3] {
        for theirs in FORMATS {
            for length in 0..200 {
                let mut node = node();
                let mut asks = request(peer, 1, theirs, 1, 0);
                asks.payload.resize(length, 0);
                node.hand(asks, 1);
                let (sent, _) = node.run(NOW);
                assert!(sent.len() <= 1);
                for answer in &sent {
                    assert!(answer.payload.len() <= length, "{length} {answer:?}");
                }
                let asked = length >= theirs.header_len() + REQUEST;
                assert_eq!(sent.len(), usize::from(asked), "{theirs} {length}");
                audit(&mut node);
            }
        }
    }
}

#[test]
fn an_answer_is_heard_and_draws_none() {
    let mut node = node();
    for format in FORMATS {
        node.hand(answer(2, 1, format, 9), 1);
    }
    assert_eq!(node.run(NOW), (vec![], vec![]));
    let heard = node.take_heard();
    assert_eq!(heard.len(), 2);
    for heard in heard {
        assert_eq!((heard.message.kind, heard.message.nonce), (Kind::Answer, 9));
        assert_eq!(heard.peer, plan::v4(2));
    }
    assert_eq!(node.totals().inbound.probes, 2);
    audit(&mut node);
}

/// Control is given its text, whole or cut at what a report may have, and no packet moves.
#[test]
fn a_report_is_given_to_control_and_draws_none() {
    let mut node = node();
    let texts = [0, 1, 31, REPORT_TEXT, REPORT_TEXT + 100].map(|length| vec![b'x'; length]);
    for (nonce, text) in texts.iter().enumerate() {
        for format in FORMATS {
            let asked = message(&request(2, 1, format, nonce as u64, 100));
            let bytes = [&asked.report(3).emit()[..], text].concat();
            // What fills it up is no text.
            node.hand(probe(2, 1, format, bytes, 400), 1);
        }
    }
    assert_eq!(node.run(NOW), (vec![], vec![]));
    assert_eq!(node.take_heard(), []);
    let mut reports = node.take_reports();
    assert_eq!(reports.len(), 2 * texts.len());
    // Each format has a socket of its own.
    reports.sort_by_key(|report| report.message.nonce);
    for (report, text) in reports
        .iter()
        .zip(texts.iter().flat_map(|text| [text, text]))
    {
        assert_eq!((report.peer, report.message.length), (plan::v4(2), 3));
        assert_eq!(report.text(), &text[..text.len().min(REPORT_TEXT)]);
    }
    assert_eq!(node.totals().inbound.probes, reports.len() as u64);
    assert_eq!(node.peer(2).last_heard(), Some(NOW));
    audit(&mut node);
}

/// By outer source, network and station, as data.
#[test]
fn what_data_would_be_refused_for_is_refused() {
    let altered = |at: usize, value: u8| {
        let mut asks = request(2, 1, Format::Vxlan, 1, 100);
        asks.payload[at] = value;
        asks
    };
    let stranger = |format| {
        let mut asks = request(2, 1, format, 1, 100);
        asks.from = "203.0.113.9:8472".parse().unwrap();
        asks
    };
    for (reason, asks) in [
        (DropReason::UnknownPeer, stranger(Format::Vxlan)),
        (DropReason::UnknownPeer, stranger(Format::Udp)),
        (DropReason::VxlanFlags, altered(0, 0)),
        (DropReason::WrongVni, altered(6, 9)),
        (DropReason::NotOurMac, altered(13, 9)),
        (DropReason::BadSourceMac, altered(14, 3)),
        (DropReason::NotIp, altered(21, 0xb6)),
    ] {
        let mut node = node();
        node.hand(asks, 1);
        assert_eq!(node.run(NOW), (vec![], vec![]));
        assert_eq!(node.take_heard(), []);
        assert_eq!(drops(&node, reason), 1, "{reason:?}");
        assert_eq!(node.peer(2).last_heard(), None);
        audit(&mut node);
    }
}

/// What a peer has wrong is known of that peer.
#[test]
fn another_network_or_station_is_known_by_peer() {
    let mut node = node();
    let packet = udp(pod(2, 0), pod(1, 0), b"in");
    let mut other_vni = vxlan(2, 1, &packet);
    other_vni.payload[4..7].copy_from_slice(&[1, 2, 3]);
    let mut other_station = request(3, 1, Format::Vxlan, 1, 100);
    other_station.payload[13] = 0x77;
    node.hand(other_vni, 1);
    node.hand(other_station, 1);
    node.run(NOW);
    assert_eq!(node.peer(2).other_vni(), Some((0x01_02_03, NOW)));
    assert_eq!(node.peer(2).other_station(), None);
    assert_eq!(node.peer(3).other_vni(), None);
    let station = Mac([2, 0, 0, 0, 0, 0x77]);
    assert_eq!(node.peer(3).other_station(), Some((station, NOW)));
    // It lives on with the peer.
    node.configure(|spec| plan::local(spec).attachments.clear());
    node.configure(|spec| plan::peer(spec, 0).subnets.clear());
    assert_eq!(node.peer(2).other_vni(), Some((0x01_02_03, NOW)));
    assert_eq!(node.audit(), [""; 0]);
}

/// A peer whose lease has another MAC than it sends from is seen without data, too.
#[test]
fn a_probe_shows_the_station_that_it_comes_from() {
    let mut node = node();
    let other = Mac([2, 0, 0, 0, 0, 0x55]);
    for (byte, seen) in [(0x55, Some(other)), (2, None)] {
        for mut probe in [
            request(2, 1, Format::Vxlan, 1, 100),
            answer(2, 1, Format::Vxlan, 1),
        ] {
            probe.payload[19] = byte;
            node.hand(probe, 1);
            node.run(NOW);
            assert_eq!(node.peer(2).other_mac(Family::V4), seen);
        }
    }
    // In the other format a message has no station.
    node.hand(request(2, 1, Format::Udp, 0x0202, 100), 1);
    node.run(NOW);
    assert_eq!(node.peer(2).other_mac(Family::V4), None);
    audit(&mut node);
}

#[test]
fn a_peer_is_heard_by_what_is_accepted_of_it() {
    let later = |seconds| NOW.after(Duration::from_secs(seconds));
    let mut node = node();
    let refused = udp(pod(3, 0), pod(1, 0), b"another's");
    node.hand(vxlan(2, 1, &refused), 1);
    node.run(later(0));
    assert_eq!(node.peer(2).last_heard(), None);
    let packet = udp(pod(2, 0), pod(1, 0), b"data");
    node.hand(vxlan(2, 1, &packet), 1);
    node.run(later(1));
    assert_eq!(node.peer(2).last_heard(), Some(later(1)));
    node.hand(request(2, 1, Format::Udp, 1, 100), 1);
    node.run(later(2));
    assert_eq!(node.peer(2).last_heard(), Some(later(2)));
    node.hand(vxlan(2, 1, &refused), 1);
    node.run(later(3));
    assert_eq!(node.peer(2).last_heard(), Some(later(2)));
    assert_eq!(node.peer(3).last_heard(), None);
    node.configure(|spec| plan::peer(spec, 0).subnets.clear());
    assert_eq!(node.peer(2).last_heard(), Some(later(2)));
    assert_eq!(node.audit(), [""; 0]);
}

/// A peer's own requests alone say whether its kernel path is in use, the latest one counts, and no longer than for its time.
#[test]
fn a_request_announces_the_kernel_path() {
    let mut node = node();
    let flags = Format::Vxlan.header_len() + 36;
    let announcing = |from: u8, in_use: bool| {
        let mut request = request(from, 1, Format::Vxlan, 1, 100);
        request.payload[flags..flags + 4].copy_from_slice(&u32::from(in_use).to_be_bytes());
        request
    };
    let at = |seconds| NOW.after(Duration::from_secs(seconds));
    let said = |node: &Node, seconds| {
        let said = |peer| node.peer(peer).announced_kernel_path(at(seconds));
        (said(2), said(3))
    };
    let packet = udp(pod(2, 0), pod(1, 0), b"data");
    node.hand(vxlan(2, 1, &packet), 1);
    node.hand(answer(2, 1, Format::Vxlan, 7), 1);
    node.run(at(0));
    assert_eq!(said(&node, 0), (None, None));
    node.hand(announcing(2, true), 1);
    node.run(at(1));
    assert_eq!(said(&node, 1), (Some(true), None));
    node.hand(vxlan(2, 1, &packet), 1);
    node.run(at(2));
    assert_eq!(said(&node, 2), (Some(true), None));
    node.hand(announcing(2, false), 1);
    node.run(at(3));
    assert_eq!(said(&node, 3), (Some(false), None));
    node.hand(announcing(2, true), 1);
    node.run(at(4));
    // Another network's is none of the peer's.
    let mut foreign = announcing(2, false);
    foreign.payload[6] ^= 1;
    node.hand(foreign, 1);
    node.run(at(5));
    assert_eq!(said(&node, 5), (Some(true), None));
    let lasts = KERNEL_PATH_ANNOUNCED_FOR.as_secs();
    assert_eq!(said(&node, 4 + lasts - 1), (Some(true), None));
    assert_eq!(said(&node, 4 + lasts), (None, None));
    node.configure(|spec| plan::peer(spec, 0).subnets.clear());
    assert_eq!(said(&node, 5), (Some(true), None));
    assert_eq!(node.audit(), [""; 0]);
}

/// An answer says how long ago the requester's own answers were believed.
#[test]
fn an_answer_says_whether_the_peer_is_heard() {
    let mut node = node();
    let said = |node: &mut Node, now| {
        node.hand(request(2, 1, Format::Vxlan, 1, 100), 1);
        let (sent, _) = node.run(now);
        message(&sent[0]).heard
    };
    assert_eq!(said(&mut node, NOW), None);
    node.peer(2).note_answer(NOW);
    let later = NOW.after(Duration::from_millis(1_234));
    assert_eq!(said(&mut node, later), Some(1_234));
    let much_later = NOW.after(Duration::from_secs(1 << 40));
    assert_eq!(said(&mut node, much_later), Some(u32::MAX - 1));
    audit(&mut node);
}

/// A flood of one peer's requests is answered by its share, and the rest counted; the next peer is answered.
#[test]
fn a_flood_draws_its_share_and_no_more() {
    let mut node = node();
    let count = 20 * PROBE_BURST as usize;
    for nonce in 0..count as u64 {
        node.hand(request(2, 1, Format::Vxlan, nonce, 100), 1);
    }
    let (sent, _) = node.run(NOW);
    assert_eq!(sent.len(), PROBE_BURST as usize);
    let limited = drops(&node, DropReason::ProbeLimit);
    assert_eq!(limited as usize, count - sent.len());
    // Not the peer's fault, who may be forged.
    assert!(node.refused().all(|count| count == 0));
    node.hand(request(3, 1, Format::Udp, 1, 100), 1);
    assert_eq!(node.run(NOW).0.len(), 1);
    // After its time it has one more.
    node.hand(request(2, 1, Format::Vxlan, 1, 100), 1);
    node.hand(request(2, 1, Format::Vxlan, 2, 100), 1);
    assert_eq!(node.run(NOW.after(PROBE_EVERY)).0.len(), 1);
    audit(&mut node);
    // From many ports: no more than the peer's buckets hold.
    for port in 1..=60_000 {
        let mut asks = request(2, 1, Format::Vxlan, port.into(), 100);
        asks.from.set_port(port);
        node.hand(asks, 1);
    }
    let (sent, _) = node.run(NOW.after(PROBE_EVERY));
    assert!(
        sent.len() <= PROBE_PORTS * PROBE_BURST as usize,
        "{}",
        sent.len()
    );
    const {
        assert!(
            ANSWERS >= PROBE_BURST as usize && HEARD_PROBES > PROBE_PORTS * PROBE_BURST as usize
        )
    };
    audit(&mut node);
}

/// Two nodes ask each other through the network; what each hears names its own request.
#[test]
fn a_request_comes_back_as_its_answer() {
    for (one, two) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut plan = ClusterPlan::new(2, FORMATS[one]).over(plan::dual);
        plan.formats[1][0] = FORMATS[two];
        let (mut first, mut second) = (Node::new(plan.spec(1)), Node::new(plan.spec(2)));
        for v6 in [false, true] {
            let family = if v6 { Family::V6 } else { Family::V4 };
            let mut asks = request(1, 2, FORMATS[one], 42, 1_000);
            if v6 {
                asks.from.set_ip(plan::v6(1).first());
                asks.to.set_ip(plan::v6(2).first());
            }
            second.hand(asks, 1);
            let (answers, _) = second.run(NOW);
            let [answer] = &answers[..] else {
                panic!("{answers:?}");
            };
            // By the same family.
            assert_eq!(Family::of(answer.to.ip()), family);
            first.hand(answer.clone(), 1);
            assert_eq!(first.run(NOW), (vec![], vec![]));
            let heard = first.take_heard();
            let said: Vec<_> = heard
                .iter()
                .map(|heard| {
                    (
                        heard.peer,
                        heard.family,
                        heard.message.nonce,
                        heard.message.length,
                    )
                })
                .collect();
            let length = 1_000 + if v6 { 48 } else { 28 };
            assert_eq!(said, [(plan::dual(2), family, 42, length)]);
        }
        audit(&mut first);
        audit(&mut second);
    }
}

/// A pod's packet whose payload is a probe travels as any other, and what a pod writes without a packet around it is
/// dropped.
#[test]
fn a_pods_bytes_are_no_probe() {
    for format in FORMATS {
        let _told = Seed(1);
        let plan = ClusterPlan::new(2, format);
        let mut world = World::new(&plan, Faults::NONE, 1);
        for framed in FORMATS {
            let bytes = request(1, 2, framed, 1, 100).payload;
            let packet = udp(pod(1, 0), pod(2, 0), &bytes);
            let [first, second] = &mut world.nodes[..] else {
                panic!("not two");
            };
            first.push(packet.clone());
            let (sent, _) = first.run(NOW);
            assert_eq!(sent.len(), 1);
            assert!(!is_probe(&sent[0]));
            second.hand(sent[0].clone(), 1);
            assert_eq!(second.run(NOW), (vec![], vec![packet]));
            // Into the tunnel without a packet around it.
            first.push(bytes.clone());
            assert_eq!(first.run(NOW), (vec![], vec![]));
        }
        let mut frame = request(1, 2, Format::Udp, 1, 100).payload;
        world.nodes[0].push_frame(ethernet_frame(EtherType(0x88b5), &frame));
        frame[0] = 0x45;
        world.nodes[0].push_frame(ethernet_frame(EtherType(0x88b5), &frame));
        assert_eq!(world.nodes[0].run(NOW), (vec![], vec![]));
        for node in &mut world.nodes {
            assert_eq!(node.take_heard(), []);
            assert_eq!(node.totals().inbound.probes, 0);
        }
        let outbound = world.nodes[0].totals().outbound;
        assert_eq!(outbound.drops_of(DropReason::Malformed), 2);
        assert_eq!(outbound.drops_of(DropReason::NotIp), 2);
        assert_eq!(world.audit(), [""; 0]);
    }
}

/// A kernel peer hands over a pod's UDP super-packet with the mark of its segments: each begins with what would be a probe.
#[test]
fn a_pods_segments_are_no_probes() {
    for format in FORMATS {
        let bytes = request(2, 1, format, 1, 200).payload;
        let outer = format.header_len() + 28;
        // At the cuts of the whole buffer by the mark a probe begins.
        let mut payload = vec![0; bytes.len() - outer];
        (0..6).for_each(|_| payload.extend(&bytes));
        let packet = unfinished(udp(pod(2, 0), pod(1, 0), &payload));
        let mut datagram = match format {
            Format::Vxlan => vxlan(2, 1, &packet),
            Format::Udp => plain(2, 1, &packet),
        };
        datagram.segment = Some(bytes.len() as u16);
        assert!(datagram.payload[bytes.len()..].starts_with(&bytes));
        let mut node = node();
        let weight = payload.len().div_ceil(bytes.len()) as u64;
        node.hand(datagram, weight);
        let (sent, delivered) = node.run(NOW);
        assert_eq!((sent.len(), delivered.len() as u64), (0, weight));
        assert_eq!(node.take_heard(), []);
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// Requests that the kernel joined to one buffer are several.
#[test]
fn a_gro_buffer_of_requests_is_split() {
    for format in FORMATS {
        let requests: Vec<_> = (0..5)
            .map(|nonce| request(2, 1, format, nonce, 120).payload)
            .collect();
        let mut buffer = request(2, 1, format, 0, 0);
        buffer.payload = requests.concat();
        buffer.segment = Some(120);
        let mut node = node();
        node.hand(buffer, 5);
        let (sent, _) = node.run(NOW);
        let mut nonces: Vec<_> = sent.iter().map(|sent| message(sent).nonce).collect();
        nonces.sort_unstable();
        assert_eq!(nonces, [0, 1, 2, 3, 4]);
        audit(&mut node);
    }
}

/// What probes have shown of a path counts at once, and pods are told; what they show again is forgotten.
#[test]
fn pods_are_told_what_probes_have_shown() {
    let mut node = node();
    let large = dont_fragment(udp(pod(1, 0), pod(2, 0), &pattern(1_400)));
    let told = |node: &mut Node, now| {
        node.push(large.clone());
        let (sent, answers) = node.run(now);
        assert_eq!(sent.len() + answers.len(), 1);
        let mtu = |answer: &Vec<u8>| u16::from_be_bytes([answer[26], answer[27]]);
        answers.first().map(mtu)
    };
    assert_eq!(told(&mut node, NOW), None);
    node.peer(2).learn_path(Family::V4, 1_400, NOW);
    assert_eq!(told(&mut node, NOW), Some(1_350));
    node.peer(2).learn_path(Family::V4, 1_300, NOW);
    assert_eq!(told(&mut node, NOW), Some(1_250));
    node.peer(2).learn_path(Family::V4, 1_450, NOW);
    assert_eq!(told(&mut node, NOW), Some(1_400));
    // No less than every path carries, and no more than our own end.
    node.peer(2).learn_path(Family::V4, 100, NOW);
    assert_eq!(told(&mut node, NOW), Some(576));
    node.peer(2).learn_path(Family::V4, 9_000, NOW);
    assert_eq!(told(&mut node, NOW), None);
    assert_eq!(node.peer(2).path_mtu(Family::V4, NOW), Some(1_500));
    // By a family that nothing goes by, nothing is learned.
    node.peer(2).learn_path(Family::V6, 1_300, NOW);
    assert_eq!(told(&mut node, NOW), None);
    assert_eq!(node.audit(), [""; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever a peer or a stranger puts in the place of a probe: one fate each, no packet for a pod, no answer longer
    /// than what draws it, and none to anyone but a peer.
    #[test]
    fn any_probe_has_one_fate(
        probes in proptest::collection::vec(
            (2u8..5, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..120), 0usize..6, 1u8..4, 0usize..300),
            1..40,
        ),
        room in proptest::option::of(0usize..20),
    ) {
        let mut node = node();
        node.give_room(room);
        let (mut longest, count) = (0, probes.len() as u64);
        for (from, framed, noise, kept, kind, length) in probes {
            let format = FORMATS[usize::from(framed)];
            let good = request(from, 1, format, 7, if kind == 1 { length } else { 0 });
            let mut bytes = good.payload[format.header_len()..].to_vec();
            bytes[5] = kind;
            // The head of a good one, and then anything.
            let kept = [0, 4, 6, 8, 48, usize::MAX][kept].min(bytes.len());
            for (place, byte) in bytes.iter_mut().skip(kept).zip(noise) {
                *place = byte;
            }
            if bytes.first().is_some_and(|byte| matches!(byte >> 4, 4 | 6)) {
                bytes[0] = 0;
            }
            let datagram = probe(from, 1, format, bytes, 0);
            longest = longest.max(datagram.payload.len());
            node.hand(datagram, 1);
        }
        let (sent, delivered) = node.run(NOW);
        prop_assert!(delivered.is_empty());
        prop_assert!(sent.iter().all(|sent| is_probe(sent) && sent.payload.len() <= longest));
        prop_assert!(sent.iter().all(|sent| sent.to.ip() == plan::v4(2).first() || sent.to.ip() == plan::v4(3).first()));
        let heard = node.take_heard();
        prop_assert!(heard.iter().all(|heard| heard.peer == plan::v4(2) || heard.peer == plan::v4(3)));
        prop_assert_eq!(node.totals().inbound.received, count);
        audit(&mut node);
    }
}
