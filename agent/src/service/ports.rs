//! The underlay ports: sockets taken over or opened, and moved when the node's address moves.
//!
//! Theory of operation. A node has a socket for each format at its address of each family. *Wanted* are the addresses
//! that the configuration and the list of nodes say, *bound* those that the sockets have. The two differ only while a
//! wanted address cannot be had: then the sockets of that family stay where they are, and the status says so. A
//! take-over is the same step, from the sockets that the keeper held.
//!
//! A socket outlives its address: nothing leaves or arrives while no interface has it, and all goes on when one has it
//! again. So only another address is a reason to move. The new sockets of a family are opened first, all of them. Then
//! the workers get them, and the keeper, under the names of the old ones. With the last duplicate the old address is
//! dead: the kernel refuses what comes there.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use dataplane::families::PublicAddresses;
use dataplane::underlay;
use dataplane::underlay::socket::{self, SocketSpec, Sockets, UnderlayError};
use encap::{Family, Format};
use tracing::{info, warn};

use super::descriptors::{Descriptors, DescriptorsError};
use crate::config::Backend;
use crate::host::Host;
use crate::lease::Lease;

/// The node's underlay sockets, a duplicate of each beside the worker's.
#[derive(Clone, Debug, Default)]
pub struct Ports(Vec<Arc<Port>>);

#[derive(Debug)]
struct Port {
    spec: SocketSpec,
    socket: OwnedFd,
}

/// Why the sockets of a family are not where they should be.
#[derive(Debug)]
pub(super) struct Delay {
    /// What could not be had.
    error: UnderlayError,
    /// Where the family is bound meanwhile.
    kept: Option<IpAddr>,
}

impl Ports {
    /// The sockets of the keeper's table, whatever address they have.
    ///
    /// # Errors
    /// [`DescriptorsError`] when the keeper is gone.
    pub(super) async fn inherit(
        table: &mut Descriptors,
        backend: &Backend,
    ) -> Result<Ports, DescriptorsError> {
        let mut ports = Ports::default();
        for place in underlay::Port::ALL {
            let name = name(place);
            let Some(socket) = table.take(&name) else {
                continue;
            };
            match bound(&socket, place, backend) {
                Some(spec) => ports.0.push(Arc::new(Port { spec, socket })),
                None => {
                    warn!(name, "not taken over: it is bound to something else");
                    table.withdraw(&name).await?;
                }
            }
        }
        Ok(ports)
    }

    /// The sockets as they should be at `wanted`, as far as they can be had: those that are there, others opened at an
    /// address of `held`, the host's, and those of a family that cannot move yet as they are; why the first cannot.
    pub(super) fn follow(
        &self,
        wanted: PublicAddresses,
        held: &[IpAddr],
        backend: &Backend,
    ) -> (Ports, Option<Delay>) {
        let (mut ports, mut delay) = (Ports::default(), None);
        for address in wanted.iter() {
            match self.at(address, held, backend) {
                Ok(there) => ports.0.extend(there),
                Err(error) => {
                    let kept: Vec<_> = self.of_family(Family::of(address)).cloned().collect();
                    let at = kept.first().map(|port| port.spec.address);
                    delay.get_or_insert(Delay { error, kept: at });
                    ports.0.extend(kept);
                }
            }
        }
        if ports.0.is_empty() {
            // Better at an address that nobody wants any more than nowhere.
            ports = self.clone();
        }
        (ports, delay)
    }

    /// Both formats' sockets at `address`, or neither.
    fn at(
        &self,
        address: IpAddr,
        held: &[IpAddr],
        backend: &Backend,
    ) -> Result<Vec<Arc<Port>>, UnderlayError> {
        let port = |format| {
            let spec = spec(address, format, backend);
            match self.0.iter().find(|port| port.spec == spec) {
                Some(port) => Ok(Arc::clone(port)),
                // A host may allow to bind what it does not have (net.ipv4.ip_nonlocal_bind).
                None if !held.contains(&address) => Err(UnderlayError::NotOurAddress(spec)),
                None => {
                    let socket = socket::bind(&spec)?;
                    Ok(Arc::new(Port { spec, socket }))
                }
            }
        };
        [Format::Udp, Format::Vxlan].into_iter().map(port).collect()
    }

    fn of_family(&self, family: Family) -> impl Iterator<Item = &Arc<Port>> {
        let family = move |port: &&Arc<Port>| Family::of(port.spec.address) == family;
        self.0.iter().filter(family)
    }

    /// The addresses that the sockets have; `None` without any.
    pub(super) fn bound(&self) -> Option<PublicAddresses> {
        PublicAddresses::collect(self.0.iter().map(|port| port.spec.address))
    }

    /// Whether these are the same sockets.
    pub(super) fn are(&self, others: &Ports) -> bool {
        self.0.len() == others.0.len() && self.0.iter().all(|port| others.has(port))
    }

    fn has(&self, port: &Arc<Port>) -> bool {
        self.0.iter().any(|ours| Arc::ptr_eq(ours, port))
    }

    /// Duplicates for the workers, a set for each.
    ///
    /// # Errors
    /// [`UnderlayError`] when the kernel refuses a descriptor or an option.
    pub(super) fn sockets(&self) -> Result<Vec<Sockets>, UnderlayError> {
        let duplicate = |port: &Arc<Port>| match port.socket.try_clone() {
            Ok(socket) => Ok((socket, port.spec)),
            Err(error) => Err(UnderlayError::Kernel(port.spec, error)),
        };
        let set: Result<Vec<_>, _> = self.0.iter().map(duplicate).collect();
        Ok(vec![Sockets::adopt(set?)?])
    }

    /// Gives the keeper those that are not among `before`, which it has, and takes back what has no successor here.
    ///
    /// # Errors
    /// [`DescriptorsError`] when the keeper is gone.
    pub(super) async fn deposit(
        &self,
        before: &Ports,
        table: &Descriptors,
    ) -> Result<(), DescriptorsError> {
        for port in self.0.iter().filter(|port| !before.has(port)) {
            // One of that name that the keeper has is closed there.
            table.deposit(&port.name(), port.socket.as_fd()).await?;
            info!(name = port.name(), address = %port.spec.address, "opened");
        }
        let names: Vec<String> = self.0.iter().map(|port| port.name()).collect();
        for port in before.0.iter().filter(|port| !names.contains(&port.name())) {
            table.withdraw(&port.name()).await?;
            info!(name = port.name(), "closed");
        }
        Ok(())
    }

    /// Each socket with its name.
    pub(super) fn each(&self) -> impl Iterator<Item = (String, BorrowedFd<'_>)> {
        self.0.iter().map(|port| (port.name(), port.socket.as_fd()))
    }
}

impl Port {
    fn name(&self) -> String {
        name(self.spec.underlay_port())
    }
}

impl Delay {
    /// The delay in words, with the node that has the address which ours is to leave: nothing can go to it until then.
    pub(super) fn told(&self, leases: &[Lease], own: &Lease) -> String {
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
    pub(super) fn name(&self) -> String {
        name(self.error.spec().underlay_port())
    }

    /// The sentence, with who holds the port where that can be found out. It looks into every process: for a start,
    /// not for every turn of the loop.
    pub(super) async fn with_holder(&self, host: &Host) -> String {
        let UnderlayError::PortTaken(SocketSpec {
            address,
            port,
            format,
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

/// Its name in the keeper's table: one worker has all.
fn name(place: underlay::Port) -> String {
    let family = match place.family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    };
    format!("receive-{}-{family}-0", place.format)
}

fn spec(address: IpAddr, format: Format, backend: &Backend) -> SocketSpec {
    SocketSpec {
        address,
        port: match format {
            Format::Udp => backend.udp_port(),
            Format::Vxlan => backend.vxlan_port(),
        },
        format,
    }
}

/// What an inherited socket is bound to, if that can be the node's own port of this place.
fn bound(socket: &OwnedFd, place: underlay::Port, backend: &Backend) -> Option<SocketSpec> {
    let found = rustix::net::getsockname(socket).map_err(io::Error::from);
    let found = SocketAddr::try_from(found.ok()?).ok()?;
    let spec = spec(found.ip(), place.format, backend);
    let right = found.port() == spec.port && spec.underlay_port() == place;
    (right && !found.ip().is_unspecified()).then_some(spec)
}

#[cfg(test)]
mod tests;
