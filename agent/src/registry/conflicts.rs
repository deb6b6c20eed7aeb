//! What entries of one list must agree on, or must not share.
//!
//! Every check sorts or hashes, so a list of any length costs little more than reading it.

use std::collections::HashMap;
use std::net::IpAddr;

use encap::Mac;

use super::fault::NodeFault;
use super::nodes::{FaultAt, Placed};

/// Finds the first contradiction between entries.
pub(super) fn check(nodes: &[Placed]) -> Result<(), FaultAt> {
    names(nodes)?;
    subnets(nodes)?;
    let owners = addresses(nodes)?;
    macs(nodes)?;
    sources(nodes, owners)
}

fn names(nodes: &[Placed]) -> Result<(), FaultAt> {
    let mut seen = HashMap::new();
    for node in nodes {
        let name = &node.lease.name;
        if seen.insert(name, ()).is_some() {
            return Err((node.name_at, NodeFault::SameName { name: name.clone() }));
        }
    }
    Ok(())
}

/// Prefixes nest or are disjoint, so in the order of their bases two that overlap have two neighbours that do.
fn subnets(nodes: &[Placed]) -> Result<(), FaultAt> {
    let mut all = Vec::new();
    for node in nodes {
        let placed = node.lease.subnets.iter().zip(&node.subnets_at);
        all.extend(placed.map(|(subnet, at)| (*subnet, *at, &node.lease.name)));
    }
    all.sort_unstable_by_key(|(subnet, ..)| (subnet.network(), subnet.prefix_len()));
    for (a, b) in all.iter().zip(all.iter().skip(1)) {
        if a.0.contains(&b.0) {
            let (first, second) = if a.1 < b.1 { (a, b) } else { (b, a) };
            let fault = NodeFault::Overlap {
                subnet: second.0,
                node: second.2.clone(),
                other_subnet: first.0,
                other: first.2.clone(),
            };
            return Err((second.1, fault));
        }
    }
    Ok(())
}

/// Entries with one public address are one peer. Yields the first entry of each.
fn addresses(nodes: &[Placed]) -> Result<HashMap<IpAddr, &Placed>, FaultAt> {
    let mut owners: HashMap<IpAddr, &Placed> = HashMap::new();
    for node in nodes {
        let first = *owners.entry(node.lease.public_ip).or_insert(node);
        let fault = |key| NodeFault::Contradiction {
            node: node.lease.name.clone(),
            other: first.lease.name.clone(),
            address: node.lease.public_ip,
            key,
        };
        if node.lease.format != first.lease.format {
            return Err((node.address_at, fault("backend")));
        }
        if node.lease.vtep_mac != first.lease.vtep_mac {
            return Err((node.mac_at, fault("vtep-mac")));
        }
    }
    Ok(owners)
}

fn macs(nodes: &[Placed]) -> Result<(), FaultAt> {
    let mut owners: HashMap<Mac, &Placed> = HashMap::new();
    for node in nodes {
        let first = *owners.entry(node.lease.vtep_mac).or_insert(node);
        if first.lease.public_ip != node.lease.public_ip {
            let fault = NodeFault::SameMac {
                node: node.lease.name.clone(),
                other: first.lease.name.clone(),
                mac: node.lease.vtep_mac,
            };
            return Err((node.mac_at, fault));
        }
    }
    Ok(())
}

fn sources<'a>(
    nodes: &'a [Placed],
    mut owners: HashMap<IpAddr, &'a Placed>,
) -> Result<(), FaultAt> {
    for node in nodes {
        for (address, at) in node.lease.underlay_sources.iter().zip(&node.sources_at) {
            let owner = *owners.entry(*address).or_insert(node);
            if owner.lease.public_ip != node.lease.public_ip {
                let fault = NodeFault::SameSource {
                    node: node.lease.name.clone(),
                    other: owner.lease.name.clone(),
                    address: *address,
                };
                return Err((*at, fault));
            }
        }
    }
    Ok(())
}
