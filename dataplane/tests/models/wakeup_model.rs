//! A worker that blocks is woken by whoever has something for it.

use loom::sync::Arc;
use loom::thread;

use crate::check;
use crate::sync::{Ring, Waker};
use crate::wakeup::{WakeFor, Wakeup};

/// However a gift and a sleep meet, the sleeper gets the gift.
#[test]
fn no_gift_is_slept_through() {
    check(|| {
        let (wakeup, ring) = (Arc::new(Wakeup::new(Waker::new())), Arc::new(Ring::new(4)));
        let givers: Vec<_> = (0..2)
            .map(|number| {
                let (wakeup, ring) = (Arc::clone(&wakeup), Arc::clone(&ring));
                thread::spawn(move || {
                    ring.push(number).unwrap();
                    wakeup.wake_for(WakeFor::Shares);
                })
            })
            .collect();
        let mut got = 0;
        while got < 2 {
            if ring.pop().is_some() {
                got += 1;
                continue;
            }
            wakeup.announce_sleep(WakeFor::Shares);
            if ring.is_empty() {
                wakeup.waker().sleep();
            }
            wakeup.mark_awake();
        }
        givers.into_iter().for_each(|giver| giver.join().unwrap());
    });
}

/// A sleeper that waits for shares alone is not woken by batches that come home, and one that waits for them is.
#[test]
fn a_batch_wakes_only_who_has_none_left() {
    check(|| {
        for (wanted, woken) in [(WakeFor::Shares, false), (WakeFor::Batches, true)] {
            let wakeup = Wakeup::new(Waker::new());
            wakeup.announce_sleep(wanted);
            wakeup.wake_for(WakeFor::Batches);
            assert_eq!(wakeup.waker().wakes(), usize::from(woken));
        }
    });
}
