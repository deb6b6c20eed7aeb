//! Why a program passes a packet on to the host's stack or user space.

/// The reason why a program did not carry a packet itself. No loss: user space or the host's stack carries and counts it.
/// Its number is its place in the table `passes` (`dataplane/bpf/reasons.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PassReason {
    /// The kernel path is switched off.
    Off = 0,
    /// No service has moved the lease of the programs on: it has died, or hangs.
    Lease = 1,
    /// Neither IPv4 nor, on the underlay, VXLAN with IPv4 in it.
    NotIpv4 = 2,
    /// Too short, or its lengths disagree.
    Malformed = 3,
    /// IPv4 options, inside or outside.
    Options = 4,
    /// A fragment, inside or outside.
    Fragment = 5,
    /// A header checksum is wrong, or a checksum is to be finished before the transport's own field.
    Checksum = 6,
    /// A super-packet of another kind than TCP or UDP, or with an impossible size.
    SuperPacket = 7,
    /// Source or destination is multicast, broadcast, loopback, link-local or unspecified.
    NotUnicast = 8,
    /// The source may not send from this node.
    Source = 9,
    /// The destination is this node's own.
    Local = 10,
    /// No peer has the destination or, on the underlay, the source.
    NoPeer = 11,
    /// User space exchanges packets with this peer: it has another format, or does not announce the kernel path, or its next hop is not known.
    Peer = 12,
    /// Larger than the path to the peer, or than the tunnel device takes.
    TooBig = 13,
    /// VXLAN flags or reserved bits, or another VXLAN network.
    Vxlan = 14,
    /// The frame is not from the peer's VTEP to ours, or not between the pod and its gateway.
    Mac = 15,
    /// The outer header says congestion, or a codepoint that the inner one must take over.
    Congestion = 16,
    /// The outer source is not the address of the peer that has the inner source.
    NotPeersSource = 17,
    /// The inner destination is not in this node's local set.
    NotOurs = 18,
    /// The flow has not been installed: it is new, or its packets must pass the host's stack.
    NoFlow = 19,
    /// The flow was judged before a rule, route, peer or pod changed, or its time is over.
    StaleFlow = 20,
    /// The flow begins or ends: SYN, FIN or RST.
    FlowEnds = 21,
    /// The flow is to be judged anew.
    Probe = 22,
    /// The source is not that of the pod behind this interface.
    WrongPod = 23,
    /// The host's stack must answer: the TTL ends here.
    Ttl = 24,
    /// The kernel refuses to add or remove headers.
    Refused = 25,
    /// A TCP super-packet that user space sends faster, or a packet of the same flow behind one.
    BulkTcp = 26,
}

impl PassReason {
    /// How many reasons there are.
    pub const COUNT: usize = 27;

    /// Every reason, in the order of its number.
    pub const ALL: [PassReason; PassReason::COUNT] = [
        PassReason::Off,
        PassReason::Lease,
        PassReason::NotIpv4,
        PassReason::Malformed,
        PassReason::Options,
        PassReason::Fragment,
        PassReason::Checksum,
        PassReason::SuperPacket,
        PassReason::NotUnicast,
        PassReason::Source,
        PassReason::Local,
        PassReason::NoPeer,
        PassReason::Peer,
        PassReason::TooBig,
        PassReason::Vxlan,
        PassReason::Mac,
        PassReason::Congestion,
        PassReason::NotPeersSource,
        PassReason::NotOurs,
        PassReason::NoFlow,
        PassReason::StaleFlow,
        PassReason::FlowEnds,
        PassReason::Probe,
        PassReason::WrongPod,
        PassReason::Ttl,
        PassReason::Refused,
        PassReason::BulkTcp,
    ];

    /// The name, as tables and metrics show it.
    pub const fn name(self) -> &'static str {
        match self {
            PassReason::Off => "Off",
            PassReason::Lease => "Lease",
            PassReason::NotIpv4 => "NotIpv4",
            PassReason::Malformed => "Malformed",
            PassReason::Options => "Options",
            PassReason::Fragment => "Fragment",
            PassReason::Checksum => "Checksum",
            PassReason::SuperPacket => "SuperPacket",
            PassReason::NotUnicast => "NotUnicast",
            PassReason::Source => "Source",
            PassReason::Local => "Local",
            PassReason::NoPeer => "NoPeer",
            PassReason::Peer => "Peer",
            PassReason::TooBig => "TooBig",
            PassReason::Vxlan => "Vxlan",
            PassReason::Mac => "Mac",
            PassReason::Congestion => "Congestion",
            PassReason::NotPeersSource => "NotPeersSource",
            PassReason::NotOurs => "NotOurs",
            PassReason::NoFlow => "NoFlow",
            PassReason::StaleFlow => "StaleFlow",
            PassReason::FlowEnds => "FlowEnds",
            PassReason::Probe => "Probe",
            PassReason::WrongPod => "WrongPod",
            PassReason::Ttl => "Ttl",
            PassReason::Refused => "Refused",
            PassReason::BulkTcp => "BulkTcp",
        }
    }

    /// One sentence for the operator: what it was about the packet.
    pub const fn gloss(self) -> &'static str {
        match self {
            PassReason::Off => "the kernel path is switched off",
            PassReason::Lease => {
                "no service has moved the lease of the programs on: it has died, or hangs"
            }
            PassReason::NotIpv4 => "neither IPv4 nor, on the underlay, VXLAN with IPv4 in it",
            PassReason::Malformed => "too short, or its lengths disagree",
            PassReason::Options => "IPv4 options, inside or outside",
            PassReason::Fragment => "a fragment, inside or outside",
            PassReason::Checksum => {
                "a header checksum is wrong, or a checksum is to be finished before the transport's own field"
            }
            PassReason::SuperPacket => {
                "a super-packet of another kind than TCP or UDP, or with an impossible size"
            }
            PassReason::NotUnicast => {
                "source or destination is multicast, broadcast, loopback, link-local or unspecified"
            }
            PassReason::Source => "the source may not send from this node",
            PassReason::Local => "the destination is this node's own",
            PassReason::NoPeer => "no peer has the destination or, on the underlay, the source",
            PassReason::Peer => {
                "user space exchanges packets with this peer: it has another format, or does not announce the kernel path, or its next hop is not known"
            }
            PassReason::TooBig => {
                "larger than the path to the peer, or than the tunnel device takes"
            }
            PassReason::Vxlan => "VXLAN flags or reserved bits, or another VXLAN network",
            PassReason::Mac => {
                "the frame is not from the peer's VTEP to ours, or not between the pod and its gateway"
            }
            PassReason::Congestion => {
                "the outer header says congestion, or a codepoint that the inner one must take over"
            }
            PassReason::NotPeersSource => {
                "the outer source is not the address of the peer that has the inner source"
            }
            PassReason::NotOurs => "the inner destination is not in this node's local set",
            PassReason::NoFlow => {
                "the flow has not been installed: it is new, or its packets must pass the host's stack"
            }
            PassReason::StaleFlow => {
                "the flow was judged before a rule, route, peer or pod changed, or its time is over"
            }
            PassReason::FlowEnds => "the flow begins or ends: SYN, FIN or RST",
            PassReason::Probe => "the flow is to be judged anew",
            PassReason::WrongPod => "the source is not that of the pod behind this interface",
            PassReason::Ttl => "the host's stack must answer: the TTL ends here",
            PassReason::Refused => "the kernel refuses to add or remove headers",
            PassReason::BulkTcp => {
                "a TCP super-packet that user space sends faster, or a packet of the same flow behind one"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drops::DropReason;

    /// The constants of an `enum` with explicit numbers and a prefix, by their names in Rust's case.
    fn constants(prefix: &str) -> Vec<(String, usize)> {
        let lines = include_str!("../../bpf/reasons.h").lines();
        let constants = lines.filter_map(|line| {
            let (name, number) = line.trim().strip_prefix(prefix)?.split_once(" = ")?;
            let words = name.split('_').map(|word| {
                let (first, rest) = word.split_at(1);
                format!("{first}{}", rest.to_lowercase())
            });
            Some((
                words.collect(),
                number.trim_end_matches(',').parse().unwrap(),
            ))
        });
        constants.collect()
    }

    #[test]
    fn reasons_are_those_of_the_programs() {
        let ours = PassReason::ALL.map(|reason| (reason.name().to_owned(), reason as usize));
        assert_eq!(constants("PASS_"), ours);
        for reason in PassReason::ALL {
            assert_eq!(format!("{reason:?}"), reason.name());
            assert!(!reason.gloss().is_empty());
        }
    }

    #[test]
    fn a_program_drops_for_reasons_of_user_space() {
        let drops = constants("DROP_");
        assert!(!drops.is_empty());
        for (name, number) in drops {
            assert_eq!(DropReason::ALL[number].name(), name);
        }
    }
}
