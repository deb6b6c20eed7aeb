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
    /// How many of them count at their peer.
    pub of_peer: Known,
    /// How many count at their pod.
    pub of_pod: Known,
    /// A reason for which as many packets are counted once more: they were answered, or came before these.
    pub beside: Option<DropReason>,
}

/// Of how many dropped packets a party is known where they are dropped.
#[derive(Clone, Copy)]
pub enum Known {
    /// All.
    All,
    /// So many.
    Only(u64),
}

impl Known {
    /// None of them.
    pub const NONE: Known = Known::Only(0);
}

/// Every reason, in each direction in which a packet can meet it.
pub const CASES: [Case; 38] = [
    of_none(out(DropReason::Malformed, outbound::malformed)),
    of_pod(out(DropReason::NotUnicast, outbound::not_unicast)),
    of_none(out(DropReason::NotIp, outbound::not_ip)),
    of_none(out(DropReason::SpoofedSource, outbound::spoofed_source)),
    of_pod(out(DropReason::OwnSubnet, outbound::own_subnet)),
    of_pod(out(DropReason::NoRoute, outbound::no_route)),
    of_both(out(DropReason::NoUnderlay, outbound::no_underlay)),
    of_both(out(DropReason::Ipv6InUdp, outbound::ipv6_in_udp)),
    of_both(out(DropReason::TooBig, outbound::too_big)),
    of_both(out(DropReason::UnderlayFull, outbound::underlay_full)),
    of_both(out(DropReason::UnderlayRefused, outbound::underlay_refused)),
    of_pod(out(DropReason::BadSuperPacket, outbound::bad_super_packet)),
    Case {
        beside: Some(DropReason::NoRoute),
        ..of_none(out(DropReason::DeviceRefused, outbound::device_refused))
    },
    of_both(out(DropReason::OverShare, outbound::over_share)),
    of_none(out(DropReason::LostInCrash, outbound::lost_in_crash)),
    of_peer(inb(DropReason::Malformed, inbound::malformed)),
    of_peer(inb(DropReason::Ipv6InUdp, inbound::ipv6_in_udp)),
    of_peer(inb(DropReason::Truncated, inbound::truncated)),
    of_peer(inb(DropReason::TooShort, inbound::too_short)),
    of_peer(inb(DropReason::VxlanFlags, inbound::vxlan_flags)),
    of_peer(inb(DropReason::WrongVni, inbound::wrong_vni)),
    of_peer(inb(DropReason::NotOurMac, inbound::not_our_mac)),
    of_peer(inb(DropReason::BadSourceMac, inbound::bad_source_mac)),
    of_peer(inb(DropReason::NotIp, inbound::not_ip)),
    Case {
        // Those in which a packet for a pod can be read.
        of_pod: Known::Only(4),
        ..of_none(inb(DropReason::UnknownPeer, inbound::unknown_peer))
    },
    of_both(inb(DropReason::NotPeersSource, inbound::not_peers_source)),
    of_peer(inb(DropReason::NotOurs, inbound::not_ours)),
    of_both(inb(DropReason::EcnMismatch, inbound::ecn_mismatch)),
    of_both(inb(DropReason::BadSuperPacket, inbound::bad_super_packet)),
    of_both(inb(DropReason::DeviceRefused, inbound::device_refused)),
    Case {
        beside: Some(DropReason::NotOurs),
        ..of_both(inb(DropReason::RingFull, inbound::ring_full))
    },
    Case {
        beside: Some(DropReason::EcnMismatch),
        ..of_both(inb(DropReason::OverShare, inbound::over_share))
    },
    of_none(inb(DropReason::LostInCrash, inbound::lost_in_crash)),
    of_peer(inb(DropReason::BadProbe, inbound::bad_probe)),
    of_peer(inb(DropReason::ProbeLimit, inbound::probe_limit)),
    of_peer(inb(DropReason::NoUnderlay, inbound::no_underlay)),
    of_peer(inb(DropReason::UnderlayFull, inbound::underlay_full)),
    of_peer(inb(DropReason::UnderlayRefused, inbound::underlay_refused)),
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
        of_peer: Known::NONE,
        of_pod: Known::NONE,
        beside: None,
    }
}

const fn inb(reason: DropReason, run: fn(&mut Node) -> u64) -> Case {
    Case {
        reason,
        direction: Direction::Inbound,
        run,
        of_peer: Known::NONE,
        of_pod: Known::NONE,
        beside: None,
    }
}

/// Of whom nothing is known.
const fn of_none(case: Case) -> Case {
    Case {
        of_peer: Known::NONE,
        of_pod: Known::NONE,
        ..case
    }
}

/// Whose pod is known.
const fn of_pod(case: Case) -> Case {
    Case {
        of_pod: Known::All,
        ..case
    }
}

/// Whose peer is known.
const fn of_peer(case: Case) -> Case {
    Case {
        of_peer: Known::All,
        ..case
    }
}

/// Whose peer and pod are known.
const fn of_both(case: Case) -> Case {
    of_peer(of_pod(case))
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
