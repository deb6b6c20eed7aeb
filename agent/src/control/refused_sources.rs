//! Sources that were refused and could be accepted: a short memory for `tartan peers`.
//!
//! Anyone who can send us a datagram fills it, so it is bounded: the newest pairs push out the oldest.

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
    /// VXLAN networks that peers send beside ours, by their names.
    networks: BTreeMap<String, (u32, Instant)>,
}

#[derive(Debug)]
struct Pair {
    last: Instant,
    outer: IpAddr,
    inner: IpAddr,
    owner: Option<String>,
    seen: u64,
}

impl RefusedSources {
    /// Remembers one more refusal; `owner` is the node whose subnet holds the inner source.
    pub fn note(&mut self, outer: IpAddr, inner: IpAddr, owner: Option<String>) {
        let known = self
            .pairs
            .iter_mut()
            .find(|pair| (pair.outer, pair.inner) == (outer, inner));
        if let Some(pair) = known {
            pair.seen = pair.seen.saturating_add(1);
            pair.owner = owner;
            pair.last = Instant::now();
            return;
        }
        if self.pairs.len() >= MEMORY {
            self.pairs.pop_front();
        }
        self.pairs.push_back(Pair {
            last: Instant::now(),
            outer,
            inner,
            owner,
            seen: 1,
        });
    }

    /// Remembers a datagram of another VXLAN network. Peers are nodes of the list, so they are as few.
    pub fn note_vni(&mut self, peer: String, vni: u32) {
        self.networks.insert(peer, (vni, Instant::now()));
    }

    /// What was refused of nodes of `leases` in the last minute; `ours` is our VXLAN network.
    pub fn problems(&mut self, leases: &[Lease], ours: u32) -> Vec<Problem> {
        let is_recent = |last: &Instant| last.elapsed() < RECENT;
        self.networks.retain(|_, (_, last)| is_recent(last));
        let networks = self.networks.iter().take(SHOWN);
        let networks = networks.map(|(node, (vni, _))| Problem::PeerOtherVni {
            node: node.clone(),
            vni: *vni,
            ours,
        });
        let addresses = self.pairs.iter().filter(|pair| is_recent(&pair.last));
        let addresses = addresses.filter_map(|pair| {
            let owner = pair.owner.as_ref()?;
            let lease = leases.iter().find(|lease| lease.name == *owner)?;
            let listed: Vec<String> = lease.public.iter().map(|a| a.to_string()).collect();
            Some(Problem::PeerUnknownAddress {
                node: owner.clone(),
                outer: pair.outer,
                listed: listed.join(" and "),
            })
        });
        networks.chain(addresses.take(SHOWN)).collect()
    }

    /// Forgets pairs that are accepted now.
    pub fn forget(&mut self, accepted: impl Fn(IpAddr) -> bool) {
        self.pairs.retain(|pair| !accepted(pair.outer));
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
/// Problems of each kind.
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
}
