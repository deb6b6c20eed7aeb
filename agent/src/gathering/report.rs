//! What the watcher reports: read by `tartan status`, written by its thread.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use crate::host::GatheredEnd;

/// What is going on at the ends of pods.
#[derive(Debug, Default)]
pub struct FloodReport {
    flooding: AtomicUsize,
    floods: AtomicU64,
    refused: Mutex<Option<String>>,
}

impl FloodReport {
    /// Pods that flood now, and have a NAPI thread.
    pub fn flooding(&self) -> usize {
        self.flooding.load(Relaxed)
    }

    /// Floods since the service started.
    pub fn floods(&self) -> u64 {
        self.floods.load(Relaxed)
    }

    /// Why some flooding pod has no NAPI thread, in words; `None`: none was refused.
    pub fn refused(&self) -> Option<String> {
        let refused = self.refused.lock();
        refused.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn began(&self) {
        self.flooding.fetch_add(1, Relaxed);
        self.floods.fetch_add(1, Relaxed);
    }

    pub(super) fn ended(&self, had_thread: bool) {
        self.flooding.fetch_sub(usize::from(had_thread), Relaxed);
    }

    /// Notes that an end's thread cannot be had. An end that is gone had none to be had.
    pub(super) fn refuse(&self, end: &GatheredEnd, error: &io::Error) {
        if error.raw_os_error() != Some(Errno::NODEV.raw_os_error()) {
            let reason = format!("no NAPI thread for {}: {error}", end.name);
            self.set_refused(Some(reason));
        }
    }

    /// Notes that it cannot be seen which ends flood.
    pub(super) fn refuse_all(&self, error: &io::Error) {
        let reason =
            format!("no NAPI threads: the kernel does not tell the packets of interfaces: {error}");
        self.set_refused(Some(reason));
    }

    /// Forgets what was refused; whether anything was.
    pub(super) fn forget_refused(&self) -> bool {
        let was_refused = self.refused().is_some();
        if was_refused {
            self.set_refused(None);
        }
        was_refused
    }

    fn set_refused(&self, reason: Option<String>) {
        let refused = self.refused.lock();
        *refused.unwrap_or_else(PoisonError::into_inner) = reason;
    }
}
