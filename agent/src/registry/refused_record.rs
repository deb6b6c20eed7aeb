//! A record of one node that is passed over.

use std::net::IpAddr;

use ipnet::IpNet;

use super::place::RegistryPlace;

/// One node's record that cannot be used. The other nodes' are in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRecord {
    /// Where it is.
    pub place: RegistryPlace,
    /// The name under which the node would be listed.
    pub name: String,
    /// The address that it gives, if it gives one that can be read.
    pub public: Option<IpAddr>,
    /// The subnets that it claims, as far as they can be read.
    pub subnets: Vec<IpNet>,
    /// What is wrong with it, and how to correct it.
    pub reason: String,
}
