//! Waiting for what another process or the kernel does in its own time.

use std::thread;
use std::time::{Duration, Instant};

/// Waits until something holds.
///
/// # Panics
/// With `what`, after 20 seconds.
#[track_caller]
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(INTERVAL);
    }
}

const PATIENCE: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(50);
