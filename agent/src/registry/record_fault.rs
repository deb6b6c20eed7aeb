//! Why a record of a remote registry is passed over, and the sentences that report it.

use std::fmt;
use std::net::IpAddr;

use encap::{Family, Mac};
use ipnet::IpNet;

/// What can be wrong with a record that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RecordFault {
    #[error("at most {most} records are read: delete those of nodes that no longer exist")]
    TooMany { most: usize },
    #[error("this is not a valid node name: use 1 to 253 letters, digits, '.', '-' and '_'")]
    Name,
    #[error(
        "it lists accepted or underlay sources, which a record cannot give itself: remove them"
    )]
    Sources,
    #[error("it has no subnet: let its node write it anew")]
    NoSubnet,
    #[error("it has more than {most} subnets: leave one for each family")]
    ManySubnets { most: usize },
    #[error("subnet {subnet} has host bits set: {meant} is the subnet that holds it")]
    HostBits { subnet: IpNet, meant: IpNet },
    #[error(
        "subnet {subnet} lies outside the cluster network {}: delete the record, and its node takes another subnet",
        list(.cluster)
    )]
    Outside { subnet: IpNet, cluster: Vec<IpNet> },
    #[error("subnet {subnet} is too small: /{longest} is the longest prefix")]
    TooSmall { subnet: IpNet, longest: u8 },
    #[error("its subnets {subnet} and {other} overlap: remove one")]
    OverlapsItself { subnet: IpNet, other: IpNet },
    #[error("public address {address} is {fault}: give the node one that other nodes reach")]
    Unreachable {
        address: IpAddr,
        fault: &'static str,
    },
    #[error(
        "public address {address} lies inside the cluster network {network}: give the node its underlay address"
    )]
    InsideCluster { address: IpAddr, network: IpNet },
    #[error(
        "public address {address} is this node's own, so packets to it would return to this node: give that node another address, or delete the record"
    )]
    OwnAddress { address: IpAddr },
    #[error("VTEP MAC {mac} of {family:?} is zero or multicast: give the node a unicast address")]
    NotUnicast { family: Family, mac: Mac },
    #[error("{0} has the same name: rename one of the two nodes")]
    SameName(Other),
    #[error(
        "subnet {subnet} overlaps {other_subnet} of {other}, which comes first: delete one of the two records, and its node takes another subnet"
    )]
    Overlap {
        subnet: IpNet,
        other_subnet: IpNet,
        other: Other,
    },
    #[error(
        "public address {address} is also that of {other}, which is in force, so the two are one peer and need one {differs}: give each node its own address, or delete the record that is out of date"
    )]
    Contradiction {
        address: IpAddr,
        differs: &'static str,
        other: Other,
    },
    #[error(
        "VTEP MAC {mac} is also that of {other}, which is in force: give each node its own, or delete the record that is out of date"
    )]
    SameMac { mac: Mac, other: Other },
}

/// The record that is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) name: String,
    pub(super) place: String,
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.place)
    }
}

fn list(networks: &[IpNet]) -> String {
    let networks: Vec<_> = networks.iter().map(IpNet::to_string).collect();
    networks.join(" and ")
}
