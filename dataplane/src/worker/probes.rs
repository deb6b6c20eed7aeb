//! The answers to the requests of a batch: sent as soon as the batch is delivered.

use std::io;

use super::Worker;
use super::flush::is_full;
use crate::capture::{Event, Stage};
use crate::device::Device;
use crate::drops::{Direction, DropReason};
use crate::limits::ERROR_ROUNDS;
use crate::now::Now;
use crate::probe::Answer;
use crate::snapshot::Snapshot;
use crate::underlay::Underlay;

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Sends the answers that wait. None is held: what a full socket does not take is dropped, and its peer asks again.
    pub(super) fn send_answers(&mut self, snapshot: &Snapshot, now: Now) {
        while let Some(answer) = self.answers.pop() {
            match self.send_answer(&answer, snapshot, now) {
                Ok(()) => {
                    self.tally.probe();
                    self.capture_answer(&answer, None, snapshot);
                }
                Err(error) => {
                    let reason = if is_full(&error) {
                        DropReason::UnderlayFull
                    } else {
                        DropReason::UnderlayRefused
                    };
                    let peer = snapshot.cluster.peers.by_source(answer.to.ip());
                    let of = snapshot.parties(peer.map(|(_, peer)| peer), None);
                    self.tally.drop(Direction::Inbound, reason, 1, of);
                    self.capture_answer(&answer, Some(reason), snapshot);
                }
            }
        }
    }

    /// The request that is not answered counts as dropped, and its answer shows.
    fn capture_answer(&self, answer: &Answer, reason: Option<DropReason>, snapshot: &Snapshot) {
        let (stage, direction) = match reason {
            None => (Stage::Sent, Direction::Outbound),
            Some(_) => (Stage::Dropped, Direction::Inbound),
        };
        if self.tap.wants(stage) {
            let event = Event {
                reason,
                remote: Some(answer.to),
                format: Some(answer.slot.port.format),
                outer: answer.bytes(),
                is_probe: true,
                ..Event::inner(stage, direction, 1)
            };
            self.tap.offer(snapshot, &event, std::iter::empty());
        }
    }

    /// As in a flush: the error may belong to an earlier datagram, so the send is repeated while the error queue says so.
    fn send_answer(&mut self, answer: &Answer, snapshot: &Snapshot, now: Now) -> io::Result<()> {
        let port = answer.slot.port;
        self.error_reports.sent(port, now);
        let (slot, to) = (answer.slot, answer.to);
        let mut sent = self.underlay.send_single(slot, to, answer.bytes());
        for _ in 0..ERROR_ROUNDS {
            let repeat = sent.as_ref().is_err_and(|error| !is_full(error))
                && self.read_error_reports(port, snapshot, now);
            if !repeat {
                break;
            }
            sent = self.underlay.send_single(slot, to, answer.bytes());
        }
        sent
    }
}
