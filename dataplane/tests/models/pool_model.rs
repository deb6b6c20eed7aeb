//! Only its borrowers read a borrowed batch; it is returned once, and filled again only then.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

use crate::check;
use crate::pool::{Borrowed, Pool};
use crate::sync::{Ring, Waker};
use crate::wakeup::{WakeFor, Wakeup};

/// A batch: what was received last, and how many borrowers there are.
struct Batch {
    round: u32,
    borrowers: usize,
}

fn pool(batches: usize, borrowers: usize) -> (Arc<Wakeup>, Pool<Batch>) {
    let wakeup = Arc::new(Wakeup::new(Waker::new()));
    let batch = move |_| Batch {
        round: 0,
        borrowers,
    };
    let pool = Pool::new((0..batches).map(batch), Arc::clone(&wakeup));
    (wakeup, pool)
}

/// Fills the next spare batch and lends it, or returns `false` where there is none.
fn lend(pool: &mut Pool<Batch>, round: u32, inboxes: &[Arc<Ring<Borrowed<Batch>>>]) -> bool {
    let Some((number, batch)) = pool.spare() else {
        return false;
    };
    batch.round = round;
    pool.lend(
        number,
        |batch| 0..batch.borrowers,
        |borrower, _, borrowed| assert!(inboxes[borrower].push(borrowed).is_ok()),
    );
    true
}

/// Two borrowers return the batch at the same time: the lender, which sleeps for want of a batch, gets it back, and can
/// write it. (`Pool::spare` finds no batch for good if a borrower could still reach it.)
#[test]
fn the_last_borrower_returns_the_batch() {
    check(|| {
        let (wakeup, mut pool) = pool(1, 2);
        let inboxes: Vec<_> = (0..2).map(|_| Arc::new(Ring::new(2))).collect();
        assert!(lend(&mut pool, 1, &inboxes));
        let borrowers: Vec<_> = inboxes
            .iter()
            .map(|inbox| {
                let inbox = Arc::clone(inbox);
                thread::spawn(move || {
                    let borrowed: Borrowed<Batch> = inbox.pop().unwrap();
                    assert_eq!(borrowed.batch().unwrap().round, 1);
                })
            })
            .collect();
        while pool.spare().is_none() {
            wakeup.announce_sleep(WakeFor::Batches);
            if !pool.has_spare() {
                wakeup.waker().sleep();
            }
            wakeup.mark_awake();
        }
        assert!(lend(&mut pool, 2, &inboxes));
        assert!(!lend(&mut pool, 3, &inboxes));
        borrowers.into_iter().for_each(|b| b.join().unwrap());
    });
}

/// A batch is lent several times while its borrower reads it: each round is read once, in order, as it was filled.
#[test]
fn rounds_keep_their_order_and_their_bytes() {
    check(|| {
        let (wakeup, mut pool) = pool(1, 1);
        let inboxes = [Arc::new(Ring::new(1))];
        let inbox = Arc::clone(&inboxes[0]);
        let theirs = Arc::new(Wakeup::new(Waker::new()));
        let borrower = {
            let theirs = Arc::clone(&theirs);
            thread::spawn(move || {
                let mut seen = 0;
                while seen < ROUNDS {
                    if let Some(borrowed) = inbox.pop() {
                        let borrowed: Borrowed<Batch> = borrowed;
                        seen += 1;
                        assert_eq!(borrowed.batch().unwrap().round, seen);
                        continue;
                    }
                    theirs.announce_sleep(WakeFor::Shares);
                    if inbox.is_empty() {
                        theirs.waker().sleep();
                    }
                    theirs.mark_awake();
                }
            })
        };
        let mut round = 1;
        while round <= ROUNDS {
            if lend(&mut pool, round, &inboxes) {
                theirs.wake_for(WakeFor::Shares);
                round += 1;
                continue;
            }
            wakeup.announce_sleep(WakeFor::Batches);
            if !pool.has_spare() {
                wakeup.waker().sleep();
            }
            wakeup.mark_awake();
        }
        borrower.join().unwrap();
        assert!(pool.spare().is_some());
    });
}

/// A share that the inbox refused, and the lender dropped, counts like any other.
#[test]
fn a_refused_share_is_returned() {
    check(|| {
        let (_, mut pool) = pool(1, 2);
        let full = [Arc::new(Ring::new(1)), Arc::new(Ring::new(1))];
        let (number, _) = pool.spare().unwrap();
        let refused = AtomicU32::new(0);
        pool.lend(
            number,
            |batch| 0..batch.borrowers,
            |borrower, _, borrowed| {
                if borrower == 0 {
                    assert!(full[0].push(borrowed).is_ok());
                } else {
                    refused.store(1, Relaxed);
                }
            },
        );
        assert!(!pool.has_spare());
        let inbox = Arc::clone(&full[0]);
        let borrower = thread::spawn(move || drop(inbox.pop()));
        borrower.join().unwrap();
        assert!(pool.spare().is_some() && refused.load(Relaxed) == 1);
    });
}

const ROUNDS: u32 = 2;
