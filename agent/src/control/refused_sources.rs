//! Sources that were refused and could be accepted: a short memory for `tartan peers`.
//!
//! Anyone who can send us a datagram fills it, so it is bounded: the newest pairs push out the oldest. What becomes a
//! problem, and so a line of the log, changes more slowly ([`Reported`]).

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::api::wire::RefusedSource;
use crate::lease::Lease;
use crate::problems::Problem;

/// Pairs of outer and inner source, newest last.
#[derive(Debug, Default)]
pub struct RefusedSources {
    pairs: VecDeque<Pair>,
    /// Addresses that speak as pods of a node and are none of its own.
    addresses: Reported<IpAddr>,
    /// VXLAN networks that peers send beside ours.
    networks: Reported<u32>,
}

/// What is reported of nodes, one thing of each, by their names. It stays until it was not seen for a minute, whatever
/// else is seen of the same node, and further nodes wait for room: so a sender of forged packets causes few lines of the log
/// (in a minute at most [`SHOWN`] that begin and as many that end).
#[derive(Debug)]
struct Reported<T> {
    nodes: BTreeMap<String, (T, Instant)>,
}

impl<T> Default for Reported<T> {
    fn default() -> Reported<T> {
        Reported {
            nodes: BTreeMap::new(),
        }
    }
}

impl<T: PartialEq> Reported<T> {
    fn note(&mut self, node: &str, seen: T, now: Instant) {
        self.expire(now);
        let has_room = self.nodes.len() < SHOWN;
        match self.nodes.get_mut(node) {
            Some((reported, last)) if *reported == seen => *last = now,
            Some(_) => {}
            None if has_room => {
                self.nodes.insert(node.to_owned(), (seen, now));
            }
            None => {}
        }
    }

    fn expire(&mut self, now: Instant) {
        let is_recent = |last: Instant| now.saturating_duration_since(last) < RECENT;
        self.nodes.retain(|_, (_, last)| is_recent(*last));
    }
}

#[derive(Debug)]
struct Pair {
    outer: IpAddr,
    inner: IpAddr,
    owner: Option<String>,
    seen: u64,
}

impl RefusedSources {
    /// Remembers one more refusal; `owner` is the node whose subnet holds the inner source.
    pub fn note(&mut self, outer: IpAddr, inner: IpAddr, owner: Option<String>) {
        if let Some(owner) = &owner {
            self.addresses.note(owner, outer, Instant::now());
        }
        let known = self
            .pairs
            .iter_mut()
            .find(|pair| (pair.outer, pair.inner) == (outer, inner));
        if let Some(pair) = known {
            pair.seen = pair.seen.saturating_add(1);
            pair.owner = owner;
            return;
        }
        if self.pairs.len() >= MEMORY {
            self.pairs.pop_front();
        }
        self.pairs.push_back(Pair {
            outer,
            inner,
            owner,
            seen: 1,
        });
    }

    /// Remembers a datagram of another VXLAN network.
    pub fn note_vni(&mut self, peer: String, vni: u32) {
        self.networks.note(&peer, vni, Instant::now());
    }

    /// What was refused of nodes of `leases` in the last minute; `ours` is our VXLAN network. A node that `answers` probes
    /// is of our network again.
    pub fn problems(
        &mut self,
        leases: &[Lease],
        ours: u32,
        answers: impl Fn(&str) -> bool,
    ) -> Vec<Problem> {
        let now = Instant::now();
        self.networks.expire(now);
        self.networks.nodes.retain(|node, _| !answers(node));
        self.addresses.expire(now);
        let networks = self.networks.nodes.iter();
        let networks = networks.map(|(node, (vni, _))| Problem::PeerOtherVni {
            node: node.clone(),
            vni: *vni,
            ours,
        });
        let addresses = self.addresses.nodes.iter();
        let addresses = addresses.filter_map(|(owner, (outer, _))| {
            let lease = leases.iter().find(|lease| lease.name == *owner)?;
            let listed: Vec<String> = lease.public.iter().map(|a| a.to_string()).collect();
            Some(Problem::PeerUnknownAddress {
                node: owner.clone(),
                outer: *outer,
                listed: listed.join(" and "),
            })
        });
        networks.chain(addresses).collect()
    }

    /// Forgets pairs that are accepted now.
    pub fn forget(&mut self, accepted: impl Fn(IpAddr) -> bool) {
        self.pairs.retain(|pair| !accepted(pair.outer));
        let nodes = &mut self.addresses.nodes;
        nodes.retain(|_, (outer, _)| !accepted(*outer));
    }

    /// The pairs with their remedies, newest first.
    pub fn list(&self) -> Vec<RefusedSource> {
        let line = |pair: &Pair| RefusedSource {
            outer: pair.outer,
            inner: pair.inner,
            seen: pair.seen,
            remedy: remedy(pair),
        };
        self.pairs.iter().rev().map(line).collect()
    }
}

fn remedy(pair: &Pair) -> String {
    let Pair {
        outer,
        inner,
        owner,
        ..
    } = pair;
    match owner {
        Some(owner) => format!(
            "{outer} is no node, and speaks as a pod of {owner}; if it is {owner}, set \
             underlay-sources = [\"{outer}\"] in its entry of the list of nodes"
        ),
        None => {
            format!("{outer} is no node, and {inner} belongs to none; ignore it or find the sender")
        }
    }
}

const MEMORY: usize = 64;
/// A peer that is corrected sends no more of them.
const RECENT: Duration = Duration::from_secs(60);
/// Nodes with a problem of each kind.
const SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_counted_and_the_remedy_names_the_setting() {
        let mut refused = RefusedSources::default();
        let (outer, inner): (IpAddr, IpAddr) =
            ("192.0.2.9".parse().unwrap(), "10.244.2.7".parse().unwrap());
        refused.note(outer, inner, Some("node2".into()));
        refused.note(outer, inner, Some("node2".into()));
        let list = refused.list();
        assert_eq!((list.len(), list[0].seen), (1, 2));
        assert!(
            list[0]
                .remedy
                .contains("underlay-sources = [\"192.0.2.9\"]"),
            "{}",
            list[0].remedy
        );
        refused.forget(|source| source == outer);
        assert!(refused.list().is_empty());
    }

    #[test]
    fn a_flood_of_pairs_is_bounded_and_the_newest_stay() {
        let mut refused = RefusedSources::default();
        let address = |index: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(index));
        for index in 0..10_000 {
            refused.note(address(index), address(1), None);
        }
        let list = refused.list();
        assert_eq!(list.len(), MEMORY);
        assert_eq!(list[0].outer, address(9_999));
        assert!(list[0].remedy.contains("belongs to none"));
    }

    #[test]
    fn a_flood_changes_what_is_reported_once_a_minute() {
        let begin = Instant::now();
        let mut reported = Reported::default();
        let mut changes = 0;
        let mut before: Vec<(String, u32)> = Vec::new();
        // 200 nodes in turn, each with two addresses in turn, for 5 minutes.
        for tick in 0..3000u32 {
            let now = begin + Duration::from_millis(100) * tick;
            for step in 0..20 {
                let turn = tick * 20 + step;
                reported.note(&format!("n{}", turn % 200), turn / 200 % 2, now);
            }
            reported.expire(now);
            let after: Vec<_> = reported
                .nodes
                .iter()
                .map(|(n, (v, _))| (n.clone(), *v))
                .collect();
            changes += after.iter().filter(|one| !before.contains(one)).count();
            changes += before.iter().filter(|one| !after.contains(one)).count();
            before = after;
        }
        assert!((1..=2 * 5 * SHOWN).contains(&changes), "{changes}");
        assert_eq!(before.len(), SHOWN);
    }

    #[test]
    fn what_is_corrected_is_no_longer_reported_a_minute_later() {
        let begin = Instant::now();
        let mut reported = Reported::default();
        reported.note("n1", 7, begin);
        reported.note("n1", 8, begin + Duration::from_secs(59));
        assert_eq!(reported.nodes["n1"].0, 7);
        reported.note("n1", 8, begin + RECENT);
        assert_eq!(reported.nodes["n1"].0, 8);
        reported.expire(begin + RECENT * 2);
        assert!(reported.nodes.is_empty());
    }
}
