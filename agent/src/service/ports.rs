//! The underlay ports: sockets taken over or opened, and moved when the node's address moves.
//!
//! Theory of operation. A node has a socket for each format at its address of each family, and beside that of VXLAN a few
//! that only send: a flow leaves through one of them, so that its outer source port is its own. *Wanted* are the addresses
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
use dataplane::limits::TRANSMIT_SOCKETS;
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
        for (place, lane) in places() {
            let name = name(place, lane);
            let Some(socket) = table.take(&name) else {
                continue;
            };
            match bound(&socket, place, lane, backend) {
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

    /// All sockets at `address`, or none.
    fn at(
        &self,
        address: IpAddr,
        held: &[IpAddr],
        backend: &Backend,
    ) -> Result<Vec<Arc<Port>>, UnderlayError> {
        let port = |(place, lane): (underlay::Port, _)| {
            let spec = spec(address, place.format, lane, backend);
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
        let family = Family::of(address);
        let here = places().filter(|(place, _)| place.family == family);
        here.map(port).collect()
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

    /// Each socket that receives, with its name.
    pub(super) fn each(&self) -> impl Iterator<Item = (String, BorrowedFd<'_>)> {
        let receiving = self.0.iter().filter(|port| port.spec.lane.is_none());
        receiving.map(|port| (port.name(), port.socket.as_fd()))
    }
}

impl Port {
    fn name(&self) -> String {
        name(self.spec.underlay_port(), self.spec.lane)
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
        let spec = self.error.spec();
        name(spec.underlay_port(), spec.lane)
    }

    /// The sentence, with who holds the port where that can be found out. It looks into every process: for a start,
    /// not for every turn of the loop.
    pub(super) async fn with_holder(&self, host: &Host) -> String {
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

/// Every socket that there can be: a port, or the number of one of its transmit sockets.
fn places() -> impl Iterator<Item = (underlay::Port, Option<usize>)> {
    // The `udp` format first, as ever: where it cannot be had, that is what the status says.
    let ports = underlay::Port::ALL.into_iter().rev();
    ports.flat_map(|port| {
        let lanes = match port.format {
            Format::Udp => 0,
            Format::Vxlan => TRANSMIT_SOCKETS,
        };
        let transmit = (0..lanes).map(move |lane| (port, Some(lane)));
        [(port, None)].into_iter().chain(transmit)
    })
}

/// Its name in the keeper's table: one worker has all.
fn name(place: underlay::Port, lane: Option<usize>) -> String {
    let family = match place.family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    };
    let format = place.format;
    match lane {
        None => format!("receive-{format}-{family}-0"),
        Some(lane) => format!("transmit-{format}-{family}-0-{lane}"),
    }
}

fn spec(address: IpAddr, format: Format, lane: Option<usize>, backend: &Backend) -> SocketSpec {
    SocketSpec {
        address,
        port: match (lane, format) {
            (Some(_), _) => 0,
            (None, Format::Udp) => backend.udp_port(),
            (None, Format::Vxlan) => backend.vxlan_port(),
        },
        format,
        lane,
    }
}

/// What an inherited socket is bound to, if that can be the node's own of this place.
fn bound(
    socket: &OwnedFd,
    place: underlay::Port,
    lane: Option<usize>,
    backend: &Backend,
) -> Option<SocketSpec> {
    let found = rustix::net::getsockname(socket).map_err(io::Error::from);
    let found = SocketAddr::try_from(found.ok()?).ok()?;
    let spec = spec(found.ip(), place.format, lane, backend);
    let port = found.port() == spec.port || lane.is_some();
    let right = port && spec.underlay_port() == place;
    (right && !found.ip().is_unspecified()).then_some(spec)
}

#[cfg(test)]
mod tests;
