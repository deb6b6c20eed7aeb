//! Buffers handed from one worker's thread to another's, and returned.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use crossbeam_queue::ArrayQueue;
use dataplane::batch::Frame;
use dataplane::limits::FRAME;

/// One inbox and one return queue, as each pair of workers has; handles alone move, never bytes.
pub(super) fn hand_off(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    for handles in [1, 4, 16] {
        group.throughput(Throughput::Elements(handles as u64));
        group.bench_function(BenchmarkId::new("there and back", handles), |b| {
            b.iter_custom(|batches| there_and_back(handles, batches))
        });
        group.bench_function(BenchmarkId::new("one thread", handles), |b| {
            let (inbox, mut batch) = (ArrayQueue::new(BATCHES), Some(batch(handles)));
            b.iter(|| {
                batch = batch.take().and_then(|batch| {
                    let refused = inbox.push(batch).err();
                    refused.or_else(|| inbox.pop())
                });
            });
        });
    }
}

/// The time in which `batches` batches of `handles` went to another thread, and came back.
fn there_and_back(handles: usize, batches: u64) -> Duration {
    let inbox: ArrayQueue<Batch> = ArrayQueue::new(BATCHES);
    let return_queue: ArrayQueue<Batch> = ArrayQueue::new(BATCHES);
    let mut idle: Vec<Batch> = (0..BATCHES).map(|_| batch(handles)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = 0;
            while done < batches {
                // The return queue has room for all batches.
                match inbox.pop().map(|batch| return_queue.push(batch)) {
                    Some(_) => done += 1,
                    None => std::thread::yield_now(),
                }
            }
        });
        let begin = Instant::now();
        let (mut sent, mut returned) = (0, 0);
        while returned < batches {
            let (before, target) = (sent + returned, batches);
            if sent < target
                && let Some(batch) = idle.pop()
            {
                match inbox.push(batch) {
                    Ok(()) => sent += 1,
                    Err(batch) => idle.push(batch),
                }
            }
            if let Some(batch) = return_queue.pop() {
                idle.push(batch);
                returned += 1;
            }
            if sent + returned == before {
                std::thread::yield_now();
            }
        }
        begin.elapsed()
    })
}

type Batch = Vec<Frame>;

fn batch(handles: usize) -> Batch {
    let frame = || vec![0; FRAME].into_boxed_slice().try_into().ok();
    (0..handles).filter_map(|_| frame()).collect()
}

/// Batches under way at most.
const BATCHES: usize = 64;
