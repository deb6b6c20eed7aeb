//! The underlay ports: sockets taken over or opened, and moved when the node's address moves.
//!
//! Theory of operation. A node has a socket for each worker and format at its address of each family, and beside that of
//! VXLAN a few that only send: a flow leaves through one of them, so that its outer source port is its own. *Wanted* are
//! the addresses that the configuration and the list of nodes say, *bound* those that the sockets have. The two differ only
//! while a wanted address cannot be had: then the sockets of that family stay where they are, and the status says so. A
//! take-over is the same step, from the sockets that the keeper held, for as many workers as there are now: those of
//! further ones are closed, here and in the keeper, and missing ones join their group, even while the host has not its
//! address. Both before anybody reads.
//!
//! A socket outlives its address: nothing leaves or arrives while no interface has it, and all goes on when one has it
//! again. So only another address is a reason to move, or another port: while the kernel path is in use, VXLAN over IPv4
//! arrives at a port of ours, because a device of the kernel has the format's. The sockets of the other port are opened
//! and given to the keeper under names of their own first ([`NEXT`]), then the kernel path sends there what arrives, then
//! the workers have read the old ones to the end and get the new ones. A service that dies in between leaves both, and the
//! next one goes on from there.
//! The new sockets of a family are opened first, all of them. Then
//! the workers get them, and the keeper, under the names of the old ones. With the last duplicate the old address is
//! dead: the kernel refuses what comes there.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use dataplane::families::PublicAddresses;
use dataplane::underlay::socket::{
    self, ReceiveQueue, SocketSpec, Sockets, UnderlayError, kernel_backlog, receive_queue,
};
use encap::{Family, Format};
use tracing::{info, warn};

use super::slot::{ReceivePorts, SocketSlot, slots};
use crate::config::Backend;
use crate::keeper::descriptors::{Descriptors, DescriptorsError};

pub(crate) use super::delay::Delay;

/// The node's underlay sockets, a duplicate of each beside the worker's.
#[derive(Clone, Debug)]
pub struct UnderlaySockets {
    /// How many workers share them.
    workers: usize,
    ports: Vec<Arc<OwnSocket>>,
}

/// Sockets that receive, without a share in them.
#[derive(Clone, Debug)]
pub struct ReceivingSockets(Vec<Weak<OwnSocket>>);

/// What the keeper held.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// The sockets that were read.
    pub(crate) sockets: UnderlaySockets,
    /// Where a move to another port was interrupted: the sockets as they were to be.
    pub(crate) next: Option<UnderlaySockets>,
}

#[derive(Debug)]
struct OwnSocket {
    spec: SocketSpec,
    worker: usize,
    socket: OwnedFd,
}

impl UnderlaySockets {
    /// No sockets yet, of a node with so many workers.
    pub(crate) fn none(workers: usize) -> UnderlaySockets {
        UnderlaySockets {
            workers,
            ports: Vec::new(),
        }
    }

    /// The sockets of the keeper's table for so many workers, whatever address they have, VXLAN over IPv4 at the port of
    /// `ports` or at `private`. Those of further workers stay in the table.
    ///
    /// # Errors
    /// [`DescriptorsError`] when the keeper is gone.
    pub(crate) async fn inherit(
        table: &mut Descriptors,
        ports: ReceivePorts,
        private: u16,
        workers: usize,
    ) -> Result<Inherited, DescriptorsError> {
        let mut sockets = UnderlaySockets::none(workers);
        let mut opened = Vec::new();
        for slot in slots().flat_map(|port| port.slots(workers)) {
            let name = slot.name();
            let at = |socket: &OwnedFd| {
                let private = slot
                    .may_be_private()
                    .then(|| ports.with_private(Some(private)));
                let bound = |ports| slot.bound(socket, ports);
                bound(ports).or_else(|| private.and_then(bound))
            };
            let next = format!("{NEXT}{name}");
            for name in [name, next] {
                let Some(socket) = table.take(&name) else {
                    continue;
                };
                let Some(spec) = at(&socket) else {
                    warn!(name, "not taken over: it is bound to something else");
                    table.withdraw(&name).await?;
                    continue;
                };
                let port = Arc::new(OwnSocket {
                    spec,
                    worker: slot.worker,
                    socket,
                });
                match name.starts_with(NEXT) {
                    true => opened.push(port),
                    false => sockets.ports.push(port),
                }
            }
        }
        sockets.with_opened(opened, table).await
    }

    /// Sorts out what an interrupted move to another port left: the group that was opened for it.
    async fn with_opened(
        mut self,
        opened: Vec<Arc<OwnSocket>>,
        table: &Descriptors,
    ) -> Result<Inherited, DescriptorsError> {
        let at = opened.first().map(|port| port.spec);
        let is_whole =
            opened.len() == self.workers && opened.iter().all(|port| Some(port.spec) == at);
        let has_begun = self.ports.iter().any(|port| Some(port.spec) == at);
        let mut next = None;
        if is_whole {
            let mut moved = self.clone();
            moved.ports.retain(|port| !port.is_private_slot());
            moved.ports.extend(opened.iter().cloned());
            if has_begun {
                moved.deposit(&self, table).await?;
                self = moved;
            } else {
                next = Some(moved);
                return Ok(Inherited {
                    sockets: self,
                    next,
                });
            }
        }
        for port in &opened {
            table.withdraw(&format!("{NEXT}{}", port.name())).await?;
        }
        Ok(Inherited {
            sockets: self,
            next,
        })
    }

    /// The ports at which these sockets receive, where `backend` has those of the formats.
    pub(crate) fn receive_ports(&self, backend: &Backend) -> ReceivePorts {
        ReceivePorts::of(backend).with_private(self.private_port(backend))
    }

    /// The port at which VXLAN over IPv4 arrives, if it is not the format's.
    pub(crate) fn private_port(&self, backend: &Backend) -> Option<u16> {
        let mut receiving = self.ports.iter().filter(|port| port.is_private_slot());
        let port = receiving.next()?.spec.port;
        (port != backend.vxlan_port()).then_some(port)
    }

    /// Whether any of them receives VXLAN over IPv4.
    pub(crate) fn receives_vxlan4(&self) -> bool {
        self.ports.iter().any(|port| port.is_private_slot())
    }

    /// The same sockets, but those that receive VXLAN over IPv4 opened at the port of `ports`.
    ///
    /// # Errors
    /// [`UnderlayError`] when the kernel refuses one.
    pub(crate) fn at_port(&self, ports: ReceivePorts) -> Result<UnderlaySockets, UnderlayError> {
        let mut next = self.clone();
        let Some(address) = self
            .of_family(Family::V4)
            .map(|port| port.spec.address)
            .next()
        else {
            return Ok(next);
        };
        next.ports.retain(|port| !port.is_private_slot());
        let there = next.at(address, &[address], ports)?;
        next.ports.retain(|port| port.spec.address != address);
        next.ports.extend(there);
        Ok(next)
    }

    /// Gives the keeper the sockets that are not among `before`, beside the ones of the same place, which it has.
    ///
    /// # Errors
    /// [`DescriptorsError`] when the keeper is gone.
    pub(crate) async fn deposit_next(
        &self,
        before: &UnderlaySockets,
        table: &Descriptors,
    ) -> Result<(), DescriptorsError> {
        for port in self.ports.iter().filter(|port| !before.has(port)) {
            let name = format!("{NEXT}{}", port.name());
            table.deposit(&name, port.socket.as_fd()).await?;
            info!(name, address = %port.spec.address, port = port.spec.port, "opened");
        }
        Ok(())
    }

    /// Whether the workers have read all that came to the sockets that receive VXLAN over IPv4.
    pub(crate) fn are_drained(&self) -> bool {
        let mut receiving = self.ports.iter().filter(|port| port.is_private_slot());
        receiving.all(|port| rustix::io::ioctl_fionread(&port.socket).is_ok_and(|bytes| bytes == 0))
    }

    /// Has the keeper forget what [`deposit_next`](UnderlaySockets::deposit_next) gave it.
    ///
    /// # Errors
    /// [`DescriptorsError`] when the keeper is gone.
    pub(crate) async fn withdraw_next(&self, table: &Descriptors) -> Result<(), DescriptorsError> {
        for port in self.ports.iter().filter(|port| port.is_private_slot()) {
            table.withdraw(&format!("{NEXT}{}", port.name())).await?;
        }
        Ok(())
    }

    /// The sockets as they should be at `wanted`, as far as they can be had: those that are there, others opened at an
    /// address of `held`, the host's, and those of a family that cannot move yet as they are; why the first cannot.
    pub(crate) fn follow(
        &self,
        wanted: PublicAddresses,
        held: &[IpAddr],
        ports: ReceivePorts,
    ) -> (UnderlaySockets, Option<Delay>) {
        let (mut sockets, mut delay) = (UnderlaySockets::none(self.workers), None);
        for address in wanted.iter() {
            match self.at(address, held, ports) {
                Ok(there) => sockets.ports.extend(there),
                Err(error) => {
                    let kept = self.kept(Family::of(address), held, ports);
                    let at = kept.first().map(|port| port.spec.address);
                    delay.get_or_insert(Delay { error, kept: at });
                    sockets.ports.extend(kept);
                }
            }
        }
        if sockets.ports.is_empty() {
            // An address that is no longer configured is better than none.
            for family in [Family::V4, Family::V6] {
                sockets.ports.extend(self.kept(family, held, ports));
            }
        }
        (sockets, delay)
    }

    /// The sockets of a family where they are, one for every worker, as far as they can be had.
    fn kept(&self, family: Family, held: &[IpAddr], ports: ReceivePorts) -> Vec<Arc<OwnSocket>> {
        let there: Vec<_> = self.of_family(family).cloned().collect();
        let address = there.first().map(|port| port.spec.address);
        let whole = address.and_then(|address| self.at(address, held, ports).ok());
        whole.unwrap_or(there)
    }

    /// All sockets at `address`, or none.
    fn at(
        &self,
        address: IpAddr,
        held: &[IpAddr],
        ports: ReceivePorts,
    ) -> Result<Vec<Arc<OwnSocket>>, UnderlayError> {
        let family = Family::of(address);
        let mut there = Vec::new();
        for group in slots().filter(|group| group.port.family == family) {
            let spec = group.spec(address, ports);
            let found = |worker| {
                let mut ours = self.ports.iter();
                ours.find(|port| port.worker == worker && port.spec == spec)
            };
            let mut group: Vec<_> = (0..self.workers).filter_map(found).cloned().collect();
            for port in &group {
                port.share(self.workers)?;
            }
            for worker in 0..self.workers {
                if found(worker).is_some() {
                    continue;
                }
                // A host may allow to bind what it does not have (net.ipv4.ip_nonlocal_bind). Beside one that was bound
                // when the host had it, the others have their place all the same.
                if group.is_empty() && !held.contains(&address) {
                    return Err(UnderlayError::NotOurAddress(spec));
                }
                let socket = match (spec.lane, group.is_empty()) {
                    (Some(_), _) => socket::bind_transmit(&spec, worker)?,
                    (None, true) => socket::bind(&spec)?,
                    (None, false) => socket::bind_in_group(&spec)?,
                };
                let port = OwnSocket {
                    spec,
                    worker,
                    socket,
                };
                port.share(self.workers)?;
                group.push(Arc::new(port));
            }
            there.extend(group);
        }
        Ok(there)
    }

    fn of_family(&self, family: Family) -> impl Iterator<Item = &Arc<OwnSocket>> {
        let family = move |port: &&Arc<OwnSocket>| Family::of(port.spec.address) == family;
        self.ports.iter().filter(family)
    }

    /// The addresses that the sockets have; `None` without any.
    pub(crate) fn bound(&self) -> Option<PublicAddresses> {
        PublicAddresses::collect(self.ports.iter().map(|port| port.spec.address))
    }

    /// Whether these are the same sockets.
    pub(crate) fn are(&self, others: &UnderlaySockets) -> bool {
        let (ours, theirs) = (&self.ports, &others.ports);
        ours.len() == theirs.len() && ours.iter().all(|port| others.has(port))
    }

    fn has(&self, port: &Arc<OwnSocket>) -> bool {
        self.ports.iter().any(|ours| Arc::ptr_eq(ours, port))
    }

    /// Duplicates for the workers, a set for each, which will share what comes as they should.
    ///
    /// # Errors
    /// [`UnderlayError`] when the kernel refuses a descriptor or an option.
    pub(crate) fn duplicates(&self) -> Result<Vec<Sockets>, UnderlayError> {
        self.spread();
        let duplicate = |port: &Arc<OwnSocket>| match port.socket.try_clone() {
            Ok(socket) => Ok((socket, port.spec)),
            Err(error) => Err(UnderlayError::Kernel(port.spec, error)),
        };
        let of = |worker| self.ports.iter().filter(move |port| port.worker == worker);
        let set = |worker| {
            let set: Result<Vec<_>, _> = of(worker).map(duplicate).collect();
            Sockets::adopt(set?)
        };
        (0..self.workers).map(set).collect()
    }

    /// Has each worker get an equal share of what comes to VXLAN's ports.
    fn spread(&self) {
        let receives = |port: &&Arc<OwnSocket>| {
            port.worker == 0 && port.spec.lane.is_none() && port.spec.format == Format::Vxlan
        };
        for port in self.ports.iter().filter(receives) {
            let family = Family::of(port.spec.address);
            let spread =
                socket::select_by_source_port(port.socket.as_fd(), family, self.workers as u32);
            // A single worker's socket is in no group.
            if let Err(error) = spread
                && self.workers > 1
            {
                let name = port.name();
                warn!(name, %error, "cannot set the flow distribution; the kernel distributes flows, unevenly");
            }
        }
    }

    /// Gives the keeper those that are not among `before`, which it has, and takes back what has no successor here.
    ///
    /// # Errors
    /// [`DescriptorsError`] when the keeper is gone.
    pub(crate) async fn deposit(
        &self,
        before: &UnderlaySockets,
        table: &Descriptors,
    ) -> Result<(), DescriptorsError> {
        for port in self.ports.iter().filter(|port| !before.has(port)) {
            // One of that name that the keeper has is closed there.
            table.deposit(&port.name(), port.socket.as_fd()).await?;
            info!(name = port.name(), address = %port.spec.address, "opened");
        }
        let names: Vec<String> = self.ports.iter().map(|port| port.name()).collect();
        let gone = |port: &&Arc<OwnSocket>| !names.contains(&port.name());
        for port in before.ports.iter().filter(gone) {
            table.withdraw(&port.name()).await?;
            info!(name = port.name(), "closed");
        }
        Ok(())
    }

    /// Those that receive, for counters of them: a reader of counters keeps no socket open.
    pub(crate) fn receiving(&self) -> ReceivingSockets {
        let receiving = self.ports.iter().filter(|port| port.spec.lane.is_none());
        ReceivingSockets(receiving.map(Arc::downgrade).collect())
    }
}

impl ReceivingSockets {
    /// What waits at each and was dropped there, with its name.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (String, io::Result<ReceiveQueue>)> {
        let open = self.0.iter().filter_map(Weak::upgrade);
        open.map(|socket| (socket.name(), receive_queue(socket.socket.as_fd())))
    }

    /// Of each the name, the worker that reads it, and the bytes that wait in it and may wait at most.
    pub(crate) fn backlogs(&self) -> impl Iterator<Item = (String, usize, io::Result<(u32, u32)>)> {
        let open = self.0.iter().filter_map(Weak::upgrade);
        open.map(|socket| {
            let backlog = kernel_backlog(socket.socket.as_fd());
            (socket.name(), socket.worker, backlog)
        })
    }
}

impl OwnSocket {
    /// Whether it receives VXLAN over IPv4.
    fn is_private_slot(&self) -> bool {
        SocketSlot::of(&self.spec, self.worker).may_be_private()
    }

    fn name(&self) -> String {
        SocketSlot::of(&self.spec, self.worker).name()
    }

    /// A receive socket may be shared with other workers' sockets if there are several workers, otherwise with none.
    fn share(&self, workers: usize) -> Result<(), UnderlayError> {
        if self.spec.lane.is_some() {
            return Ok(());
        }
        let shared = socket::set_group_open(self.socket.as_fd(), workers > 1);
        shared.map_err(|error| UnderlayError::Kernel(self.spec, error))
    }
}

/// In front of the name, in the keeper's table, of a socket that is to take the place of the one of that name.
pub(super) const NEXT: &str = "next-";

#[cfg(test)]
mod tests;
