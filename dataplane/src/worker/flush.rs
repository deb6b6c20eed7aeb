//! The last stage outbound: sends the datagrams that wait, transmit socket by transmit socket, in order.
//!
//! A send can fail for five reasons, which are handled here. The socket is full: the tail is held. The error belongs to
//! an earlier datagram, perhaps to another peer (an ICMP error that came back, or a forged one): its report waits in the
//! error queue, and the send is repeated once the queue is read. The message is a GSO batch that the kernel refuses as
//! one message: its datagrams are sent one by one, and either the kernel refuses one of them for one of the next two
//! reasons, or the offload was at fault. The datagram is too large: its packet is walked again, now that the path MTU is
//! known. Any other error concerns this datagram, and it is dropped.

use std::io;

use super::{Source, Worker};
use crate::capture::{Event, Stage};
use crate::device::Device;
use crate::drops::{Direction, DropReason};
use crate::limits::{ERROR_REPORTS, ERROR_ROUNDS, HOLD};
use crate::mtu::min_inner;
use crate::mtu_reports;
use crate::now::Now;
use crate::outbound::Outbound;
use crate::sent::Route;
use crate::snapshot::Snapshot;
use crate::underlay::{Port, TxSlot, Underlay};

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Sends what waits. What the underlay does not take now is held, at most for [`HOLD`].
    pub(super) fn flush(&mut self, snapshot: &Snapshot, now: Now) {
        let mut full = [false; TxSlot::COUNT];
        // A packet that is walked again may change to a slot that was already served, so search from the first each time.
        while let Some(slot) = self.next_tx_slot(&full) {
            let taken = self.flush_tx_slot(slot, snapshot, now);
            if let Some(full) = full.get_mut(slot.index()) {
                *full = !taken;
            }
        }
        let held = self.outbound.count();
        if held == 0 {
            self.outbound.clear();
        }
        self.tally.hold(Direction::Outbound, held);
    }

    /// A transmit slot whose queue is not empty and whose socket is not full.
    fn next_tx_slot(&self, full: &[bool; TxSlot::COUNT]) -> Option<TxSlot> {
        let waiting = self.outbound.queues().iter().zip(full);
        TxSlot::all()
            .zip(waiting)
            .find(|(_, (queue, full))| !**full && !queue.waiting().is_empty())
            .map(|(slot, _)| slot)
    }

    /// Returns whether everything was sent or dropped; otherwise the socket is full.
    fn flush_tx_slot(&mut self, slot: TxSlot, snapshot: &Snapshot, now: Now) -> bool {
        if !self.underlay.takes_gso(slot, now)
            && let Some(queue) = self.outbound.queue(slot)
        {
            queue.split_all();
        }
        // Failed sends in a row, and how many of them returned another datagram's error.
        let (mut failed, mut foreign) = (0, 0);
        while self.waits(slot) {
            let error = match self.underlay.send(slot, self.outbound.messages(slot)) {
                Ok(count) if count > 0 => {
                    self.account(slot, count, snapshot, now);
                    (failed, foreign) = (0, 0);
                    continue;
                }
                Ok(_) => io::ErrorKind::WouldBlock.into(),
                Err(error) => error,
            };
            if is_full(&error) || foreign >= ERROR_ROUNDS {
                if !self.is_held_for_long(slot, now) {
                    return false;
                }
                self.drop_waiting(slot, snapshot);
                continue;
            }
            failed += 1;
            if self.read_error_reports(slot.port, snapshot, now) {
                foreign += 1;
            } else if self.split_refused_batch(slot, &error) {
                (failed, foreign) = (0, 0);
            } else if failed - foreign > 1 {
                self.refuse_first(slot, &error, snapshot, now);
                (failed, foreign) = (0, 0);
            }
        }
        self.release(slot);
        true
    }

    /// Reads the error queue of `port` and learns path MTUs from reports that quote our headers. Returns whether a report
    /// came from the network: then the send error may be about an earlier datagram.
    pub(super) fn read_error_reports(&mut self, port: Port, snapshot: &Snapshot, now: Now) -> bool {
        let mut foreign = false;
        for _ in 0..ERROR_REPORTS {
            let Some(failure) = self.underlay.error_report(port) else {
                self.ready.set(Source::ErrorQueue(port), false);
                break;
            };
            foreign |= !failure.local;
            mtu_reports::learn(&failure, port, snapshot, &self.sent, now);
        }
        foreign
    }

    fn waits(&mut self, slot: TxSlot) -> bool {
        self.outbound
            .queue(slot)
            .is_some_and(|queue| queue.front().is_some())
    }

    fn account(&mut self, slot: TxSlot, messages: usize, snapshot: &Snapshot, now: Now) {
        self.error_reports.sent(slot.port, now);
        if self.tap.wants(Stage::Sent) {
            let format = slot.port.format;
            self.outbound.each_run(slot, messages, |run| {
                let event = run.event(Stage::Sent, format);
                self.tap.offer(snapshot, &event, run.inner.into_iter());
            });
        }
        let (port, socket) = (slot.port, self.underlay.socket(slot));
        let least = usize::from(min_inner(port.family));
        let remembered = &self.sent;
        let mut mark = |_| {
            self.outbound.mark_sent(slot, least, |to, start| {
                let to = to.ip();
                remembered.note(start, Route { to, port, socket }, now);
            })
        };
        for sent in (0..messages).map_while(&mut mark) {
            self.tally.send(sent.count);
            if let Some((_, peer)) = snapshot.cluster.peers.by_source(sent.to.ip()) {
                peer.count_sent(sent.count, sent.bytes);
            }
            if sent.gso_failed {
                self.underlay.offload_failed(slot, now);
            }
        }
        self.release(slot);
    }

    /// Ends the hold: the socket took something, or its queue is empty.
    fn release(&mut self, slot: TxSlot) {
        if let Some(queue) = self.outbound.queue(slot) {
            queue.held_since = None;
        }
    }

    /// Has the datagrams of the front GSO batch sent one by one, if the error may be due to the batch being one message.
    /// `EMSGSIZE` may be, but it says nothing against the offload.
    fn split_refused_batch(&mut self, slot: TxSlot, error: &io::Error) -> bool {
        let gso_suspect = match error.raw_os_error() {
            Some(libc::EINVAL | libc::EIO) => true,
            Some(libc::EMSGSIZE) => false,
            _ => return false,
        };
        let Some(batch) = self.outbound.queue(slot).and_then(|queue| queue.front()) else {
            return false;
        };
        let is_gso_batch = batch.count > 1 && !batch.one_by_one;
        if is_gso_batch {
            batch.one_by_one = true;
            batch.gso_suspect = gso_suspect;
        }
        is_gso_batch
    }

    /// Drops or walks again the first waiting datagram, which the kernel refused twice.
    fn refuse_first(&mut self, slot: TxSlot, error: &io::Error, snapshot: &Snapshot, now: Now) {
        let Some((first, to)) = self.outbound.take_first(slot) else {
            return;
        };
        if error.raw_os_error() != Some(libc::EMSGSIZE) {
            let reason = DropReason::UnderlayRefused;
            let parts = self.outbound.parts(&first);
            if self.tap.wants(Stage::Dropped) {
                let event = Event::drop(Direction::Outbound, reason, 1);
                self.tap.offer(snapshot, &event, parts.into_iter());
            }
            let of = snapshot.parties_of_datagram(to, parts);
            return self.tally.drop(Direction::Outbound, reason, 1, of);
        }
        let Worker {
            device,
            tally,
            outbound,
            icmp_errors,
            outbound_shares,
            flows,
            tap,
            ..
        } = self;
        outbound.in_front(slot, |batch| {
            let mut stages = Outbound {
                snapshot,
                batch,
                device,
                icmp_errors,
                tally,
                tap,
                now,
                shares: outbound_shares,
                flows,
                cached: None,
            };
            stages.retry(&first, to);
        });
    }

    fn is_held_for_long(&mut self, slot: TxSlot, now: Now) -> bool {
        let queue = self.outbound.queue(slot);
        queue.is_none_or(|queue| now.since(*queue.held_since.get_or_insert(now)) >= HOLD)
    }

    /// Drops what waits for a socket that stayed full. Other sockets are not affected.
    fn drop_waiting(&mut self, slot: TxSlot, snapshot: &Snapshot) {
        let reason = DropReason::UnderlayFull;
        let is_captured = self.tap.wants(Stage::Dropped);
        let mut dropped = 0;
        self.outbound.each_run(slot, usize::MAX, |run| {
            if is_captured {
                let event = Event {
                    reason: Some(reason),
                    ..run.event(Stage::Dropped, slot.port.format)
                };
                self.tap.offer(snapshot, &event, run.inner.into_iter());
            }
            let of = snapshot.parties_of_datagram(run.to, run.inner);
            let count = run.count as u64;
            self.tally.drop(Direction::Outbound, reason, count, of);
            dropped += run.count;
        });
        let waited = self.outbound.queue(slot).map_or(0, |queue| queue.discard());
        debug_assert_eq!(dropped, waited, "every datagram that waits is in a run");
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    super::would_block(error) || error.raw_os_error() == Some(libc::ENOBUFS)
}
