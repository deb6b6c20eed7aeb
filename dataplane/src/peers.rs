//! The other nodes: who may send to us, what they may say, and how we send to them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use encap::push::{self, Header};
use encap::{Family, Format, Mac};
use ipnet::IpNet;

use crate::mtu::PathMtu;
use crate::now::Now;
use crate::spec::{NodeSpec, PeerSpec};

/// A peer's place in its snapshot. Means nothing in another snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub u32);

/// All peers of one snapshot.
#[derive(Default)]
pub struct Peers {
    list: Vec<Peer>,
    by_source: HashMap<IpAddr, PeerId>,
}

/// One other node.
pub struct Peer {
    /// The node's name, for people.
    pub name: String,
    /// Its public address: where we send, and the outer source it is known by.
    pub public: IpAddr,
    /// How we send to it.
    pub format: Format,
    /// Its VTEP MAC.
    pub vtep_mac: Mac,
    /// Its leased subnets.
    pub subnets: Vec<IpNet>,
    /// Inner sources it may use beside its subnets: its own public address and what `accept-sources` lists.
    pub(crate) also: Vec<IpNet>,
    /// Where datagrams go.
    pub(crate) to: SocketAddr,
    /// Headers in front of an inner packet, ready made.
    pub(crate) header_v4: Header,
    pub(crate) header_v6: Header,
    /// What outlives a snapshot.
    pub(crate) state: Arc<PeerState>,
    underlay_mtu: u16,
}

/// What is learned and counted about a peer, carried from snapshot to snapshot by its public address.
#[derive(Default)]
pub struct PeerState {
    /// What is known of the path.
    pub path: PathMtu,
    sent: Tally,
    received: Tally,
    refused: AtomicU64,
}

/// Traffic with one peer since the service started. Packets are inner wire packets, bytes are inner bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    /// Packets sent to it.
    pub sent_packets: u64,
    /// Bytes sent to it.
    pub sent_bytes: u64,
    /// Packets from it that were delivered.
    pub received_packets: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Packets from it that were dropped, for whatever reason.
    pub refused: u64,
}

#[derive(Default)]
struct Tally {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Peers {
    /// The peers of `specs`; states of `previous` peers with the same public address live on.
    pub(crate) fn new(node: &NodeSpec, specs: &[PeerSpec], previous: Option<&Peers>) -> Peers {
        let mut peers = Peers::default();
        for (spec, id) in specs.iter().zip(0u32..) {
            let known = previous
                .and_then(|p| p.by_source(spec.public))
                .filter(|(_, peer)| peer.public == spec.public);
            let state = known
                .map(|(_, peer)| Arc::clone(&peer.state))
                .unwrap_or_default();
            peers.list.push(Peer::new(node, spec, state));
            for source in spec.underlay_sources.iter().chain([&spec.public]) {
                peers.by_source.insert(*source, PeerId(id));
            }
        }
        // A public address is its owner's, whatever another node lists as further source.
        for (spec, id) in specs.iter().zip(0u32..) {
            peers.by_source.insert(spec.public, PeerId(id));
        }
        peers
    }

    /// The peer that outer source `address` stands for.
    pub fn by_source(&self, address: IpAddr) -> Option<(PeerId, &Peer)> {
        let id = *self.by_source.get(&address)?;
        Some((id, self.peer(id)?))
    }

    /// The peer with that number.
    pub fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.list.get(id.0 as usize)
    }

    /// Every peer, in the order of its number.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.list.iter()
    }
}

impl Peer {
    fn new(node: &NodeSpec, spec: &PeerSpec, state: Arc<PeerState>) -> Peer {
        let header = |family| match spec.format {
            Format::Udp => push::udp(),
            Format::Vxlan => push::vxlan(node.vni, node.vtep_mac, spec.vtep_mac, family),
        };
        let port = match spec.format {
            Format::Udp => node.udp_port,
            Format::Vxlan => node.vxlan_port,
        };
        Peer {
            name: spec.name.clone(),
            public: spec.public,
            format: spec.format,
            vtep_mac: spec.vtep_mac,
            subnets: spec.subnets.clone(),
            also: [IpNet::from(spec.public)]
                .into_iter()
                .chain(spec.accept_sources.iter().copied())
                .collect(),
            to: SocketAddr::new(spec.public, port),
            header_v4: header(Family::V4),
            header_v6: header(Family::V6),
            state,
            underlay_mtu: node.underlay_mtu,
        }
    }

    /// The largest outer packet that we send it, bytes.
    pub fn path_mtu(&self, now: Now) -> u16 {
        self.state
            .path
            .outer(now)
            .map_or(self.underlay_mtu, |learned| learned.min(self.underlay_mtu))
    }

    /// Traffic since the service started.
    pub fn traffic(&self) -> PeerTraffic {
        PeerTraffic {
            sent_packets: self.state.sent.packets.load(Relaxed),
            sent_bytes: self.state.sent.bytes.load(Relaxed),
            received_packets: self.state.received.packets.load(Relaxed),
            received_bytes: self.state.received.bytes.load(Relaxed),
            refused: self.state.refused.load(Relaxed),
        }
    }

    /// The family of the underlay towards it.
    pub(crate) fn underlay(&self) -> Family {
        match self.public {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    pub(crate) fn count_sent(&self, bytes: usize) {
        self.state.sent.add(1, bytes);
    }

    pub(crate) fn count_received(&self, packets: usize, bytes: usize) {
        self.state.received.add(packets, bytes);
    }

    pub(crate) fn count_refused(&self, packets: usize) {
        self.state.refused.fetch_add(packets as u64, Relaxed);
    }
}

impl Tally {
    fn add(&self, packets: usize, bytes: usize) {
        self.packets.fetch_add(packets as u64, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}
