//! The underlay while the service runs: our sockets move when our address does.

use tracing::{info, warn};

use super::control::Control;
use crate::causes::causes;

impl Control {
    /// Moves the sockets to where configuration and list of nodes want them, as soon as the host has that address.
    /// Returns whether they have moved.
    ///
    /// Workers first, then the keeper: whichever copy of the old sockets a crash in between leaves, the next service
    /// finds that it is not at the wanted address and closes it.
    pub(super) async fn follow_underlay(&mut self) -> bool {
        let known = &self.node.known;
        let (backend, held) = (&known.net_conf.backend, &known.facts.addresses);
        let (ports, delay) = self.ports.follow(known.wanted(), held, backend);
        let delay = delay.map(|delay| delay.told(&known.leases, &known.own));
        let Some(bound) = ports.bound().filter(|_| !ports.are(&self.ports)) else {
            self.note_delay(delay);
            return false;
        };
        let moved = match ports.sockets() {
            Ok(sockets) => self.engine.rebind(sockets).map_err(|error| causes(&error)),
            Err(error) => Err(causes(&error)),
        };
        if let Err(problem) = moved {
            self.note_delay(Some(problem));
            return false;
        }
        self.note_delay(delay);
        self.node.known.bound = bound;
        // The tables follow at once: they tell which MAC is ours.
        self.publish();
        if let Err(error) = ports.deposit(&self.ports, &self.table).await {
            // The keeper has ended, and so will we.
            warn!("{}", causes(&error));
        }
        // The last duplicates of the old sockets close here.
        self.ports = ports;
        info!("packets leave from and arrive at {bound} now");
        true
    }

    /// Why our sockets are not where they should be, for the status and, once, the log.
    pub(super) fn note_delay(&mut self, problem: Option<String>) {
        if problem != self.underlay_problem
            && let Some(problem) = &problem
        {
            warn!("{problem}");
        }
        self.underlay_problem = problem;
    }
}
