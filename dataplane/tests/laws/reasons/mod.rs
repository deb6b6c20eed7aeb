//! For every reason to drop a packet, and each direction in which it can happen, how to make it happen.
//!
//! The node under test is node 1 of three; it sends to node 2 in VXLAN and to node 3 in the `udp` format.

use std::time::Duration;

use dataplane::drops::{Direction, DropReason};
use dataplane::now::Now;
use encap::Format;

use crate::world::node::Node;
use crate::world::packets::udp;
use crate::world::plan::{ClusterPlan, pod, pod6};

mod inbound;
mod outbound;

/// A reason, in one direction.
pub struct Case {
    /// The reason.
    pub reason: DropReason,
    /// The direction.
    pub direction: Direction,
    /// Sends packets that must all be dropped for the reason, and returns how many (of inner wire packets).
    pub run: fn(&mut Node) -> u64,
    /// A reason for which as many packets are counted once more: they were answered, or came before these.
    pub beside: Option<DropReason>,
}

/// Every reason, in each direction in which a packet can meet it.
pub const CASES: [Case; 38] = [
    out(DropReason::Malformed, outbound::malformed),
    out(DropReason::NotUnicast, outbound::not_unicast),
    out(DropReason::NotIp, outbound::not_ip),
    out(DropReason::SpoofedSource, outbound::spoofed_source),
    out(DropReason::OwnSubnet, outbound::own_subnet),
    out(DropReason::NoRoute, outbound::no_route),
    out(DropReason::NoUnderlay, outbound::no_underlay),
    out(DropReason::Ipv6InUdp, outbound::ipv6_in_udp),
    out(DropReason::TooBig, outbound::too_big),
    out(DropReason::UnderlayFull, outbound::underlay_full),
    out(DropReason::UnderlayRefused, outbound::underlay_refused),
    out(DropReason::BadSuperPacket, outbound::bad_super_packet),
    Case {
        beside: Some(DropReason::NoRoute),
        ..out(DropReason::DeviceRefused, outbound::device_refused)
    },
    out(DropReason::OverShare, outbound::over_share),
    out(DropReason::LostInCrash, outbound::lost_in_crash),
    inb(DropReason::Malformed, inbound::malformed),
    inb(DropReason::Ipv6InUdp, inbound::ipv6_in_udp),
    inb(DropReason::Truncated, inbound::truncated),
    inb(DropReason::TooShort, inbound::too_short),
    inb(DropReason::VxlanFlags, inbound::vxlan_flags),
    inb(DropReason::WrongVni, inbound::wrong_vni),
    inb(DropReason::NotOurMac, inbound::not_our_mac),
    inb(DropReason::BadSourceMac, inbound::bad_source_mac),
    inb(DropReason::NotIp, inbound::not_ip),
    inb(DropReason::UnknownPeer, inbound::unknown_peer),
    inb(DropReason::NotPeersSource, inbound::not_peers_source),
    inb(DropReason::NotOurs, inbound::not_ours),
    inb(DropReason::EcnMismatch, inbound::ecn_mismatch),
    inb(DropReason::BadSuperPacket, inbound::bad_super_packet),
    inb(DropReason::DeviceRefused, inbound::device_refused),
    Case {
        beside: Some(DropReason::NotOurs),
        ..inb(DropReason::RingFull, inbound::ring_full)
    },
    Case {
        beside: Some(DropReason::EcnMismatch),
        ..inb(DropReason::OverShare, inbound::over_share)
    },
    inb(DropReason::LostInCrash, inbound::lost_in_crash),
    inb(DropReason::BadProbe, inbound::bad_probe),
    inb(DropReason::ProbeLimit, inbound::probe_limit),
    inb(DropReason::NoUnderlay, inbound::no_underlay),
    inb(DropReason::UnderlayFull, inbound::underlay_full),
    inb(DropReason::UnderlayRefused, inbound::underlay_refused),
];

/// Node 1 of the three.
pub fn node() -> Node {
    let mut plan = ClusterPlan::new(3, Format::Vxlan);
    plan.formats[0][2] = Format::Udp;
    Node::new(plan.spec(1))
}

const fn out(reason: DropReason, run: fn(&mut Node) -> u64) -> Case {
    Case {
        reason,
        direction: Direction::Outbound,
        run,
        beside: None,
    }
}

const fn inb(reason: DropReason, run: fn(&mut Node) -> u64) -> Case {
    Case {
        reason,
        direction: Direction::Inbound,
        run,
        beside: None,
    }
}

/// Packets that are none.
fn not_packets() -> Vec<Vec<u8>> {
    let good = udp(pod(2, 0), pod(1, 0), b"x");
    let with = |place: usize, value: u8| {
        let mut packet = good.clone();
        packet[place] = value;
        packet
    };
    let v6 = udp(pod6(2, 0), pod6(1, 0), b"x");
    vec![
        good[..19].to_vec(),
        with(0, 0x44),
        with(0, 0x4f),
        with(2, 9),
        with(3, 19),
        v6[..39].to_vec(),
        v6[..48].to_vec(),
    ]
}

/// When things happen: late enough that everything before it has passed.
const START: Now = Now(0).after(Duration::from_secs(1));
