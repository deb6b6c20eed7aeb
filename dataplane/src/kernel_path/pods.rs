//! The table `pods`, which the control thread and the thread of the flows both write.

use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::{HashMap, MapData, MapError};

use super::KernelPathError;
use super::kernel::absent_is_removed;
use super::layout::{Pod, address, be};
use super::object::PODS;

/// The pods as the kernel has them. An entry is written as a whole, so a thread that changes a part of it must read it
/// under the lock, which no packet waits for.
pub(super) struct PodTable(Mutex<HashMap<MapData, u32, Pod>>);

impl PodTable {
    pub(super) fn new(table: HashMap<MapData, u32, Pod>) -> PodTable {
        PodTable(Mutex::new(table))
    }

    pub(super) fn get(&self, address: Ipv4Addr) -> Result<Option<Pod>, KernelPathError> {
        get(&self.table(), address)
    }

    pub(super) fn set(&self, address: Ipv4Addr, pod: &Pod) -> Result<(), KernelPathError> {
        set(&mut self.table(), address, pod)
    }

    pub(super) fn remove(&self, address: Ipv4Addr) -> Result<(), KernelPathError> {
        absent_is_removed(self.table().remove(&be(address)))
            .map_err(|error| KernelPathError::table("remove from", PODS, error))
    }

    /// Every entry.
    pub(super) fn all(&self) -> Result<Vec<(Ipv4Addr, Pod)>, KernelPathError> {
        let table = self.table();
        let all = table
            .iter()
            .map(|entry| entry.map(|(key, pod)| (address(key), pod)));
        let all: Result<Vec<_>, MapError> = all.collect();
        all.map_err(|error| KernelPathError::table("read", PODS, error))
    }

    /// Ends every flow of the pod at that address, if its host end is `ifindex`, with one write. Returns whether it was
    /// there. Its generation is random then, of those that control does not count to: control, which gives out the
    /// others, need not know of it.
    pub(super) fn revoke(&self, address: Ipv4Addr, ifindex: u32) -> Result<bool, KernelPathError> {
        let mut table = self.table();
        let Some(pod) = get(&table, address)?.filter(|pod| pod.ifindex == ifindex) else {
            return Ok(false);
        };
        let random = RandomState::new().hash_one(0) as u32 | UNCOUNTED;
        let generation = match random == pod.generation {
            true => random ^ 1,
            false => random,
        };
        set(&mut table, address, &Pod { generation, ..pod })?;
        Ok(true)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<MapData, u32, Pod>> {
        // The descriptor has no state that another thread could leave half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn get(
    table: &HashMap<MapData, u32, Pod>,
    address: Ipv4Addr,
) -> Result<Option<Pod>, KernelPathError> {
    match table.get(&be(address), 0) {
        Ok(pod) => Ok(Some(pod)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(KernelPathError::table("read", PODS, error)),
    }
}

fn set(
    table: &mut HashMap<MapData, u32, Pod>,
    address: Ipv4Addr,
    pod: &Pod,
) -> Result<(), KernelPathError> {
    let written = table.insert(be(address), pod, 0);
    written.map_err(|error| KernelPathError::table("write", PODS, error))
}

/// The upper half of the generations.
const UNCOUNTED: u32 = 1 << 31;
