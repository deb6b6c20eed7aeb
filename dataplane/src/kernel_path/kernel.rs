//! The tables in the kernel.

use std::net::Ipv4Addr;
use std::sync::Arc;

use aya::maps::MapError;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, LpmTrie, MapData, PerCpuArray};
use ipnet::Ipv4Net;

use super::descriptors::Descriptors;
use super::layout::{Counts, Peer, Pod, Settings, address, be};
use super::object;
use super::pods::PodTable;
use super::settings::SettingsTable;
use super::tables::{Tables, Trie};
use super::{KernelPathError, Sizes};

/// The tables that control writes and reads.
pub(super) struct KernelTables {
    pub(super) settings: Arc<SettingsTable>,
    peers: Array<MapData, Peer>,
    peer_counts: PerCpuArray<MapData, Counts>,
    fib: LpmTrie<MapData, u32, u32>,
    local: LpmTrie<MapData, u32, u32>,
    pub(super) pods: Arc<PodTable>,
    pod_counts: PerCpuArray<MapData, Counts>,
    counters: PerCpuArray<MapData, u64>,
    passes: PerCpuArray<MapData, u64>,
    /// Entries of each table of flows.
    flows: u32,
}

impl KernelTables {
    pub(super) fn open(held: &Descriptors) -> Result<KernelTables, KernelPathError> {
        Ok(KernelTables {
            settings: Arc::new(SettingsTable::read(held.table(object::SETTINGS)?)?),
            peers: held.table(object::PEERS)?,
            peer_counts: held.table(object::PEER_COUNTS)?,
            fib: held.table(object::FIB)?,
            local: held.table(object::LOCAL)?,
            pods: Arc::new(PodTable::new(held.table(object::PODS)?)),
            pod_counts: held.table(object::POD_COUNTS)?,
            counters: held.table(object::COUNTERS)?,
            passes: held.table(object::PASSES)?,
            flows: held.entries(object::FLOWS_OUT)?,
        })
    }

    /// A word of `counters`, of all CPUs together.
    pub(super) fn counter(&self, word: u32) -> Result<u64, KernelPathError> {
        sum(&self.counters, object::COUNTERS, word)
    }

    /// A word of `passes`, of all CPUs together.
    pub(super) fn pass(&self, word: u32) -> Result<u64, KernelPathError> {
        sum(&self.passes, object::PASSES, word)
    }

    /// What the tables were made for.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            peers: self.peers.len(),
            pods: self.pod_counts.len(),
            flows: self.flows,
        }
    }

    fn trie(&mut self, trie: Trie) -> &mut LpmTrie<MapData, u32, u32> {
        match trie {
            Trie::Fib => &mut self.fib,
            Trie::Local => &mut self.local,
        }
    }
}

impl Tables for KernelTables {
    fn change_settings(
        &mut self,
        change: &mut dyn FnMut(&mut Settings),
    ) -> Result<bool, KernelPathError> {
        self.settings.change(change)
    }

    fn max_peers(&self) -> u32 {
        self.peers.len()
    }

    fn set_peer(&mut self, number: u32, peer: &Peer) -> Result<(), KernelPathError> {
        let written = self.peers.set(number, peer, 0);
        written.map_err(|error| KernelPathError::table("write", object::PEERS, error))
    }

    fn peers(&self) -> Result<Vec<Peer>, KernelPathError> {
        let all: Result<Vec<Peer>, MapError> = self.peers.iter().collect();
        all.map_err(|error| KernelPathError::table("read", object::PEERS, error))
    }

    fn peer_counts(&self, number: u32) -> Result<Counts, KernelPathError> {
        counts(&self.peer_counts, object::PEER_COUNTS, number)
    }

    fn clear_peer_counts(&mut self, number: u32) -> Result<(), KernelPathError> {
        clear(&mut self.peer_counts, object::PEER_COUNTS, number)
    }

    fn set_prefix(
        &mut self,
        trie: Trie,
        prefix: Ipv4Net,
        value: u32,
    ) -> Result<(), KernelPathError> {
        let key = key(prefix);
        let written = self.trie(trie).insert(&key, value, 0);
        written.map_err(|error| KernelPathError::table("write", trie.name(), error))
    }

    fn remove_prefix(&mut self, trie: Trie, prefix: Ipv4Net) -> Result<(), KernelPathError> {
        let key = key(prefix);
        absent_is_removed(self.trie(trie).remove(&key))
            .map_err(|error| KernelPathError::table("remove from", trie.name(), error))
    }

    fn prefixes(&self, trie: Trie) -> Result<Vec<(Ipv4Net, u32)>, KernelPathError> {
        let table = match trie {
            Trie::Fib => &self.fib,
            Trie::Local => &self.local,
        };
        let net = |key: Key<u32>| {
            let length = u8::try_from(key.prefix_len()).unwrap_or(32).min(32);
            Ipv4Net::new_assert(address(key.data()), length)
        };
        let all = table
            .iter()
            .map(|entry| entry.map(|(key, value)| (net(key), value)));
        let all: Result<Vec<_>, MapError> = all.collect();
        all.map_err(|error| KernelPathError::table("read", trie.name(), error))
    }

    fn max_pods(&self) -> u32 {
        self.pod_counts.len()
    }

    fn set_pod(&mut self, address: Ipv4Addr, pod: &Pod) -> Result<(), KernelPathError> {
        self.pods.set(address, pod)
    }

    fn remove_pod(&mut self, address: Ipv4Addr) -> Result<(), KernelPathError> {
        self.pods.remove(address)
    }

    fn pods(&self) -> Result<Vec<(Ipv4Addr, Pod)>, KernelPathError> {
        self.pods.all()
    }

    fn pod_counts(&self, number: u32) -> Result<Counts, KernelPathError> {
        counts(&self.pod_counts, object::POD_COUNTS, number)
    }

    fn clear_pod_counts(&mut self, number: u32) -> Result<(), KernelPathError> {
        clear(&mut self.pod_counts, object::POD_COUNTS, number)
    }
}

impl Trie {
    fn name(self) -> &'static str {
        match self {
            Trie::Fib => object::FIB,
            Trie::Local => object::LOCAL,
        }
    }
}

/// The key of a prefix in a trie.
pub(super) fn key(prefix: Ipv4Net) -> Key<u32> {
    Key::new(prefix.prefix_len().into(), be(prefix.network()))
}

/// What another has removed meanwhile is removed.
pub(super) fn absent_is_removed(removed: Result<(), MapError>) -> Result<(), MapError> {
    match removed {
        Err(error) if is_absent(&error) => Ok(()),
        other => other,
    }
}

/// Whether the kernel says that there is no such entry.
pub(super) fn is_absent(error: &MapError) -> bool {
    match error {
        MapError::SyscallError(error) => error.io_error.raw_os_error() == Some(libc::ENOENT),
        MapError::KeyNotFound => true,
        _ => false,
    }
}

fn counts(
    table: &PerCpuArray<MapData, Counts>,
    name: &'static str,
    number: u32,
) -> Result<Counts, KernelPathError> {
    let values = table.get(&number, 0);
    let values = values.map_err(|error| KernelPathError::table("read", name, error))?;
    Ok(values
        .iter()
        .fold(Counts::default(), |sum, counts| sum.plus(counts)))
}

fn sum(
    table: &PerCpuArray<MapData, u64>,
    name: &'static str,
    word: u32,
) -> Result<u64, KernelPathError> {
    let values = table.get(&word, 0);
    let values = values.map_err(|error| KernelPathError::table("read", name, error))?;
    Ok(values.iter().fold(0, |sum, value| sum.wrapping_add(*value)))
}

fn clear(
    table: &mut PerCpuArray<MapData, Counts>,
    name: &'static str,
    number: u32,
) -> Result<(), KernelPathError> {
    let failed = |error| KernelPathError::table("clear", name, error);
    let cpus = table.get(&number, 0).map_err(failed)?.len();
    let zero = vec![Counts::default(); cpus].try_into();
    let zero = zero.map_err(|error| failed(MapError::IoError(error)))?;
    table.set(number, zero, 0).map_err(failed)
}
