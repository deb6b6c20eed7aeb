//! Stand-ins that loom can see into.

use std::collections::VecDeque;
use std::sync::PoisonError;

use loom::sync::{Mutex, Notify};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(crate) use loom::sync::{Arc, atomic};

/// A bounded queue, for `crossbeam_queue::ArrayQueue`. It orders what came before a push before what follows the pop.
/// Whether it is empty is asked outside of its lock, which would order far more.
pub(crate) struct Ring<T> {
    places: usize,
    queue: Mutex<VecDeque<T>>,
    length: atomic::AtomicUsize,
}

impl<T> Ring<T> {
    pub(crate) fn new(places: usize) -> Ring<T> {
        Ring {
            places,
            queue: Mutex::new(VecDeque::new()),
            length: atomic::AtomicUsize::new(0),
        }
    }

    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() == self.places {
            return Err(value);
        }
        queue.push_back(value);
        drop(queue);
        self.length.fetch_add(1, atomic::Ordering::Release);
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let value = queue.pop_front()?;
        drop(queue);
        self.length.fetch_sub(1, atomic::Ordering::Release);
        Some(value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(atomic::Ordering::Acquire) == 0
    }
}

/// For a poll and its waker: a wake before the sleep ends the sleep at once.
#[derive(Clone)]
pub(crate) struct Waker(Arc<(Notify, AtomicUsize)>);

impl Waker {
    pub(crate) fn new() -> Waker {
        Waker(Arc::new((Notify::new(), AtomicUsize::new(0))))
    }

    pub(crate) fn wake(&self) {
        self.0.1.fetch_add(1, Relaxed);
        self.0.0.notify();
    }

    /// How often a thread woke it.
    pub(crate) fn wakes(&self) -> usize {
        self.0.1.load(Relaxed)
    }

    /// Blocks until a thread wakes it. loom reports a deadlock if none ever does.
    pub(crate) fn sleep(&self) {
        self.0.0.wait();
    }
}
