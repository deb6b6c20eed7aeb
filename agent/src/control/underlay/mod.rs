//! The underlay while the service runs: the node's sockets, which move when its address does.

pub mod delay;
pub(crate) mod held;
pub(crate) mod slot;
pub mod sockets;

use dataplane::engine::Engine;
use dataplane::families::PublicAddresses;

use crate::causes::causes;
use crate::control::model::Known;
use crate::problems::Problem;
use sockets::UnderlaySockets;

/// What following the configured address came to.
#[derive(Debug, Default)]
pub struct Followed {
    /// The sockets before the move, with the addresses of the new ones, if they have moved.
    pub moved: Option<(UnderlaySockets, PublicAddresses)>,
    /// Why the sockets are not where they should be.
    pub problem: Option<Problem>,
}

/// Moves the sockets to where configuration and leases want them, as soon as the host has that address.
///
/// The workers get them first. The caller publishes the tables of the new address, deposits the new sockets with the
/// keeper, and drops the old ones last: whichever copy of the old sockets a crash in between leaves, the next service finds
/// that it is not at the wanted address and closes it.
pub fn follow(current: &mut UnderlaySockets, known: &Known, engine: &Engine) -> Followed {
    let held = &known.facts.addresses;
    let ports = current.receive_ports(&known.net_conf.backend);
    let (next, delay) = current.follow(known.wanted(), held, ports);
    let problem = delay.map(|delay| delay.problem(&known.leases, &known.own.name, None));
    let Some(bound) = next.bound().filter(|_| !next.are(current)) else {
        return Followed {
            moved: None,
            problem,
        };
    };
    let moved = match next.duplicates() {
        Ok(sockets) => engine.rebind(sockets).map_err(|error| causes(&error)),
        Err(error) => Err(causes(&error)),
    };
    match moved {
        Err(reason) => Followed {
            moved: None,
            problem: Some(Problem::UnderlayMove { reason }),
        },
        Ok(()) => Followed {
            moved: Some((std::mem::replace(current, next), bound)),
            problem,
        },
    }
}
