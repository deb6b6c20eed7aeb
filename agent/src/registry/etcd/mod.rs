//! The `etcd` registry: flannel's keys (flannel `pkg/subnet/etcd`).
//!
//! ```text
//! <prefix>/config                      the cluster's configuration, flannel's net-conf.json
//! <prefix>/subnets/10.244.1.0-24       one lease, written by its node
//! <prefix>/tartan/owners/10.244.1.0-24 its node's name, where that is Tartan's
//! ```
//!
//! Theory of operation. The thread visits one server at a time: it reads the configuration and all leases of one revision,
//! watches both from the next one on, makes this node's own key what is announced ([`own_lease`]), and reports. A visit
//! ends when the server does not answer any more, or when changes are lost because etcd has compacted them; then the next
//! visit lists everything anew. Pauses between visits grow from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`]. One visit that ends
//! is no loss of the registry: the loss is reported when no server can be visited after it, or when visits keep ending.
//!
//! Each change is entered in the [`table`] and reported soon, at the latest within a second ([`Pace`](super::pace::Pace)). A key or
//! value that cannot be read or used is passed over, and the others are in force. The list is not reported while the
//! configuration is missing or cannot be used, or while this node has no key of its own.

mod acquire;
mod key;
mod losses;
mod overwritten;
mod own_lease;
mod owner;
mod report;
mod session;
mod table;
mod value;
mod visit;
mod watch;
mod write;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

use self::visit::{End, Visitor};
use super::remote::{Asked, Ended, RemoteRegistry, Seat};
use super::{RegistryError, RegistryPlace};
use crate::config::node::registry::EtcdConfig;

/// Starts the registry's thread. It reports whether the servers answer.
///
/// # Errors
/// [`RegistryError`].
pub fn open(config: &EtcdConfig) -> Result<RemoteRegistry, RegistryError> {
    let place = RegistryPlace::Etcd {
        key: config.prefix.clone(),
    };
    let description = format!("etcd {} {}", config.endpoints.join(","), config.prefix);
    let config = config.clone();
    RemoteRegistry::start(description, place, move |seat| serve(config, seat))
}

async fn serve(config: EtcdConfig, mut seat: Seat) -> Ended {
    let mut visitor = Visitor::new(&config);
    let mut failures = 0;
    for endpoint in config.endpoints.iter().cycle() {
        let start = Instant::now();
        let end = visitor.visit(endpoint, &mut seat).await;
        if start.elapsed() > LONG_VISIT {
            failures = 0;
        }
        let pause = match end {
            End::Ended => return Ended,
            End::Relist => FIRST_PAUSE,
            End::Lost(reason) => {
                debug!(endpoint, reason, "this visit has ended");
                // What ends a long visit is the first failure of none: another server is tried before anything is said.
                let is_first = start.elapsed() > LONG_VISIT;
                failures += usize::from(!is_first);
                let reason = format!("{endpoint}: {reason}");
                if failures >= config.endpoints.len()
                    && visitor.report_lost(&seat, reason).await.is_err()
                {
                    return Ended;
                }
                if is_first {
                    FIRST_PAUSE
                } else {
                    pause(failures)
                }
            }
        };
        match wait(pause, &mut seat, &mut visitor).await {
            Ok(()) => {}
            Err(Ended) => return Ended,
        }
    }
    Ended
}

/// Waits between two visits, shorter where the operator asks to read everything again.
async fn wait(pause: Duration, seat: &mut Seat, visitor: &mut Visitor) -> Result<(), Ended> {
    let end = sleep(pause);
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => return Ok(()),
            asked = seat.asked() => match asked? {
                Asked::Announcement => visitor.announced(seat).await?,
                Asked::Reread => return Ok(()),
            },
        }
    }
}

/// Doubles with each failure. Half of it is random, so that nodes which lost the same server do not return in step.
fn pause(failures: usize) -> Duration {
    let doubled = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    let longest = FIRST_PAUSE.saturating_mul(1u32.checked_shl(doubled.min(16)).unwrap_or(1));
    let longest = longest.min(LONGEST_PAUSE);
    let part = u32::try_from(random() % 1000).unwrap_or(0);
    longest / 2 + longest / 2 * part / 1000
}

fn random() -> u64 {
    RandomState::new().hash_one(())
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// A server that returns is found within five seconds, the time of one attempt included.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// A visit that lasts longer has been of use.
const LONG_VISIT: Duration = Duration::from_secs(30);
/// How long changes wait for further ones before they are reported, after a quiet time.
const DEBOUNCE: Duration = Duration::from_millis(20);
