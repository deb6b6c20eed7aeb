//! Laws that rest on what this kernel's UDP sockets really do: a worker over real sockets, in network namespaces.
//!
//! ```text
//!   near 192.0.2.1 ── veth, MTU 1500 ── 192.0.2.2 far, or the same in 2001:db8::/64
//! ```
//!
//! Needs root, `ip` and `tc`; fails, never skips, without them.
// threads: 4: its tests wait for timeouts most of the time, and its bar, of the best of five rounds of 20 ms, is 100 ms
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

mod backlog;
mod gso;
mod probes;
mod rebind;
mod reuseport;
mod rig;
mod writable;

use std::time::Duration;

use dataplane::drops::DropReason;
use dataplane::now::Now;
use encap::{Family, Format};

use rig::Rig;

/// Our own kernel refuses what is larger than the link, and says how large that is: the sender of a DF packet gets an ICMP error,
/// any other packet goes in fragments.
#[test]
fn a_link_smaller_than_we_thought_is_learned_from_our_own_kernel() {
    for format in [Format::Udp, Format::Vxlan] {
        let mut rig = Rig::new(format, Family::V4, 9000);
        let fits = 1500 - format.overhead(Family::V4);
        let answers = rig.send(
            &[rig::packet(1_600, true), rig::packet(1_600, false)],
            Now(0),
        );
        let [answer] = &answers[..] else {
            panic!("{} answers", answers.len())
        };
        assert_eq!(answer[20..22], [3, 4], "fragmentation needed");
        assert_eq!(answer[26..28], fits.to_be_bytes());
        let flow = rig.outbound();
        assert_eq!(flow.drops_of(DropReason::TooBig), 1);
        assert_eq!((flow.sent, flow.dropped(), flow.balance()), (2, 1, 0));
        assert_eq!(rig.path_mtu(), 1500);
        let fragments = rig.arrived();
        assert_eq!(fragments.len(), 2);
        assert!(fragments.iter().all(|bytes| bytes.len() + 28 <= 1500));
    }
}

/// The same over IPv6, where nothing is fragmented and the kernel's word names the port.
#[test]
fn a_link_smaller_than_we_thought_is_learned_over_ipv6() {
    for format in [Format::Udp, Format::Vxlan] {
        let mut rig = Rig::new(format, Family::V6, 9000);
        let fits = 1500 - format.overhead(Family::V6);
        let answers = rig.send(&[rig::packet6_to(2, 1_600)], Now(0));
        let [answer] = &answers[..] else {
            panic!("{} answers", answers.len())
        };
        assert_eq!(answer[40..42], [2, 0], "packet too big");
        assert_eq!(answer[44..48], u32::from(fits).to_be_bytes());
        assert_eq!(rig.path_mtu(), 1500);
        let none: [Vec<u8>; 0] = [];
        assert_eq!(rig.send(&[rig::packet6_to(2, fits)], Now(0)), none);
        let arrived = rig.arrived();
        assert_eq!(arrived.len(), 1);
        assert_eq!(arrived[0].len(), usize::from(fits) + format.header_len());
        let flow = rig.outbound();
        assert_eq!(flow.drops_of(DropReason::TooBig), 1);
        assert_eq!((flow.sent, flow.dropped(), flow.balance()), (1, 1, 0));
    }
}

/// ICMP errors about datagrams to a closed port come back while we send to a peer that is well.
#[test]
fn errors_of_other_datagrams_lose_nothing() {
    let to_nobody = rig::packet_to([10, 244, 3, 2], 100, false);
    for transmit in [false, true] {
        let rig = |family| match transmit {
            false => Rig::new(Format::Vxlan, family, 1500),
            true => Rig::with_transmit_sockets(family),
        };
        let to_peer = rig::packet(100, false);
        errors_lose_nothing(rig(Family::V4), &to_nobody, &to_peer);
        let (to_nobody6, to_peer6) = (rig::packet6_to(3, 100), rig::packet6_to(2, 100));
        errors_lose_nothing(rig(Family::V6), &to_nobody6, &to_peer6);
    }
}

fn errors_lose_nothing(mut rig: Rig, to_nobody: &[u8], to_peer: &[u8]) {
    let mut arrived = 0;
    for round in 0..20 {
        let now = Now(0).after(Duration::from_millis(round * 20));
        let nobodys: Vec<_> = (0..32).map(|_| to_nobody.to_vec()).collect();
        rig.send(&nobodys, now);
        std::thread::sleep(Duration::from_millis(2));
        let peers: Vec<_> = (0..32).map(|_| to_peer.to_vec()).collect();
        rig.send(&peers, now.after(Duration::from_millis(10)));
        arrived += rig.arrived().len();
    }
    let flow = rig.outbound();
    assert_eq!(
        (flow.received, flow.dropped(), flow.balance()),
        (20 * 64, 0, 0)
    );
    assert_eq!(arrived, 20 * 32);
}
