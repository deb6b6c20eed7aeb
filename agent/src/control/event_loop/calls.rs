//! What calls of the plugin and of the operator do. One that waits for tables is answered once the workers use them.

use tokio::sync::oneshot;

use super::Control;
use crate::api::server::Call;
use crate::api::wire::{Adopted, Reply, Request};
use crate::control::outcome::Restart;
use crate::control::records::key;
use crate::keeper::channel::HandOverRequest;

impl Control {
    pub(super) async fn on_call(&mut self, call: Call) -> Result<(), Restart> {
        let Call {
            request,
            answer,
            connection,
        } = call;
        match request {
            Request::Adopt { container, ifname } => self.adopt(&container, &ifname, answer),
            Request::Release { container, ifname } => self.release(&container, &ifname, answer),
            Request::AdoptList => return self.confirm(answer).await,
            Request::Upgrade { program } => {
                self.ask_for_upgrade(program, connection).await;
            }
            Request::HandOver {
                instance,
                version,
                format,
                ends_first,
            } => {
                let request = HandOverRequest {
                    instance,
                    version,
                    format,
                    ends_first,
                    from: env!("CARGO_PKG_VERSION").to_owned(),
                };
                self.ask_for_hand_over(request, connection).await;
            }
            _ => refuse(answer, "a query is answered elsewhere".to_owned()),
        }
        Ok(())
    }

    /// The operator confirms the list that is held back. Answered once it is in force.
    async fn confirm(&mut self, answer: oneshot::Sender<Reply>) -> Result<(), Restart> {
        let lost = self.held.as_ref().map(|held| held.lost().to_vec());
        let adopted = self.adopt_held().await;
        let said = Adopted {
            adopted: lost.is_some(),
            nodes: self.model.known.leases.len(),
            lost: lost.unwrap_or_default(),
        };
        self.publish_view();
        let reply = serde_json::to_value(said).map_or_else(
            |error| Reply::Error(format!("the answer cannot be written as JSON: {error}")),
            Reply::Ok,
        );
        // The caller may have disconnected.
        let _ = answer.send(reply);
        adopted
    }

    /// The directory of records is the database: the record is read again, whichever caller asks. A pod's limits are in force
    /// before it is delivered to.
    fn adopt(&mut self, container: &str, ifname: &str, answer: oneshot::Sender<Reply>) {
        self.model.reread_record(container, ifname);
        if let Some(reason) = self.model.why_not_served(container, ifname) {
            return refuse(answer, reason);
        }
        self.publish();
        let found = self.model.records.find(container, ifname);
        match found
            .filter(|found| found.bandwidth.is_some())
            .map(|a| key(a))
        {
            // Whether it is in force is asked of the kernel each time: a CHECK is to find what another process removed.
            Some(limited) => {
                self.turn.waiting_for_limit.push((limited, answer));
                self.give_upkeep(None);
            }
            None => self.answer_when_adopted(answer),
        }
    }

    fn release(&mut self, container: &str, ifname: &str, answer: oneshot::Sender<Reply>) {
        self.model.reread_record(container, ifname);
        self.publish();
        if self.model.records.find(container, ifname).is_some() {
            let reason = "its record is still there; remove the record before asking";
            refuse(answer, reason.to_owned());
        } else {
            self.answer_when_adopted(answer);
        }
    }

    /// Answers once the workers use the latest tables. The view shows them by then.
    pub(super) fn answer_when_adopted(&mut self, answer: oneshot::Sender<Reply>) {
        self.post_records();
        self.publish_view();
        let version = self.model.desired.spec.version;
        self.tables.answer_when_adopted(version, answer);
    }
}

pub(super) fn refuse(answer: oneshot::Sender<Reply>, reason: String) {
    // The caller may have disconnected.
    let _ = answer.send(Reply::Error(reason));
}
