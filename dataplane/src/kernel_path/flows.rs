//! The flows that leave the host's stack out.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, MapData, MapError};

use super::descriptors::Descriptors;
use super::events::EventReader;
use super::kernel::{KernelTables, absent_is_removed, is_absent};
use super::layout::{
    self, FLOW_DIRECT_TCP, FLOWS, LOCAL_OURS, PEER_RECEIVE, PEER_SEND, Peer, address, be,
};
use super::pods::PodTable;
use super::settings::SettingsTable;
use super::{KernelPathError, Sizes, header, object};
use crate::drops::Direction;
use crate::sys::sockopt::attach_filter;

/// The tables of flows, with descriptors of their own: a handle for the thread that decides which flows they hold.
/// Clones are handles to the same tables.
#[derive(Clone)]
pub struct FlowTable(Arc<Tables>);

struct Tables {
    settings: Arc<SettingsTable>,
    fib: LpmTrie<MapData, u32, u32>,
    local: LpmTrie<MapData, u32, u32>,
    peers: Array<MapData, Peer>,
    pods: Arc<PodTable>,
    outbound: Direct,
    inbound: Direct,
    /// To open the ring by.
    events: OwnedFd,
    /// To filter announcements of forgotten connections by.
    forgotten: OwnedFd,
}

/// The flows of one direction, for reading and, by a second descriptor, for writing.
struct Direct {
    name: &'static str,
    entries: u32,
    read: HashMap<MapData, layout::FlowKey, layout::Flow>,
    write: Mutex<HashMap<MapData, layout::FlowKey, layout::Flow>>,
}

/// A flow, as its packets have it in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// Inner source.
    pub source: Ipv4Addr,
    /// Inner destination.
    pub destination: Ipv4Addr,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// 6 (TCP) or 17 (UDP).
    pub protocol: u8,
}

/// Permission for one direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowGrant {
    /// Which way its packets go.
    pub direction: Direction,
    /// The flow.
    pub key: FlowKey,
    /// Public address of the peer at its other end.
    pub peer: Ipv4Addr,
    /// Address of its pod on this node.
    pub pod: Ipv4Addr,
    /// The epoch in which it was judged: that of its event, read before the judgement began.
    pub epoch: u32,
    /// How long it holds, on CLOCK_MONOTONIC.
    pub until: Duration,
    /// TCP super-packets may be decapsulated by the program: a socket of the pod takes them.
    pub direct_tcp: bool,
}

/// What became of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The table did not hold it, or as one that is not followed any more: an announcement that its connection was forgotten
    /// may not have passed the filter ([`FlowTable::filter_forgotten`]).
    New,
    /// The table held it, and holds it now until the new time.
    Renewed,
}

/// Why a grant was not written.
#[derive(Debug)]
pub enum InstallError {
    /// The epoch has moved on since the flow was judged: judge it anew.
    OtherEpoch,
    /// The address at the other end is not that peer's, or the programs may not use the peer.
    NotPeers,
    /// The pod is not in the table of pods, or none of its flows may leave the host's stack out.
    NoPod,
    /// The kernel refuses.
    Kernel(KernelPathError),
}

/// A flow of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// The flow.
    pub key: FlowKey,
    /// Not followed from then on (CLOCK_MONOTONIC); zero once a later packet found it so.
    pub until: Duration,
    /// When its latest packet came; zero if none has.
    pub last_seen: Duration,
    /// Its wire packets so far.
    pub packets: u64,
    /// Bytes of those, inner.
    pub bytes: u64,
    /// The epoch in which it was judged.
    pub epoch: u32,
    /// Public address of its peer; `None` if the peer has gone or changed since.
    pub peer: Option<Ipv4Addr>,
    /// Interface index of its pod's host end.
    pub ifindex: u32,
}

impl FlowTable {
    pub(super) fn open(
        held: &Descriptors,
        control: &KernelTables,
        sizes: Sizes,
    ) -> Result<FlowTable, KernelPathError> {
        let direct = |name| {
            Ok(Direct {
                name,
                entries: sizes.flows,
                read: held.table(name)?,
                write: Mutex::new(held.table(name)?),
            })
        };
        Ok(FlowTable(Arc::new(Tables {
            settings: Arc::clone(&control.settings),
            fib: held.table(object::FIB)?,
            local: held.table(object::LOCAL)?,
            peers: held.table(object::PEERS)?,
            pods: Arc::clone(&control.pods),
            outbound: direct(object::FLOWS_OUT)?,
            inbound: direct(object::FLOWS_IN)?,
            events: object::duplicate(object::EVENTS, held.get(object::EVENTS)?)?,
            forgotten: object::duplicate(object::FORGOTTEN, held.get(object::FORGOTTEN)?)?,
        })))
    }

    /// Whether programs follow flows at all (`kernel-path = "auto"`, and in use).
    pub fn is_in_use(&self) -> bool {
        self.0.settings.get().flags & FLOWS != 0
    }

    /// Writes a flow, or moves its time on. What it depends on is read from the tables: the peer that has the address at
    /// the other end, and the pod. What control changes meanwhile changes a generation or the epoch, and then the
    /// programs do not follow what was written.
    ///
    /// # Errors
    /// [`InstallError`]; nothing is written then.
    pub fn install(&self, grant: &FlowGrant) -> Result<Installed, InstallError> {
        let tables = &*self.0;
        let settings = tables.settings.get();
        if settings.epoch != grant.epoch {
            return Err(InstallError::OtherEpoch);
        }
        let (near, far, flag) = match grant.direction {
            Direction::Outbound => (grant.key.source, grant.key.destination, PEER_SEND),
            Direction::Inbound => (grant.key.destination, grant.key.source, PEER_RECEIVE),
        };
        let pod = tables
            .pods
            .get(near)?
            .filter(|pod| near == grant.pod && pod.ifindex != 0);
        let pod = pod.ok_or(InstallError::NoPod)?;
        let usable =
            |(_, peer): &(u32, Peer)| peer.address == be(grant.peer) && peer.flags & flag != 0;
        let peer = tables.peer_of(far)?.filter(usable);
        let (number, peer) = peer.ok_or(InstallError::NotPeers)?;

        let direct = tables.of(grant.direction);
        let key = layout::FlowKey::from(grant.key);
        let header = match grant.direction {
            Direction::Outbound => header::outbound(&settings, &peer, &key),
            Direction::Inbound => header::inbound(&pod),
        };
        let before = direct.get(&key)?;
        let was_there = before.is_some();
        let before = before.filter(|before| before.peer == number);
        let mut flow = layout::Flow {
            until: nanoseconds(grant.until),
            probed: 0,
            last_seen: 0,
            packets: 0,
            bytes: 0,
            epoch: grant.epoch,
            peer: number,
            peer_generation: peer.generation,
            pod_generation: pod.generation,
            ifindex: pod.ifindex,
            pod: pod.number,
            flags: if grant.direct_tcp { FLOW_DIRECT_TCP } else { 0 },
            header,
            probing: 0,
        };
        if let Some(before) = &before {
            flow.probed = before.probed;
            flow.last_seen = before.last_seen;
            flow.packets = before.packets;
            flow.bytes = before.bytes;
        }
        // A program may have taken it out meanwhile: the caller is to know.
        let replaced = was_there && direct.replace(&key, &flow)?;
        if !replaced {
            direct.set(&key, &flow)?;
        }
        // One that the programs did not follow any more changes its path again.
        let is_live = before.is_some_and(|before| {
            replaced
                && before.until != 0
                && settings.follows(before.epoch)
                && before.peer_generation == flow.peer_generation
                && before.pod_generation == flow.pod_generation
        });
        Ok(if is_live {
            Installed::Renewed
        } else {
            Installed::New
        })
    }

    /// Takes a flow out. Returns whether it was there.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn remove(&self, direction: Direction, key: &FlowKey) -> Result<bool, KernelPathError> {
        let direct = self.0.of(direction);
        let key = layout::FlowKey::from(*key);
        // The caller may ask in vain, and to remove what is not there costs more than to look.
        if direct.get(&key)?.is_none() {
            return Ok(false);
        }
        let removed = absent_is_removed(direct.writer().remove(&key));
        removed.map_err(|error| KernelPathError::table("remove from", direct.name, error))?;
        Ok(true)
    }

    /// The flow as the table has it.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn get(
        &self,
        direction: Direction,
        key: &FlowKey,
    ) -> Result<Option<FlowEntry>, KernelPathError> {
        let key = layout::FlowKey::from(*key);
        let found = self.0.of(direction).get(&key)?;
        found.map(|flow| self.0.entry(&key, &flow)).transpose()
    }

    /// Every flow of a direction: three calls of the kernel each. What comes or goes meanwhile may be missed, or come
    /// twice.
    pub fn list(
        &self,
        direction: Direction,
    ) -> impl Iterator<Item = Result<FlowEntry, KernelPathError>> + '_ {
        let tables = &*self.0;
        let direct = tables.of(direction);
        // Where the last key has gone meanwhile the kernel begins anew: no more than the table can hold.
        let keys = direct.read.keys().take(direct.entries as usize);
        keys.filter_map(move |key| {
            let read = || {
                let failed = |error| KernelPathError::table("read", direct.name, error);
                let key = key.map_err(failed)?;
                let flow = direct.get(&key)?;
                flow.map(|flow| tables.entry(&key, &flow)).transpose()
            };
            read().transpose()
        })
    }

    /// The present epoch.
    pub fn epoch(&self) -> u32 {
        self.0.settings.get().epoch
    }

    /// Ends the epoch: no flow that was judged before is followed any more. Returns the new one.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn next_epoch(&self) -> Result<u32, KernelPathError> {
        self.0.settings.next_epoch()
    }

    /// Begins an epoch in which all flows are to be judged anew, and does not end those before: flows that were judged in
    /// one of them are followed, and one packet a second of each passes the host's stack to propose it, until
    /// [`end_earlier_epochs`](FlowTable::end_earlier_epochs), or [`next_epoch`](FlowTable::next_epoch).
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn add_epoch(&self) -> Result<(), KernelPathError> {
        self.0.settings.add_epoch()
    }

    /// Ends what [`add_epoch`](FlowTable::add_epoch) left: flows that were not judged since are not followed any more.
    /// Returns whether there were earlier epochs.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn end_earlier_epochs(&self) -> Result<bool, KernelPathError> {
        self.0.settings.end_earlier_epochs()
    }

    /// Reads the epochs and all else that is set as the kernel has it: another service, which goes on from the same tables
    /// and has ended, may have written it.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn read_settings(&self) -> Result<(), KernelPathError> {
        self.0.settings.reread()
    }

    /// The generation of nf_tables' rules up to which each change has had its effect on flows, as a service noted it; 0 if
    /// none is known.
    pub fn rules_generation(&self) -> u32 {
        self.0.settings.get().rules_generation
    }

    /// Notes that each change of rules up to that generation has had its effect on flows, for the next service.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn note_rules_generation(&self, generation: u32) -> Result<(), KernelPathError> {
        let settings = &self.0.settings;
        let noted = settings.change(|settings| settings.rules_generation = generation);
        noted.map(drop)
    }

    /// Ends every flow of the pod at that address, if its host end is `ifindex`, with one write. Returns whether the
    /// tables have the pod.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn revoke_pod(&self, address: Ipv4Addr, ifindex: u32) -> Result<bool, KernelPathError> {
        self.0.pods.revoke(address, ifindex)
    }

    /// The ring of events.
    ///
    /// # Errors
    /// What mmap(2) gives.
    pub fn events(&self) -> Result<EventReader, KernelPathError> {
        EventReader::open(self.clone(), self.0.events.as_fd())
    }

    /// Has a netlink socket of the group `NFNLGRP_CONNTRACK_DESTROY`, and of no other, take those announcements alone that may
    /// concern a flow that the tables hold: nearly all others are refused before they are queued. What was queued before
    /// stays.
    ///
    /// # Errors
    /// What setsockopt(2) gives: ENOMEM where `net.core.optmem_max` is too low for a program of 100 instructions.
    pub fn filter_forgotten(&self, socket: impl AsFd) -> Result<(), KernelPathError> {
        let attached = attach_filter(socket, self.0.forgotten.as_fd());
        attached.map_err(|source| KernelPathError::Kernel {
            doing: "attach",
            subject: "the filter of forgotten connections".to_owned(),
            source,
        })
    }

    /// The public address of peer number `number`; `None` where the number is none's.
    pub(super) fn peer_address(&self, number: u32) -> Option<Ipv4Addr> {
        let peer = self.0.peer(number).ok()??;
        Some(address(peer.address))
    }
}

impl Tables {
    fn of(&self, direction: Direction) -> &Direct {
        match direction {
            Direction::Outbound => &self.outbound,
            Direction::Inbound => &self.inbound,
        }
    }

    /// The entry of peers with that number, if it is in use.
    fn peer(&self, number: u32) -> Result<Option<Peer>, KernelPathError> {
        if number == 0 {
            return Ok(None);
        }
        let peer = found(self.peers.get(&number, 0), object::PEERS)?;
        Ok(peer.filter(|peer| peer.address != 0))
    }

    /// The peer that has an inner address, as the programs find it.
    fn peer_of(&self, inner: Ipv4Addr) -> Result<Option<(u32, Peer)>, KernelPathError> {
        let key = Key::new(32, be(inner));
        let local = found(self.local.get(&key, 0), object::LOCAL)?;
        if local.unwrap_or(0) & LOCAL_OURS != 0 {
            return Ok(None);
        }
        let number = found(self.fib.get(&key, 0), object::FIB)?.unwrap_or(0);
        Ok(self.peer(number)?.map(|peer| (number, peer)))
    }

    fn entry(
        &self,
        key: &layout::FlowKey,
        flow: &layout::Flow,
    ) -> Result<FlowEntry, KernelPathError> {
        let peer = self.peer(flow.peer)?;
        let peer = peer.filter(|peer| peer.generation == flow.peer_generation);
        Ok(FlowEntry {
            key: FlowKey::from(*key),
            until: Duration::from_nanos(flow.until),
            last_seen: Duration::from_nanos(flow.last_seen),
            packets: flow.packets,
            bytes: flow.bytes,
            epoch: flow.epoch,
            peer: peer.map(|peer| address(peer.address)),
            ifindex: flow.ifindex,
        })
    }
}

impl Direct {
    fn get(&self, key: &layout::FlowKey) -> Result<Option<layout::Flow>, KernelPathError> {
        found(self.read.get(key, 0), self.name)
    }

    fn set(&self, key: &layout::FlowKey, flow: &layout::Flow) -> Result<(), KernelPathError> {
        let written = self.writer().insert(key, flow, 0);
        written.map_err(|error| KernelPathError::table("write", self.name, error))
    }

    /// Writes an entry that there is. Returns false if there is none.
    fn replace(&self, key: &layout::FlowKey, flow: &layout::Flow) -> Result<bool, KernelPathError> {
        match self.writer().insert(key, flow, BPF_EXIST) {
            Ok(()) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(KernelPathError::table("write", self.name, error)),
        }
    }

    fn writer(&self) -> MutexGuard<'_, HashMap<MapData, layout::FlowKey, layout::Flow>> {
        // The descriptor has no state that another thread could leave half done.
        self.write.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn found<T>(read: Result<T, MapError>, table: &'static str) -> Result<Option<T>, KernelPathError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(KernelPathError::table("read", table, error)),
    }
}

/// On CLOCK_MONOTONIC, as `bpf_ktime_get_ns` counts.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl From<FlowKey> for layout::FlowKey {
    fn from(key: FlowKey) -> layout::FlowKey {
        layout::FlowKey {
            source: be(key.source),
            destination: be(key.destination),
            source_port: key.source_port.to_be(),
            destination_port: key.destination_port.to_be(),
            protocol: key.protocol,
            pad: [0; 3],
        }
    }
}

impl From<layout::FlowKey> for FlowKey {
    fn from(key: layout::FlowKey) -> FlowKey {
        FlowKey {
            source: address(key.source),
            destination: address(key.destination),
            source_port: u16::from_be(key.source_port),
            destination_port: u16::from_be(key.destination_port),
            protocol: key.protocol,
        }
    }
}

impl From<KernelPathError> for InstallError {
    fn from(error: KernelPathError) -> InstallError {
        InstallError::Kernel(error)
    }
}

impl std::fmt::Display for InstallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InstallError::OtherEpoch => {
                write!(f, "the epoch has moved on since the flow was judged")
            }
            InstallError::NotPeers => write!(
                f,
                "the address at its other end is of no peer that the programs may use"
            ),
            InstallError::NoPod => write!(
                f,
                "its pod is none of which flows may leave the host's stack out"
            ),
            InstallError::Kernel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InstallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            InstallError::Kernel(error) => Some(error),
            _ => None,
        }
    }
}

/// linux/bpf.h: writes only what there is.
const BPF_EXIST: u64 = 2;
