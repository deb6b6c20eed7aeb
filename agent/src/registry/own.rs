//! Finds this node's own lease in a list, and checks what holds for this node alone.

use std::net::IpAddr;

use dataplane::families::PublicAddresses;

use crate::lease::Lease;

/// The lease of this node, which is `node_name`.
///
/// # Errors
/// A sentence with the remedy, where a list that is right for the cluster is wrong for this node.
pub fn own<'a>(leases: &'a [Lease], node_name: &str) -> Result<&'a Lease, String> {
    let Some(own) = leases.iter().find(|lease| lease.name == node_name) else {
        return Err(format!(
            "no node is named {node_name:?}, which this node is: add its entry, or set node-name to its name here"
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
            "{} has our own {key} {shared}, so packets for it would come back to us: give it its own, or give us its subnets",
            twin.name
        ));
    }
    if own.vtep_mac.v4 != own.vtep_mac.v6 {
        return Err(format!(
            "our own entry has vtep-mac-v6 {} beside vtep-mac {}, but a Tartan node has one VTEP MAC for both families: leave vtep-mac-v6 out",
            own.vtep_mac.v6, own.vtep_mac.v4
        ));
    }
    Ok(own)
}
