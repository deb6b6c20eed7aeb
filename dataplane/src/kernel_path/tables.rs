//! The tables as [`Mirror`](super::mirror::Mirror) writes them: in the kernel, or in memory for tests.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::KernelPathError;
use super::layout::{Counts, Peer, Pod, Settings};

/// A table of prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trie {
    /// Prefix → number of a peer.
    Fib,
    /// Prefix → `LOCAL_*`.
    Local,
}

/// What one mirror writes to. Each call but the reading ones is one write of the kernel.
pub(crate) trait Tables {
    /// Changes the settings; writes only if they differ then. Returns whether they did.
    fn change_settings(
        &mut self,
        change: &mut dyn FnMut(&mut Settings),
    ) -> Result<bool, KernelPathError>;

    /// How many entries the peers have.
    fn max_peers(&self) -> u32;
    /// Writes an entry of the peers.
    fn set_peer(&mut self, number: u32, peer: &Peer) -> Result<(), KernelPathError>;
    /// Every entry of the peers, the first included.
    fn peers(&self) -> Result<Vec<Peer>, KernelPathError>;
    /// What was counted for a peer.
    fn peer_counts(&self, number: u32) -> Result<Counts, KernelPathError>;
    /// Begins the counts of a peer anew.
    fn clear_peer_counts(&mut self, number: u32) -> Result<(), KernelPathError>;

    /// Writes an entry of a trie.
    fn set_prefix(
        &mut self,
        trie: Trie,
        prefix: Ipv4Net,
        value: u32,
    ) -> Result<(), KernelPathError>;
    /// Removes an entry of a trie.
    fn remove_prefix(&mut self, trie: Trie, prefix: Ipv4Net) -> Result<(), KernelPathError>;
    /// Every entry of a trie.
    fn prefixes(&self, trie: Trie) -> Result<Vec<(Ipv4Net, u32)>, KernelPathError>;

    /// How many entries the pods have.
    fn max_pods(&self) -> u32;
    /// Writes an entry of the pods.
    fn set_pod(&mut self, address: Ipv4Addr, pod: &Pod) -> Result<(), KernelPathError>;
    /// Removes an entry of the pods.
    fn remove_pod(&mut self, address: Ipv4Addr) -> Result<(), KernelPathError>;
    /// Every entry of the pods.
    fn pods(&self) -> Result<Vec<(Ipv4Addr, Pod)>, KernelPathError>;
    /// What was counted for a pod.
    fn pod_counts(&self, number: u32) -> Result<Counts, KernelPathError>;
    /// Begins the counts of a pod anew.
    fn clear_pod_counts(&mut self, number: u32) -> Result<(), KernelPathError>;
}
