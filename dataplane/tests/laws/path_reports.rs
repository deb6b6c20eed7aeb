//! Which reports of routers about a path are believed: two that quote different datagrams which were sent there lately,
//! and no others. What they said is tried now and then, and forgotten when it is not so.

use std::net::SocketAddr;
use std::time::Duration;

use dataplane::device::Offload;
use dataplane::drops::DropReason;
use dataplane::limits::{
    ERROR_QUEUE_CHECK, ERROR_REPORTS, FIRST_PATH_TRIAL, PATH_TRIAL_WAIT, QUOTE, REMEMBERED_FOR,
    REMEMBERED_OF_MESSAGE, REPORT_CONFIRMED_WITHIN,
};
use dataplane::now::Now;
use dataplane::underlay::memory::Datagram;
use dataplane::underlay::{ErrorReport, Port};
use dataplane::worker::Source;
use encap::offload::{Cut, GsoType};
use encap::{Family, Format};
use libc::{ECONNREFUSED, EHOSTUNREACH, EMSGSIZE};
use proptest::prelude::*;

use crate::path_mtu::{path_mtu, path_mtu_between};
use crate::reasons::node as reasons_node;
use crate::world::node::Node;
use crate::world::packets::{dont_fragment, frame, pattern, tcp, udp, vxlan};
use crate::world::plan::{self, ClusterPlan, ip, mac, pod, pod6, v6};

#[test]
fn two_reports_about_different_datagrams_are_believed() {
    for (peer, overhead) in PEERS_AND_OVERHEADS {
        let mut node = node();
        let sent = send_two(&mut node, peer, Now(0));
        tell(&mut node, about(&sent[0], 1_000), Now(0));
        assert_eq!(path_mtu(&mut node, peer, Now(0)), 1_500 - overhead);
        // The same again proves no more.
        tell(&mut node, about(&sent[0], 1_000), Now(0));
        assert_eq!(path_mtu(&mut node, peer, Now(0)), 1_500 - overhead);
        tell(&mut node, about(&sent[1], 1_000), Now(0));
        assert_eq!(path_mtu(&mut node, peer, Now(0)), 1_000 - overhead);
    }
}

#[test]
fn a_report_is_not_confirmed_by_one_of_long_ago() {
    let mut node = node();
    let late = Now(0).after(REPORT_CONFIRMED_WITHIN);
    for now in [Now(0), late] {
        let sent = send_two(&mut node, 2, now);
        let which = usize::from(now == late);
        tell(&mut node, about(&sent[which], 1_000), now);
    }
    assert_eq!(path_mtu(&mut node, 2, late), 1_450);
}

/// Each forgery differs in one thing from a report that would be believed.
#[test]
fn a_forged_report_changes_nothing() {
    type Forgery = fn(&mut ErrorReport);
    let forgeries: [(&str, Forgery); 12] = [
        ("wrong port", |r| r.to.set_port(9)),
        ("other format's port", |r| r.to.set_port(8285)),
        ("unknown peer", |r| r.to.set_ip(ip("192.0.2.99"))),
        ("another peer", |r| r.to.set_ip(ip("192.0.2.3"))),
        ("the socket that receives", |r| r.socket = 0),
        ("another socket", |r| r.socket ^= 7),
        ("no quote", |r| r.quoted = 0),
        ("our headers alone", |r| r.quoted = 22 + 28),
        ("a quote one byte short", |r| r.quoted = 22 + 63),
        ("other error", |r| r.errno = EHOSTUNREACH),
        ("other error", |r| r.errno = ECONNREFUSED),
        ("no smaller than the datagram", |r| r.info = 1_450),
    ];
    let wrong_vni = |r: &mut ErrorReport| r.quote[6] = 9;
    let other_macs =
        |r: &mut ErrorReport| r.quote[..22].copy_from_slice(&frame(mac(3), mac(1), &[])[..22]);
    let others: [(&str, Forgery); 2] = [("other network", wrong_vni), ("other MACs", other_macs)];
    for (lie, forge) in forgeries.into_iter().chain(others) {
        let mut node = node();
        let sent = send_two(&mut node, 2, Now(0));
        for datagram in &sent {
            let (format, mut report) = about(datagram, 1_000);
            forge(&mut report);
            tell(&mut node, (format, report), Now(0));
        }
        assert_eq!(path_mtu(&mut node, 2, Now(0)), 1_450, "{lie}");
        assert_eq!(path_mtu(&mut node, 3, Now(0)), 1_472, "{lie}");
    }
}

/// Every byte of the inner packet that is quoted is proof.
#[test]
fn a_guessed_inner_packet_is_refused() {
    for (peer, overhead) in PEERS_AND_OVERHEADS {
        let header = if peer == 2 { 22 } else { 0 };
        for place in (0..64).chain([0]) {
            let mut node = node();
            let sent = send_two(&mut node, peer, Now(0));
            for datagram in &sent {
                let (format, mut report) = about(datagram, 1_000);
                report.quote[header + place] ^= 1;
                tell(&mut node, (format, report), Now(0));
            }
            assert_eq!(path_mtu(&mut node, peer, Now(0)), 1_500 - overhead);
        }
    }
}

#[test]
fn what_was_sent_long_ago_is_no_proof() {
    let mut node = node();
    let sent = send_two(&mut node, 2, Now(0));
    let late = Now(0).after(REMEMBERED_FOR + Duration::from_millis(200));
    for datagram in &sent {
        tell(&mut node, about(datagram, 1_000), late);
    }
    assert_eq!(path_mtu(&mut node, 2, late), 1_450);
}

/// Below the least that every path is taken to carry nothing is learned, whoever says so.
#[test]
fn the_least_of_the_family_and_the_overhead_is_the_end() {
    for (peer, overhead) in PEERS_AND_OVERHEADS {
        for mtu in [68, 500, 576, 600] {
            let mut node = node();
            let sent = send_two(&mut node, peer, Now(0));
            for datagram in &sent {
                tell(&mut node, about(datagram, mtu), Now(0));
            }
            let known = node.path_mtus_of(peer);
            assert_eq!(known, [Some(576 + overhead as u16), None]);
        }
        for mtu in [0, 1, 67, 65_536, u32::MAX] {
            let mut node = node();
            let sent = send_two(&mut node, peer, Now(0));
            for datagram in &sent {
                tell(&mut node, about(datagram, mtu), Now(0));
            }
            assert_eq!(path_mtu(&mut node, peer, Now(0)), 1_500 - overhead, "{mtu}");
        }
    }
}

#[test]
fn packet_too_big_is_believed_in_the_same_way() {
    for (format, overhead) in [(Format::Vxlan, 70u16), (Format::Udp, 48)] {
        let plan = ClusterPlan::new(2, format).over(v6);
        let mut spec = plan.spec(1);
        plan::cluster(&mut spec).node.ipv6_over_udp = true;
        plan::cluster(&mut spec).node.underlay_mtu = 1_500;
        for (mtu, learned) in [(1_400, 1_400), (1_280, 1_280 + overhead), (1_279, 1_500u16)] {
            let mut node = with_sockets(Node::new(spec.clone()));
            let packets = [1, 2].map(|n| udp(pod6(1, 0), pod6(2, 0), &[n; 1_370]));
            let sent = packets.map(|packet| send(&mut node, packet, Now(0)));
            tell(&mut node, about(&sent[0], mtu), Now(0));
            let known = path_mtu_between(&mut node, pod6(1, 0), pod6(2, 0), Now(0));
            assert_eq!(known, 1_500 - usize::from(overhead));
            tell(&mut node, about(&sent[1], mtu), Now(0));
            let known = path_mtu_between(&mut node, pod6(1, 0), pod6(2, 0), Now(0));
            assert_eq!(known, usize::from(learned - overhead));
        }
    }
}

/// The first datagrams of a message are those that a router reports first, however the sender cut them.
#[test]
fn wire_packets_of_a_super_packet_are_proof() {
    if !crate::with_offloads() {
        return;
    }
    for (peer, overhead) in PEERS_AND_OVERHEADS {
        let mut node = node();
        let cut = Offload {
            checksum: None,
            cut: Some(Cut {
                kind: GsoType::Tcp4,
                size: 1_300,
                header: 52,
            }),
        };
        let packet = tcp(pod(1, 0), pod(peer, 0), &pattern(10 * 1_300));
        node.push_as(cut, packet, 10);
        let sent = node.run(Now(0)).0;
        assert_eq!(sent.len(), 10);
        tell(
            &mut node,
            about(&sent[REMEMBERED_OF_MESSAGE - 1], 1_000),
            Now(0),
        );
        tell(&mut node, about(&sent[0], 1_000), Now(0));
        assert_eq!(path_mtu(&mut node, peer, Now(0)), 1_000 - overhead);
    }
}

/// A worker's `udp` socket gets reports about what another worker sent: the ports are the same.
#[test]
fn any_worker_learns_of_the_udp_format() {
    let mut node = Node::with_workers(reasons_node().spec, 2);
    let sent = send_two(&mut node, 3, Now(0));
    let counts = node.counters().workers;
    let sender = counts
        .iter()
        .position(|worker| worker.outbound.sent == 2)
        .unwrap();
    for datagram in &sent {
        let (format, report) = about(datagram, 1_000);
        // The flow is another's.
        let other = node.worker_at(1 - sender);
        other
            .underlay_mut()
            .error_reports
            .push_back((format, report));
        other.wake(Source::ErrorQueue(Port::new(format, Family::V4)));
        node.run(Now(0));
    }
    assert_eq!(node.path_mtus_of(3), [Some(1_000), None]);
}

/// A path that was narrow is tried, and found wide when no report comes of the copy of a segment that was let out.
#[test]
fn a_trial_that_nobody_answers_raises_the_path() {
    for (peer, overhead) in PEERS_AND_OVERHEADS {
        let mut node = narrowed(peer);
        let large = tcp(pod(1, 0), pod(peer, 0), &pattern(1_300));
        let just_before = Now(FIRST_PATH_TRIAL.as_nanos() as u64 - 1);
        assert_eq!(tries(&mut node, &large, just_before), (0, 1));
        let due = Now(0).after(FIRST_PATH_TRIAL);
        // A copy goes out, and its sender is told all the same. One is enough.
        assert_eq!(tries(&mut node, &large, due), (1, 1));
        assert_eq!(tries(&mut node, &large, due), (0, 1));
        let late = due.after(PATH_TRIAL_WAIT);
        assert_eq!(tries(&mut node, &large, late), (1, 0));
        assert_eq!(path_mtu(&mut node, peer, late), 1_500 - overhead);
        let flow = node.totals().outbound;
        assert_eq!(flow.drops_of(DropReason::TooBig), 3);
        assert_eq!(node.audit(), [""; 0]);
    }
}

#[test]
fn a_trial_that_is_answered_keeps_the_path_narrow() {
    for (peer, overhead) in PEERS_AND_OVERHEADS {
        let mut node = narrowed(peer);
        let large = tcp(pod(1, 0), pod(peer, 0), &pattern(1_300));
        let due = Now(0).after(FIRST_PATH_TRIAL);
        node.push(large.clone());
        let (sent, answers) = node.run(due);
        assert_eq!((sent.len(), answers.len()), (1, 1));
        assert_eq!(sent[0].payload[sent[0].format.header_len()..], large);
        let answered = due.after(Duration::from_millis(500));
        tell(&mut node, about(&sent[0], 1_000), answered);
        let late = answered.after(PATH_TRIAL_WAIT);
        assert_eq!(path_mtu(&mut node, peer, late), 1_000 - overhead);
        assert_eq!(tries(&mut node, &large, late), (0, 1));
        // The next comes later.
        assert_eq!(
            tries(&mut node, &large, answered.after(FIRST_PATH_TRIAL)),
            (0, 1)
        );
        let next = answered.after(2 * FIRST_PATH_TRIAL);
        assert_eq!(tries(&mut node, &large, next), (1, 1));
        assert_eq!(node.audit(), [""; 0]);
    }
}

/// Only TCP takes the same bytes twice without harm.
#[test]
fn no_datagram_of_another_protocol_is_doubled() {
    let mut node = narrowed(2);
    let due = Now(0).after(FIRST_PATH_TRIAL);
    let large = dont_fragment(udp(pod(1, 0), pod(2, 0), &pattern(1_300)));
    assert_eq!(tries(&mut node, &large, due), (0, 1));
}

/// The kernel forgets an error that it meets in the middle of a send, and keeps its report.
#[test]
fn a_report_without_an_error_is_read() {
    let mut node = node();
    let sent = send_two(&mut node, 2, Now(0));
    let good = sent.each_ref().map(|datagram| about(datagram, 1_000));
    let (format, mut stranger) = good[0].clone();
    stranger.to.set_ip(ip("192.0.2.99"));
    let strangers = (0..2 * ERROR_REPORTS).map(|_| (format, stranger.clone()));
    let underlay = node.worker.underlay_mut();
    underlay.error_reports.extend(strangers.chain(good));
    node.worker
        .wake(Source::ErrorQueue(Port::new(format, Family::V4)));
    node.run(Now(0));
    assert_eq!(path_mtu(&mut node, 2, Now(0)), 950);
}

/// The poll does not announce a report that came to a socket that only sends.
#[test]
fn a_report_without_an_event_is_read() {
    let mut node = node();
    let sent = Now(0).after(ERROR_QUEUE_CHECK);
    let datagrams = send_two(&mut node, 2, sent);
    report_both(&mut node, &datagrams);
    // Not looked for at every packet, and before the packet that it matters to.
    assert_eq!(send_large(&mut node, sent), (1, 0));
    assert_eq!(send_large(&mut node, sent.after(ERROR_QUEUE_CHECK)), (0, 1));
    assert_eq!(path_mtu(&mut node, 2, sent), 950);
    assert_eq!(node.audit(), [""; 0]);
}

/// A report comes a round trip later, whatever the worker did since.
#[test]
fn a_late_report_is_read() {
    let mut node = node();
    let sent = Now(0).after(ERROR_QUEUE_CHECK);
    let datagrams = send_two(&mut node, 2, sent);
    let round_trip = 50;
    for step in 1..=round_trip {
        node.hand(vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in")), 1);
        assert_eq!(node.run(sent.after(ERROR_QUEUE_CHECK * step)).1.len(), 1);
    }
    report_both(&mut node, &datagrams);
    let later = sent.after(ERROR_QUEUE_CHECK * (round_trip + 1));
    assert_eq!(send_large(&mut node, later), (0, 1));
    assert_eq!(path_mtu(&mut node, 2, later), 950);
    assert_eq!(node.audit(), [""; 0]);
}

proptest! {
    /// Reports that quote nothing that was sent change nothing, whatever else is in them.
    #[test]
    fn guessed_datagrams_are_refused(
        quotes in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..QUOTE), 2),
        our_headers in any::<bool>(),
        errno in prop_oneof![Just(EMSGSIZE), any::<i32>()],
        info in prop_oneof![68u32..1500, any::<u32>()],
        port in prop_oneof![Just(8472), Just(8285), any::<u16>()],
        socket in 0usize..6,
        peer in 2u8..5,
    ) {
        let mut node = node();
        let sent = send_two(&mut node, 2, Now(0));
        for quote in quotes {
            let (format, mut report) = about(&sent[0], info);
            let front = if our_headers { 22.min(quote.len()) } else { 0 };
            report.quote[front..quote.len()].copy_from_slice(&quote[front..]);
            report.quoted = quote.len();
            report.to = SocketAddr::new(ip(&format!("192.0.2.{peer}")), port);
            (report.errno, report.socket) = (errno, socket);
            tell(&mut node, (format, report), Now(0));
        }
        prop_assert_eq!(path_mtu(&mut node, 2, Now(0)), 1_450);
    }
}

/// Node 1, which sends to node 2 in VXLAN, through transmit sockets with ports of their own, and to node 3 in `udp`.
fn node() -> Node {
    with_sockets(reasons_node())
}

/// A node whose transmit sockets have ports of their own.
pub fn with_sockets(mut node: Node) -> Node {
    node.worker.underlay_mut().first_port = Some(FIRST_PORT);
    node
}

/// Routers have reported that the path to `peer` carries 1,000 bytes.
fn narrowed(peer: u8) -> Node {
    let mut node = node();
    let sent = send_two(&mut node, peer, Now(0));
    for datagram in &sent {
        tell(&mut node, about(datagram, 1_000), Now(0));
    }
    assert_eq!(node.path_mtus_of(peer), [Some(1_000), None]);
    node
}

/// A pod sends two large datagrams to a peer.
fn send_two(node: &mut Node, peer: u8, now: Now) -> [Datagram; 2] {
    [1, 2].map(|number| send(node, udp(pod(1, 0), pod(peer, 0), &[number; 1_372]), now))
}

/// A pod sends a packet, which leaves as one datagram.
pub fn send(node: &mut Node, packet: Vec<u8>, now: Now) -> Datagram {
    node.push(packet);
    let (mut sent, _) = node.run(now);
    assert_eq!(sent.len(), 1);
    sent.remove(0)
}

/// A router's report about a datagram that was sent.
pub fn about(datagram: &Datagram, mtu: u32) -> (Format, ErrorReport) {
    let quoted = datagram.payload.len().min(QUOTE);
    let mut quote = [0; QUOTE];
    quote[..quoted].copy_from_slice(&datagram.payload[..quoted]);
    let socket = match datagram.format {
        Format::Udp => 0,
        Format::Vxlan => 1 + usize::from(datagram.from.port() - FIRST_PORT),
    };
    let report = ErrorReport {
        to: datagram.to,
        socket,
        local: false,
        errno: EMSGSIZE,
        info: mtu,
        quote,
        quoted,
    };
    (datagram.format, report)
}

/// Has the node read a report.
pub fn tell(node: &mut Node, (format, report): (Format, ErrorReport), now: Now) {
    let port = Port::towards(report.to.ip(), format);
    let underlay = node.worker.underlay_mut();
    underlay.error_reports.push_back((format, report));
    node.worker.wake(Source::ErrorQueue(port));
    node.run(now);
    assert!(node.worker.underlay_mut().error_reports.is_empty());
}

/// Datagrams that leave for a packet, and answers to its sender.
fn tries(node: &mut Node, packet: &[u8], now: Now) -> (usize, usize) {
    node.push(packet.to_vec());
    let (sent, answers) = node.run(now);
    (sent.len(), answers.len())
}

/// A pod sends what is too large for the path that is reported of. Datagrams that leave, and answers to the pod.
fn send_large(node: &mut Node, now: Now) -> (usize, usize) {
    let packet = dont_fragment(udp(pod(1, 0), pod(2, 0), &pattern(1_400)));
    tries(node, &packet, now)
}

/// A router's reports wait without an event of the poll.
fn report_both(node: &mut Node, datagrams: &[Datagram]) {
    let reports = datagrams.iter().map(|datagram| about(datagram, 1_000));
    node.worker.underlay_mut().error_reports.extend(reports);
}

/// Peers by number, and the overhead of their formats.
const PEERS_AND_OVERHEADS: [(u8, usize); 2] = [(2, 50), (3, 28)];
const FIRST_PORT: u16 = 50_000;
