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

/// What is reported of nodes, one thing of each, by their names. It is shown until it was not seen for a while, whatever
/// else is seen of the same node. At most [`SHOWN`] begin to be shown within [`REMEMBERED`], and further ones wait: so a sender
/// of forged packets causes few lines of the log, that many that begin and as many that end.
#[derive(Debug)]
struct Reported<T> {
    nodes: BTreeMap<String, Report<T>>,
    /// When the latest began to be shown.
    begun: VecDeque<Instant>,
}

#[derive(Debug)]
struct Report<T> {
    what: T,
    seen: Sightings,
    is_shown: bool,
}

/// When something was seen.
#[derive(Clone, Copy, Debug)]
struct Sightings {
    last: Instant,
    /// Between the latest two; nothing where it was seen once.
    pause: Duration,
}

impl Sightings {
    const fn first(now: Instant) -> Sightings {
        Sightings {
            last: now,
            pause: Duration::ZERO,
        }
    }

    fn again(&mut self, now: Instant) {
        self.pause = now.saturating_duration_since(self.last);
        self.last = now;
    }

    /// Whether it goes on, as far as is known: what comes rarely is waited for longer.
    fn is_current(&self, now: Instant) -> bool {
        let lasts = (self.pause * 2).clamp(RECENT, REMEMBERED);
        now.saturating_duration_since(self.last) < lasts
    }
}

impl<T> Default for Reported<T> {
    fn default() -> Reported<T> {
        Reported {
            nodes: BTreeMap::new(),
            begun: VecDeque::new(),
        }
    }
}

impl<T: PartialEq> Reported<T> {
    fn note(&mut self, node: &str, what: T, now: Instant) {
        self.expire(now);
        let may_begin = self.begun.len() < SHOWN;
        let is_full = self.nodes.len() >= SHOWN;
        match self.nodes.get_mut(node) {
            Some(report) if report.what == what => {
                report.seen.again(now);
                if !report.is_shown && may_begin {
                    report.is_shown = true;
                    self.begun.push_back(now);
                }
            }
            Some(report) if report.seen.is_current(now) => {}
            None if is_full => {}
            _ if may_begin => {
                let report = Report {
                    what,
                    seen: Sightings::first(now),
                    is_shown: true,
                };
                self.nodes.insert(node.to_owned(), report);
                self.begun.push_back(now);
            }
            _ => {}
        }
    }

    /// Ends what was not seen for its time, and forgets what was not seen for longer.
    fn expire(&mut self, now: Instant) {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= REMEMBERED;
        self.nodes.retain(|_, report| !is_old(report.seen.last));
        for report in self.nodes.values_mut() {
            report.is_shown &= report.seen.is_current(now);
        }
        while self.begun.front().is_some_and(|begun| is_old(*begun)) {
            self.begun.pop_front();
        }
    }

    /// What is shown of each node.
    fn shown(&self) -> impl Iterator<Item = (&String, &T)> {
        let shown = self.nodes.iter().filter(|(_, report)| report.is_shown);
        shown.map(|(node, report)| (node, &report.what))
    }
}

#[derive(Debug)]
struct Pair {
    outer: IpAddr,
    inner: IpAddr,
    owner: Option<String>,
    /// How often.
    count: u64,
    seen: Sightings,
}

impl RefusedSources {
    /// Remembers one more refusal; `owner` is the node whose subnet holds the inner source.
    pub fn note(&mut self, outer: IpAddr, inner: IpAddr, owner: Option<String>) {
        let now = Instant::now();
        if let Some(owner) = &owner {
            self.addresses.note(owner, outer, now);
        }
        let known = self
            .pairs
            .iter_mut()
            .find(|pair| (pair.outer, pair.inner) == (outer, inner));
        if let Some(pair) = known {
            pair.count = pair.count.saturating_add(1);
            pair.seen.again(now);
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
            count: 1,
            seen: Sightings::first(now),
        });
    }

    /// Remembers a datagram of another VXLAN network.
    pub fn note_vni(&mut self, peer: String, vni: u32) {
        self.networks.note(&peer, vni, Instant::now());
    }

    /// What was refused of nodes of `leases` of late; `ours` is our VXLAN network. A node that `answers` probes
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
        let networks = self.networks.shown();
        let networks = networks.map(|(node, vni)| Problem::PeerOtherVni {
            node: node.clone(),
            vni: *vni,
            ours,
        });
        let addresses = self.addresses.shown();
        let addresses = addresses.filter_map(|(owner, outer)| {
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
        nodes.retain(|_, report| !accepted(report.what));
    }

    /// The pairs of late with their remedies, newest first.
    pub fn list(&self) -> Vec<RefusedSource> {
        self.list_at(Instant::now())
    }

    fn list_at(&self, now: Instant) -> Vec<RefusedSource> {
        let line = |pair: &Pair| RefusedSource {
            outer: pair.outer,
            inner: pair.inner,
            seen: pair.count,
            remedy: remedy(pair),
        };
        let current = self.pairs.iter().filter(|pair| pair.seen.is_current(now));
        current.rev().map(line).collect()
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
/// A node that is corrected sends no more of them; one that is wrong sends more often, unless its paths are many.
const RECENT: Duration = Duration::from_secs(8);
/// For how long at most it is waited for what comes rarely.
const REMEMBERED: Duration = Duration::from_secs(60);
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
            let after = reported.shown().map(|(node, what)| (node.clone(), *what));
            let after: Vec<_> = after.collect();
            changes += after.iter().filter(|one| !before.contains(one)).count();
            changes += before.iter().filter(|one| !after.contains(one)).count();
            before = after;
        }
        assert!((1..=2 * 5 * SHOWN).contains(&changes), "{changes}");
        assert_eq!(before.len(), SHOWN);
    }

    #[test]
    fn what_is_corrected_is_reported_no_longer() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut reported = Reported::default();
        let shown = |reported: &mut Reported<u32>, seconds| {
            reported.expire(after(seconds));
            reported.shown().map(|(_, what)| *what).collect::<Vec<_>>()
        };
        reported.note("n1", 7, begin);
        reported.note("n1", 7, after(1));
        reported.note("n1", 8, after(2));
        assert_eq!(shown(&mut reported, 8), [7]);
        assert_eq!(shown(&mut reported, 9), [0; 0]);
        // Another is shown where the first has ended.
        reported.note("n1", 8, after(10));
        assert_eq!(shown(&mut reported, 17), [8]);
        // What comes rarely does not come and go.
        for turn in 1..10 {
            reported.note("n1", 8, after(10 + 20 * turn));
            assert_eq!(shown(&mut reported, 10 + 20 * turn), [8]);
            if turn > 1 {
                assert_eq!(shown(&mut reported, 29 + 20 * turn), [8]);
            }
        }
        assert_eq!(shown(&mut reported, 190 + 40), [0; 0]);
    }

    /// Regression: one datagram of a host that is no node left `tartan peers` with exit code 1 for ever.
    #[test]
    fn a_source_that_is_seen_no_more_is_listed_no_more() {
        let mut refused = RefusedSources::default();
        refused.note(
            "192.0.2.9".parse().unwrap(),
            "10.244.2.7".parse().unwrap(),
            None,
        );
        let now = Instant::now();
        assert_eq!(refused.list_at(now).len(), 1);
        assert_eq!(refused.list_at(now + RECENT).len(), 0);
    }
}
