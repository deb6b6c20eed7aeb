//! Why a proposed flow is not installed. Its packets keep the way through the host's stack, so nothing is lost by it.

use std::fmt;

/// One reason, with a name for people and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Refusal {
    /// The protocol is neither TCP nor UDP.
    NotTcpOrUdp,
    /// An address is not that of one host.
    NotUnicast,
    /// A UDP port is one of those of encapsulated packets.
    EncapsulationPort,
    /// The end on this node is no address of an attached pod.
    NotPod,
    /// The pod has a bandwidth limit.
    PodLimited,
    /// The other end is in a subnet of this node.
    OwnSubnet,
    /// The other end is an address of a node, not of a pod.
    NodeAddress,
    /// No peer owns the other end's subnet, or none that the kernel path reaches.
    NoPeer,
    /// The pod, or all pods together, propose flows faster than they are checked.
    OverShare,
    /// Connection tracking does not know the connection.
    NoConnection,
    /// An address or a port of the connection is translated (NAT).
    Translated,
    /// A helper of connection tracking follows the connection, or its bytes are rewritten.
    Helper,
    /// The connection has a mark, label or zone, which rules and routes may go by.
    Marked,
    /// A flow table of nf_tables carries the connection.
    Offloaded,
    /// The connection is not established: of TCP, packets of both ends were not seen yet.
    NotEstablished,
    /// Connection tracking is about to forget the connection.
    Ending,
    /// Rules, routes, the peer or the pod changed since the flow was proposed.
    Outdated,
    /// The kernel refused a question about the connection, or a table's entry.
    KernelRefused,
}

impl Refusal {
    /// Every reason, in the order of the checks.
    pub const ALL: [Refusal; 18] = [
        Refusal::NotTcpOrUdp,
        Refusal::NotUnicast,
        Refusal::EncapsulationPort,
        Refusal::NotPod,
        Refusal::PodLimited,
        Refusal::OwnSubnet,
        Refusal::NodeAddress,
        Refusal::NoPeer,
        Refusal::OverShare,
        Refusal::NoConnection,
        Refusal::Translated,
        Refusal::Helper,
        Refusal::Marked,
        Refusal::Offloaded,
        Refusal::NotEstablished,
        Refusal::Ending,
        Refusal::Outdated,
        Refusal::KernelRefused,
    ];

    /// Its name in `-o json`.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::NotTcpOrUdp => "not-tcp-or-udp",
            Refusal::NotUnicast => "not-unicast",
            Refusal::EncapsulationPort => "encapsulation-port",
            Refusal::NotPod => "not-pod",
            Refusal::PodLimited => "pod-limited",
            Refusal::OwnSubnet => "own-subnet",
            Refusal::NodeAddress => "node-address",
            Refusal::NoPeer => "no-peer",
            Refusal::OverShare => "over-share",
            Refusal::NoConnection => "no-connection",
            Refusal::Translated => "translated",
            Refusal::Helper => "helper",
            Refusal::Marked => "marked",
            Refusal::Offloaded => "offloaded",
            Refusal::NotEstablished => "not-established",
            Refusal::Ending => "ending",
            Refusal::Outdated => "outdated",
            Refusal::KernelRefused => "kernel-refused",
        }
    }

    /// What it means, in one sentence without a full stop.
    pub const fn gloss(self) -> &'static str {
        match self {
            Refusal::NotTcpOrUdp => "the protocol is neither TCP nor UDP",
            Refusal::NotUnicast => "an address is not that of one host",
            Refusal::EncapsulationPort => "a UDP port is one of those of encapsulated packets",
            Refusal::NotPod => "the end on this node is no address of an attached pod",
            Refusal::PodLimited => "the pod has a bandwidth limit",
            Refusal::OwnSubnet => "the other end is in a subnet of this node",
            Refusal::NodeAddress => "the other end is an address of a node, not of a pod",
            Refusal::NoPeer => {
                "no peer owns the other end's subnet, or none that the kernel path reaches"
            }
            Refusal::OverShare => {
                "the pod, or all pods together, propose flows faster than they are checked"
            }
            Refusal::NoConnection => "connection tracking does not know the connection",
            Refusal::Translated => "an address or a port of the connection is translated (NAT)",
            Refusal::Helper => {
                "a helper of connection tracking follows the connection, or its bytes are rewritten"
            }
            Refusal::Marked => {
                "the connection has a mark, label or zone, which rules and routes may go by"
            }
            Refusal::Offloaded => "a flow table of nf_tables carries the connection",
            Refusal::NotEstablished => {
                "the connection is not established: of TCP, packets of both ends were not seen yet"
            }
            Refusal::Ending => "connection tracking is about to forget the connection",
            Refusal::Outdated => {
                "rules, routes, the peer or the pod changed since the flow was proposed"
            }
            Refusal::KernelRefused => {
                "the kernel refused a question about the connection, or a table's entry"
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.gloss())
    }
}
