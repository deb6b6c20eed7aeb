//! Why sockets are not where they should be.

use std::net::{IpAddr, SocketAddr};

use dataplane::underlay::socket::{SocketSpec, UnderlayError};

use crate::host::{Host, PortHolder};
use crate::lease::Lease;
use crate::problems::{Problem, UnderlayFault};

/// Why the sockets of a family are not where they should be.
#[derive(Debug)]
pub(crate) struct Delay {
    /// What could not be had.
    pub(crate) error: UnderlayError,
    /// Where the family is bound meanwhile.
    pub(crate) kept: Option<IpAddr>,
}

impl Delay {
    /// The delay as a problem, with the node that has the address which ours is to leave: no packet can go to that node
    /// until the sockets move. `holder` has the port, where that was looked up.
    pub(crate) fn problem(
        &self,
        leases: &[Lease],
        own_name: &str,
        holder: Option<PortHolder>,
    ) -> Problem {
        let mut others = leases.iter().filter(|lease| lease.name != own_name);
        let owner = self
            .kept
            .and_then(|kept| others.find(|lease| lease.public.contains(kept)));
        Problem::UnderlaySocket {
            wanted: *self.error.spec(),
            fault: match &self.error {
                UnderlayError::NotOurAddress(_) => UnderlayFault::NotOnHost,
                UnderlayError::PortTaken(_) => UnderlayFault::PortTaken(holder),
                UnderlayError::Kernel(_, error) => UnderlayFault::Refused(error.to_string()),
                UnderlayError::Foreign { .. } => UnderlayFault::Refused(self.error.to_string()),
            },
            kept: self.kept,
            kept_is_of: owner.map(|lease| lease.name.clone()),
        }
    }

    /// Who has the port, where that can be found out. It reads every process: for a start, not for every turn of the loop.
    pub(crate) async fn holder(&self, host: &Host) -> Option<PortHolder> {
        let UnderlayError::PortTaken(SocketSpec { address, port, .. }) = self.error else {
            return None;
        };
        host.port_holder(SocketAddr::new(address, port)).await
    }
}
