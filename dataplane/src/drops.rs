//! Why a packet was dropped: every fate but delivery has a name here, and nothing is dropped without one.

/// Which way a packet was going.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From a pod of this node to a peer.
    Outbound,
    /// From a peer to a pod of this node.
    Inbound,
}

/// The reason for a drop. Its number is its place in [`Flow::drops`](crate::counters::Flow); numbers are never reused,
/// because counters outlive the service that wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// The inner bytes are no well-formed IP packet, or a checksum is to be finished elsewhere than behind the IP header.
    Malformed = 0,
    /// The destination is multicast, broadcast or unspecified.
    NotUnicast = 1,
    /// A pod sent from an address that is not its own.
    SpoofedSource = 2,
    /// The destination lies in this node's own subnet, and no pod has it.
    OwnSubnet = 3,
    /// No node owns the destination.
    NoRoute = 4,
    /// Inner IPv6, and the format towards or from this peer carries only IPv4.
    Ipv6InUdp = 5,
    /// Too large for the path to the peer, and it must not be fragmented.
    TooBig = 6,
    /// The underlay socket stayed full.
    UnderlayFull = 7,
    /// The kernel refused the send.
    UnderlayRefused = 8,
    /// The datagram was larger than any buffer.
    Truncated = 9,
    /// The datagram is too short for its headers.
    TooShort = 10,
    /// A VXLAN header without the I flag, or with bits that are not ours to interpret.
    VxlanFlags = 11,
    /// Another VXLAN network.
    WrongVni = 12,
    /// The inner frame is addressed to another VTEP.
    NotOurMac = 13,
    /// The inner frame comes from no possible VTEP: zero, multicast or our own MAC.
    BadSourceMac = 14,
    /// The inner frame holds neither IPv4 nor IPv6.
    NotIp = 15,
    /// The outer source is no peer.
    UnknownPeer = 16,
    /// The inner source does not belong to the peer that sent it.
    NotPeersSource = 17,
    /// The inner destination is no pod of this node.
    NotOurs = 18,
    /// Congestion was marked outside on a packet that cannot carry the mark (RFC 6040).
    EcnMismatch = 19,
    /// A super-packet that cannot be cut, or whose checksum is wrong.
    BadSuperPacket = 20,
    /// The tunnel device refused the write.
    DeviceRefused = 21,
    /// Held by a service that was killed; counted by the next.
    LostInCrash = 22,
    /// The node that owns the destination has no public address of a family that this node has too.
    NoUnderlay = 23,
    /// The worker that the flow belongs to does not keep up: the ring towards it was full.
    RingFull = 24,
    /// A pod had more waiting than its share, while others wanted theirs.
    OverShare = 25,
    /// What the VXLAN device of the kernel path had decapsulated, and no program had marked for it.
    NotMarked = 26,
    /// A probe of peer health that is none: of another version, too short, or no message at all.
    BadProbe = 27,
    /// A peer sent more probes than are answered.
    ProbeLimit = 28,
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = 29;

    /// Every reason, in the order of its number.
    pub const ALL: [DropReason; DropReason::COUNT] = [
        DropReason::Malformed,
        DropReason::NotUnicast,
        DropReason::SpoofedSource,
        DropReason::OwnSubnet,
        DropReason::NoRoute,
        DropReason::Ipv6InUdp,
        DropReason::TooBig,
        DropReason::UnderlayFull,
        DropReason::UnderlayRefused,
        DropReason::Truncated,
        DropReason::TooShort,
        DropReason::VxlanFlags,
        DropReason::WrongVni,
        DropReason::NotOurMac,
        DropReason::BadSourceMac,
        DropReason::NotIp,
        DropReason::UnknownPeer,
        DropReason::NotPeersSource,
        DropReason::NotOurs,
        DropReason::EcnMismatch,
        DropReason::BadSuperPacket,
        DropReason::DeviceRefused,
        DropReason::LostInCrash,
        DropReason::NoUnderlay,
        DropReason::RingFull,
        DropReason::OverShare,
        DropReason::NotMarked,
        DropReason::BadProbe,
        DropReason::ProbeLimit,
    ];

    /// The name, as tables and metrics show it.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Malformed => "Malformed",
            DropReason::NotUnicast => "NotUnicast",
            DropReason::SpoofedSource => "SpoofedSource",
            DropReason::OwnSubnet => "OwnSubnet",
            DropReason::NoRoute => "NoRoute",
            DropReason::Ipv6InUdp => "Ipv6InUdp",
            DropReason::TooBig => "TooBig",
            DropReason::UnderlayFull => "UnderlayFull",
            DropReason::UnderlayRefused => "UnderlayRefused",
            DropReason::Truncated => "Truncated",
            DropReason::TooShort => "TooShort",
            DropReason::VxlanFlags => "VxlanFlags",
            DropReason::WrongVni => "WrongVni",
            DropReason::NotOurMac => "NotOurMac",
            DropReason::BadSourceMac => "BadSourceMac",
            DropReason::NotIp => "NotIp",
            DropReason::UnknownPeer => "UnknownPeer",
            DropReason::NotPeersSource => "NotPeersSource",
            DropReason::NotOurs => "NotOurs",
            DropReason::EcnMismatch => "EcnMismatch",
            DropReason::BadSuperPacket => "BadSuperPacket",
            DropReason::DeviceRefused => "DeviceRefused",
            DropReason::LostInCrash => "LostInCrash",
            DropReason::NoUnderlay => "NoUnderlay",
            DropReason::RingFull => "RingFull",
            DropReason::OverShare => "OverShare",
            DropReason::NotMarked => "NotMarked",
            DropReason::BadProbe => "BadProbe",
            DropReason::ProbeLimit => "ProbeLimit",
        }
    }

    /// One sentence for the operator: what happened, and where to look.
    pub const fn gloss(self) -> &'static str {
        match self {
            DropReason::Malformed => "the inner bytes are no well-formed IP packet",
            DropReason::NotUnicast => "multicast and broadcast do not cross the overlay",
            DropReason::SpoofedSource => {
                "a pod sent from an address that is neither its own nor this node's"
            }
            DropReason::OwnSubnet => "no pod of this node has that address of its subnet",
            DropReason::NoRoute => {
                "no node owns the destination; the sender gets ICMP net-unreachable"
            }
            DropReason::Ipv6InUdp => {
                "the udp format carries only IPv4; ipv6-over-udp allows it between Tartan nodes"
            }
            DropReason::TooBig => {
                "larger than the path to the peer, and not to be fragmented; the sender gets an ICMP error once the path MTU is known"
            }
            DropReason::UnderlayFull => "the underlay socket stayed full for 10 ms",
            DropReason::UnderlayRefused => {
                "the kernel refused to send to the peer; see the routes of the underlay"
            }
            DropReason::Truncated => "a datagram larger than any buffer",
            DropReason::TooShort => "a datagram too short for its headers",
            DropReason::VxlanFlags => {
                "a VXLAN header without the I flag or with bits of an extension"
            }
            DropReason::WrongVni => "a datagram of another VXLAN network",
            DropReason::NotOurMac => {
                "addressed to another VTEP MAC; compare vtep-mac here and at the sender"
            }
            DropReason::BadSourceMac => "from an impossible VTEP MAC: zero, multicast or our own",
            DropReason::NotIp => "the inner frame holds neither IPv4 nor IPv6",
            DropReason::UnknownPeer => {
                "the outer source is no node of the cluster; see underlay-sources"
            }
            DropReason::NotPeersSource => {
                "the inner source does not belong to that node; see accept-sources"
            }
            DropReason::NotOurs => "the inner destination is no pod of this node",
            DropReason::EcnMismatch => {
                "congestion was marked on a packet that cannot carry the mark (RFC 6040)"
            }
            DropReason::BadSuperPacket => {
                "a super-packet that cannot be cut or whose checksum is wrong"
            }
            DropReason::DeviceRefused => "the tunnel device refused the write; is it up?",
            DropReason::LostInCrash => "held by a service that was killed",
            DropReason::NoUnderlay => {
                "the node that owns the destination has no public address of a family that this node has; see public-ipv6"
            }
            DropReason::RingFull => {
                "the worker that delivers the flow is slower than the worker that receives it"
            }
            DropReason::OverShare => {
                "a pod sends more than the worker can carry, and others are not to wait for it"
            }
            DropReason::NotMarked => {
                "reached the VXLAN device of the kernel path without a program's check; see kernel-path in 'tartan status'"
            }
            DropReason::BadProbe => {
                "a probe of peer health in another version, too short, or with something else in it"
            }
            DropReason::ProbeLimit => "more probes of peer health than a peer gets answers to",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_and_names_are_the_variants() {
        for (place, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
            assert_eq!(format!("{reason:?}"), reason.name());
            assert!(!reason.gloss().is_empty());
        }
    }
}
