//! What the kernel does after it has acknowledged a request, and without which a
//! pod cannot be reached.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Error;
use crate::inventory;
use crate::netlink::Netlink;

/// Waits until the pod takes its IPv6 addresses for its own. The kernel makes
/// their routes in a work queue behind the RTNL, those of addresses that skip
/// duplicate detection too (net/ipv6/addrconf.c, `addrconf_dad_start`); what
/// packets that come before, the pod takes for another host's.
pub(super) fn wait_for_addresses(
    pod: &mut Netlink,
    addresses: impl Iterator<Item = IpAddr>,
) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    for address in addresses.filter(IpAddr::is_ipv6) {
        while !inventory::is_own(pod, address)? {
            if Instant::now() >= deadline {
                return Err(Error::NotOwn { address });
            }
            std::thread::sleep(STEP);
        }
    }
    Ok(())
}

/// Far longer than the work queue ever is behind.
const PATIENCE: Duration = Duration::from_secs(5);

/// The kernel is done at the first check, or after a few of these.
const STEP: Duration = Duration::from_micros(200);
