//! Which reports about a path are believed: those that quote our own headers towards a peer, and no others.

use std::net::SocketAddr;

use dataplane::limits::{ERROR_QUEUE_CHECK, ERROR_REPORTS, QUOTE};
use dataplane::now::Now;
use dataplane::underlay::{ErrorReport, Port};
use dataplane::worker::Source;
use encap::{Family, Format};
use libc::{ECONNREFUSED, EHOSTUNREACH, EMSGSIZE};
use proptest::prelude::*;

use crate::path_mtu::{learn, path_mtu, report};
use crate::reasons::node;
use crate::world::node::{Node, port};
use crate::world::packets::{dont_fragment, frame, pattern, udp, vxlan};
use crate::world::plan::{ip, mac, pod};

#[test]
fn a_router_that_quotes_us_is_believed() {
    let mut node = node();
    let vxlan = frame(mac(2), mac(1), &[0x45]);
    learn(&mut node, quoting(2, Format::Vxlan, &vxlan), Now(0));
    assert_eq!(path_mtu(&mut node, 2, Now(0)), 950);
    learn(
        &mut node,
        quoting(3, Format::Udp, &udp(pod(1, 0), pod(3, 0), b"")),
        Now(0),
    );
    assert_eq!(path_mtu(&mut node, 3, Now(0)), 972);
}

#[test]
fn a_forged_report_changes_nothing() {
    let ours = frame(mac(2), mac(1), &[0x45]);
    let good = || quoting(2, Format::Vxlan, &ours).1;
    let mut wrong_vni = ours;
    wrong_vni[6] = 9;
    let forged = [
        (
            "wrong port",
            ErrorReport {
                to: SocketAddr::new(ip("192.0.2.2"), 9),
                ..good()
            },
        ),
        (
            "other format's port",
            ErrorReport {
                to: SocketAddr::new(ip("192.0.2.2"), 8285),
                ..good()
            },
        ),
        (
            "unknown peer",
            ErrorReport {
                to: SocketAddr::new(ip("192.0.2.99"), 8472),
                ..good()
            },
        ),
        (
            "no quote",
            ErrorReport {
                quoted: 0,
                ..good()
            },
        ),
        (
            "short quote",
            ErrorReport {
                quoted: 21,
                ..good()
            },
        ),
        ("other network", quoting(2, Format::Vxlan, &wrong_vni).1),
        (
            "other MACs",
            quoting(2, Format::Vxlan, &frame(mac(3), mac(1), &[0x45])).1,
        ),
        (
            "other error",
            ErrorReport {
                errno: EHOSTUNREACH,
                ..good()
            },
        ),
        (
            "other error",
            ErrorReport {
                errno: ECONNREFUSED,
                ..good()
            },
        ),
    ];
    for (lie, failure) in forged {
        let mut node = node();
        learn(&mut node, (Format::Vxlan, failure), Now(0));
        assert_eq!(path_mtu(&mut node, 2, Now(0)), 1_450, "{lie}");
        assert_eq!(path_mtu(&mut node, 3, Now(0)), 1_472, "{lie}");
    }
    // In the `udp` format the quote is the inner packet: to another peer's pod, to an address of no node, or cut off.
    let quotes = [
        udp(pod(1, 0), pod(2, 0), b""),
        udp(pod(1, 0), pod(77, 0), b""),
        vec![0x45; 19],
        vec![],
    ];
    for quote in quotes {
        let mut node = node();
        learn(&mut node, quoting(3, Format::Udp, &quote), Now(0));
        assert_eq!(path_mtu(&mut node, 3, Now(0)), 1_472);
    }
}

/// The kernel forgets an error that it meets in the middle of a send, and keeps its report.
#[test]
fn a_report_without_an_error_is_read() {
    let mut node = node();
    let ours = frame(mac(2), mac(1), &[0x45]);
    let (format, good) = quoting(2, Format::Vxlan, &ours);
    let stranger = ErrorReport {
        to: SocketAddr::new(ip("192.0.2.99"), 8472),
        ..good.clone()
    };
    let underlay = node.worker.underlay_mut();
    let strangers = (0..2 * ERROR_REPORTS).map(|_| (format, stranger.clone()));
    underlay
        .error_reports
        .extend(strangers.chain([(format, good)]));
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
    assert_eq!(send_large(&mut node, sent), (1, 0));
    report_large(&mut node);
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
    assert_eq!(send_large(&mut node, sent), (1, 0));
    let round_trip = 50;
    for step in 1..=round_trip {
        node.hand(vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in")), 1);
        assert_eq!(node.run(sent.after(ERROR_QUEUE_CHECK * step)).1.len(), 1);
    }
    report_large(&mut node);
    let later = sent.after(ERROR_QUEUE_CHECK * (round_trip + 1));
    assert_eq!(send_large(&mut node, later), (0, 1));
    assert_eq!(path_mtu(&mut node, 2, later), 950);
    assert_eq!(node.audit(), [""; 0]);
}

/// A pod sends what is too large for the path that is reported of. Datagrams that leave, and answers to the pod.
fn send_large(node: &mut Node, now: Now) -> (usize, usize) {
    node.push(dont_fragment(udp(pod(1, 0), pod(2, 0), &pattern(1_400))));
    let (sent, answers) = node.run(now);
    (sent.len(), answers.len())
}

/// A router's report waits without an event of the poll.
fn report_large(node: &mut Node) {
    let report = quoting(2, Format::Vxlan, &frame(mac(2), mac(1), &[0x45]));
    node.worker.underlay_mut().error_reports.push_back(report);
}

proptest! {
    /// A report that does not quote our headers changes nothing, whatever else is in it.
    #[test]
    fn guessed_headers_are_refused(
        quote in proptest::collection::vec(any::<u8>(), 0..QUOTE),
        errno in prop_oneof![Just(EMSGSIZE), any::<i32>()],
        info in prop_oneof![68u32..1500, any::<u32>()],
        port in prop_oneof![Just(8472), Just(8285), any::<u16>()],
        peer in 2u8..5,
    ) {
        let mut node = node();
        let to = SocketAddr::new(ip(&format!("192.0.2.{peer}")), port);
        let mut failure = quoting(2, Format::Vxlan, &quote).1;
        failure = ErrorReport { to, errno, info, ..failure };
        learn(&mut node, (Format::Vxlan, failure), Now(0));
        prop_assert_eq!(path_mtu(&mut node, 2, Now(0)), 1_450);
    }
}

/// A router's frag-needed with MTU 1000 that quotes the UDP payload `quote`.
fn quoting(peer: u8, format: Format, quote: &[u8]) -> (Format, ErrorReport) {
    let (format, mut failure) = report(peer, format, 1_000);
    failure.local = false;
    failure.to.set_port(port(format));
    failure.quoted = quote.len();
    failure.quote[..quote.len()].copy_from_slice(quote);
    (format, failure)
}
