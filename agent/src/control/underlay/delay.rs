//! Why sockets are not where they should be, in words.

use std::net::{IpAddr, SocketAddr};

use dataplane::underlay::socket::{SocketSpec, UnderlayError};

use super::slot::Place;
use crate::host::Host;
use crate::lease::Lease;

/// Why the sockets of a family are not where they should be.
#[derive(Debug)]
pub(crate) struct Delay {
    /// What could not be had.
    pub(crate) error: UnderlayError,
    /// Where the family is bound meanwhile.
    pub(crate) kept: Option<IpAddr>,
}

impl Delay {
    /// The delay in words, with the node that has the address which ours is to leave: nothing can go to it until then.
    pub(crate) fn told(&self, leases: &[Lease], own: &Lease) -> String {
        let mut others = leases.iter().filter(|lease| lease.name != own.name);
        let mut taken = |kept| others.find(|lease| lease.public.contains(kept));
        match self.kept.and_then(|kept| Some((kept, taken(kept)?))) {
            Some((kept, next)) => format!(
                "{self}; until then {} is not reached, which {kept} belongs to now",
                next.name
            ),
            None => self.to_string(),
        }
    }

    /// Its name in the keeper's table.
    pub(crate) fn name(&self) -> String {
        Place::of(self.error.spec(), 0).name()
    }

    /// The sentence, with who holds the port where that can be found out. It looks into every process: for a start,
    /// not for every turn of the loop.
    pub(crate) async fn with_holder(&self, host: &Host) -> String {
        let UnderlayError::PortTaken(SocketSpec {
            address,
            port,
            format,
            lane: _,
        }) = self.error
        else {
            return self.to_string();
        };
        match host.port_holder(SocketAddr::new(address, port)).await {
            None => self.to_string(),
            Some(holder) => {
                format!("UDP port {port} of {address} (format {format}) is taken: {holder}")
            }
        }
    }
}

impl std::fmt::Display for Delay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let wanted = self.error.spec().address;
        match (&self.error, self.kept) {
            (error, None) => error.fmt(f),
            (UnderlayError::NotOurAddress(_), Some(kept)) => write!(
                f,
                "this node's underlay address is {wanted} now, which no interface of this host has: packets still leave \
                 from and arrive at {kept}; give {wanted} to an interface, or correct this node's entry"
            ),
            (error, Some(kept)) => write!(
                f,
                "this node's underlay address is {wanted} now, and packets still leave from and arrive at {kept}: {error}"
            ),
        }
    }
}
