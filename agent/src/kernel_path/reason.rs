//! Why the kernel path is not in use.

use std::fmt;
use std::net::Ipv4Addr;

use dataplane::kernel_path::KernelPathError;

use crate::causes::causes;
use crate::host::{HostError, IpsecRules};
use crate::problems::HostProblem;

/// Why it is not in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffReason {
    /// The configuration says so.
    Configured,
    /// This node sends in the `udp` format.
    UdpBackend,
    /// This node has no underlay address of IPv4.
    NoIpv4Underlay,
    /// This node has an underlay address of IPv6 as well: our sockets have the port there.
    Ipv6Underlay,
    /// No interface has the underlay address.
    NoUnderlayDevice,
    /// The underlay interface has no Ethernet address.
    NotEthernet(String),
    /// The tunnel device is not there.
    NoTunnelDevice,
    /// `kernel-path-port` is a port of the overlay.
    PortInUse(u16),
    /// The host has rules of IPsec, and packets that programs carry skip them.
    Ipsec(IpsecRules),
    /// A peer is reached by another interface than the underlay device.
    OtherInterface {
        /// Its address.
        peer: Ipv4Addr,
        /// The underlay device.
        underlay: String,
    },
    /// A step was refused.
    Refused(String),
    /// A step was refused, and there is a remedy for that.
    Host {
        /// What was refused.
        sentence: String,
        /// What to do.
        remedy: String,
    },
}

impl OffReason {
    /// Whether something was refused that may be granted later.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, OffReason::Refused(_) | OffReason::Host { .. })
    }

    /// What brings it into use, in one clause without its full stop.
    pub(super) fn remedy(&self) -> String {
        match self {
            OffReason::Configured => "set kernel-path to \"stateless\" or \"auto\"".to_owned(),
            OffReason::UdpBackend => {
                "set Backend.Type to vxlan in the net-conf, or kernel-path to \"off\"".to_owned()
            }
            OffReason::NoIpv4Underlay => {
                "give this node a public address of IPv4, or set kernel-path to \"off\"".to_owned()
            }
            OffReason::Ipv6Underlay => {
                "give this node a public address of IPv4 alone, or set kernel-path to \"off\""
                    .to_owned()
            }
            OffReason::NoUnderlayDevice => "give the address to an interface".to_owned(),
            OffReason::NotEthernet(_) => {
                "name an address of another interface, or set kernel-path to \"off\"".to_owned()
            }
            OffReason::NoTunnelDevice => "restart Tartan, which creates it".to_owned(),
            OffReason::PortInUse(_) => "set kernel-path-port to another port".to_owned(),
            OffReason::Ipsec(IpsecRules::Policies) => {
                "remove them ('ip xfrm policy'), or set kernel-path to \"off\"".to_owned()
            }
            OffReason::Ipsec(IpsecRules::BlockByDefault) => {
                "change it ('ip xfrm policy setdefault in accept fwd accept out accept'), or set kernel-path to \"off\"".to_owned()
            }
            OffReason::OtherInterface { peer, underlay } => {
                format!("route {peer} by {underlay}, or set kernel-path to \"off\"")
            }
            OffReason::Refused(_) => {
                "do what the reason names; Tartan tries again every minute".to_owned()
            }
            OffReason::Host { remedy, .. } => remedy.clone(),
        }
    }
}

impl fmt::Display for OffReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OffReason::Configured => f.write_str("kernel-path is \"off\""),
            OffReason::UdpBackend => f.write_str("this node sends in the udp format"),
            OffReason::NoIpv4Underlay => {
                f.write_str("this node has no underlay address of IPv4")
            }
            OffReason::Ipv6Underlay => f.write_str(
                "this node has an underlay address of IPv6 beside that of IPv4, and its sockets keep the VXLAN device from the port",
            ),
            OffReason::NoUnderlayDevice => f.write_str("no interface has the underlay address"),
            OffReason::NotEthernet(device) => {
                write!(f, "the underlay interface {device} has no Ethernet address")
            }
            OffReason::NoTunnelDevice => f.write_str("there is no tunnel device"),
            OffReason::PortInUse(port) => {
                write!(f, "kernel-path-port {port} is a port of the overlay")
            }
            OffReason::Ipsec(IpsecRules::Policies) => f.write_str(
                "this host has IPsec policies, and packets that programs carry would skip them",
            ),
            OffReason::Ipsec(IpsecRules::BlockByDefault) => f.write_str(
                "this host blocks packets that no IPsec policy matches, in one direction at least, and packets that programs carry would skip that",
            ),
            OffReason::OtherInterface { peer, underlay } => write!(
                f,
                "the node at {peer} is reached by another interface than {underlay}, and the programs see only what {underlay} receives"
            ),
            OffReason::Refused(sentence) | OffReason::Host { sentence, .. } => {
                f.write_str(sentence)
            }
        }
    }
}

impl From<KernelPathError> for OffReason {
    fn from(error: KernelPathError) -> OffReason {
        OffReason::Refused(error.to_string())
    }
}

impl From<HostError> for OffReason {
    fn from(error: HostError) -> OffReason {
        let HostProblem {
            sentence, remedy, ..
        } = HostProblem::of(&error);
        OffReason::Host { sentence, remedy }
    }
}

/// An error of the sockets or the keeper.
pub(super) fn refused(error: &dyn std::error::Error) -> OffReason {
    OffReason::Refused(causes(error))
}
