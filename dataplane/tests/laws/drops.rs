//! Every reason to drop is reached, counted exactly, and lets nothing through.

use dataplane::counters::WorkerTotals;
use dataplane::drops::{Direction, DropReason};

use crate::reasons::{CASES, Case, Known, node};
use crate::world::node::sum;

#[test]
fn malformed() {
    reach(DropReason::Malformed);
}

#[test]
fn not_unicast() {
    reach(DropReason::NotUnicast);
}

#[test]
fn spoofed_source() {
    reach(DropReason::SpoofedSource);
}

#[test]
fn own_subnet() {
    reach(DropReason::OwnSubnet);
}

#[test]
fn no_route() {
    reach(DropReason::NoRoute);
}

#[test]
fn no_underlay() {
    reach(DropReason::NoUnderlay);
}

#[test]
fn ipv6_in_udp() {
    reach(DropReason::Ipv6InUdp);
}

#[test]
fn too_big() {
    reach(DropReason::TooBig);
}

#[test]
fn underlay_full() {
    reach(DropReason::UnderlayFull);
}

#[test]
fn underlay_refused() {
    reach(DropReason::UnderlayRefused);
}

#[test]
fn truncated() {
    reach(DropReason::Truncated);
}

#[test]
fn too_short() {
    reach(DropReason::TooShort);
}

#[test]
fn vxlan_flags() {
    reach(DropReason::VxlanFlags);
}

#[test]
fn wrong_vni() {
    reach(DropReason::WrongVni);
}

#[test]
fn not_our_mac() {
    reach(DropReason::NotOurMac);
}

#[test]
fn bad_source_mac() {
    reach(DropReason::BadSourceMac);
}

#[test]
fn not_ip() {
    reach(DropReason::NotIp);
}

#[test]
fn unknown_peer() {
    reach(DropReason::UnknownPeer);
}

#[test]
fn not_peers_source() {
    reach(DropReason::NotPeersSource);
}

#[test]
fn not_ours() {
    reach(DropReason::NotOurs);
}

#[test]
fn ecn_mismatch() {
    reach(DropReason::EcnMismatch);
}

#[test]
fn bad_super_packet() {
    reach(DropReason::BadSuperPacket);
}

#[test]
fn ring_full() {
    reach(DropReason::RingFull);
}

#[test]
fn over_share() {
    reach(DropReason::OverShare);
}

#[test]
fn device_refused() {
    reach(DropReason::DeviceRefused);
}

#[test]
fn lost_in_crash() {
    reach(DropReason::LostInCrash);
}

#[test]
fn bad_probe() {
    reach(DropReason::BadProbe);
}

#[test]
fn probe_limit() {
    reach(DropReason::ProbeLimit);
}

/// A reason added without a way to reach it, or without a test above, fails here. `NotMarked` is a program's of the kernel
/// path alone: `kernel_path_programs.rs` reaches it.
#[test]
fn no_reason_is_exempt() {
    let source = include_str!("drops.rs");
    let workers = DropReason::ALL.into_iter();
    for reason in workers.filter(|reason| *reason != DropReason::NotMarked) {
        assert!(
            CASES.iter().any(|case| case.reason == reason),
            "no case for {reason:?}"
        );
        let test = format!("() {{\n    reach(DropReason::{});\n}}\n", reason.name());
        assert_eq!(source.matches(&test).count(), 1, "no test for {reason:?}");
    }
}

/// Runs every case of a reason, each on a node of its own.
fn reach(reason: DropReason) {
    for case in CASES.iter().filter(|case| case.reason == reason) {
        let mut node = node();
        let expected = (case.run)(&mut node);
        let sent = node.take_sent();
        let delivered = node.take_delivered();
        assert_eq!(node.audit(), [""; 0]);
        let totals = node.totals();
        assert!(expected > 0);
        assert_eq!(
            drops(&totals),
            expected_drops(case, expected),
            "{reason:?} {:?}",
            case.direction
        );
        for (known, dropped) in [case.of_peer, case.of_pod].into_iter().zip(node.dropped()) {
            let counts = *sum(&dropped).of(case.direction);
            let expected = match known {
                Known::All => expected,
                Known::Only(count) => count,
            };
            let direction = case.direction;
            assert_eq!(
                counts[reason as usize], expected,
                "{reason:?} {direction:?}"
            );
        }
        assert_eq!(sent, [], "{reason:?}");
        assert_eq!(totals.inbound.delivered, 0, "{reason:?}");
        // ICMP errors to the sender are all that may come back.
        let answers = delivered
            .iter()
            .filter(|packet| matches!(packet[0], 0x45 if packet[9] == 1) || packet[6] == 58);
        assert_eq!(answers.count(), delivered.len(), "{reason:?}");
    }
}

/// Every drop counter that is not zero.
fn drops(totals: &WorkerTotals) -> Vec<(Direction, DropReason, u64)> {
    let flows = [
        (Direction::Outbound, &totals.outbound),
        (Direction::Inbound, &totals.inbound),
    ];
    let each = flows.into_iter().flat_map(|(direction, flow)| {
        DropReason::ALL.map(|reason| (direction, reason, flow.drops_of(reason)))
    });
    each.filter(|(_, _, count)| *count > 0).collect()
}

fn expected_drops(case: &Case, expected: u64) -> Vec<(Direction, DropReason, u64)> {
    let mut reasons: Vec<_> = case.beside.into_iter().chain([case.reason]).collect();
    reasons.sort_by_key(|reason| *reason as u8);
    reasons
        .into_iter()
        .map(|reason| (case.direction, reason, expected))
        .collect()
}
