//! What the watcher reports: read by `tartan status`, written by its thread.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::host::GatheredEnd;

/// What is going on at the ends of pods.
#[derive(Debug, Default)]
pub struct FloodReport {
    flooding: AtomicUsize,
    floods: AtomicU64,
    /// Of an end, until the ends change.
    refused: Mutex<Option<String>>,
    /// Of all, until the next look.
    blind: Mutex<Option<String>>,
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
        said(&self.blind).or_else(|| said(&self.refused))
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

    /// Notes why it cannot be seen which ends flood, or that it can.
    pub(super) fn set_blind(&self, error: Option<&io::Error>) {
        let reason = error.map(|error| format!("the packets of interfaces are not told: {error}"));
        *locked(&self.blind) = reason;
    }

    /// Forgets what was refused; whether anything was.
    pub(super) fn forget_refused(&self) -> bool {
        let was_refused = said(&self.refused).is_some();
        if was_refused {
            self.set_refused(None);
        }
        was_refused
    }

    fn set_refused(&self, reason: Option<String>) {
        *locked(&self.refused) = reason;
    }
}

fn said(reason: &Mutex<Option<String>>) -> Option<String> {
    locked(reason).clone()
}

/// A reason is whole whenever it is unlocked.
fn locked(reason: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    reason.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_said_until_it_can_and_hides_no_other_refusal() {
        let report = FloodReport::default();
        let (index, name) = (7, "pod7".to_owned());
        let refusal = io::Error::from_raw_os_error(Errno::PERM.raw_os_error());
        report.refuse(&GatheredEnd { index, name }, &refusal);
        let of_end = report.refused().unwrap();
        assert!(of_end.contains("pod7"), "{of_end}");
        report.set_blind(Some(&refusal));
        assert!(!report.refused().unwrap().contains("pod7"));
        report.set_blind(None);
        assert_eq!(report.refused(), Some(of_end));
        assert!(report.forget_refused() && report.refused().is_none());
        report.set_blind(Some(&refusal));
        assert!(!report.forget_refused() && report.refused().is_some());
    }
}
