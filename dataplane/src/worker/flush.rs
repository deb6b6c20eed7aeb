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
use crate::limits::{ERROR_ROUNDS, ERRORS, HOLD};
use crate::mtu_reports;
use crate::now::Now;
use crate::outbound::Outbound;
use crate::snapshot::Snapshot;
use crate::underlay::{Exit, Port, Underlay};

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Sends what waits. What the underlay does not take now stays, until it was held for too long.
    pub(super) fn flush(&mut self, snapshot: &Snapshot, now: Now) {
        let mut full = [false; Exit::COUNT];
        // Each in turn; what is walked again may go elsewhere since, to one that had its turn.
        while let Some(exit) = self.next_exit(&full) {
            let taken = self.flush_exit(exit, snapshot, now);
            if let Some(full) = full.get_mut(exit.index()) {
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
    fn next_exit(&self, full: &[bool; Exit::COUNT]) -> Option<Exit> {
        let waiting = self.outbound.queues().iter().zip(full);
        Exit::all()
            .zip(waiting)
            .find(|(_, (queue, full))| !**full && !queue.waiting().is_empty())
            .map(|(exit, _)| exit)
    }

    /// Returns whether all went or was dropped; otherwise the socket is full.
    fn flush_exit(&mut self, exit: Exit, snapshot: &Snapshot, now: Now) -> bool {
        if !self.underlay.takes_trains(exit, now)
            && let Some(queue) = self.outbound.queue(exit)
        {
            queue.take_apart();
        }
        // Sends in a row that failed, and those of them that met another datagram's error.
        let (mut failed, mut foreign) = (0, 0);
        while self.waits(exit) {
            let error = match self.underlay.send(exit, self.outbound.messages(exit)) {
                Ok(count) if count > 0 => {
                    self.account(exit, count, snapshot, now);
                    (failed, foreign) = (0, 0);
                    continue;
                }
                Ok(_) => io::ErrorKind::WouldBlock.into(),
                Err(error) => error,
            };
            if is_full(&error) || foreign >= ERROR_ROUNDS {
                if !self.is_held_for_long(exit, now) {
                    return false;
                }
                self.drop_waiting(exit);
                continue;
            }
            failed += 1;
            if self.failures(exit.port, snapshot, now) {
                foreign += 1;
            } else if self.part_train(exit, &error) {
                (failed, foreign) = (0, 0);
            } else if failed - foreign > 1 {
                self.refuse_first(exit, &error, snapshot, now);
                (failed, foreign) = (0, 0);
            }
        }
        self.release(exit);
        true
    }

    /// Reads reports of earlier datagrams and learns path MTUs from those that prove themselves. Returns whether one
    /// came from the network: then the error just met need not be about the datagram just sent.
    pub(super) fn failures(&mut self, port: Port, snapshot: &Snapshot, now: Now) -> bool {
        let mut foreign = false;
        for _ in 0..ERRORS {
            let Some(failure) = self.underlay.failure(port) else {
                self.ready.set(Source::Reports(port), false);
                break;
            };
            foreign |= !failure.local;
            mtu_reports::learn(&failure, port, snapshot, now);
        }
        foreign
    }

    fn waits(&mut self, exit: Exit) -> bool {
        self.outbound
            .queue(exit)
            .is_some_and(|queue| queue.front().is_some())
    }

    fn account(&mut self, exit: Exit, messages: usize, snapshot: &Snapshot, now: Now) {
        self.reports.sent(exit.port, now);
        for sent in (0..messages).map_while(|_| self.outbound.went(exit)) {
            self.tally.send(sent.count);
            if let Some((_, peer)) = snapshot.cluster.peers.by_source(sent.to.ip()) {
                peer.count_sent(sent.count, sent.bytes);
            }
            if sent.proof {
                self.underlay.proved(exit, now);
            }
        }
        self.release(exit);
    }

    /// The socket takes something, or nothing waits for it.
    fn release(&mut self, exit: Exit) {
        if let Some(queue) = self.outbound.queue(exit) {
            queue.held_since = None;
        }
    }

    /// Has the datagrams of the first train go one by one, if it was refused for a reason that may lie in its being one.
    /// A path that became too small is such a reason, but says nothing against the offload.
    fn part_train(&mut self, exit: Exit, error: &io::Error) -> bool {
        let suspect = match error.raw_os_error() {
            Some(libc::EINVAL | libc::EIO) => true,
            Some(libc::EMSGSIZE) => false,
            _ => return false,
        };
        let Some(train) = self.outbound.queue(exit).and_then(|queue| queue.front()) else {
            return false;
        };
        let is_train = train.count > 1 && !train.apart;
        if is_train {
            train.apart = true;
            train.suspect = suspect;
        }
        is_train
    }

    /// The first waiting datagram was refused twice, on its own account.
    fn refuse_first(&mut self, exit: Exit, error: &io::Error, snapshot: &Snapshot, now: Now) {
        let Some(first) = self.outbound.take_first(exit) else {
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
            answers,
            ..
        } = self;
        outbound.in_front(exit, |batch| {
            let mut stages = Outbound {
                snapshot,
                batch,
                device,
                answers,
                tally,
                now,
                recent: None,
            };
            stages.again(&first);
        });
    }

    fn is_held_for_long(&mut self, exit: Exit, now: Now) -> bool {
        let queue = self.outbound.queue(exit);
        queue.is_none_or(|queue| now.since(*queue.held_since.get_or_insert(now)) >= HOLD)
    }

    /// Drops what waits for the socket that stayed full; what waits for others has sockets of its own.
    fn drop_waiting(&mut self, exit: Exit) {
        let dropped = self.outbound.queue(exit).map_or(0, |queue| queue.discard());
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
