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
//! and for [`PATIENCE`](crate::limits::PATIENCE) also while the ring of some owner is full: the kernel's buffer has more
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

use crate::limits::{INBOX, PATIENCE, steered_batches};
use crate::now::Now;
use pool::Pool;
use wakeup::{Bell, Wanted};

pub(crate) use assign::{Sorted, sort};
pub(crate) use pool::Loan;
pub(crate) use senders::Senders;
pub(crate) use steered_batch::{Part, SteeredBatch};

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
    posts: Arc<[Post]>,
    /// Since when the inbox of each other worker has had no room for this one's shares, at the latest look.
    full_since: Vec<Option<Now>>,
    /// When that look was.
    looked: Now,
}

/// What the others reach of a worker.
struct Post {
    /// Shares for it, by the number of who sends them.
    inboxes: Vec<sync::Ring<Loan<SteeredBatch>>>,
    bell: Arc<Bell>,
}

/// Wakes the worker's thread from its poll, once it has one.
#[derive(Default)]
pub(crate) struct Waker(OnceLock<Arc<mio::Waker>>);

impl Steering {
    /// The parts of `workers` workers, in their order.
    pub fn group(workers: usize) -> Vec<Steering> {
        let post = |_| Post {
            inboxes: (0..workers).map(|_| sync::Ring::new(INBOX)).collect(),
            bell: Arc::new(Bell::new(Waker::default())),
        };
        let posts: Arc<[Post]> = (0..workers).map(post).collect();
        let part = |(index, post): (usize, &Post)| {
            let batches = 0..steered_batches(workers);
            let batches = batches.map(|_| SteeredBatch::new(workers));
            Steering {
                index,
                pool: Pool::new(batches, Arc::clone(&post.bell)),
                posts: Arc::clone(&posts),
                full_since: vec![None; workers],
                looked: Now::default(),
            }
        };
        posts.iter().enumerate().map(part).collect()
    }

    /// The number of this worker.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.posts.len()
    }

    /// Whether all batches are lent: nothing can be received for others.
    pub(crate) fn is_starved(&self) -> bool {
        !self.pool.has_spare()
    }

    /// Until when at most what comes is to stay in the socket, because other workers have no room for it; `None` if there
    /// is room, or none for so long that what comes for them is lost.
    pub(crate) fn patience(&mut self, now: Now) -> Option<Now> {
        let Steering {
            index,
            posts,
            full_since,
            looked,
            ..
        } = self;
        *looked = now;
        let others = posts.iter().zip(full_since).enumerate();
        let others = others.filter(|(owner, _)| owner != index);
        let ends = others.filter_map(|(_, (post, since))| {
            if !post.is_full_of(*index) {
                *since = None;
                return None;
            }
            Some(since.get_or_insert(now).after(PATIENCE))
        });
        ends.filter(|end| *end > now).max()
    }

    /// Whether a worker that was waited for at the latest look has no room yet.
    fn is_crowded(&self) -> bool {
        let mut others = self.posts.iter().zip(&self.full_since);
        others.any(|(post, since)| {
            let is_awaited = |since: &Now| since.after(PATIENCE) > self.looked;
            since.as_ref().is_some_and(is_awaited) && post.is_full_of(self.index)
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
        mut handed: impl FnMut(&[Part]),
        mut refused: impl FnMut(&SteeredBatch, &[Part]),
    ) -> Option<Loan<SteeredBatch>> {
        let Steering {
            index, pool, posts, ..
        } = self;
        let mut own = None;
        pool.lend(
            number,
            |batch| batch.shares.present(),
            |owner, batch, loan| {
                if owner == *index {
                    own = Some(loan);
                    return;
                }
                let share = batch.shares.of(owner);
                let post = posts.get(owner);
                let inbox = post.and_then(|post| post.inboxes.get(*index));
                // Nobody else fills it: what has room now takes the share.
                let (Some(post), Some(inbox)) = (post, inbox.filter(|inbox| !inbox.is_full()))
                else {
                    return refused(batch, share);
                };
                handed(share);
                let _ = inbox.push(loan);
                post.bell.ring(Wanted::Shares);
            },
        );
        own
    }

    /// The next share that worker `sender` has given to this one.
    pub(crate) fn share_from(&self, sender: usize) -> Option<Loan<SteeredBatch>> {
        let inbox = self.posts.get(self.index)?.inboxes.get(sender)?;
        let had_no_room = inbox.is_full();
        let share = inbox.pop();
        if had_no_room && let Some(post) = self.posts.get(sender) {
            // It may wait for just this place, while others keep its batches.
            post.bell.ring(Wanted::Batches);
        }
        share
    }

    /// Whether shares of other workers wait here.
    pub(crate) fn has_shares(&self) -> bool {
        let post = self.posts.get(self.index);
        post.is_some_and(|post| post.inboxes.iter().any(|inbox| !inbox.is_empty()))
    }

    /// Says that the worker is about to block, and returns whether it may: whatever comes from other workers from now on
    /// wakes it. `reads` says whether it has something to receive for others, and waits until it can.
    pub(crate) fn may_sleep(&self, reads: bool) -> bool {
        let Some(post) = self.posts.get(self.index) else {
            return true;
        };
        post.bell.announce(if reads {
            Wanted::Batches
        } else {
            Wanted::Shares
        });
        let found = self.has_shares() || reads && !self.is_starved() && !self.is_crowded();
        if found {
            post.bell.awake();
        }
        !found
    }

    /// The worker blocks no more.
    pub(crate) fn awake(&self) {
        if let Some(post) = self.posts.get(self.index) {
            post.bell.awake();
        }
    }

    /// Has `waker` wake this worker from now on.
    pub(crate) fn wake_by(&self, waker: Arc<mio::Waker>) {
        if let Some(post) = self.posts.get(self.index) {
            // Set once, by the thread that the worker runs on.
            let _ = post.bell.waker().0.set(waker);
        }
    }
}

impl Post {
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
