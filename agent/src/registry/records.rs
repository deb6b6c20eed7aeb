//! Checks the records of a remote registry, which every node of the cluster writes, and makes the list of nodes of them.
//!
//! Theory of operation. A list of nodes that an operator writes is refused as a whole for one fault ([`super::nodes`]). The
//! records of `etcd` and `kubernetes` have many writers, and one writer's fault must not cost the others their routes. So
//! each record is checked alone, then against those accepted before it; one that fails is passed over and reported. The
//! order of the candidates is their precedence: of two records that claim the same thing the earlier one is in force.
//! What is accepted passes every check of [`super::parse`], and of [`super::own`] where this node's record is among it.
//!
//! At most [`MOST_RECORDS`] candidates are looked at. Each costs the logarithm of their number.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use dataplane::families::PublicAddresses;
use encap::{Family, Mac};
use ipnet::IpNet;

use super::place::RegistryPlace;
use super::record_fault::{Other, RecordFault};
use super::refused_record::RefusedRecord;
use crate::config::NetConf;
use crate::lease::{Lease, unfit_for_underlay};

/// A record that can be read, before it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Where it is.
    pub place: RegistryPlace,
    /// What it says. Its name is the one under which the node is listed.
    pub lease: Lease,
    /// It is this node's own.
    pub is_own: bool,
}

/// The leases of the candidates that can be used, in their order, and the candidates that cannot.
///
/// `candidates` are in order of precedence: this node's own record first, then those of others, the first writer first.
/// Records of others that name an address of this node's own record are refused. Two records with one public address are
/// one peer with the subnets of both.
pub fn check(candidates: Vec<Candidate>, net_conf: &NetConf) -> (Vec<Lease>, Vec<RefusedRecord>) {
    let own = candidates.iter().filter(|candidate| candidate.is_own);
    let own: Vec<IpAddr> = own.flat_map(|own| own.lease.public.iter()).collect();
    let mut accepted = Accepted {
        own,
        cluster: net_conf.cluster(),
        ..Accepted::default()
    };
    let (mut refused, mut surplus) = (Vec::new(), 0);
    for (number, candidate) in candidates.into_iter().enumerate() {
        if number > MOST_RECORDS {
            surplus += 1;
            continue;
        }
        let fault = match number {
            MOST_RECORDS => Err(RecordFault::TooMany { most: MOST_RECORDS }),
            _ => accepted.check(&candidate),
        };
        match fault {
            Ok(()) => accepted.add(candidate),
            Err(fault) => refused.push(refuse(candidate, &fault)),
        }
    }
    if let Some(last) = refused.last_mut().filter(|_| surplus > 0) {
        last.reason.push_str(&format!("; so are {surplus} more"));
    }
    (accepted.leases, refused)
}

fn refuse(candidate: Candidate, fault: &RecordFault) -> RefusedRecord {
    RefusedRecord {
        place: candidate.place,
        name: candidate.lease.name,
        public: Some(candidate.lease.public.first()),
        subnets: candidate.lease.subnets,
        reason: fault.to_string(),
    }
}

/// The records accepted so far, and who has what.
#[derive(Default)]
struct Accepted {
    cluster: Vec<IpNet>,
    own: Vec<IpAddr>,
    leases: Vec<Lease>,
    /// Of `leases`, in the same order.
    places: Vec<RegistryPlace>,
    /// Each maps to an index of `leases`. Subnets are disjoint, so a base address stands for one.
    names: HashMap<String, usize>,
    subnets: BTreeMap<IpAddr, (IpNet, usize)>,
    addresses: HashMap<IpAddr, usize>,
    macs: HashMap<Mac, usize>,
}

impl Accepted {
    fn check(&self, candidate: &Candidate) -> Result<(), RecordFault> {
        let lease = &candidate.lease;
        is_name(&lease.name)?;
        if !lease.accept_sources.is_empty() || !lease.underlay_sources.is_empty() {
            return Err(RecordFault::Sources);
        }
        self.check_subnets(&lease.subnets)?;
        for address in lease.public.iter() {
            self.check_address(address, candidate.is_own)?;
        }
        for (family, mac) in macs(lease) {
            if !mac.is_unicast() {
                return Err(RecordFault::NotUnicast { family, mac });
            }
        }
        if let Some(other) = self.names.get(&lease.name) {
            return Err(RecordFault::SameName(self.other(*other)));
        }
        self.check_overlaps(&lease.subnets)?;
        self.check_peer(lease)
    }

    /// What a record's subnets must be whatever other records say.
    fn check_subnets(&self, subnets: &[IpNet]) -> Result<(), RecordFault> {
        if subnets.is_empty() {
            return Err(RecordFault::NoSubnet);
        }
        if subnets.len() > MOST_SUBNETS {
            return Err(RecordFault::ManySubnets { most: MOST_SUBNETS });
        }
        for (number, subnet) in subnets.iter().enumerate() {
            let subnet = *subnet;
            let meant = subnet.trunc();
            if meant != subnet {
                return Err(RecordFault::HostBits { subnet, meant });
            }
            if !self.cluster.iter().any(|network| network.contains(&subnet)) {
                let cluster = self.cluster.clone();
                return Err(RecordFault::Outside { subnet, cluster });
            }
            let longest = subnet.max_prefix_len() - ROOM_BITS;
            if subnet.prefix_len() > longest {
                return Err(RecordFault::TooSmall { subnet, longest });
            }
            let mut earlier = subnets.iter().take(number);
            if let Some(twin) = earlier.find(|twin| overlap(**twin, subnet)) {
                return Err(RecordFault::OverlapsItself {
                    subnet,
                    other: *twin,
                });
            }
        }
        Ok(())
    }

    fn check_address(&self, address: IpAddr, is_own: bool) -> Result<(), RecordFault> {
        if let Some(fault) = unfit_for_underlay(address) {
            return Err(RecordFault::Unreachable { address, fault });
        }
        let mut networks = self.cluster.iter();
        if let Some(network) = networks.find(|network| network.contains(&address)) {
            return Err(RecordFault::InsideCluster {
                address,
                network: *network,
            });
        }
        match !is_own && self.own.contains(&address) {
            true => Err(RecordFault::OwnAddress { address }),
            false => Ok(()),
        }
    }

    /// Accepted subnets are disjoint. So one that overlaps `subnet` either is the last whose base is not above that of
    /// `subnet`, or the first one above it.
    fn check_overlaps(&self, subnets: &[IpNet]) -> Result<(), RecordFault> {
        for subnet in subnets {
            let base = subnet.network();
            let below = self.subnets.range(..=base).next_back();
            let above = self.subnets.range(base..).next();
            let mut near = below.into_iter().chain(above).map(|(_, found)| found);
            if let Some((other_subnet, other)) = near.find(|(near, _)| overlap(*near, *subnet)) {
                return Err(RecordFault::Overlap {
                    subnet: *subnet,
                    other_subnet: *other_subnet,
                    other: self.other(*other),
                });
            }
        }
        Ok(())
    }

    /// Records that share a public address are one peer and must agree; a VTEP MAC belongs to one peer.
    fn check_peer(&self, lease: &Lease) -> Result<(), RecordFault> {
        for address in lease.public.iter() {
            let Some(index) = self.addresses.get(&address) else {
                continue;
            };
            if let Some(differs) = self
                .leases
                .get(*index)
                .and_then(|first| differs(lease, first))
            {
                return Err(RecordFault::Contradiction {
                    address,
                    differs,
                    other: self.other(*index),
                });
            }
        }
        for (_, mac) in macs(lease) {
            let Some(index) = self.macs.get(&mac) else {
                continue;
            };
            if self.public(*index) != Some(lease.public) {
                return Err(RecordFault::SameMac {
                    mac,
                    other: self.other(*index),
                });
            }
        }
        Ok(())
    }

    fn add(&mut self, candidate: Candidate) {
        let (lease, index) = (candidate.lease, self.leases.len());
        self.names.insert(lease.name.clone(), index);
        for subnet in &lease.subnets {
            self.subnets.insert(subnet.network(), (*subnet, index));
        }
        for address in lease.public.iter() {
            self.addresses.entry(address).or_insert(index);
        }
        for (_, mac) in macs(&lease) {
            self.macs.entry(mac).or_insert(index);
        }
        self.leases.push(lease);
        self.places.push(candidate.place);
    }

    fn public(&self, index: usize) -> Option<PublicAddresses> {
        self.leases.get(index).map(|lease| lease.public)
    }

    fn other(&self, index: usize) -> Other {
        let name = self.leases.get(index).map(|lease| lease.name.clone());
        let place = self.places.get(index).map(ToString::to_string);
        Other {
            name: name.unwrap_or_default(),
            place: place.unwrap_or_default(),
        }
    }
}

/// As in a list of nodes.
fn is_name(name: &str) -> Result<(), RecordFault> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    match (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(RecordFault::Name),
    }
}

fn macs(lease: &Lease) -> [(Family, Mac); 2] {
    [Family::V4, Family::V6].map(|family| (family, *lease.vtep_mac.of(family)))
}

fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// In what two records of one peer differ.
fn differs(lease: &Lease, first: &Lease) -> Option<&'static str> {
    if lease.public != first.public {
        Some("pair of public addresses")
    } else if lease.format != first.format {
        Some("backend")
    } else if lease.vtep_mac != first.vtep_mac {
        Some("VTEP MAC")
    } else {
        None
    }
}

/// Four times the largest cluster that Kubernetes supports.
pub const MOST_RECORDS: usize = 20_000;
/// Of one record. `etcd` and `kubernetes` have one for each family.
const MOST_SUBNETS: usize = 8;
/// Octets of a node's name, as of a DNS name.
const LONGEST_NAME: usize = 253;
/// Host bits that a subnet needs for a tunnel address, a bridge and a pod.
const ROOM_BITS: u8 = 2;

#[cfg(test)]
mod tests;
