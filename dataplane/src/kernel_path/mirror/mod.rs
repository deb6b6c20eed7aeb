//! Makes the tables say what the spec says.
//!
//! Theory of operation: the mirror knows what it has written and writes only what differs. The programs read the tables
//! while it writes, so a change goes in two halves. The first takes away: a peer that went or changed loses its flags and
//! its generation, pods that went or changed are removed, local addresses and settings lose what they are to lose. The
//! second gives: prefixes, each of which goes from its old to its new peer with one write, then the entries of the peers,
//! local addresses and pods, the settings last. A packet is admitted by what is ours and what is theirs: while
//! prefixes change, peers and our own addresses have only what both states have in common. So no packet is admitted at
//! any moment that neither state admits.
//!
//! A flow names its peer, and not the prefix that led to it. So a peer that loses an address, if only to another peer,
//! gets another generation; and where an address becomes ours that was not, the epoch ends.
//!
//! One write of an array is not atomic for a program that reads the entry meanwhile: so what the programs act by (an
//! address, a MAC) is only changed in an entry that is switched off. An entry that is freed is given again as late as
//! possible ([`numbers`]); what a program holds that began before a write ends within microseconds.
//!
//! What was written is noted entry by entry. After an error the mirror still knows the tables, and the next
//! [`Mirror::follow`] writes what is left.

mod counted;
mod generations;
mod local;
mod numbers;
mod peers;
mod pods;
mod prefixes;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::layout::LOCAL_OURS;
use super::tables::{Tables, Trie};
use super::{Facts, Followed, KernelPathError, PeerTraffic, PodTraffic};
use crate::spec::{ClusterSpec, LocalSpec, Spec};
use counted::Counted;
use generations::Generations;
use peers::Peers;
use pods::Pods;
use prefixes::Prefixes;

/// What the tables hold.
pub(super) struct Mirror {
    peers: Peers,
    fib: Prefixes,
    local: Prefixes,
    pods: Pods,
    generations: Generations,
    /// The parts of the spec that `fib` and `local` mirror in full.
    cluster: Option<Arc<ClusterSpec>>,
    own: Option<Arc<LocalSpec>>,
}

impl Mirror {
    /// A mirror of what `tables` hold.
    pub(super) fn read(tables: &impl Tables) -> Result<Mirror, KernelPathError> {
        let (peers, generations) = Peers::read(tables)?;
        let fresh = generations.is_first();
        Ok(Mirror {
            peers,
            fib: Prefixes::read(Trie::Fib, tables)?,
            local: Prefixes::read(Trie::Local, tables)?,
            pods: Pods::read(tables, fresh)?,
            generations,
            cluster: None,
            own: None,
        })
    }

    /// Makes `tables` mirror `spec` and `facts`.
    pub(super) fn follow(
        &mut self,
        tables: &mut impl Tables,
        spec: &Spec,
        facts: &Facts,
    ) -> Result<Followed, KernelPathError> {
        let tables = &mut Counted::new(tables);
        let known = |known: &Option<Arc<ClusterSpec>>| {
            known
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, &spec.cluster))
        };
        let planned = self.peers.plan(&spec.cluster, facts)?;
        let routes = (!known(&self.cluster)).then(|| self.peers.routes());
        let known = self.own.as_ref();
        let known = known.is_some_and(|known| Arc::ptr_eq(known, &spec.local));
        let own = (!known).then(|| local::local(&spec.local));
        let pods = pods::wanted(&spec.local, facts);

        let losers = routes.as_ref().map(|routes| self.fib.losers(routes));
        let losers = losers.unwrap_or_default();
        let becomes_ours = own
            .as_ref()
            .is_some_and(|own| self.local.gains(own, LOCAL_OURS));

        settings::restrict(tables, &spec.cluster.node, facts, becomes_ours)?;
        self.pods.restrict(tables, &pods)?;
        if planned {
            self.peers
                .restrict(tables, &mut self.generations, &losers)?;
        }
        if let Some(own) = &own {
            self.own = None;
            self.local.restrict(tables, own, local::meet)?;
        }

        if let Some(routes) = &routes {
            self.cluster = None;
            self.fib.extend(tables, routes)?;
            self.cluster = Some(Arc::clone(&spec.cluster));
        }
        if planned {
            self.peers.extend(tables, &mut self.generations)?;
            self.peers.free(tables)?;
            self.peers.settle(&spec.cluster, facts);
        }
        if let Some(own) = &own {
            self.local.extend(tables, own)?;
            self.own = Some(Arc::clone(&spec.local));
        }
        self.pods.extend(tables, &pods, &mut self.generations)?;
        settings::extend(tables, &spec.cluster.node, facts)?;

        let (peers, sending) = self.peers.count();
        Ok(Followed {
            version: spec.version,
            writes: tables.writes(),
            peers,
            sending,
            pods: self.pods.count(),
        })
    }

    /// The peers that the programs may send to.
    pub(super) fn sendable(&self) -> HashSet<Ipv4Addr> {
        self.peers.sendable()
    }

    /// Gives the peer at `address` another generation. Returns whether there is one.
    pub(super) fn revoke_peer(
        &mut self,
        tables: &mut impl Tables,
        address: Ipv4Addr,
    ) -> Result<bool, KernelPathError> {
        self.peers.revoke(tables, &mut self.generations, address)
    }

    /// Gives the pod at `address` another generation. Returns whether there is one.
    pub(super) fn revoke_pod(
        &mut self,
        tables: &mut impl Tables,
        address: Ipv4Addr,
    ) -> Result<bool, KernelPathError> {
        self.pods.revoke(tables, &mut self.generations, address)
    }

    /// What was counted for each peer.
    pub(super) fn peer_traffic(
        &self,
        tables: &impl Tables,
    ) -> Result<Vec<PeerTraffic>, KernelPathError> {
        self.peers.traffic(tables)
    }

    /// What was counted for each pod.
    pub(super) fn pod_traffic(
        &self,
        tables: &impl Tables,
    ) -> Result<Vec<PodTraffic>, KernelPathError> {
        self.pods.traffic(tables)
    }
}
