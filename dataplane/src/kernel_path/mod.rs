//! The kernel path: BPF programs at the tunnel device, the underlay device and the pods' host ends that repeat what user
//! space decided, by tables that mirror the [`Spec`].
//!
//! Theory of operation: user space decides, the kernel may repeat. The programs (`dataplane/bpf/`) carry a packet only if
//! the tables say everything that user space would ask of it; whatever they do not know exactly they pass on, and user
//! space carries it as if there were no programs. Control makes the tables follow each spec ([`KernelPath::follow`]) in an
//! order that never admits more than the spec before or the one after (`mirror`). The tables have a *lease*: with
//! no service that moves it on the programs stop after [`KERNEL_PATH_LEASE`]. Flows that leave the host's stack out
//! are another thread's to decide ([`FlowTable`]); each names the epoch, and the generations of its peer and its pod,
//! in which it was judged, and ends with any of them: one write.
//!
//! Programs and tables outlive the service by their descriptors, which the keeper holds ([`KernelPath::descriptors`]), by
//! the filters that refer to them, and by pins in a BPF file system ([`Pins`]). The next service adopts them if they are of
//! the same object.

mod descriptors;
mod error;
mod events;
mod facts;
mod flows;
mod header;
mod kernel;
pub(crate) mod layout;
mod mirror;
mod object;
mod pins;
mod pods;
mod program;
mod reasons;
mod settings;
mod sizes;
mod tables;
mod traffic;

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::counters::Flow;
use crate::limits::KERNEL_PATH_LEASE;
use crate::spec::Spec;
use descriptors::Descriptors;
pub use error::KernelPathError;
pub use events::{Event, EventReader};
pub use facts::{Facts, PodEnd, PodFacts, TunnelFacts, UnderlayFacts};
pub use flows::{FlowEntry, FlowGrant, FlowKey, FlowTable, InstallError, Installed};
use kernel::KernelTables;
use layout::{DIRECTION_WORDS, ON, PRIVATE_PORT, SENT};
use mirror::Mirror;
pub use pins::Pins;
pub use program::{Program, program_id};
pub use reasons::PassReason;
pub use sizes::Sizes;
pub use traffic::{KernelPathTotals, PeerTraffic, PodTraffic, Traffic};

/// Programs and tables in the kernel, as the control thread holds them. They live as long as a filter or a descriptor
/// refers to them.
pub struct KernelPath {
    descriptors: Descriptors,
    tables: KernelTables,
    mirror: Mirror,
}

/// What [`KernelPath::follow`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Version of the spec that the tables mirror.
    pub version: u64,
    /// Entries written and removed.
    pub writes: usize,
    /// Peers of the spec.
    pub peers: usize,
    /// Peers that the programs may send to.
    pub sending: usize,
    /// Pods whose flows may leave the host's stack out.
    pub pods: usize,
}

impl KernelPath {
    /// Loads the programs, with new and empty tables, switched off.
    ///
    /// # Errors
    /// [`KernelPathError`]: no capability, no BPF, no memory, or the verifier's refusal.
    pub fn load(sizes: Sizes) -> Result<KernelPath, KernelPathError> {
        KernelPath::open(Descriptors::new(object::load(sizes)?)?)
    }

    /// Adopts what an earlier service deposited: the names and descriptors of [`KernelPath::descriptors`]. The tables stay
    /// as they are, and so does the switch.
    ///
    /// # Errors
    /// [`KernelPathError::OtherBuild`] if they are of another object than this service's;
    /// [`KernelPathError::Foreign`] if one is missing or not what its name says.
    pub fn adopt(held: Vec<(String, OwnedFd)>) -> Result<KernelPath, KernelPathError> {
        KernelPath::open(Descriptors::adopt(held)?)
    }

    fn open(descriptors: Descriptors) -> Result<KernelPath, KernelPathError> {
        let tables = KernelTables::open(&descriptors)?;
        let mirror = Mirror::read(&tables)?;
        Ok(KernelPath {
            descriptors,
            tables,
            mirror,
        })
    }

    /// Names and descriptors to deposit with the keeper.
    pub fn descriptors(&self) -> Vec<(String, BorrowedFd<'_>)> {
        self.descriptors.all()
    }

    /// The program, to attach it.
    pub fn program(&self, program: Program) -> BorrowedFd<'_> {
        self.descriptors.program(program)
    }

    /// What the tables were made for. A cluster that has outgrown it needs them loaded anew.
    pub fn sizes(&self) -> Sizes {
        self.tables.sizes()
    }

    /// Makes the tables mirror `spec` and `facts`. Only what differs is written, in an order in which at no moment a
    /// packet is admitted that neither the state before nor the state after admits.
    ///
    /// # Errors
    /// What the kernel gives, or [`KernelPathError::Full`]. The tables may then hold a part of the change; the programs
    /// are switched off. The next call writes what is left.
    pub fn follow(&mut self, spec: &Spec, facts: &Facts) -> Result<Followed, KernelPathError> {
        let followed = self.mirror.follow(&mut self.tables, spec, facts);
        if followed.is_err() {
            // The first error is the one to be told.
            let _ = self.switch_off();
        }
        followed
    }

    /// Moves the lease on: from `now`, on CLOCK_MONOTONIC, the programs act for [`KERNEL_PATH_LEASE`].
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn renew(&mut self, now: Duration) -> Result<(), KernelPathError> {
        let end = (now + KERNEL_PATH_LEASE).as_nanos();
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        let settings = &self.tables.settings;
        settings.change(|settings| settings.lease_end = end)?;
        Ok(())
    }

    /// Makes the programs pass every packet on, with one write. What goes to a private port still goes there. The next
    /// [`follow`](KernelPath::follow) switches on again, if its facts say so.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn switch_off(&mut self) -> Result<(), KernelPathError> {
        let settings = &self.tables.settings;
        settings.change(|settings| settings.flags &= PRIVATE_PORT)?;
        Ok(())
    }

    /// Has what the programs pass on go to that port; none: to the port of the format. Tables that have never followed a
    /// spec do not know our address, and so nothing that is to us. The next [`follow`](KernelPath::follow) goes by its facts.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn set_private_port(&mut self, port: Option<u16>) -> Result<(), KernelPathError> {
        let settings = &self.tables.settings;
        if let Some(port) = port {
            // Before the flag: a program may read the entry while it is written.
            settings.change(|settings| settings.private_port = port.to_be())?;
        }
        settings.change(|settings| {
            settings.flags &= !PRIVATE_PORT;
            if port.is_some() {
                settings.flags |= PRIVATE_PORT;
            }
        })?;
        Ok(())
    }

    /// Whether the programs may act, as long as the lease lasts.
    pub fn is_on(&self) -> bool {
        self.tables.settings.get().flags & ON != 0
    }

    /// Ends the epoch, with one write: no flow that was judged before is followed any more. Returns the new one.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn next_epoch(&mut self) -> Result<u32, KernelPathError> {
        self.tables.settings.next_epoch()
    }

    /// Ends every flow with the peer at that public address, with one write. Returns whether the tables have the peer.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn revoke_peer(&mut self, address: Ipv4Addr) -> Result<bool, KernelPathError> {
        self.mirror.revoke_peer(&mut self.tables, address)
    }

    /// Ends every flow of the pod at that address, with one write. Returns whether the tables have the pod.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn revoke_pod(&mut self, address: Ipv4Addr) -> Result<bool, KernelPathError> {
        self.mirror.revoke_pod(&mut self.tables, address)
    }

    /// What the programs counted, as one more worker.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn counters(&self) -> Result<KernelPathTotals, KernelPathError> {
        let words: Result<Vec<u64>, KernelPathError> = (0..2 * DIRECTION_WORDS)
            .map(|word| self.tables.counter(word))
            .collect();
        let words = words?;
        let flow = |first: u32| {
            Flow::of_words(|place| {
                let word = words.get(first as usize + place);
                word.copied().unwrap_or_default()
            })
        };
        Ok(KernelPathTotals {
            outbound: flow(0),
            inbound: flow(DIRECTION_WORDS),
        })
    }

    /// The public addresses of the peers that the programs may send to, as the tables have it: before the first
    /// [`KernelPath::follow`], as the service before left them.
    pub fn sendable(&self) -> HashSet<Ipv4Addr> {
        self.mirror.sendable()
    }

    /// Packets that the programs have sent, of all pods: one look at the tables.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn sent(&self) -> Result<u64, KernelPathError> {
        self.tables.counter(SENT)
    }

    /// Packets that the programs passed on, by reason, in the order of the reasons' numbers. A super-packet is one.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn passes(&self) -> Result<Vec<(PassReason, u64)>, KernelPathError> {
        let all = PassReason::ALL.into_iter();
        all.map(|reason| Ok((reason, self.tables.pass(reason as u32)?)))
            .collect()
    }

    /// What the programs carried for each peer.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn peer_traffic(&self) -> Result<Vec<PeerTraffic>, KernelPathError> {
        self.mirror.peer_traffic(&self.tables)
    }

    /// What the programs carried for each pod, in the order of their addresses.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn pod_traffic(&self) -> Result<Vec<PodTraffic>, KernelPathError> {
        self.mirror.pod_traffic(&self.tables)
    }

    /// A handle to the tables of flows.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn flows(&self) -> Result<FlowTable, KernelPathError> {
        FlowTable::open(&self.descriptors, &self.tables, self.tables.sizes())
    }
}
