//! Flows spread over the workers where the kernel does not do it.
//!
//! Theory of operation: flannel's `udp` sends everything from one port, so all that a peer sends comes to one socket and
//! one worker. That worker *sorts* what it received: the hash of the inner flow names the owner of each datagram, and
//! every owner gets its share of the batch, itself included. A share is a list of places; the bytes stay where they were
//! received, and the batch is lent to all its owners at once ([`pool`]). Each walks its share up the inbound stairs by
//! its own tables, gathers it into super-packets and writes it to the device. The last to finish sends the batch home.
//! An owner that sleeps is woken ([`bell`]).
//!
//! A flow has one socket, one owner and one ring between them, so it keeps its order; fragments, which show no ports,
//! are a flow of their own. A worker that has no batch left to receive into leaves its socket alone until one comes home,
//! and for [`FULL_INBOX_WAIT`](crate::limits::FULL_INBOX_WAIT) also while the ring of some owner is full: the kernel's buffer has more
//! room than rings of many small batches. An owner that does not get on within that time loses its shares, as
//! `RingFull`, and is waited for no more until its ring has had room again; the others are, as before. There are batches
//! for all that owners who stand still can keep ([`steered_batches`]), so the rest get on. Nobody takes work from others.
//!
//! VXLAN needs none of this: the kernel spreads its flows by the outer port. Nor does a single worker.
//!
//! A datagram is counted as received by the worker that ends it: the owner, when it takes its share; until then it
//! counts as handed over by the sender ([`Totals::in_rings`](crate::counters::Totals::in_rings)).

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

/// What the protocols below are made of; their models put others in the place of these.
mod sync {
    pub(super) use crossbeam_queue::ArrayQueue as Ring;
    pub(super) use std::sync::{Arc, atomic};

    pub(super) use super::Waker;
}

/// One worker's part in it.
pub struct Steering {
    index: usize,
    pool: Pool<SteeredBatch>,
    mailboxes: Arc<[Mailbox]>,
    /// Since when the inbox of each other worker has had no room for this one's shares, at the latest look.
    full_since: Vec<Option<Now>>,
    /// When that look was.
    last_check: Now,
}

/// What the others reach of a worker.
struct Mailbox {
    /// Shares for it, by the number of who sends them.
    inboxes: Vec<sync::Ring<Borrowed<SteeredBatch>>>,
    wakeup: Arc<Wakeup>,
}

/// Wakes the worker's thread from its poll, once it has one.
#[derive(Default)]
pub(crate) struct Waker(OnceLock<Arc<mio::Waker>>);

impl Steering {
    /// The parts of `workers` workers, in their order.
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

    /// Whether all batches are lent: nothing can be received for others.
    pub(crate) fn is_starved(&self) -> bool {
        !self.pool.has_spare()
    }

    /// Until when at most what comes is to stay in the socket, because other workers have no room for it; `None` if there
    /// is room, or none for so long that what comes for them is lost.
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

    /// Whether a worker that was waited for at the latest look has no room yet.
    fn waits_for_inbox_room(&self) -> bool {
        let mut others = self.mailboxes.iter().zip(&self.full_since);
        others.any(|(mailbox, since)| {
            let is_awaited = |since: &Now| since.after(FULL_INBOX_WAIT) > self.last_check;
            since.as_ref().is_some_and(is_awaited) && mailbox.is_full_of(self.index)
        })
    }

    /// A batch to receive into and sort, and its number.
    pub(crate) fn spare(&mut self) -> Option<(u16, &mut SteeredBatch)> {
        self.pool.spare()
    }

    /// Gives every owner of batch `number`, the one that [`Steering::spare`] gave last, its share. `handed` is told of
    /// one for another worker before it goes, `refused` of one that finds no room. Returns the share that stays here, if
    /// there is one.
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
                // Nobody else fills it: what has room now takes the share.
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

    /// The next share that worker `sender` has given to this one.
    pub(crate) fn share_from(&self, sender: usize) -> Option<Borrowed<SteeredBatch>> {
        let inbox = self.mailboxes.get(self.index)?.inboxes.get(sender)?;
        let had_no_room = inbox.is_full();
        let share = inbox.pop();
        if had_no_room && let Some(mailbox) = self.mailboxes.get(sender) {
            // It may wait for just this place, while others keep its batches.
            mailbox.wakeup.wake_for(WakeFor::Batches);
        }
        share
    }

    /// Whether shares of other workers wait here.
    pub(crate) fn has_shares(&self) -> bool {
        let mailbox = self.mailboxes.get(self.index);
        mailbox.is_some_and(|mailbox| mailbox.inboxes.iter().any(|inbox| !inbox.is_empty()))
    }

    /// Says that the worker is about to block, and returns whether it may: whatever comes from other workers from now on
    /// wakes it. `reads` says whether it has something to receive for others, and waits until it can.
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

    /// The worker blocks no more.
    pub(crate) fn mark_awake(&self) {
        if let Some(mailbox) = self.mailboxes.get(self.index) {
            mailbox.wakeup.mark_awake();
        }
    }

    /// Has `waker` wake this worker from now on.
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
        // Without a poll nobody sleeps; a waker fails only if its poll is gone, and then so is the worker.
        if let Some(waker) = self.0.get() {
            let _ = waker.wake();
        }
    }
}
