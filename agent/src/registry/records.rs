//! Checks the records of a remote registry, which every node of the cluster writes, and makes the list of nodes of them.
//!
//! Theory of operation. A list of nodes that an operator writes is refused as a whole for one fault ([`super::nodes`]). The
//! records of `etcd` and `kubernetes` have many writers, and one writer's fault must not cost the others their routes. So
//! each record is checked alone, then against the others; one that fails is passed over and reported.
//!
//! Of two records that claim the same thing one is in force. This node's own always is. Between others it depends on what
//! they claim: a subnet or a name stays with the first, whose pods live in it. A public address or a VTEP MAC goes to the
//! last: the record of a node that died, or that had another record before, still names them, and only the machine
//! that has them now could write them anew. So all records are checked for subnets in their order, those that pass for
//! addresses in the reverse order. A record that lost its subnet to one that has lost its address then gets it.
//!
//! What is accepted passes every check of [`super::parse`], and of [`super::own`] where this node's record is among it. At
//! most [`MOST_RECORDS`] candidates are looked at. Each costs the logarithm of their number.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use encap::{Family, Mac};
use ipnet::IpNet;

use super::place::RegistryPlace;
use super::record_fault::{Other, RecordFault};
use super::refused_record::RefusedRecord;
use crate::config::NetConf;
use crate::lease::{Lease, unfit_for_underlay};

/// A record that can be read, before it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Where it is.
    pub(super) place: RegistryPlace,
    /// What it says. Its name is the one under which the node is listed.
    pub(super) lease: Lease,
    /// It is this node's own.
    pub(super) is_own: bool,
}

/// The leases of the candidates that can be used, in their order, and the candidates that cannot.
///
/// `candidates` are this node's own record, then those of others, the first writer first. Of others that claim one subnet
/// the first is accepted, of others that claim one public address or VTEP MAC the last. Records of others that name an
/// address of this node's own record are refused. Two records with one public address that agree in all but the subnets are
/// one peer with the subnets of both.
pub(super) fn check(
    candidates: Vec<Candidate>,
    net_conf: &NetConf,
) -> (Vec<Lease>, Vec<RefusedRecord>) {
    let own = candidates.iter().filter(|candidate| candidate.is_own);
    let own: Vec<IpAddr> = own.flat_map(|own| own.lease.public.iter()).collect();
    let rules = Rules {
        own,
        cluster: net_conf.cluster(),
    };
    let (mut of_subnets, mut late) = (Accepted::default(), Vec::new());
    let (mut refused, mut surplus) = (Vec::new(), 0);
    for (number, candidate) in candidates.into_iter().enumerate() {
        if number > MOST_RECORDS {
            surplus += 1;
            continue;
        }
        let fault = match number {
            MOST_RECORDS => Err(RecordFault::TooMany { most: MOST_RECORDS }),
            _ => rules.check(&candidate),
        };
        match fault {
            Err(fault) => refused.push((number, refuse(candidate, &fault))),
            Ok(()) if of_subnets.check_subnets(&candidate.lease).is_ok() => {
                of_subnets.add(number, candidate);
            }
            Ok(()) => late.push((number, candidate)),
        }
    }
    let mut accepted = Accepted::default();
    let passed = of_subnets.records.into_iter();
    let (own, others): (Vec<_>, Vec<_>) = passed.partition(|(_, candidate)| candidate.is_own);
    for (number, candidate) in own.into_iter().chain(others.into_iter().rev()) {
        match accepted.check_peer(&candidate.lease) {
            Ok(()) => accepted.add(number, candidate),
            Err(fault) => refused.push((number, refuse(candidate, &fault))),
        }
    }
    for (number, candidate) in late {
        match accepted.check(&candidate.lease) {
            Ok(()) => accepted.add(number, candidate),
            Err(fault) => refused.push((number, refuse(candidate, &fault))),
        }
    }
    refused.sort_unstable_by_key(|(number, _)| *number);
    let mut refused: Vec<_> = refused.into_iter().map(|(_, record)| record).collect();
    if let Some(last) = refused.last_mut().filter(|_| surplus > 0) {
        last.reason.push_str(&format!("; so are {surplus} more"));
    }
    (accepted.into_leases(), refused)
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

/// What a record must be whatever other records say, except this node's own.
struct Rules {
    /// Public addresses of this node.
    own: Vec<IpAddr>,
    cluster: Vec<IpNet>,
}

impl Rules {
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
        Ok(())
    }

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
}

/// Records that were accepted, and who has what.
#[derive(Default)]
struct Accepted {
    /// Each with its number among the candidates.
    records: Vec<(usize, Candidate)>,
    /// Each maps to an index of `records`. Subnets are disjoint, so a base address stands for one.
    names: HashMap<String, usize>,
    subnets: BTreeMap<IpAddr, (IpNet, usize)>,
    addresses: HashMap<IpAddr, usize>,
    macs: HashMap<Mac, usize>,
}

impl Accepted {
    fn check(&self, lease: &Lease) -> Result<(), RecordFault> {
        self.check_subnets(lease)?;
        self.check_peer(lease)
    }

    /// Only one record has a name or a subnet.
    ///
    /// Accepted subnets are disjoint. So one that overlaps `subnet` either is the last whose base is not above that of
    /// `subnet`, or the first one above it.
    fn check_subnets(&self, lease: &Lease) -> Result<(), RecordFault> {
        if let Some(other) = self.names.get(&lease.name) {
            return Err(RecordFault::SameName(self.other(*other)));
        }
        for subnet in &lease.subnets {
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
            let other = self.lease(*index);
            if let Some(differs) = other.and_then(|other| differs(lease, other)) {
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
            if self.lease(*index).map(|other| other.public) != Some(lease.public) {
                return Err(RecordFault::SameMac {
                    mac,
                    other: self.other(*index),
                });
            }
        }
        Ok(())
    }

    fn add(&mut self, number: usize, candidate: Candidate) {
        let (lease, index) = (&candidate.lease, self.records.len());
        self.names.insert(lease.name.clone(), index);
        for subnet in &lease.subnets {
            self.subnets.insert(subnet.network(), (*subnet, index));
        }
        for address in lease.public.iter() {
            self.addresses.entry(address).or_insert(index);
        }
        for (_, mac) in macs(lease) {
            self.macs.entry(mac).or_insert(index);
        }
        self.records.push((number, candidate));
    }

    fn lease(&self, index: usize) -> Option<&Lease> {
        let record = self.records.get(index);
        record.map(|(_, candidate)| &candidate.lease)
    }

    fn other(&self, index: usize) -> Other {
        let found = self.records.get(index);
        let found = found.map(|(_, candidate)| Other {
            name: candidate.lease.name.clone(),
            place: candidate.place.to_string(),
        });
        found.unwrap_or_default()
    }

    /// In the order of the candidates.
    fn into_leases(mut self) -> Vec<Lease> {
        self.records.sort_unstable_by_key(|(number, _)| *number);
        let records = self.records.into_iter();
        records.map(|(_, candidate)| candidate.lease).collect()
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
fn differs(lease: &Lease, other: &Lease) -> Option<&'static str> {
    if lease.public != other.public {
        Some("pair of public addresses")
    } else if lease.format != other.format {
        Some("backend")
    } else if lease.vtep_mac != other.vtep_mac {
        Some("VTEP MAC")
    } else {
        None
    }
}

/// Four times the largest cluster that Kubernetes supports.
const MOST_RECORDS: usize = 20_000;
/// Of one record. `etcd` and `kubernetes` have one for each family.
const MOST_SUBNETS: usize = 8;
/// Octets of a node's name, as of a DNS name.
const LONGEST_NAME: usize = 253;
/// Host bits that a subnet needs for a tunnel address, a bridge and a pod.
const ROOM_BITS: u8 = 2;

#[cfg(test)]
mod tests;
