//! What this node and its registry tell each other beside the leases.

use std::net::{Ipv4Addr, Ipv6Addr};

use dataplane::families::{PerFamily, PublicAddresses};
use encap::Mac;
use ipnet::IpNet;

use crate::config::NetConf;

/// What this node publishes of itself, where the registry does not take it from a list that an operator writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Its name in our own list; in `kubernetes` also that of its Node.
    pub node_name: String,
    /// Addresses that peers send to.
    pub public: PublicAddresses,
    /// The VTEP MAC of each family where the registry has none of this node yet: that of a device that flannel left, that
    /// of the last good state, or the derived one. One that the registry has is kept.
    pub vtep_mac: PerFamily<Mac>,
    /// Subnets that this node had last, which it gets again where they are free.
    pub previous: Vec<IpNet>,
    /// The cluster's configuration: format, VNI, networks and the range of subnets.
    pub net_conf: NetConf,
    /// This node forwards what its peers send: its tables are in force. Before that no program may be told that its pods
    /// have a network (`kubernetes`: condition `NetworkUnavailable`).
    pub forwarding: bool,
}

/// What the registry says beside the leases, before this node can announce itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// The text of the cluster's configuration; `None` where it is in a file (`kubernetes`).
    pub net_conf: Option<String>,
    /// The IPv4 address that the registry wants this node to publish (`kubernetes`: annotation `node-public-ip`).
    pub public_v4: Option<Ipv4Addr>,
    /// The same of IPv6 (`node-public-ipv6`).
    pub public_v6: Option<Ipv6Addr>,
}
