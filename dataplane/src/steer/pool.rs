//! Batches that a worker fills, lends to others, and gets back.
//!
//! Theory of operation: a batch is its worker's alone, to be filled, until it is lent. Then it is read by every
//! borrower through a [`Borrowed`], and written by nobody. Each batch counts its loans down; the borrower who ends the last
//! one sends the batch's number home, through a ring that has room for all numbers. A loan lets go of the bytes before
//! it counts down: when a number has come home, nobody else can reach the batch any more, and it is filled again.

use super::sync::atomic::{AtomicU32, Ordering};
use super::sync::{Arc, Ring};
use super::wakeup::{WakeFor, Wakeup};

/// All batches of one worker.
pub(crate) struct Pool<T> {
    /// By number.
    batches: Vec<Arc<T>>,
    /// Numbers of those that nobody has borrowed; the last came home last, and its bytes are in the core's cache.
    free: Vec<u16>,
    return_queue: Arc<ReturnQueue>,
}

/// Where borrowers bring batches back.
pub(crate) struct ReturnQueue {
    /// Loans that have not ended, by the batch's number.
    borrowers: Vec<AtomicU32>,
    /// Numbers on their way home.
    returned: Ring<u16>,
    /// Of the worker that lends.
    wakeup: Arc<Wakeup>,
}

/// A borrowed batch, to be read.
pub(crate) struct Borrowed<T> {
    /// There until the loan ends.
    batch: Option<Arc<T>>,
    number: u16,
    return_queue: Arc<ReturnQueue>,
}

impl<T> Pool<T> {
    /// Lends `batches`, at most 65,536, for the worker with `bell`.
    pub(crate) fn new(batches: impl Iterator<Item = T>, wakeup: Arc<Wakeup>) -> Pool<T> {
        let batches: Vec<_> = batches.map(Arc::new).collect();
        let count = batches.len();
        Pool {
            batches,
            free: (0..count as u16).rev().collect(),
            return_queue: Arc::new(ReturnQueue {
                borrowers: (0..count).map(|_| AtomicU32::new(0)).collect(),
                returned: Ring::new(count.max(1)),
                wakeup,
            }),
        }
    }

    /// Whether a batch can be filled.
    pub(crate) fn has_spare(&self) -> bool {
        !self.free.is_empty() || !self.return_queue.returned.is_empty()
    }

    /// A batch that nobody else can reach, and its number.
    pub(crate) fn spare(&mut self) -> Option<(u16, &mut T)> {
        while let Some(number) = self.return_queue.returned.pop() {
            // Room for all is there from the start.
            self.free.push(number);
        }
        let number = *self.free.last()?;
        let batch = Arc::get_mut(self.batches.get_mut(usize::from(number))?)?;
        Some((number, batch))
    }

    /// Lends batch `number`, the one that [`Pool::spare`] gave last, once to each of the borrowers that `whom` finds in
    /// it, and has `each` pass the loan on.
    pub(crate) fn lend<'a, B: Iterator<Item = usize>>(
        &'a mut self,
        number: u16,
        borrowers_of: impl Fn(&'a T) -> B,
        mut each: impl FnMut(usize, &T, Borrowed<T>),
    ) {
        let place = usize::from(number);
        let (Some(batch), Some(borrowers)) = (
            self.batches.get(place),
            self.return_queue.borrowers.get(place),
        ) else {
            return;
        };
        let count = borrowers_of(batch).count();
        if count == 0 || self.free.last() != Some(&number) {
            return;
        }
        self.free.pop();
        // Before the first can end. A loan is passed on through a ring, which orders this before it.
        borrowers.store(count as u32, Ordering::Relaxed);
        for borrower in borrowers_of(batch) {
            let borrowed = Borrowed {
                batch: Some(Arc::clone(batch)),
                number,
                return_queue: Arc::clone(&self.return_queue),
            };
            each(borrower, batch, borrowed);
        }
    }
}

impl ReturnQueue {
    fn end(&self, number: u16) {
        let borrowers = self.borrowers.get(usize::from(number));
        // Release: what was read was read before. Acquire: the last one's message home comes after all of it.
        let last = borrowers.is_some_and(|borrowers| borrowers.fetch_sub(1, Ordering::AcqRel) == 1);
        if last {
            // There is room for every number.
            let _ = self.returned.push(number);
            self.wakeup.wake_for(WakeFor::Batches);
        }
    }
}

impl<T> Borrowed<T> {
    /// What was borrowed; `None` never, before the loan ends.
    pub(crate) fn batch(&self) -> Option<&T> {
        self.batch.as_deref()
    }
}

impl<T> Drop for Borrowed<T> {
    fn drop(&mut self) {
        drop(self.batch.take());
        self.return_queue.end(self.number);
    }
}
