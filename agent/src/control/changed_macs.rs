//! The peers whose frames come from another MAC than their lease's.
//!
//! Theory of operation. No worker announces it, so that peers are examined once a second, [`EXAMINED`] of them at a time:
//! what is known of a peer lies scattered in memory, and of 5,000 it costs 2 % of all that an idle agent takes. What
//! was found of a peer holds until it is examined again, within 5 s of 5,000.

use std::collections::BTreeMap;

use dataplane::peers::Peer;
use encap::Family;

use super::diagnosis::{MOST_OF_A_KIND, more};
use crate::problems::{ChangedMac, Problem};

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct ChangedMacs {
    /// The place in the list of peers at which the next examination begins.
    next: usize,
    /// By the peer's name, with the place at which it stood.
    found: BTreeMap<String, (usize, Problem)>,
}

impl ChangedMacs {
    /// Examines the next peers. Returns what is known of all.
    pub(crate) fn examine<'a>(&mut self, peers: impl Iterator<Item = &'a Peer>) -> Vec<Problem> {
        self.examine_by(peers, |peer| {
            let problem = vtep_mac_changed(peer)?;
            Some((peer.name.clone(), problem))
        })
    }

    fn examine_by<T>(
        &mut self,
        peers: impl Iterator<Item = T>,
        changed: impl Fn(T) -> Option<(String, Problem)>,
    ) -> Vec<Problem> {
        let examined = self.next..self.next + EXAMINED;
        self.found.retain(|_, (place, _)| !examined.contains(place));
        let mut places = examined.start;
        for peer in peers.skip(examined.start).take(EXAMINED) {
            if let Some((name, problem)) = changed(peer) {
                self.found.insert(name, (places, problem));
            }
            places += 1;
        }
        self.next = examined.end;
        if places < examined.end {
            // That was the last of them; behind it stood others before.
            self.found.retain(|_, (place, _)| *place < places);
            self.next = 0;
        }
        let rest = more(
            self.found.len(),
            "peers have another VTEP MAC",
            "tartan peers -o json",
        );
        let shown = self.found.values().map(|(_, problem)| problem.clone());
        shown.take(MOST_OF_A_KIND).chain(rest).collect()
    }
}

fn vtep_mac_changed(peer: &Peer) -> Option<Problem> {
    let changed = |inner| {
        Some(ChangedMac {
            inner,
            lease: *peer.vtep_mac.of(inner),
            seen: peer.other_mac(inner)?,
        })
    };
    let families = [Family::V4, Family::V6].into_iter();
    let changed: Vec<ChangedMac> = families.filter_map(changed).collect();
    (!changed.is_empty()).then(|| Problem::VtepMacChanged {
        peer: peer.name.clone(),
        changed,
    })
}

/// More than most clusters have nodes.
const EXAMINED: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_peers_are_examined_within_a_round_and_none_is_shown_that_went() {
        let mut macs = ChangedMacs::default();
        let examine = |macs: &mut ChangedMacs, count: usize, bad: &[usize]| {
            let problem = |place: usize| Problem::VtepMacChanged {
                peer: place.to_string(),
                changed: Vec::new(),
            };
            let changed = |place: usize| {
                let is_bad = bad.contains(&place);
                is_bad.then(|| (format!("{place:05}"), problem(place)))
            };
            let found = macs.examine_by(0..count, changed);
            let name = |problem: &Problem| match problem {
                Problem::VtepMacChanged { peer, .. } => peer.parse().unwrap(),
                other => panic!("{other:?}"),
            };
            found.iter().map(name).collect::<Vec<usize>>()
        };
        // A round of 2,500 takes three examinations.
        let bad = [5, 1_500, 2_499];
        assert_eq!(examine(&mut macs, 2_500, &bad), [5]);
        assert_eq!(examine(&mut macs, 2_500, &bad), [5, 1_500]);
        assert_eq!(examine(&mut macs, 2_500, &bad), bad);
        // What ends is gone with the next examination of it.
        assert_eq!(examine(&mut macs, 2_500, &[1_500]), [1_500, 2_499]);
        assert_eq!(examine(&mut macs, 2_500, &[]), [2_499]);
        // Peers that go take it with them, whether their place is examined or not.
        assert_eq!(examine(&mut macs, 10, &[]), [0; 0]);
        assert_eq!(examine(&mut macs, 10, &[9]), [9]);
        assert_eq!(examine(&mut macs, 10, &[9]), [9]);
        assert_eq!(examine(&mut macs, 9, &[9]), [0; 0]);
        // A round that ends with its last examination begins anew.
        assert_eq!(examine(&mut macs, EXAMINED, &[0]), [0]);
        assert_eq!(examine(&mut macs, EXAMINED, &[0]), [0]);
        assert_eq!(examine(&mut macs, EXAMINED, &[]), [0; 0]);
    }
}
