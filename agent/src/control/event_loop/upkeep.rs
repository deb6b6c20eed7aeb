//! What the upkeep of pods reports and is given, and the callers that wait for a limit of theirs.

use std::sync::Arc;

use cni_shim::Attachment;

use super::Control;
use super::calls::refuse;
use crate::control::pods::upkeep::{self, Report, Work};
use crate::control::records::key;
use crate::host::Picture;
use crate::problems::Origin;

impl Control {
    /// Takes a report of the upkeep: a limit that is in force lets its pod be served.
    pub(super) fn on_upkeep(&mut self, report: Report) {
        let Report {
            tried,
            repairs,
            end,
        } = report;
        for (attachment, refused) in tried {
            if refused.is_none() {
                self.model.records.limit_is_in_force(attachment.clone());
                self.publish();
            }
            let waiting = std::mem::take(&mut self.turn.waiting_for_limit);
            for (waits_for, answer) in waiting {
                match &refused {
                    _ if waits_for != attachment => {
                        self.turn.waiting_for_limit.push((waits_for, answer));
                    }
                    Some(reason) => refuse(answer, reason.clone()),
                    None => self.answer_when_adopted(answer),
                }
            }
        }
        self.kernel.note_repairs(&repairs);
        if let Some(upkeep::End {
            problem, reclaimed, ..
        }) = end
        {
            self.board.post(Origin::Pods, problem);
            if !reclaimed.is_empty() {
                self.model.records.relist(&self.model.known.own.subnets);
                self.publish();
            }
        }
    }

    pub(super) fn give_upkeep(&mut self, picture: Option<&Picture>) {
        let records = &self.model.records;
        let waiting = std::mem::take(&mut self.turn.waiting_for_limit);
        for (attachment, answer) in waiting {
            if records.has(&attachment) {
                self.turn.waiting_for_limit.push((attachment, answer));
            } else {
                refuse(answer, "its record is gone".to_owned());
            }
        }
        let waiting = &self.turn.waiting_for_limit;
        let is_awaited = |a: &Arc<Attachment>| {
            records.is_withheld(a) || waiting.iter().any(|(waits_for, _)| *waits_for == key(a))
        };
        let with_waiting = |a: &Arc<_>| (Arc::clone(a), is_awaited(a));
        self.upkeep.give(Work {
            attachments: records.adopted().iter().map(with_waiting).collect(),
            links: picture.map(|picture| picture.pod_links().clone()),
            listed: records.listed(),
        });
    }
}
