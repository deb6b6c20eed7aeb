//! Tables whose writes are counted.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::kernel_path::KernelPathError;
use crate::kernel_path::layout::{Counts, Peer, Pod, Settings};
use crate::kernel_path::tables::{Tables, Trie};

/// Passes everything on and counts what is written.
pub(super) struct Counted<'a, T> {
    tables: &'a mut T,
    writes: usize,
}

impl<'a, T: Tables> Counted<'a, T> {
    pub(super) fn new(tables: &'a mut T) -> Counted<'a, T> {
        Counted { tables, writes: 0 }
    }

    pub(super) fn writes(&self) -> usize {
        self.writes
    }

    fn write(&mut self) -> &mut T {
        self.writes += 1;
        self.tables
    }
}

impl<T: Tables> Tables for Counted<'_, T> {
    fn change_settings(
        &mut self,
        change: &mut dyn FnMut(&mut Settings),
    ) -> Result<bool, KernelPathError> {
        let written = self.tables.change_settings(change)?;
        self.writes += usize::from(written);
        Ok(written)
    }

    fn max_peers(&self) -> u32 {
        self.tables.max_peers()
    }

    fn set_peer(&mut self, number: u32, peer: &Peer) -> Result<(), KernelPathError> {
        self.write().set_peer(number, peer)
    }

    fn peers(&self) -> Result<Vec<Peer>, KernelPathError> {
        self.tables.peers()
    }

    fn peer_counts(&self, number: u32) -> Result<Counts, KernelPathError> {
        self.tables.peer_counts(number)
    }

    fn clear_peer_counts(&mut self, number: u32) -> Result<(), KernelPathError> {
        self.write().clear_peer_counts(number)
    }

    fn set_prefix(
        &mut self,
        trie: Trie,
        prefix: Ipv4Net,
        value: u32,
    ) -> Result<(), KernelPathError> {
        self.write().set_prefix(trie, prefix, value)
    }

    fn remove_prefix(&mut self, trie: Trie, prefix: Ipv4Net) -> Result<(), KernelPathError> {
        self.write().remove_prefix(trie, prefix)
    }

    fn prefixes(&self, trie: Trie) -> Result<Vec<(Ipv4Net, u32)>, KernelPathError> {
        self.tables.prefixes(trie)
    }

    fn max_pods(&self) -> u32 {
        self.tables.max_pods()
    }

    fn set_pod(&mut self, address: Ipv4Addr, pod: &Pod) -> Result<(), KernelPathError> {
        self.write().set_pod(address, pod)
    }

    fn remove_pod(&mut self, address: Ipv4Addr) -> Result<(), KernelPathError> {
        self.write().remove_pod(address)
    }

    fn pods(&self) -> Result<Vec<(Ipv4Addr, Pod)>, KernelPathError> {
        self.tables.pods()
    }

    fn pod_counts(&self, number: u32) -> Result<Counts, KernelPathError> {
        self.tables.pod_counts(number)
    }

    fn clear_pod_counts(&mut self, number: u32) -> Result<(), KernelPathError> {
        self.write().clear_pod_counts(number)
    }
}
