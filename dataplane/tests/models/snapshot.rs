//! A new snapshot reaches a worker that sleeps, and what it replaces is freed by control alone.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread::{self, ThreadId};

use crate::check;
use crate::retired::Retired;
use crate::sync::Waker;

/// A snapshot: its version twice, and the thread that is to free it.
struct Tables {
    version: u64,
    tenfold: u64,
    control: ThreadId,
}

impl Tables {
    fn of(version: u64, control: ThreadId) -> Arc<Tables> {
        Arc::new(Tables {
            version,
            tenfold: version * 10,
            control,
        })
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        assert_eq!(thread::current().id(), self.control, "a worker freed it");
    }
}

/// Control publishes two versions, each with one swap and one wake; the worker looks before each step, and says
/// afterwards which version it has. It ends with the last, never goes back, and what it sees is complete. Control frees
/// what was replaced as soon as it may.
#[test]
fn a_sleeper_adopts_the_latest_snapshot_and_frees_none() {
    check(|| {
        let control = thread::current().id();
        // For an `ArcSwap` of snapshots, and the counters' word.
        let published = Arc::new(Mutex::new(Tables::of(0, control)));
        let adopted = Arc::new(AtomicU64::new(0));
        let waker = Waker::new();
        let worker = {
            let (published, adopted) = (Arc::clone(&published), Arc::clone(&adopted));
            let waker = waker.clone();
            thread::spawn(move || {
                let mut cache = Arc::clone(&published.lock().unwrap());
                loop {
                    let next = Arc::clone(&published.lock().unwrap());
                    assert!(next.version >= cache.version && next.tenfold == next.version * 10);
                    cache = next;
                    adopted.store(cache.version, Ordering::Release);
                    if cache.version == LATEST {
                        break;
                    }
                    waker.sleep();
                }
                // A worker that goes on would hold it until there is a next.
                cache
            })
        };
        let mut retired = Retired::new();
        for version in 1..=LATEST {
            let current = Arc::clone(&published.lock().unwrap());
            retired.retire(current, version);
            let replaced = std::mem::replace(
                &mut *published.lock().unwrap(),
                Tables::of(version, control),
            );
            drop(replaced);
            waker.wake();
            retired.free(adopted.load(Ordering::Acquire));
        }
        let cache = worker.join().unwrap();
        retired.free(adopted.load(Ordering::Acquire));
        assert_eq!((cache.version, retired.count()), (LATEST, 0));
    });
}

const LATEST: u64 = 2;
