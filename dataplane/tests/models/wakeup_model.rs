//! A worker that blocks is woken by the worker that pushes something for it.

use loom::sync::Arc;
use loom::thread;

use crate::check;
use crate::sync::{Ring, Waker};
use crate::wakeup::{WakeFor, Wakeup};

/// In every order of a push and a sleep, the sleeper gets what was pushed.
#[test]
fn no_wakeup_is_lost() {
    check(|| {
        let (wakeup, ring) = (Arc::new(Wakeup::new(Waker::new())), Arc::new(Ring::new(4)));
        let senders: Vec<_> = (0..2)
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
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
    });
}

/// A returned batch does not wake a sleeper that waits for shares alone, and wakes one that waits for batches.
#[test]
fn a_returned_batch_wakes_only_a_worker_that_waits_for_it() {
    check(|| {
        for (wanted, woken) in [(WakeFor::Shares, false), (WakeFor::Batches, true)] {
            let wakeup = Wakeup::new(Waker::new());
            wakeup.announce_sleep(wanted);
            wakeup.wake_for(WakeFor::Batches);
            assert_eq!(wakeup.waker().wakes(), usize::from(woken));
        }
    });
}
