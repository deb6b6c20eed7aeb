//! A list of nodes that is held back, because it loses most of them at once.
//!
//! Theory of operation. An editor or a copy that is cut off at the boundary of two entries leaves a list that is right in
//! itself. So a list without more than half of the nodes in force, and without more than two of them, is not adopted but
//! held back, as a whole: its last entry may be cut, too. Forwarding goes on by the list in force. The list is adopted
//! when the operator confirms it (`tartan adopt`) or when the grace time has passed; whatever the registry reports before
//! that takes its place. A further list that loses no other nodes keeps the time at which the first is due, so that a
//! list that is written again and again is adopted in the end.
//!
//! A service that starts compares with the last good state. The time is not kept on disk: each start begins it anew, so
//! that no clock and no series of crashes adopts a list early. A list that gives this node's own entry a new address
//! or subnet is no cut one there, but that of another set-up, and the old one would bind addresses that the node no longer
//! has. An entry that only lacks something may itself be cut.
//!
//! In etcd and Kubernetes each node writes its own record, so none is cut. There only the loss is held back: what else the
//! list says is in force at once ([`HeldList::meanwhile`]), above all this node's own subnets, which another node may have
//! by now.

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;

use crate::lease::Lease;
use crate::problems::Problem;

/// A list that is not in force yet.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldList {
    leases: Vec<Lease>,
    /// Names of the nodes in force that it lacks, in the order of the list in force.
    lost: Vec<String>,
    /// How many nodes are in force, this one among them.
    in_force: usize,
    /// When it is adopted.
    due: Instant,
    /// The same for people.
    due_at: SystemTime,
}

/// The time, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// Of the clock that is never set.
    pub now: Instant,
    /// Of the clock that people read.
    pub wall: SystemTime,
}

impl Time {
    /// The present.
    pub fn read() -> Time {
        Time {
            now: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}

impl HeldList {
    /// Decides on a list that the registry reports, where `in_force` holds and `earlier` is held back: `Ok` with the list
    /// where it is to be adopted at once, as without any `grace`.
    ///
    /// # Errors
    /// The list, held back.
    pub fn check(
        leases: Vec<Lease>,
        in_force: &[Lease],
        earlier: Option<&HeldList>,
        grace: Duration,
        time: Time,
    ) -> Result<Vec<Lease>, HeldList> {
        let lost = lost(in_force, &leases);
        if grace.is_zero() || lost.len() <= FEW || 2 * lost.len() <= in_force.len() {
            return Ok(leases);
        }
        let begun = earlier.filter(|earlier| lost.iter().all(|name| earlier.lost.contains(name)));
        let (due, due_at) = match begun {
            Some(earlier) => (earlier.due, earlier.due_at),
            None => (time.now + grace, time.wall + grace),
        };
        Err(HeldList {
            leases,
            lost,
            in_force: in_force.len(),
            due,
            due_at,
        })
    }

    /// As [`check`](HeldList::check), at the start of a service whose last good state has the list `kept` and the entry
    /// `kept_own` for this node.
    ///
    /// # Errors
    /// The list, held back.
    pub fn check_at_start(
        leases: Vec<Lease>,
        own: &Lease,
        kept: &[Lease],
        kept_own: &Lease,
        grace: Duration,
        time: Time,
    ) -> Result<Vec<Lease>, HeldList> {
        if is_of_another_set_up(own, kept_own) {
            return Ok(leases);
        }
        HeldList::check(leases, kept, None, grace, time)
    }

    /// When it is adopted.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The list.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// What may be in force while it is held back, where each node writes its own record: what it has, and the nodes of
    /// the list `in_force` that it lacks, but for those that are at odds with it.
    pub fn meanwhile(&self, in_force: &[Lease]) -> Vec<Lease> {
        let lacking = in_force.iter().filter(|lease| {
            self.lost.contains(&lease.name)
                && !self.leases.iter().any(|held| are_at_odds(held, lease))
        });
        self.leases.iter().chain(lacking).cloned().collect()
    }

    /// Names of the nodes in force that it lacks.
    pub fn lost(&self) -> &[String] {
        &self.lost
    }

    /// That it is held back. `place` is the registry's.
    pub fn problem(&self, place: String) -> Problem {
        Problem::ListShrinks {
            place,
            lost: self.lost.clone(),
            in_force: self.in_force,
            due: self.due_at,
        }
    }
}

/// Whether two nodes have a subnet, an address or a VTEP MAC in common.
fn are_at_odds(one: &Lease, other: &Lease) -> bool {
    let overlap = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
    let macs = |lease: &Lease| [lease.vtep_mac.v4, lease.vtep_mac.v6];
    one.subnets
        .iter()
        .any(|a| other.subnets.iter().any(|b| overlap(a, b)))
        || one.public.iter().any(|a| other.public.contains(a))
        || macs(one).iter().any(|mac| macs(other).contains(mac))
}

/// Whether an entry has a public address or a subnet that the `kept` one lacks.
fn is_of_another_set_up(own: &Lease, kept: &Lease) -> bool {
    let mut public = own.public.iter();
    let mut subnets = own.subnets.iter();
    public.any(|address| !kept.public.contains(address))
        || subnets.any(|subnet| !kept.subnets.contains(subnet))
}

/// The nodes of `old` that `new` lacks: neither their name is in it, nor any of their subnets under another name.
fn lost(old: &[Lease], new: &[Lease]) -> Vec<String> {
    let names: HashSet<&str> = new.iter().map(|lease| &*lease.name).collect();
    let subnets: HashSet<&IpNet> = new.iter().flat_map(|lease| &lease.subnets).collect();
    let is_lost = |lease: &&Lease| {
        let mut held = lease.subnets.iter();
        !names.contains(&*lease.name) && !held.any(|subnet| subnets.contains(subnet))
    };
    let lost = old.iter().filter(is_lost);
    lost.map(|lease| lease.name.clone()).collect()
}

/// So many nodes may go at once from a list of any length.
const FEW: usize = 2;

#[cfg(test)]
mod tests;
