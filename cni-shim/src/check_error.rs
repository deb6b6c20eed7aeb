//! What CHECK can find wrong with an attachment.

use std::net::IpAddr;

use ipnet::IpNet;

/// What of an attachment is not as ADD made it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    #[error("no attachment is recorded")]
    NoRecord,
    #[error("the attachment was never finished")]
    HalfMade,
    #[error("the attachment is of another network namespace: this path was given to another pod")]
    OtherNetns,
    #[error("the interface {name} is missing")]
    NoLink { name: String },
    #[error("the interface {name} is down")]
    Down { name: String },
    #[error("the interface {name} has MAC {found}, not {expected}")]
    Mac {
        name: String,
        found: String,
        expected: String,
    },
    #[error("the interface {name} has MTU {found}, not {expected}")]
    Mtu {
        name: String,
        found: u32,
        expected: u32,
    },
    #[error("the address {address} is missing in the pod")]
    NoAddress { address: IpAddr },
    #[error("the result has {address}, which the attachment has not")]
    NotOurs { address: IpAddr },
    #[error("the pod's route to {destination} is missing")]
    NoRoute { destination: IpNet },
    #[error("the node's route to {destination} is missing")]
    NoHostRoute { destination: IpNet },
    #[error("the neighbour {address} is missing on {name}")]
    NoNeighbour { address: IpAddr, name: String },
    #[error(
        "{waiting} packets wait in the queue of {name}, and the kernel sends none: it has stopped the veth's queue and does not start it again (corrected in Linux 6.18); recreate the pod, and set gather = false in tartan.toml or update the kernel"
    )]
    Stalled { name: String, waiting: u32 },
    #[error("the pod's rule for what leaves from {address} is missing")]
    NoRule { address: IpAddr },
}
