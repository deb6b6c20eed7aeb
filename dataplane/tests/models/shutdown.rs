//! After the shutdown no ring between workers holds anything.

use loom::sync::Arc;
use loom::thread;

use crate::check;
use crate::senders::Senders;
use crate::sync::Ring;

/// Each of two workers pushes something to the other before it leaves, and ends when it has seen that all have left and
/// that its inbox is empty: by then it has got it.
#[test]
fn the_last_worker_finds_everything() {
    check(|| {
        let senders = Arc::new(Senders::new());
        senders.join();
        senders.join();
        let inboxes: Arc<[Ring<u32>; 2]> = Arc::new([Ring::new(1), Ring::new(1)]);
        let workers: Vec<_> = (0..2)
            .map(|own| {
                let (senders, inboxes) = (Arc::clone(&senders), Arc::clone(&inboxes));
                thread::spawn(move || {
                    inboxes[1 - own].push(7).unwrap();
                    senders.leave();
                    let mut got = 0;
                    loop {
                        // Read this before the inbox: then the inbox has all that was pushed.
                        let all_left = senders.are_gone();
                        got += inboxes[own].pop().unwrap_or_default();
                        if all_left && inboxes[own].is_empty() {
                            return got;
                        }
                        thread::yield_now();
                    }
                })
            })
            .collect();
        for worker in workers {
            assert_eq!(worker.join().unwrap(), 7);
        }
    });
}
