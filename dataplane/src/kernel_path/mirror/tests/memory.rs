//! Tables in memory.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::kernel_path::KernelPathError;
use crate::kernel_path::layout::{Counts, ON, Peer, Pod, Settings};
use crate::kernel_path::tables::{Tables, Trie};

#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) settings: Settings,
    pub(super) peers: Vec<Peer>,
    pub(super) fib: BTreeMap<Ipv4Net, u32>,
    pub(super) local: BTreeMap<Ipv4Net, u32>,
    pub(super) pods: BTreeMap<Ipv4Addr, Pod>,
}

pub(super) struct Memory {
    state: State,
    counts: BTreeMap<u32, Counts>,
    max_pods: u32,
    /// States after each write, while watched.
    history: Option<Vec<State>>,
    left: usize,
}

/// The value of the longest prefix that contains `address`.
pub(super) fn longest(table: &BTreeMap<Ipv4Net, u32>, address: Ipv4Addr) -> Option<u32> {
    (0..=32).rev().find_map(|length| {
        table
            .get(&Ipv4Net::new(address, length).unwrap().trunc())
            .copied()
    })
}

impl Memory {
    pub(super) fn new(peers: usize, max_pods: u32) -> Memory {
        let state = State {
            peers: vec![Peer::default(); peers],
            ..State::default()
        };
        Memory {
            state,
            counts: BTreeMap::new(),
            max_pods,
            history: None,
            left: usize::MAX,
        }
    }

    pub(super) fn settings(&self) -> Settings {
        self.state.settings
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// A packet sent to peer number `number`.
    pub(super) fn count(&mut self, number: u32) {
        self.counts.entry(number).or_default().sent_packets += 1;
    }

    /// Refuses writes after so many.
    pub(super) fn fail_after(&mut self, writes: usize) {
        self.left = writes;
    }

    /// Shows `look` the tables as they are after each write of `write`.
    pub(super) fn watch<T>(
        &mut self,
        look: impl Fn(&State),
        write: impl FnOnce(&mut Memory) -> T,
    ) -> T {
        self.history = Some(vec![]);
        let result = write(self);
        self.history.take().unwrap().iter().for_each(look);
        result
    }

    fn write(&mut self, write: impl FnOnce(&mut Memory)) -> Result<(), KernelPathError> {
        let Some(left) = self.left.checked_sub(1) else {
            return Err(KernelPathError::Kernel {
                doing: "write",
                subject: "a table".into(),
                source: std::io::ErrorKind::Other.into(),
            });
        };
        self.left = left;
        write(self);
        if let Some(history) = &mut self.history {
            history.push(self.state.clone());
        }
        Ok(())
    }

    fn trie(&mut self, trie: Trie) -> &mut BTreeMap<Ipv4Net, u32> {
        match trie {
            Trie::Fib => &mut self.state.fib,
            Trie::Local => &mut self.state.local,
        }
    }
}

impl Tables for Memory {
    fn change_settings(
        &mut self,
        change: &mut dyn FnMut(&mut Settings),
    ) -> Result<bool, KernelPathError> {
        let mut settings = self.state.settings;
        change(&mut settings);
        let differs = settings != self.state.settings;
        let on = |settings: &Settings| settings.flags & ON != 0;
        if on(&settings) && on(&self.state.settings) {
            let end = |of: &Settings| (of.local, of.vni, of.vtep, of.underlay_mac, of.vxlan_port);
            assert_eq!(
                end(&settings),
                end(&self.state.settings),
                "our end changes while the programs act"
            );
        }
        if differs {
            self.write(|memory| memory.state.settings = settings)?;
        }
        Ok(differs)
    }

    fn max_peers(&self) -> u32 {
        self.state.peers.len() as u32
    }

    fn set_peer(&mut self, number: u32, peer: &Peer) -> Result<(), KernelPathError> {
        let before = self.state.peers[number as usize];
        if before.flags != 0 && peer.flags != 0 {
            let end = |of: &Peer| (of.address, of.vtep, of.next_hop);
            assert_eq!(
                end(&before),
                end(peer),
                "a peer changes while the programs act by it"
            );
        }
        self.write(|memory| memory.state.peers[number as usize] = *peer)
    }

    fn peers(&self) -> Result<Vec<Peer>, KernelPathError> {
        Ok(self.state.peers.clone())
    }

    fn peer_counts(&self, number: u32) -> Result<Counts, KernelPathError> {
        Ok(self.counts.get(&number).copied().unwrap_or_default())
    }

    fn clear_peer_counts(&mut self, number: u32) -> Result<(), KernelPathError> {
        self.write(|memory| _ = memory.counts.remove(&number))
    }

    fn set_prefix(
        &mut self,
        trie: Trie,
        prefix: Ipv4Net,
        value: u32,
    ) -> Result<(), KernelPathError> {
        self.write(|memory| _ = memory.trie(trie).insert(prefix, value))
    }

    fn remove_prefix(&mut self, trie: Trie, prefix: Ipv4Net) -> Result<(), KernelPathError> {
        self.write(|memory| assert!(memory.trie(trie).remove(&prefix).is_some()))
    }

    fn prefixes(&self, trie: Trie) -> Result<Vec<(Ipv4Net, u32)>, KernelPathError> {
        let table = match trie {
            Trie::Fib => &self.state.fib,
            Trie::Local => &self.state.local,
        };
        Ok(table.iter().map(|(net, value)| (*net, *value)).collect())
    }

    fn max_pods(&self) -> u32 {
        self.max_pods
    }

    fn set_pod(&mut self, address: Ipv4Addr, pod: &Pod) -> Result<(), KernelPathError> {
        self.write(|memory| _ = memory.state.pods.insert(address, *pod))
    }

    fn remove_pod(&mut self, address: Ipv4Addr) -> Result<(), KernelPathError> {
        self.write(|memory| assert!(memory.state.pods.remove(&address).is_some()))
    }

    fn pods(&self) -> Result<Vec<(Ipv4Addr, Pod)>, KernelPathError> {
        Ok(self
            .state
            .pods
            .iter()
            .map(|(address, pod)| (*address, *pod))
            .collect())
    }

    fn pod_counts(&self, _: u32) -> Result<Counts, KernelPathError> {
        Ok(Counts::default())
    }

    fn clear_pod_counts(&mut self, _: u32) -> Result<(), KernelPathError> {
        self.write(|_| ())
    }
}
