//! Batches that a worker fills, lends to others, and gets back.
//!
//! Theory of operation: only its worker reaches a batch, to fill it, until it lends the batch. Then every borrower reads
//! it through a [`Borrowed`], and no thread writes it. Each batch has a count of its borrowers; the last of them pushes
//! the batch's number to the return queue, a ring that has room for all numbers. A borrower drops its reference to the
//! bytes before it decrements the count: once the number is in the return queue, no other thread can reach the batch,
//! and the worker fills it again.

use super::sync::atomic::{AtomicU32, Ordering};
use super::sync::{Arc, Ring};
use super::wakeup::{WakeFor, Wakeup};

/// All batches of one worker.
pub(crate) struct Pool<T> {
    /// By number.
    batches: Vec<Arc<T>>,
    /// Numbers of batches that are not borrowed; the last was returned last, and its bytes are in the core's cache.
    free: Vec<u16>,
    return_queue: Arc<ReturnQueue>,
}

/// The queue by which borrowers return batches.
pub(crate) struct ReturnQueue {
    /// Borrowers that have not returned it yet, by the batch's number.
    borrowers: Vec<AtomicU32>,
    /// Numbers of batches that all borrowers have returned.
    returned: Ring<u16>,
    /// Wakes the lending worker.
    wakeup: Arc<Wakeup>,
}

/// A borrowed batch, to be read.
pub(crate) struct Borrowed<T> {
    /// Present until it is dropped.
    batch: Option<Arc<T>>,
    number: u16,
    return_queue: Arc<ReturnQueue>,
}

impl<T> Pool<T> {
    /// A pool of `batches`, at most 65,536, of the worker that `wakeup` wakes.
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

    /// A batch that no other thread can reach, and its number.
    pub(crate) fn spare(&mut self) -> Option<(u16, &mut T)> {
        while let Some(number) = self.return_queue.returned.pop() {
            // Room for all is there from the start.
            self.free.push(number);
        }
        let number = *self.free.last()?;
        let batch = Arc::get_mut(self.batches.get_mut(usize::from(number))?)?;
        Some((number, batch))
    }

    /// Lends batch `number`, which [`Pool::spare`] returned last, once to each borrower that `borrowers_of` finds in it.
    /// `each` hands the [`Borrowed`] to the borrower.
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
        // Before the first borrower can return it: it gets the batch through a ring, which orders this store before.
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
        // Release: this borrower's reads come before. Acquire: the last borrower's push comes after all reads.
        let last = borrowers.is_some_and(|borrowers| borrowers.fetch_sub(1, Ordering::AcqRel) == 1);
        if last {
            // There is room for every number.
            let _ = self.returned.push(number);
            self.wakeup.wake_for(WakeFor::Batches);
        }
    }
}

impl<T> Borrowed<T> {
    /// The batch; never `None` before the drop.
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
