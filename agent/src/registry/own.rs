//! Finds this node's own lease in a list, and checks what holds for this node alone.

use std::net::IpAddr;

use dataplane::families::PublicAddresses;

use crate::lease::Lease;

/// The lease of this node, which is `node_name`.
///
/// # Errors
/// One sentence with the remedy, if the list is valid for the cluster but not for this node.
pub fn own<'a>(leases: &'a [Lease], node_name: &str) -> Result<&'a Lease, String> {
    let Some(own) = leases.iter().find(|lease| lease.name == node_name) else {
        return Err(format!(
            "no node is named {node_name:?}, the name of this node: add its entry, or set node-name to the name that the list uses"
        ));
    };
    let mut others = leases.iter().filter(|lease| lease.name != own.name);
    let twin = others.find_map(|lease| {
        let shared = lease.public.iter().find(|a| own.public.contains(*a))?;
        Some((lease, shared))
    });
    if let Some((twin, shared)) = twin {
        let key = match (twin.public, shared) {
            (PublicAddresses::Dual(..), IpAddr::V6(_)) => "public-ipv6",
            _ => "public-ip",
        };
        return Err(format!(
            "{} has this node's {key} {shared}, so packets to it would return to this node: give it another address, or list its subnets under this node",
            twin.name
        ));
    }
    Ok(own)
}
