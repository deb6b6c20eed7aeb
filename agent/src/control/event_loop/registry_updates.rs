//! What the registry says: leases are adopted, held back or refused, and its settings are taken.

use std::time::{Duration, Instant};

use tokio::time::Instant as Moment;
use tracing::{info, warn};

use super::Control;
use crate::control::held_list::{HeldList, Time};
use crate::control::outcome::Restart;
use crate::lease::Lease;
use crate::problems::{Origin, Problem};
use crate::registry::{Contact, ListDifference, Update};

impl Control {
    /// What the registry says: leases are adopted, held back or refused as a whole, and everything follows.
    pub(super) async fn on_registry_update(&mut self, update: Update) -> Result<(), Restart> {
        match update {
            Update::Leases(leases) => self.on_leases(leases).await,
            Update::Refused { place, reason } => {
                self.registry_state
                    .note_refused(&format!("{place}: {reason}"));
                // What a remote registry said before it holds on, also a list that is held back.
                if !self.model.known.is_announced() {
                    self.held = None;
                }
                self.learn(Update::Refused { place, reason }).await
            }
            Update::Settings(settings) => {
                let known = &self.model.known;
                let (own, copy) = (&known.own.subnets, &known.config.net_conf);
                let place = self.registry.place();
                if self.registry_state.learn(settings, own, &place, copy) {
                    let (started, restarts) = (self.service.started, self.service.restarts);
                    match net_conf_due(started, restarts, Instant::now()) {
                        None => self.reload.ask(),
                        due => self.turn.net_conf_due = due.map(Moment::from),
                    }
                }
                self.post_contact();
                self.refresh().await
            }
            Update::Contact(contact) => {
                match &contact {
                    Contact::InTouch => info!("the registry answers"),
                    Contact::Lost { reason } => warn!("the registry does not answer: {reason}"),
                }
                self.registry_state.contact(contact);
                self.post_contact();
                Ok(())
            }
            Update::RefusedRecords(records) => {
                self.registry_state.pass_over(records);
                self.post_contact();
                Ok(())
            }
        }
    }

    fn post_contact(&mut self) {
        let problems = self.registry_state.problems();
        self.board.post(Origin::Contact, problems);
    }

    async fn on_leases(&mut self, leases: Vec<Lease>) -> Result<(), Restart> {
        let earlier = self.held.take();
        let known = &self.model.known;
        let (in_force, grace) = (&known.leases, known.config.shrink_grace);
        let own = leases.iter().find(|lease| lease.name == known.own.name);
        let checked = match own.cloned() {
            // As at a start that waited for the registry.
            Some(own) if self.model.cached.are_leases() && earlier.is_none() => {
                HeldList::check_at_start(leases, &own, in_force, &known.own, grace, Time::read())
            }
            _ => HeldList::check(leases, in_force, earlier.as_ref(), grace, Time::read()),
        };
        match checked {
            Ok(leases) => self.learn(Update::Leases(leases)).await,
            Err(held) => {
                let meanwhile = held.meanwhile(in_force);
                let is_announced = known.is_announced();
                self.held = Some(held);
                if is_announced {
                    return self.learn(Update::Leases(meanwhile)).await;
                }
                self.model.cached.is_held = true;
                self.post_registry(None);
                Ok(())
            }
        }
    }

    /// Posts what is refused of the list of nodes, and that one is held back.
    fn post_registry(&mut self, refused: Option<Problem>) {
        let held = self.held.as_ref();
        let held = held.map(|held| held.problem(self.registry.place().to_string()));
        let problems = held.into_iter().chain(refused);
        self.board.post(Origin::Registry, problems);
    }

    pub(super) async fn adopt_held(&mut self) -> Result<(), Restart> {
        match self.held.take() {
            Some(held) => self.learn(Update::Leases(held.leases().to_vec())).await,
            None => Ok(()),
        }
    }

    async fn learn(&mut self, update: Update) -> Result<(), Restart> {
        if let Update::Leases(leases) = &update {
            self.saved.outdate();
            let changed = ListDifference::between(&self.model.known.leases, leases);
            info!(
                "the list of nodes is adopted: {} nodes, {changed}",
                leases.len()
            );
        }
        self.turn.retry.start_over();
        let refused = self.model.learn(update);
        self.post_registry(refused);
        self.refresh().await
    }
}

/// When a service that began at `started`, after so many `restarts`, takes a net-conf that the registry changes at `now`;
/// `None`: at once. Each is taken by a new start, so one that keeps changing would keep packets waiting most of the time.
fn net_conf_due(started: Instant, restarts: u64, now: Instant) -> Option<Instant> {
    let soonest = started + LEAST_SERVICE;
    (restarts > 0 && soonest > now).then_some(soonest)
}

/// Longer than many times what a start takes.
const LEAST_SERVICE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_net_conf_that_keeps_changing_does_not_keep_the_service_starting() {
        let started = Instant::now();
        let soon = started + Duration::from_millis(100);
        assert_eq!(net_conf_due(started, 0, soon), None, "the first start");
        let due = net_conf_due(started, 1, soon);
        assert_eq!(due, Some(started + LEAST_SERVICE));
        assert_eq!(net_conf_due(started, 1, started + LEAST_SERVICE), None);
    }
}
