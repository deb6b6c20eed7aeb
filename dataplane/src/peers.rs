//! The other nodes: who may send to us, what they may say, and how we send to them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use encap::push::{self, Header};
use encap::{Family, Format, Mac};
use ipnet::IpNet;

use crate::families::{PerFamily, PublicAddresses};
use crate::mtu::{PathMtu, inner_mtu};
use crate::now::Now;
pub use crate::peer_id::PeerId;
use crate::spec::{NodeSpec, PeerSpec};
use crate::underlay::Port;

/// All peers of one snapshot.
#[derive(Default)]
pub struct Peers {
    list: Vec<Peer>,
    /// Our own end of every path: our public addresses, and the MTU of the underlay interface.
    near_end: Option<(PublicAddresses, u16)>,
    by_source: HashMap<IpAddr, PeerId>,
}

/// One other node.
pub struct Peer {
    /// The node's name, for people.
    pub name: String,
    /// Its public addresses: where we send, and the outer sources it is known by.
    pub public: PublicAddresses,
    /// How we send to it.
    pub format: Format,
    /// Its VTEP MAC for inner packets of each family.
    pub vtep_mac: PerFamily<Mac>,
    /// Its leased subnets.
    pub subnets: Vec<IpNet>,
    /// Inner sources it may use beside its subnets: its own public addresses and what `accept-sources` lists.
    pub(crate) also: Vec<IpNet>,
    /// How inner packets of each family go to it; none where it has no address of a family that we have too.
    ways: PerFamily<Option<Way>>,
    /// What outlives a snapshot.
    state: Arc<PeerState>,
}

/// How inner packets of one family go to a peer.
pub(crate) struct Way {
    /// Where datagrams go.
    pub(crate) to: SocketAddr,
    /// Where they leave.
    pub(crate) port: Port,
    /// What stands in front of the inner packet, ready made.
    pub(crate) header: Header,
    /// What is known of the path to that address, whichever family rides on it.
    pub(crate) path: Arc<PathMtu>,
    underlay_mtu: u16,
}

/// What is counted about a peer, carried from snapshot to snapshot by its public addresses, or its name.
#[derive(Default)]
struct PeerState {
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
    /// The peers of `specs`. What was counted about `previous` peers lives on with either of their public addresses, or
    /// with their name where the node has moved. What was learned of the path to an address lives on with that address,
    /// as long as our own end of it stays.
    pub(crate) fn new(node: &NodeSpec, specs: &[PeerSpec], previous: Option<&Peers>) -> Peers {
        let mut peers = Peers {
            near_end: Some((node.public, node.underlay_mtu)),
            ..Peers::default()
        };
        let paths_stand = previous.is_some_and(|before| before.near_end == peers.near_end);
        let known = |address| previous.and_then(|peers| peers.by_public(address));
        let states = continued_states(specs, previous);
        for ((spec, state), id) in specs.iter().zip(states).zip(0u32..) {
            let path = |address| {
                let (_, peer) = known(address).filter(|_| paths_stand)?;
                peer.path(address)
            };
            peers.list.push(Peer::new(node, spec, state, path));
            for source in &spec.underlay_sources {
                peers.by_source.insert(*source, PeerId(id));
            }
        }
        // A public address is its owner's, whatever another node lists as further source.
        for (spec, id) in specs.iter().zip(0u32..) {
            for address in spec.public.iter() {
                peers.by_source.insert(address, PeerId(id));
            }
        }
        peers
    }

    /// The peer whose public address `address` is.
    fn by_public(&self, address: IpAddr) -> Option<(PeerId, &Peer)> {
        self.by_source(address)
            .filter(|(_, peer)| peer.public.contains(address))
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

/// The state with which each of `specs` counts on. Addresses of one peer that are two peers' now do not both count on.
fn continued_states(specs: &[PeerSpec], previous: Option<&Peers>) -> Vec<Arc<PeerState>> {
    let mut continued = HashSet::new();
    let mut continue_as = |(id, peer): (PeerId, &Peer)| {
        let first = continued.insert(id);
        first.then(|| Arc::clone(&peer.state))
    };
    let known = |address| previous.and_then(|peers| peers.by_public(address));
    let by_address = |spec: &PeerSpec| {
        let mut known = spec.public.iter().filter_map(known);
        known.find_map(&mut continue_as)
    };
    let states: Vec<_> = specs.iter().map(by_address).collect();
    let by_name = |name: &str| {
        let mut peers = (0u32..).map(PeerId).zip(previous?.iter());
        peers.find(|(_, peer)| peer.name == name)
    };
    let or_by_name =
        |(state, spec): (Option<_>, &PeerSpec)| state.or_else(|| continue_as(by_name(&spec.name)?));
    let states = states.into_iter().zip(specs).map(or_by_name);
    states.map(Option::unwrap_or_default).collect()
}

impl Peer {
    fn new(
        node: &NodeSpec,
        spec: &PeerSpec,
        state: Arc<PeerState>,
        known_path: impl Fn(IpAddr) -> Option<Arc<PathMtu>>,
    ) -> Peer {
        let paths = PerFamily::each(|family| {
            let known = spec.public.of(family).and_then(&known_path);
            known.unwrap_or_default()
        });
        Peer {
            name: spec.name.clone(),
            public: spec.public,
            format: spec.format,
            vtep_mac: spec.vtep_mac,
            subnets: spec.subnets.clone(),
            also: spec
                .public
                .iter()
                .map(IpNet::from)
                .chain(spec.accept_sources.iter().copied())
                .collect(),
            ways: PerFamily::each(|inner| Way::new(node, spec, inner, &paths)),
            state,
        }
    }

    /// How inner packets of family `inner` go to it; `None` where it has no address of a family that we have too.
    pub(crate) fn way(&self, inner: Family) -> Option<&Way> {
        self.ways.of(inner).as_ref()
    }

    /// The largest outer packet that we send to its public address of family `underlay`, bytes; `None` where we send
    /// nothing there.
    pub fn path_mtu(&self, underlay: Family, now: Now) -> Option<u16> {
        let mut ways = self.ways.iter().flatten();
        ways.find(|way| way.port.family == underlay)
            .map(|way| way.mtu(now))
    }

    /// What is known of the path to a public address that we send to.
    fn path(&self, address: IpAddr) -> Option<Arc<PathMtu>> {
        let mut ways = self.ways.iter().flatten();
        ways.find(|way| way.to.ip() == address)
            .map(|way| Arc::clone(&way.path))
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

    pub(crate) fn count_sent(&self, packets: usize, bytes: usize) {
        self.state.sent.add(packets, bytes);
    }

    pub(crate) fn count_received(&self, packets: usize, bytes: usize) {
        self.state.received.add(packets, bytes);
    }

    pub(crate) fn count_refused(&self, packets: usize) {
        self.state.refused.fetch_add(packets as u64, Relaxed);
    }
}

impl Way {
    fn new(
        node: &NodeSpec,
        spec: &PeerSpec,
        inner: Family,
        paths: &PerFamily<Arc<PathMtu>>,
    ) -> Option<Way> {
        let address = node.public.way_to(spec.public, inner)?;
        let (header, udp_port) = match spec.format {
            Format::Udp => (push::udp(), node.udp_port),
            Format::Vxlan => {
                let mac = *spec.vtep_mac.of(inner);
                let header = push::vxlan(node.vni, node.vtep_mac, mac, inner);
                (header, node.vxlan_port)
            }
        };
        Some(Way {
            to: SocketAddr::new(address, udp_port),
            port: Port::towards(address, spec.format),
            header,
            path: Arc::clone(paths.of(Family::of(address))),
            underlay_mtu: node.underlay_mtu,
        })
    }

    /// The largest outer packet, bytes.
    fn mtu(&self, now: Now) -> u16 {
        self.path
            .outer(now)
            .map_or(self.underlay_mtu, |learned| learned.min(self.underlay_mtu))
    }

    /// Whether an inner packet of `length` bytes makes a datagram no larger than what is known of the path.
    pub(crate) fn carries(&self, length: usize, now: Now) -> bool {
        let overhead = self.port.format.overhead(self.port.family);
        length + usize::from(overhead) <= usize::from(self.mtu(now))
    }

    /// The largest inner packet of family `inner`, bytes; never less than every host must accept, even where the path
    /// carries less.
    pub(crate) fn inner_mtu(&self, inner: Family, now: Now) -> u16 {
        inner_mtu(self.mtu(now), self.port.format, self.port.family, inner)
    }
}

impl Tally {
    fn add(&self, packets: usize, bytes: usize) {
        self.packets.fetch_add(packets as u64, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}
