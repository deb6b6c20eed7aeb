//! The last stage outbound: what waits goes to the underlay, exit by exit, in order.
//!
//! A send can fail for five reasons, told apart here. The socket is full: the tail is held. The error belongs to an
//! earlier datagram, perhaps to another peer (an ICMP error that came back, or that somebody forged): its report waits
//! in the error queue, and the send is repeated once the queue is read. The message is a train that the kernel does not
//! take as one: its datagrams go one by one, which either meets the next reason, with the kernel's word on one datagram,
//! or proves that the offload was at fault. The datagram is too large: its packet is walked again, now that the path MTU
//! is known. Anything else is the kernel's word on this datagram, and it is dropped.

use std::io;

use super::{Source, Worker};
use crate::device::Device;
use crate::drops::{Direction, DropReason};
use crate::limits::{ERROR_REPORTS, ERROR_ROUNDS, HOLD};
use crate::mtu;
use crate::now::Now;
use crate::outbound::Outbound;
use crate::snapshot::Snapshot;
use crate::underlay::{Port, TxSlot, Underlay};

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Sends what waits. What the underlay does not take now stays, until it was held for too long.
    pub(super) fn flush(&mut self, snapshot: &Snapshot, now: Now) {
        let mut full = [false; TxSlot::COUNT];
        // Each in turn; what is walked again may go elsewhere since, to one that had its turn.
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

    /// An exit that something waits for and that is not full.
    fn next_tx_slot(&self, full: &[bool; TxSlot::COUNT]) -> Option<TxSlot> {
        let waiting = self.outbound.queues().iter().zip(full);
        TxSlot::all()
            .zip(waiting)
            .find(|(_, (queue, full))| !**full && !queue.waiting().is_empty())
            .map(|(slot, _)| slot)
    }

    /// Returns whether all went or was dropped; otherwise the socket is full.
    fn flush_tx_slot(&mut self, slot: TxSlot, snapshot: &Snapshot, now: Now) -> bool {
        if !self.underlay.takes_gso(slot, now)
            && let Some(queue) = self.outbound.queue(slot)
        {
            queue.split_all();
        }
        // Sends in a row that failed, and those of them that met another datagram's error.
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
                self.drop_waiting(slot);
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

    /// Reads reports of earlier datagrams and learns path MTUs from those that prove themselves. Returns whether one
    /// came from the network: then the error just met need not be about the datagram just sent.
    pub(super) fn read_error_reports(&mut self, port: Port, snapshot: &Snapshot, now: Now) -> bool {
        let mut foreign = false;
        for _ in 0..ERROR_REPORTS {
            let Some(failure) = self.underlay.error_report(port) else {
                self.ready.set(Source::ErrorQueue(port), false);
                break;
            };
            foreign |= !failure.local;
            mtu::learn(&failure, port, snapshot, now);
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
        for sent in (0..messages).map_while(|_| self.outbound.mark_sent(slot)) {
            self.tally.send(sent.count);
            if let Some((_, peer)) = snapshot.peers.by_source(sent.to.ip()) {
                peer.count_sent(sent.count, sent.bytes);
            }
            if sent.proof {
                self.underlay.offload_failed(slot, now);
            }
        }
        self.release(slot);
    }

    /// The socket takes something, or nothing waits for it.
    fn release(&mut self, slot: TxSlot) {
        if let Some(queue) = self.outbound.queue(slot) {
            queue.held_since = None;
        }
    }

    /// Has the datagrams of the first train go one by one, if it was refused for a reason that may lie in its being one.
    /// A path that became too small is such a reason, but says nothing against the offload.
    fn split_refused_batch(&mut self, slot: TxSlot, error: &io::Error) -> bool {
        let gso_suspect = match error.raw_os_error() {
            Some(libc::EINVAL | libc::EIO) => true,
            Some(libc::EMSGSIZE) => false,
            _ => return false,
        };
        let Some(batch) = self.outbound.queue(slot).and_then(|queue| queue.front()) else {
            return false;
        };
        let is_train = batch.count > 1 && !batch.one_by_one;
        if is_train {
            batch.one_by_one = true;
            batch.gso_suspect = gso_suspect;
        }
        is_train
    }

    /// The first waiting datagram was refused twice, on its own account.
    fn refuse_first(&mut self, slot: TxSlot, error: &io::Error, snapshot: &Snapshot, now: Now) {
        let Some(first) = self.outbound.take_first(slot) else {
            return;
        };
        if error.raw_os_error() != Some(libc::EMSGSIZE) {
            let reason = DropReason::UnderlayRefused;
            return self.tally.drop(Direction::Outbound, reason, 1);
        }
        let Worker {
            device,
            tally,
            outbound,
            icmp_errors,
            ..
        } = self;
        outbound.in_front(slot, |batch| {
            let mut stages = Outbound {
                snapshot,
                batch,
                device,
                icmp_errors,
                tally,
                now,
                cached: None,
            };
            stages.retry(&first);
        });
    }

    fn is_held_for_long(&mut self, slot: TxSlot, now: Now) -> bool {
        let queue = self.outbound.queue(slot);
        queue.is_none_or(|queue| now.since(*queue.held_since.get_or_insert(now)) >= HOLD)
    }

    /// Drops what waits for the socket that stayed full; what waits for others has sockets of its own.
    fn drop_waiting(&mut self, slot: TxSlot) {
        let dropped = self.outbound.queue(slot).map_or(0, |queue| queue.discard());
        self.tally.drop(
            Direction::Outbound,
            DropReason::UnderlayFull,
            dropped as u64,
        );
    }
}

fn is_full(error: &io::Error) -> bool {
    super::would_block(error) || error.raw_os_error() == Some(libc::ENOBUFS)
}
