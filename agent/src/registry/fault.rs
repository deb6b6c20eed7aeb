//! The faults of a list of nodes, and the sentences that report them.

use std::net::IpAddr;

use encap::Mac;
use ipnet::IpNet;

use crate::config::document::{TomlError, TomlFault};

/// Why a list of nodes cannot be used, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct NodeListError {
    /// Line, counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub fault: NodeListFault,
}

/// What can be wrong with a list of nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeListFault {
    /// Not TOML, or a value of the wrong type.
    #[error(transparent)]
    Form(#[from] TomlFault),
    /// A node without a key that has no default.
    #[error("this node has no {key}: add it")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// An invalid node name.
    #[error("{0:?} is not a valid node name: use 1 to 253 letters, digits, '.', '-' and '_'")]
    Name(String),
    /// Two nodes of one name.
    #[error("a second node is named {name:?}: rename it, or give the first one all subnets")]
    SameName {
        /// The name.
        name: String,
    },
    /// A subnet outside the cluster networks.
    #[error("subnet {subnet} of {node} lies outside the cluster network {}", list(.cluster))]
    Outside {
        /// The subnet.
        subnet: IpNet,
        /// The node that lists it.
        node: String,
        /// The cluster networks.
        cluster: Vec<IpNet>,
    },
    /// A subnet without room for a tunnel address, a bridge and a pod.
    #[error("subnet {subnet} of {node} is too small: /{longest} is the longest prefix")]
    TooSmall {
        /// The subnet.
        subnet: IpNet,
        /// The node that lists it.
        node: String,
        /// The longest prefix accepted.
        longest: u8,
    },
    /// Two subnets that overlap.
    #[error("subnet {subnet} of {node} overlaps {other_subnet} of {other}: give each node its own")]
    Overlap {
        /// The subnet that comes later in the file.
        subnet: IpNet,
        /// The node that lists it.
        node: String,
        /// The subnet that comes earlier.
        other_subnet: IpNet,
        /// The node that lists the earlier one.
        other: String,
    },
    /// An address that other nodes cannot send to.
    #[error("{key} {address} of {node} is {fault}: name an address that other nodes reach")]
    Unreachable {
        /// The key.
        key: &'static str,
        /// The address.
        address: IpAddr,
        /// The node.
        node: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// An IPv4 address as `public-ipv6`.
    #[error("public-ipv6 {address} of {node} is an IPv4 address: name it as public-ip")]
    NotIpv6 {
        /// The address.
        address: IpAddr,
        /// The node.
        node: String,
    },
    /// Two IPv6 addresses.
    #[error(
        "public-ip {address} of {node} is an IPv6 address already: leave public-ipv6 out, or name an IPv4 address as public-ip"
    )]
    TwoIpv6 {
        /// The address.
        address: IpAddr,
        /// The node.
        node: String,
    },
    /// An underlay address inside a cluster network, where packets to it would enter the tunnel.
    #[error(
        "{key} {address} of {node} lies inside the cluster network {network}: name its underlay address"
    )]
    InsideCluster {
        /// The key.
        key: &'static str,
        /// The address.
        address: IpAddr,
        /// The node.
        node: String,
        /// The cluster network.
        network: IpNet,
    },
    /// An unknown backend.
    #[error("backend {0:?} does not exist: use \"udp\" or \"vxlan\"")]
    Backend(String),
    /// Text that is not a MAC address.
    #[error("{key} {text:?}: a MAC address is six pairs of hex digits, as in 2e:fd:04:c7:59:61")]
    NotAMac {
        /// The key.
        key: &'static str,
        /// The text.
        text: String,
    },
    /// A MAC address that no device can have.
    #[error("{key} {mac} is zero or multicast: use a unicast address, as in 2e:fd:04:c7:59:61")]
    NotUnicastMac {
        /// The key.
        key: &'static str,
        /// The MAC.
        mac: Mac,
    },
    /// One MAC address for two peers.
    #[error("{node} and {other} have the same {key} {mac}: give each node its own")]
    SameMac {
        /// The key of the node that comes later.
        key: &'static str,
        /// The node that comes later in the file.
        node: String,
        /// The node that comes earlier.
        other: String,
        /// The MAC.
        mac: Mac,
    },
    /// Two entries of one peer that differ.
    #[error("{node} and {other} share {shared} {address}, so they are one peer and need one {key}")]
    Contradiction {
        /// The node that comes later in the file.
        node: String,
        /// The node that comes earlier.
        other: String,
        /// The key of the address they share.
        shared: &'static str,
        /// That address.
        address: IpAddr,
        /// The key in which they differ.
        key: &'static str,
    },
    /// An underlay address of two peers.
    #[error(
        "underlay-sources {address} of {node} is also an address of {other}: list it for one of the two"
    )]
    SameSource {
        /// The node that lists it.
        node: String,
        /// The other node that has it.
        other: String,
        /// The address.
        address: IpAddr,
    },
    /// A prefix that would let a node send as pods of other nodes.
    #[error(
        "accept-sources {prefix} of {node} overlaps the cluster network {network}, where subnets decide which sources are accepted: leave it out"
    )]
    AcceptsPods {
        /// The prefix.
        prefix: IpNet,
        /// The node that lists it.
        node: String,
        /// The cluster network.
        network: IpNet,
    },
}

impl From<TomlError> for NodeListError {
    fn from(error: TomlError) -> NodeListError {
        NodeListError {
            line: error.line,
            fault: NodeListFault::Form(error.fault),
        }
    }
}

fn list(networks: &[IpNet]) -> String {
    networks
        .iter()
        .map(IpNet::to_string)
        .collect::<Vec<_>>()
        .join(" and ")
}
