//! Checks the entries of one list against each other: what they must agree on, and what only one may have.
//!
//! Every check sorts or hashes, so a list of any length costs little more than reading it.

use std::collections::HashMap;
use std::net::IpAddr;

use encap::{Family, Mac};

use super::fault::NodeListFault;
use super::parsed_node::{FaultAt, ParsedNode};

/// Returns the first conflict between entries.
pub(super) fn check(nodes: &[ParsedNode]) -> Result<(), FaultAt> {
    names(nodes)?;
    subnets(nodes)?;
    let owners = addresses(nodes)?;
    macs(nodes)?;
    sources(nodes, owners)
}

fn names(nodes: &[ParsedNode]) -> Result<(), FaultAt> {
    let mut seen = HashMap::new();
    for node in nodes {
        let name = &node.lease.name;
        if seen.insert(name, ()).is_some() {
            return Err((node.name_at, NodeListFault::SameName { name: name.clone() }));
        }
    }
    Ok(())
}

/// Two prefixes are nested or disjoint. So if any two overlap, two neighbours in the order of their base addresses do.
fn subnets(nodes: &[ParsedNode]) -> Result<(), FaultAt> {
    let mut all = Vec::new();
    for node in nodes {
        let placed = node.lease.subnets.iter().zip(&node.subnets_at);
        all.extend(placed.map(|(subnet, at)| (*subnet, *at, &node.lease.name)));
    }
    all.sort_unstable_by_key(|(subnet, ..)| (subnet.network(), subnet.prefix_len()));
    for (a, b) in all.iter().zip(all.iter().skip(1)) {
        if a.0.contains(&b.0) {
            let (first, second) = if a.1 < b.1 { (a, b) } else { (b, a) };
            let fault = NodeListFault::Overlap {
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

/// Entries that share a public address are one peer and must agree. Returns the first entry of each address.
fn addresses(nodes: &[ParsedNode]) -> Result<HashMap<IpAddr, &ParsedNode>, FaultAt> {
    let mut owners: HashMap<IpAddr, &ParsedNode> = HashMap::new();
    for node in nodes {
        for address in node.lease.public.iter() {
            let first = *owners.entry(address).or_insert(node);
            let family = Family::of(address);
            agree(node, first).map_err(|(at, key)| {
                let fault = NodeListFault::Contradiction {
                    node: node.lease.name.clone(),
                    other: first.lease.name.clone(),
                    shared: node.address_key(family),
                    address,
                    key,
                };
                (at.unwrap_or(*node.address_at.of(family)), fault)
            })?;
        }
    }
    Ok(owners)
}

/// Checks that two entries of one peer agree. The error is the offset and the key in which they differ.
fn agree(node: &ParsedNode, first: &ParsedNode) -> Result<(), (Option<usize>, &'static str)> {
    let (lease, other) = (&node.lease, &first.lease);
    if lease.public != other.public {
        return Err((None, "pair of public-ip and public-ipv6"));
    }
    if lease.format != other.format {
        return Err((None, "backend"));
    }
    for family in [Family::V4, Family::V6] {
        if lease.vtep_mac.of(family) != other.vtep_mac.of(family) {
            return Err((Some(*node.mac_at.of(family)), mac_key(family)));
        }
    }
    Ok(())
}

fn macs(nodes: &[ParsedNode]) -> Result<(), FaultAt> {
    let mut owners: HashMap<Mac, &ParsedNode> = HashMap::new();
    for node in nodes {
        for family in [Family::V4, Family::V6] {
            let mac = *node.lease.vtep_mac.of(family);
            let first = *owners.entry(mac).or_insert(node);
            if first.lease.public != node.lease.public {
                let fault = NodeListFault::SameMac {
                    key: mac_key(family),
                    node: node.lease.name.clone(),
                    other: first.lease.name.clone(),
                    mac,
                };
                return Err((*node.mac_at.of(family), fault));
            }
        }
    }
    Ok(())
}

fn sources<'a>(
    nodes: &'a [ParsedNode],
    mut owners: HashMap<IpAddr, &'a ParsedNode>,
) -> Result<(), FaultAt> {
    for node in nodes {
        for (address, at) in node.lease.underlay_sources.iter().zip(&node.sources_at) {
            let owner = *owners.entry(*address).or_insert(node);
            if owner.lease.public != node.lease.public {
                let fault = NodeListFault::SameSource {
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

const fn mac_key(family: Family) -> &'static str {
    match family {
        Family::V4 => "vtep-mac",
        Family::V6 => "vtep-mac-v6",
    }
}
