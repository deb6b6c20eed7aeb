//! The peers whose frames come from another MAC than their lease's.
//!
//! Theory of operation. No worker announces it: the peers are looked at once a second, [`LOOKED`] of them at a time, because
//! what is known of a peer lies scattered in memory, and to fetch it of 5,000 peers costs a fifth of what Tartan takes when
//! it is idle. What was found of a peer holds until its next look, within 5 s of 5,000.

use std::collections::BTreeMap;

use dataplane::peers::Peer;
use encap::Family;

use super::diagnosis::{MOST_OF_A_KIND, more};
use crate::problems::{ChangedMac, Problem};

/// What the looks have found.
#[derive(Debug, Default)]
pub(crate) struct ChangedMacs {
    /// The place in the list of peers at which the next look begins.
    next: usize,
    /// By the place of the peer.
    found: BTreeMap<usize, Problem>,
}

impl ChangedMacs {
    /// Looks at the next peers. Returns what is known of all.
    pub(crate) fn look<'a>(&mut self, peers: impl Iterator<Item = &'a Peer>) -> Vec<Problem> {
        self.look_by(peers, vtep_mac_changed)
    }

    fn look_by<T>(
        &mut self,
        peers: impl Iterator<Item = T>,
        changed: impl Fn(T) -> Option<Problem>,
    ) -> Vec<Problem> {
        let looked = self.next..self.next + LOOKED;
        self.found.retain(|place, _| !looked.contains(place));
        let mut places = looked.start;
        for peer in peers.skip(looked.start).take(LOOKED) {
            if let Some(problem) = changed(peer) {
                self.found.insert(places, problem);
            }
            places += 1;
        }
        self.next = looked.end;
        if places < looked.end {
            // That was the last of them; behind it stood others before.
            self.found.split_off(&places);
            self.next = 0;
        }
        let rest = more(
            self.found.len(),
            "peers have another VTEP MAC",
            "tartan peers -o json",
        );
        let shown = self.found.values().take(MOST_OF_A_KIND).cloned();
        shown.chain(rest).collect()
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
const LOOKED: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_peers_are_looked_at_within_a_round_and_none_is_shown_that_went() {
        let mut macs = ChangedMacs::default();
        let look = |macs: &mut ChangedMacs, count: usize, bad: &[usize]| {
            let changed = |place: usize| {
                bad.contains(&place).then(|| Problem::VtepMacChanged {
                    peer: place.to_string(),
                    changed: Vec::new(),
                })
            };
            let found = macs.look_by(0..count, changed);
            let name = |problem: &Problem| match problem {
                Problem::VtepMacChanged { peer, .. } => peer.parse().unwrap(),
                other => panic!("{other:?}"),
            };
            found.iter().map(name).collect::<Vec<usize>>()
        };
        // A round of 2,500 takes three looks.
        let bad = [5, 1_500, 2_499];
        assert_eq!(look(&mut macs, 2_500, &bad), [5]);
        assert_eq!(look(&mut macs, 2_500, &bad), [5, 1_500]);
        assert_eq!(look(&mut macs, 2_500, &bad), bad);
        // What ends is gone with the next look at it.
        assert_eq!(look(&mut macs, 2_500, &[1_500]), [1_500, 2_499]);
        assert_eq!(look(&mut macs, 2_500, &[]), [2_499]);
        // Peers that go take it with them, whether a look comes to their place or not.
        assert_eq!(look(&mut macs, 10, &[]), [0; 0]);
        assert_eq!(look(&mut macs, 10, &[9]), [9]);
        assert_eq!(look(&mut macs, 10, &[9]), [9]);
        assert_eq!(look(&mut macs, 9, &[9]), [0; 0]);
        // A round that ends with its last look begins anew.
        assert_eq!(look(&mut macs, LOOKED, &[0]), [0]);
        assert_eq!(look(&mut macs, LOOKED, &[0]), [0]);
        assert_eq!(look(&mut macs, LOOKED, &[]), [0; 0]);
    }
}
