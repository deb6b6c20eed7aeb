//! A worker that blocks is woken by whoever has something for it.

use loom::sync::Arc;
use loom::thread;

use crate::check;
use crate::sync::{Ring, Waker};
use crate::wakeup::{Bell, Wanted};

/// However a gift and a sleep meet, the sleeper gets the gift.
#[test]
fn no_gift_is_slept_through() {
    check(|| {
        let (bell, ring) = (Arc::new(Bell::new(Waker::new())), Arc::new(Ring::new(4)));
        let givers: Vec<_> = (0..2)
            .map(|number| {
                let (bell, ring) = (Arc::clone(&bell), Arc::clone(&ring));
                thread::spawn(move || {
                    ring.push(number).unwrap();
                    bell.ring(Wanted::Shares);
                })
            })
            .collect();
        let mut got = 0;
        while got < 2 {
            if ring.pop().is_some() {
                got += 1;
                continue;
            }
            bell.announce(Wanted::Shares);
            if ring.is_empty() {
                bell.waker().sleep();
            }
            bell.awake();
        }
        givers.into_iter().for_each(|giver| giver.join().unwrap());
    });
}

/// A sleeper that waits for shares alone is not woken by batches that come home, and one that waits for them is.
#[test]
fn a_batch_wakes_only_who_has_none_left() {
    check(|| {
        for (wanted, woken) in [(Wanted::Shares, false), (Wanted::Batches, true)] {
            let bell = Bell::new(Waker::new());
            bell.announce(wanted);
            bell.ring(Wanted::Batches);
            assert_eq!(bell.waker().wakes(), usize::from(woken));
        }
    });
}
