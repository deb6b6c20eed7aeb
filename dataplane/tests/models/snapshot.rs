//! A new snapshot reaches a worker that sleeps.

use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::check;
use crate::sync::Waker;

/// Control publishes two versions, each with one swap and one wake; the worker looks before each step. It ends with the
/// last, never goes back, and what it sees is complete.
#[test]
fn a_sleeper_adopts_the_latest_snapshot() {
    check(|| {
        // For an `ArcSwap` of snapshots.
        let published = Arc::new(Mutex::new(Arc::new((0, 0))));
        let waker = Waker::new();
        let control = {
            let (published, waker) = (Arc::clone(&published), waker.clone());
            thread::spawn(move || {
                for version in 1..=LATEST {
                    *published.lock().unwrap() = Arc::new((version, version * 10));
                    waker.wake();
                }
            })
        };
        let mut adopted = Arc::new((0, 0));
        loop {
            let next = Arc::clone(&published.lock().unwrap());
            assert!(next.0 >= adopted.0 && next.1 == next.0 * 10);
            adopted = next;
            if adopted.0 == LATEST {
                break;
            }
            waker.sleep();
        }
        control.join().unwrap();
    });
}

const LATEST: u32 = 2;
