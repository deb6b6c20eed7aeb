//! Interfaces of pods that are being removed, for the plugin.
//!
//! Theory of operation. Whoever tells the kernel to remove an interface waits until nobody reads it any more: two RCU
//! grace periods, tens of milliseconds, though it is gone from every table after one. The plugin would keep the
//! container runtime waiting so long. So it asks the agent, a thread of which waits instead, and goes on when the
//! interface is gone. There are as many such threads as cores: whom they have no time for removes by itself, as without
//! an agent. So a node that is drained goes at the kernel's pace, and its removals do not crowd out the pods that come.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;

use cni_shim::Attachment;
use cni_shim::netlink::{self, Netlink};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tracing::debug;

use crate::causes::causes;

/// Who waits.
#[derive(Debug)]
pub(super) struct Removals {
    seats: Arc<Semaphore>,
}

impl Default for Removals {
    fn default() -> Removals {
        Removals {
            seats: Arc::new(Semaphore::new(
                available_parallelism().map_or(1, NonZero::get),
            )),
        }
    }
}

impl Removals {
    /// Begins to remove the interface of that index, if it is one of the attachment's. False when nobody has time.
    pub(super) fn begin(&self, attachment: &Attachment, index: u32) -> bool {
        let Ok(seat) = Arc::clone(&self.seats).try_acquire_owned() else {
            return false;
        };
        let names = [attachment.host_ifname.clone(), attachment.limiter_ifname()];
        drop(spawn_blocking(move || {
            if let Err(error) = remove(&names, index) {
                // The plugin looks whether it is gone, and has the last word.
                debug!("cannot remove an interface: {}", causes(&error));
            }
            drop(seat);
        }));
        true
    }
}

/// Nobody's interface but the attachment's, whatever index we were told.
fn remove(names: &[String], index: u32) -> Result<(), netlink::Error> {
    let mut netlink = Netlink::open()?;
    for name in names {
        if netlink.link(name)?.is_some_and(|link| link.index == index) {
            return netlink.remove_link(index);
        }
    }
    Ok(())
}
