//! A lent batch is read by its borrowers alone, comes home once, and is filled again only then.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

use crate::check;
use crate::pool::{Loan, Pool};
use crate::sync::{Ring, Waker};
use crate::wakeup::{Bell, Wanted};

/// A batch: what was received last, and how many borrowers there are.
struct Batch {
    round: u32,
    borrowers: usize,
}

fn pool(batches: usize, borrowers: usize) -> (Arc<Bell>, Pool<Batch>) {
    let bell = Arc::new(Bell::new(Waker::new()));
    let batch = move |_| Batch {
        round: 0,
        borrowers,
    };
    let pool = Pool::new((0..batches).map(batch), Arc::clone(&bell));
    (bell, pool)
}

/// Fills the next spare batch and lends it, or returns `false` where there is none.
fn lend(pool: &mut Pool<Batch>, round: u32, inboxes: &[Arc<Ring<Loan<Batch>>>]) -> bool {
    let Some((number, batch)) = pool.spare() else {
        return false;
    };
    batch.round = round;
    pool.lend(
        number,
        |batch| 0..batch.borrowers,
        |borrower, _, loan| assert!(inboxes[borrower].push(loan).is_ok()),
    );
    true
}

/// Two borrowers end their loans at the same time: the lender, who sleeps for want of a batch, gets it back, and can
/// write it. (`Pool::spare` finds no batch for good if a borrower could still reach it.)
#[test]
fn the_last_borrower_sends_a_batch_home() {
    check(|| {
        let (bell, mut pool) = pool(1, 2);
        let inboxes: Vec<_> = (0..2).map(|_| Arc::new(Ring::new(2))).collect();
        assert!(lend(&mut pool, 1, &inboxes));
        let borrowers: Vec<_> = inboxes
            .iter()
            .map(|inbox| {
                let inbox = Arc::clone(inbox);
                thread::spawn(move || {
                    let loan: Loan<Batch> = inbox.pop().unwrap();
                    assert_eq!(loan.batch().unwrap().round, 1);
                })
            })
            .collect();
        while pool.spare().is_none() {
            bell.announce(Wanted::Batches);
            if !pool.has_spare() {
                bell.waker().sleep();
            }
            bell.awake();
        }
        assert!(lend(&mut pool, 2, &inboxes));
        assert!(!lend(&mut pool, 3, &inboxes));
        borrowers.into_iter().for_each(|b| b.join().unwrap());
    });
}

/// Batches go round while their borrower takes them: each round is read once, in order, as it was filled.
#[test]
fn rounds_keep_their_order_and_their_bytes() {
    check(|| {
        let (bell, mut pool) = pool(1, 1);
        let inboxes = [Arc::new(Ring::new(1))];
        let inbox = Arc::clone(&inboxes[0]);
        let theirs = Arc::new(Bell::new(Waker::new()));
        let borrower = {
            let theirs = Arc::clone(&theirs);
            thread::spawn(move || {
                let mut seen = 0;
                while seen < ROUNDS {
                    if let Some(loan) = inbox.pop() {
                        let loan: Loan<Batch> = loan;
                        seen += 1;
                        assert_eq!(loan.batch().unwrap().round, seen);
                        continue;
                    }
                    theirs.announce(Wanted::Shares);
                    if inbox.is_empty() {
                        theirs.waker().sleep();
                    }
                    theirs.awake();
                }
            })
        };
        let mut round = 1;
        while round <= ROUNDS {
            if lend(&mut pool, round, &inboxes) {
                theirs.ring(Wanted::Shares);
                round += 1;
                continue;
            }
            bell.announce(Wanted::Batches);
            if !pool.has_spare() {
                bell.waker().sleep();
            }
            bell.awake();
        }
        borrower.join().unwrap();
        assert!(pool.spare().is_some());
    });
}

/// A refused loan, ended by the lender itself, counts like any other.
#[test]
fn a_refused_loan_counts() {
    check(|| {
        let (_, mut pool) = pool(1, 2);
        let full = [Arc::new(Ring::new(1)), Arc::new(Ring::new(1))];
        let (number, _) = pool.spare().unwrap();
        let refused = AtomicU32::new(0);
        pool.lend(
            number,
            |batch| 0..batch.borrowers,
            |borrower, _, loan| {
                if borrower == 0 {
                    assert!(full[0].push(loan).is_ok());
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
