//! Why no interface could be chosen.

use std::fmt;
use std::net::IpAddr;

use encap::Family;
use ipnet::IpNet;

use super::Selector;

/// No selector yields an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceError {
    /// What was tried, in order, and why it was refused; at least one.
    pub tried: Vec<(Selector, Refusal)>,
    /// What the node has, for the sentence.
    pub held: String,
}

/// Why a selector yields no interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No interface has that name.
    #[error("there is no such interface")]
    NoSuchInterface,
    /// No interface holds that address, or only one that cannot carry the overlay.
    #[error("no interface that can carry the overlay holds that address")]
    NotHeld,
    /// The interface of one public address does not hold the other.
    #[error("{interface} holds it, and no interface holds {other}")]
    OtherNotHeld {
        /// The holder of the first.
        interface: String,
        /// The second.
        other: IpAddr,
    },
    /// Neither an address nor a name matches.
    #[error("it matches no address and no name of an interface")]
    NothingMatches,
    /// The main routing table has no route there.
    #[error("no route leads there")]
    NoRoute,
    /// There is no default route of a family that the cluster has.
    #[error("there is none")]
    NoDefaultRoute,
    /// The interface lacks an address of a family that the cluster has.
    #[error("{interface} has no usable {} address, which the cluster network needs", match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    })]
    NoAddress {
        /// The interface.
        interface: String,
        /// The family.
        family: Family,
    },
    /// The only addresses are inside the cluster network, where packets to them would enter the tunnel.
    #[error("{address} of {interface} lies inside {key} {network}: choose another {key}, or an address outside it", key = match network {
        IpNet::V4(_) => "Network",
        IpNet::V6(_) => "IPv6Network",
    })]
    InsideCluster {
        /// The interface.
        interface: String,
        /// The address.
        address: IpAddr,
        /// The cluster network.
        network: IpNet,
    },
    /// IPv4 and IPv6 would be on two interfaces.
    #[error("it is {v4} for IPv4 and {v6} for IPv6, and both must be the same")]
    TwoInterfaces {
        /// The interface of IPv4.
        v4: String,
        /// The interface of IPv6.
        v6: String,
    },
    /// The kernel gives no MTU.
    #[error("{interface} has an MTU of 0")]
    NoMtu {
        /// The interface.
        interface: String,
    },
}

impl std::error::Error for ChoiceError {}

impl fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no interface can be chosen to reach other nodes: ")?;
        for (selector, refusal) in self.tried.iter().take(MOST_IN_A_SENTENCE) {
            write!(f, "{selector}: {refusal}; ")?;
        }
        write!(f, "this node has {}", self.held)?;
        f.write_str(match self.tried.last() {
            // The refusal names the remedy.
            Some((_, Refusal::InsideCluster { .. })) => return Ok(()),
            _ => ": ",
        })?;
        f.write_str(match self.tried.last() {
            Some((Selector::Public(_), _)) => {
                "correct the public address, or set iface if it is that of a NAT box"
            }
            Some((Selector::DefaultRoute, _)) | None => {
                "set iface to the name or address of one of them"
            }
            Some(_) => {
                "correct iface, iface-regex or iface-can-reach, or leave them out to use the default route"
            }
        })
    }
}

const MOST_IN_A_SENTENCE: usize = 10;
