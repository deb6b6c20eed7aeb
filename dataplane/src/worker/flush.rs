//! The last stage outbound: what waits goes to the underlay, in order, run by run of one port.
//!
//! A send can fail for four reasons, told apart here. The socket is full: the tail is held. The error belongs to an
//! earlier datagram, perhaps to another peer (an ICMP error that came back, or that somebody forged): its report waits
//! in the error queue, and the send is repeated once the queue is read. The datagram is too large: its packet is walked
//! again, now that the path MTU is known. Anything else is the kernel's word on this datagram, and it is dropped.

use std::io;

use super::{Source, Worker};
use crate::device::Device;
use crate::drops::{Direction, DropReason};
use crate::limits::{ERROR_ROUNDS, ERRORS, HOLD, SEND_MESSAGES};
use crate::mtu;
use crate::now::Now;
use crate::outbound::Outbound;
use crate::snapshot::Snapshot;
use crate::underlay::{Outgoing, Port, Underlay};

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Sends what waits. What the underlay does not take now stays, until it was held for too long.
    pub(super) fn flush(&mut self, snapshot: &Snapshot, now: Now) {
        // Sends in a row that failed, and those of them that met another datagram's error.
        let (mut failed, mut foreign) = (0, 0);
        while let Some(port) = self.outbound.waiting().first().map(|first| first.port) {
            let error = match self.send_run(port) {
                Ok(count) => {
                    self.account(count, snapshot);
                    (failed, foreign) = (0, 0);
                    continue;
                }
                Err(error) => error,
            };
            let full = is_full(&error) || foreign >= ERROR_ROUNDS;
            if !full {
                failed += 1;
                if self.failures(port, snapshot, now) {
                    foreign += 1;
                } else if failed - foreign > 1 {
                    self.refuse_first(&error, snapshot, now);
                    (failed, foreign) = (0, 0);
                }
            } else if self.is_held_for_long(now) {
                self.drop_waiting(port);
                (failed, foreign) = (0, 0);
            } else {
                return;
            }
        }
        self.outbound.clear();
        self.held_since = None;
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
            mtu::learn(&failure, port, snapshot, now);
        }
        foreign
    }

    fn send_run(&mut self, port: Port) -> io::Result<usize> {
        let batch = &self.outbound;
        let waiting = batch.waiting().iter();
        let run = waiting
            .take_while(|transmit| transmit.port == port)
            .take(SEND_MESSAGES);
        let datagrams = run.map(|t| Outgoing {
            to: t.to,
            ecn: t.ecn,
            parts: batch.parts(t),
        });
        match self.underlay.send(port, datagrams)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn account(&mut self, count: usize, snapshot: &Snapshot) {
        self.tally.send(count);
        for transmit in self.outbound.waiting().iter().take(count) {
            if let Some((_, peer)) = snapshot.peers.by_source(transmit.to.ip()) {
                peer.count_sent(transmit.inner_len);
            }
        }
        self.outbound.done += count;
        self.held_since = None;
    }

    /// The first waiting datagram was refused twice, on its own account.
    fn refuse_first(&mut self, error: &io::Error, snapshot: &Snapshot, now: Now) {
        let Some(first) = self.outbound.waiting().first() else {
            return;
        };
        let (frame, range) = first.packet();
        let too_big = error.raw_os_error() == Some(libc::EMSGSIZE);
        let again = too_big && !first.last_try && self.outbound.has_room(1);
        self.outbound.done += 1;
        if !again {
            let reason = if too_big {
                DropReason::TooBig
            } else {
                DropReason::UnderlayRefused
            };
            return self.tally.drop(Direction::Outbound, reason, 1);
        }
        let Worker {
            device,
            tally,
            outbound,
            answers,
            ..
        } = self;
        let before = outbound.transmits.len();
        Outbound {
            snapshot,
            batch: outbound,
            device,
            answers,
            tally,
            now,
        }
        .packet(frame, range, true);
        outbound.bring_forward(before);
    }

    fn is_held_for_long(&mut self, now: Now) -> bool {
        now.since(*self.held_since.get_or_insert(now)) >= HOLD
    }

    /// Drops what waits for the socket that stayed full; the other ports' datagrams have sockets of their own.
    fn drop_waiting(&mut self, port: Port) {
        let dropped = self.outbound.discard(port);
        self.tally.drop(
            Direction::Outbound,
            DropReason::UnderlayFull,
            dropped as u64,
        );
        self.held_since = None;
    }
}

fn is_full(error: &io::Error) -> bool {
    super::would_block(error) || error.raw_os_error() == Some(libc::ENOBUFS)
}
