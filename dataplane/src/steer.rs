//! Flows spread over the workers where the kernel does not do it.
//!
//! Theory of operation: flannel's `udp` sends everything from one port, so all datagrams of a peer come to one socket and
//! one worker. That worker assigns each datagram to its *owner*, which the hash of the inner flow selects ([`assign`]),
//! and hands every owner, itself included, its *share* of the batch. A share is a list of datagrams; the bytes stay in
//! the buffers of the receiver, and all owners borrow the batch at once ([`pool`]). Each owner passes its share through
//! the inbound stages by its own snapshot, coalesces the packets and writes them to the device. The last owner returns
//! the batch. The receiver wakes an owner that sleeps ([`wakeup`]).
//!
//! A flow has one socket, one owner and one ring between them, so it keeps its order; fragments, which have no ports,
//! are a flow of their own. A worker without a free batch does not read its socket until one is returned. Nor does it
//! while the inbox of an owner is full, for [`FULL_INBOX_WAIT`](crate::limits::FULL_INBOX_WAIT): the kernel's socket
//! buffer holds more than rings of many small batches. An owner that makes no progress within that time loses its
//! shares, as `RingFull`, and the receiver does not wait for it again until its inbox has had room. The wait for each
//! owner is independent. There are enough batches for all that stalled owners can keep ([`steered_batches`]), so the
//! others go on. No worker takes work from another.
//!
//! VXLAN needs none of this: the kernel spreads its flows by the outer port. Nor does a single worker.
//!
//! A datagram is counted as received by its owner, when the owner takes its share; until then it counts as handed over
//! by the receiver ([`Totals::in_rings`](crate::counters::Totals::in_rings)).

mod assign;
pub(crate) mod pool;
mod senders;
mod steered_batch;
pub(crate) mod wakeup;

use std::sync::{Arc, OnceLock};

use crate::limits::{FULL_INBOX_WAIT, INBOX, steered_batches};
use crate::now::Now;
use pool::Pool;
use wakeup::{WakeFor, Wakeup};

pub(crate) use assign::{Assigned, sort};
pub(crate) use pool::Borrowed;
pub(crate) use senders::Senders;
pub(crate) use steered_batch::{SteeredBatch, SteeredDatagram};

/// The primitives of the protocols below; the loom models replace them with loom's.
mod sync {
    pub(super) use crossbeam_queue::ArrayQueue as Ring;
    pub(super) use std::sync::{Arc, atomic};

    pub(super) use super::Waker;
}

/// One worker's end of the exchange.
pub struct Steering {
    index: usize,
    pool: Pool<SteeredBatch>,
    mailboxes: Arc<[Mailbox]>,
    /// For each other worker: since when its inbox has been full, as of the latest check.
    full_since: Vec<Option<Now>>,
    /// Time of the latest check.
    last_check: Now,
}

/// The part of a worker that the others can reach.
struct Mailbox {
    /// Shares for it, by the number of the sending worker.
    inboxes: Vec<sync::Ring<Borrowed<SteeredBatch>>>,
    wakeup: Arc<Wakeup>,
}

/// Wakes the worker's thread from its poll, once it has one.
#[derive(Default)]
pub(crate) struct Waker(OnceLock<Arc<mio::Waker>>);

impl Steering {
    /// One `Steering` for each of `workers` workers, in their order.
    pub fn group(workers: usize) -> Vec<Steering> {
        let mailbox = |_| Mailbox {
            inboxes: (0..workers).map(|_| sync::Ring::new(INBOX)).collect(),
            wakeup: Arc::new(Wakeup::new(Waker::default())),
        };
        let mailboxes: Arc<[Mailbox]> = (0..workers).map(mailbox).collect();
        let part = |(index, mailbox): (usize, &Mailbox)| {
            let batches = 0..steered_batches(workers);
            let batches = batches.map(|_| SteeredBatch::new(workers));
            Steering {
                index,
                pool: Pool::new(batches, Arc::clone(&mailbox.wakeup)),
                mailboxes: Arc::clone(&mailboxes),
                full_since: vec![None; workers],
                last_check: Now::default(),
            }
        };
        mailboxes.iter().enumerate().map(part).collect()
    }

    /// The number of this worker.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.mailboxes.len()
    }

    /// Whether other workers have borrowed all batches: nothing can be received.
    pub(crate) fn is_starved(&self) -> bool {
        !self.pool.has_spare()
    }

    /// The time until which datagrams stay in the socket because another worker's inbox is full. `None` if all have
    /// room, or have been full for so long that their datagrams are dropped instead.
    pub(crate) fn full_inbox_deadline(&mut self, now: Now) -> Option<Now> {
        let Steering {
            index,
            mailboxes,
            full_since,
            last_check,
            ..
        } = self;
        *last_check = now;
        let others = mailboxes.iter().zip(full_since).enumerate();
        let others = others.filter(|(owner, _)| owner != index);
        let ends = others.filter_map(|(_, (mailbox, since))| {
            if !mailbox.is_full_of(*index) {
                *since = None;
                return None;
            }
            Some(since.get_or_insert(now).after(FULL_INBOX_WAIT))
        });
        ends.filter(|end| *end > now).max()
    }

    /// Whether an inbox that the latest check waited for is still full.
    fn waits_for_inbox_room(&self) -> bool {
        let mut others = self.mailboxes.iter().zip(&self.full_since);
        others.any(|(mailbox, since)| {
            let is_awaited = |since: &Now| since.after(FULL_INBOX_WAIT) > self.last_check;
            since.as_ref().is_some_and(is_awaited) && mailbox.is_full_of(self.index)
        })
    }

    /// A free batch to receive into, and its number.
    pub(crate) fn spare(&mut self) -> Option<(u16, &mut SteeredBatch)> {
        self.pool.spare()
    }

    /// Hands every owner its share of batch `number`, which [`Steering::spare`] returned last. Calls `handed` with each
    /// share of another worker before it is pushed, and `refused` with a share whose inbox is full. Returns this
    /// worker's own share, if it has one.
    pub(crate) fn hand_over(
        &mut self,
        number: u16,
        mut handed: impl FnMut(&[SteeredDatagram]),
        mut refused: impl FnMut(&SteeredBatch, &[SteeredDatagram]),
    ) -> Option<Borrowed<SteeredBatch>> {
        let Steering {
            index,
            pool,
            mailboxes,
            ..
        } = self;
        let mut own = None;
        pool.lend(
            number,
            |batch| batch.shares.present(),
            |owner, batch, borrowed| {
                if owner == *index {
                    own = Some(borrowed);
                    return;
                }
                let share = batch.shares.of(owner);
                let mailbox = mailboxes.get(owner);
                let inbox = mailbox.and_then(|mailbox| mailbox.inboxes.get(*index));
                // Only this worker pushes to it: an inbox that has room now takes the share.
                let (Some(mailbox), Some(inbox)) =
                    (mailbox, inbox.filter(|inbox| !inbox.is_full()))
                else {
                    return refused(batch, share);
                };
                handed(share);
                let _ = inbox.push(borrowed);
                mailbox.wakeup.wake_for(WakeFor::Shares);
            },
        );
        own
    }

    /// The next share that worker `sender` has handed to this one.
    pub(crate) fn share_from(&self, sender: usize) -> Option<Borrowed<SteeredBatch>> {
        let inbox = self.mailboxes.get(self.index)?.inboxes.get(sender)?;
        let had_no_room = inbox.is_full();
        let share = inbox.pop();
        if had_no_room && let Some(mailbox) = self.mailboxes.get(sender) {
            // The sender may wait for room in this very inbox.
            mailbox.wakeup.wake_for(WakeFor::Batches);
        }
        share
    }

    /// Whether shares of other workers wait here.
    pub(crate) fn has_shares(&self) -> bool {
        let mailbox = self.mailboxes.get(self.index);
        mailbox.is_some_and(|mailbox| mailbox.inboxes.iter().any(|inbox| !inbox.is_empty()))
    }

    /// Announces that the worker is about to block, and returns whether it may: from now on other workers wake it.
    /// `reads` says whether its socket has datagrams to receive for others; then it also waits for a returned batch or
    /// for room in an inbox.
    pub(crate) fn may_sleep(&self, reads: bool) -> bool {
        let Some(mailbox) = self.mailboxes.get(self.index) else {
            return true;
        };
        mailbox.wakeup.announce_sleep(if reads {
            WakeFor::Batches
        } else {
            WakeFor::Shares
        });
        let found =
            self.has_shares() || reads && !self.is_starved() && !self.waits_for_inbox_room();
        if found {
            mailbox.wakeup.mark_awake();
        }
        !found
    }

    /// The worker no longer blocks.
    pub(crate) fn mark_awake(&self) {
        if let Some(mailbox) = self.mailboxes.get(self.index) {
            mailbox.wakeup.mark_awake();
        }
    }

    /// Sets the waker of this worker's thread.
    pub(crate) fn set_waker(&self, waker: Arc<mio::Waker>) {
        if let Some(mailbox) = self.mailboxes.get(self.index) {
            // Set once, by the thread that the worker runs on.
            let _ = mailbox.wakeup.waker().0.set(waker);
        }
    }
}

impl Mailbox {
    /// Whether there is no room for another share of worker `sender`.
    fn is_full_of(&self, sender: usize) -> bool {
        let inbox = self.inboxes.get(sender);
        inbox.is_some_and(|inbox| inbox.is_full())
    }
}

impl Waker {
    fn wake(&self) {
        // Without a poll no worker sleeps. A waker fails only if its poll is gone, and then so is the worker.
        if let Some(waker) = self.0.get() {
            let _ = waker.wake();
        }
    }
}
