//! Which members of a growing set (peers, pods) have series of their own.
//!
//! Theory of operation. A set may have any number of members, and Prometheus keeps every series that it ever saw in
//! memory. So the first [`limit`](OwnSeries::new) members have series of their own, and the rest share those of the name
//! [`OTHER`], which are their sum. The sum over all series is the sum over all members, at every scrape.
//!
//! A counter must not fall, or Prometheus takes it for one that began at 0 again, and shows a burst that never was. So who
//! has series of its own keeps them, a member of the rest stays there, and a place that falls free is taken by a member
//! that comes later. What a member had counted before its counters began anew stays in its series, and what members of
//! the rest had counted when they were seen last stays in their sum after they went. What one counts between its last
//! scrape and its end is lost to it.
//!
//! A member that is missing may have been left out of one list: the kernel does so while interfaces come and go. Were it
//! taken for one that went, it would come back with all that it had counted, which would be counted twice. So it is gone
//! when it was missing [`GONE_AFTER`] times in a row, and has its place until then.

use std::collections::{HashMap, HashSet};

/// The choice, kept from scrape to scrape. `N` counters belong to each member.
#[derive(Debug)]
pub(super) struct OwnSeries<const N: usize> {
    limit: usize,
    /// Where the counters of another source begin, ascending: those of one source begin anew together.
    sources: &'static [usize],
    own: HashMap<String, Own<N>>,
    /// The rest.
    rest: HashMap<String, Rest<N>>,
    /// What members of the rest had counted that are gone, or began anew.
    gone: [u64; N],
}

/// What is kept of a member that has series of its own.
#[derive(Clone, Copy, Debug)]
struct Own<const N: usize> {
    /// What it had counted at the last scrape.
    last: [u64; N],
    /// What its sources had counted before they began anew.
    gone: [u64; N],
    /// Scrapes in a row at which it was missing.
    missing: u32,
}

/// What is kept of one of the rest.
#[derive(Clone, Copy, Debug)]
struct Rest<const N: usize> {
    /// What it had counted at the last scrape.
    last: [u64; N],
    /// Scrapes in a row at which it was missing.
    missing: u32,
}

/// The choice at one scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown<const N: usize> {
    /// For each member, in the order in which they were given: its counters, if it has series of its own.
    pub(super) own: Vec<Option<[u64; N]>>,
    /// How many have not.
    pub(super) others: usize,
    /// The counters of those together, and of those that went.
    pub(super) other: [u64; N],
}

impl<const N: usize> OwnSeries<N> {
    /// At most `limit` members have series of their own. `sources`: the counters, but for the first, that begin anew at other
    /// times than those before them.
    pub(super) fn new(limit: usize, sources: &'static [usize]) -> OwnSeries<N> {
        OwnSeries {
            limit,
            sources,
            own: HashMap::new(),
            rest: HashMap::new(),
            gone: [0; N],
        }
    }

    /// Chooses among all members that there are now, by names, with their counters. Of several with one name the first
    /// is the member of that name, and the others are part of the rest.
    pub(super) fn choose(&mut self, members: &[(&str, [u64; N])]) -> Shown<N> {
        let present: HashSet<&str> = members.iter().map(|(name, _)| *name).collect();
        self.own.retain(|name, own| {
            let is_present = present.contains(name.as_str());
            own.missing = if is_present { 0 } else { own.missing + 1 };
            own.missing < GONE_AFTER
        });
        let mut shown = Shown {
            own: Vec::with_capacity(members.len()),
            others: 0,
            other: [0; N],
        };
        let mut before = std::mem::take(&mut self.rest);
        let mut taken = HashSet::new();
        for (name, counts) in members {
            let name = *name;
            let is_free = name != OTHER && taken.insert(name);
            if is_free && !self.own.contains_key(name) && self.admits(name, &before) {
                self.own.insert(name.to_owned(), Own::new());
            }
            let own = self.own.get_mut(name).filter(|_| is_free);
            let own = own.map(|own| own.follow(counts, self.sources));
            shown.own.push(own);
            if own.is_some() {
                continue;
            }
            shown.others += 1;
            add(&mut shown.other, counts);
            // Members of one name are one here.
            let now = self.rest.entry(name.to_owned()).or_insert(Rest {
                last: [0; N],
                missing: 0,
            });
            add(&mut now.last, counts);
        }
        for (name, now) in &self.rest {
            if let Some(before) = before.remove(name) {
                let gone = began_anew(&before.last, &now.last, self.sources);
                add(&mut self.gone, &gone);
            }
        }
        for (name, mut absent) in before {
            absent.missing += 1;
            if absent.missing < GONE_AFTER {
                add(&mut shown.other, &absent.last);
                self.rest.insert(name, absent);
            } else {
                add(&mut self.gone, &absent.last);
            }
        }
        add(&mut shown.other, &self.gone);
        shown
    }

    /// What a member had counted at the last scrape; nothing where it was not there.
    pub(super) fn last(&self, name: &str) -> [u64; N] {
        let own = self.own.get(name).map(|own| own.last);
        let rest = || self.rest.get(name).map(|rest| rest.last);
        own.or_else(rest).unwrap_or([0; N])
    }

    /// Whether a member that has no series of its own gets them: there is a place, and it was not in the rest before.
    fn admits(&self, name: &str, rest: &HashMap<String, Rest<N>>) -> bool {
        self.own.len() < self.limit && !rest.contains_key(name)
    }
}

impl<const N: usize> Own<N> {
    fn new() -> Own<N> {
        Own {
            last: [0; N],
            gone: [0; N],
            missing: 0,
        }
    }

    /// What is shown of a member that has counted `now`.
    fn follow(&mut self, now: &[u64; N], sources: &[usize]) -> [u64; N] {
        add(&mut self.gone, &began_anew(&self.last, now, sources));
        self.last = *now;
        let mut shown = *now;
        add(&mut shown, &self.gone);
        shown
    }
}

/// What a member had counted at the sources that have begun anew since: any of their counters has fallen. The rest is 0.
fn began_anew<const N: usize>(last: &[u64; N], now: &[u64; N], sources: &[usize]) -> [u64; N] {
    let mut gone = [0; N];
    let mut first = 0;
    for end in sources.iter().copied().chain([N]) {
        let last = last.get(first..end).unwrap_or_default();
        let now = now.get(first..end).unwrap_or_default();
        let has_fallen = now.iter().zip(last).any(|(now, last)| now < last);
        if has_fallen && let Some(gone) = gone.get_mut(first..end) {
            gone.copy_from_slice(last);
        }
        first = end;
    }
    gone
}

fn add<const N: usize>(sum: &mut [u64; N], more: &[u64; N]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

/// A member is gone when it was missing so many times.
const GONE_AFTER: u32 = 3;

/// The name of the rest. A member of that very name is part of it.
pub(super) const OTHER: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    /// The members that have series of their own, and the counters of the rest.
    fn choose(series: &mut OwnSeries<1>, members: &[(&str, u64)]) -> (Vec<String>, u64) {
        let counted: Vec<_> = members
            .iter()
            .map(|(name, count)| (*name, [*count]))
            .collect();
        let shown = series.choose(&counted);
        let own = members
            .iter()
            .zip(&shown.own)
            .filter(|(_, own)| own.is_some());
        let own = own.map(|((name, _), _)| (*name).to_owned()).collect();
        (own, shown.other[0])
    }

    #[test]
    fn the_first_have_series_of_their_own_and_the_sum_is_exact() {
        let mut series = OwnSeries::new(2, &[]);
        let (own, other) = choose(&mut series, &[("a", 1), ("b", 2), ("c", 4), ("d", 8)]);
        assert_eq!((own, other), (vec!["a".to_owned(), "b".to_owned()], 12));
        // Another order changes nothing.
        let (own, other) = choose(&mut series, &[("d", 9), ("c", 4), ("b", 2), ("a", 1)]);
        assert_eq!((own, other), (vec!["b".to_owned(), "a".to_owned()], 13));
    }

    #[test]
    fn the_sum_of_the_rest_never_falls() {
        let mut series = OwnSeries::new(1, &[]);
        assert_eq!(choose(&mut series, &[("a", 1), ("b", 5), ("c", 7)]).1, 12);
        // One of the rest goes, one of them begins anew.
        assert_eq!(choose(&mut series, &[("a", 1), ("c", 2)]).1, 14);
        // The place that falls free is for one that comes, not for one of the rest.
        for _ in 0..GONE_AFTER {
            assert_eq!(choose(&mut series, &[("c", 2)]), (Vec::new(), 14));
        }
        let (own, other) = choose(&mut series, &[("c", 2), ("e", 100)]);
        assert_eq!((own, other), (vec!["e".to_owned()], 14));
        // One that comes back to a full house is of the rest.
        let (own, other) = choose(&mut series, &[("a", 1), ("c", 3), ("e", 100)]);
        assert_eq!((own, other), (vec!["e".to_owned()], 16));
    }

    /// Regression: when the kernel path was given up, the traffic of a peer fell, and its drops were counted twice.
    #[test]
    fn a_source_that_begins_anew_leaves_those_of_others_alone() {
        let mut series: OwnSeries<3> = OwnSeries::new(0, &[1]);
        assert_eq!(series.choose(&[("a", [10, 5, 7])]).other, [10, 5, 7]);
        assert_eq!(series.choose(&[("a", [2, 5, 8])]).other, [12, 5, 8]);
        assert_eq!(series.choose(&[("a", [3, 6, 1])]).other, [13, 11, 9]);
    }

    /// Regression: a peer with series of its own showed a burst when the kernel path was given up.
    #[test]
    fn no_counter_of_a_member_falls() {
        let mut series: OwnSeries<2> = OwnSeries::new(1, &[1]);
        let mut shown = |counts| series.choose(&[("a", counts)]).own[0].unwrap();
        assert_eq!(shown([10, 5]), [10, 5]);
        assert_eq!(shown([10, 0]), [10, 5]);
        assert_eq!(shown([11, 2]), [11, 7]);
        // One that comes back has begun anew as a whole: so has its series.
        for _ in 0..GONE_AFTER {
            assert_eq!(series.choose(&[]).own, []);
        }
        assert_eq!(series.choose(&[("a", [1, 1])]).own[0], Some([1, 1]));
    }

    /// Regression: a pod that the kernel left out of one list of interfaces was counted twice from then on.
    #[test]
    fn one_that_is_missing_once_goes_on_where_it_was() {
        let mut series: OwnSeries<1> = OwnSeries::new(1, &[]);
        let mut shown = |members: &[(&str, [u64; 1])]| {
            let shown = series.choose(members);
            (shown.own, shown.other)
        };
        assert_eq!(
            shown(&[("a", [9]), ("b", [7])]),
            (vec![Some([9]), None], [7])
        );
        // The source of `a` has begun anew.
        assert_eq!(
            shown(&[("a", [1]), ("b", [7])]),
            (vec![Some([10]), None], [7])
        );
        for _ in 1..GONE_AFTER {
            assert_eq!(shown(&[]), (vec![], [7]));
        }
        // Its place was not given away.
        assert_eq!(
            shown(&[("c", [5]), ("a", [2]), ("b", [8])]),
            (vec![None, Some([11]), None], [13])
        );
    }

    #[test]
    fn no_two_members_share_a_name() {
        let mut series = OwnSeries::new(9, &[]);
        let (own, other) = choose(&mut series, &[("other", 1), ("a", 2), ("a", 4)]);
        assert_eq!((own, other), (vec!["a".to_owned()], 5));
        let mut none = OwnSeries::new(0, &[]);
        assert_eq!(choose(&mut none, &[("a", 3)]), (Vec::new(), 3));
    }
}
