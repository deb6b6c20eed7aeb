//! The states of peers that are problems.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::state::State;
use super::table::Slot;
use super::{PeerHealthView, lock};
use crate::control::diagnosis::{MOST_OF_A_KIND, more};
use crate::problems::Problem;

/// Every problem of a path to a peer; of a peer with two bad ones the worse.
pub(super) fn of(known: &PeerHealthView) -> Vec<Problem> {
    let table = lock(&known.0.table);
    let mut worst: BTreeMap<Arc<str>, &Slot> = BTreeMap::new();
    for slot in table.bad() {
        let rank = |slot: &Slot| slot.path.state().0.rank();
        let named = worst.entry(Arc::clone(&slot.target.name)).or_insert(slot);
        if rank(slot) > rank(named) {
            *named = slot;
        }
    }
    let problems: Vec<Problem> = worst
        .values()
        .filter_map(|slot| problem(known, slot))
        .collect();
    let refused = lock(&known.0.refused).clone();
    let refused = refused.map(|reason| Problem::PeerProbes { reason });
    let rest = more(
        problems.len(),
        "peers are not reached as they should be",
        "tartan peers",
    );
    let shown = problems.into_iter().take(MOST_OF_A_KIND);
    shown.chain(rest).chain(refused).collect()
}

fn problem(known: &PeerHealthView, slot: &Slot) -> Option<Problem> {
    let (state, since) = slot.path.state();
    let (peer, address) = (slot.target.name.to_string(), slot.target.address);
    Some(match state {
        State::Silent => Problem::PeerSilent {
            peer,
            address,
            since: known.0.time_of(since),
        },
        State::OneWay { .. } => Problem::PeerOneWay { peer, address },
        State::Narrow {
            measured,
            configured,
        } => Problem::PeerNarrow {
            peer,
            address,
            measured: *measured,
            configured: *configured,
        },
        State::Refused => Problem::PeerRefused { peer, address },
        State::Unreachable(reason) => Problem::PeerUnreachable {
            peer,
            address,
            reason: reason.to_string(),
        },
        State::WrongStation(seen) => Problem::PeerWrongMac { peer, seen: *seen },
        // Their packets show them too: `vtep-mac-changed` and `peer-other-vni`.
        State::WrongMac(_) | State::WrongVni(_) => return None,
        State::New | State::Up | State::Heard | State::Quiet => return None,
    })
}
