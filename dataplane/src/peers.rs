//! The other nodes: who may send to us, what they may say, and how we send to them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use encap::push::{self, Header};
use encap::{Family, Format, Mac, Vni};
use ipnet::IpNet;

use crate::drop_counts::DropCounts;
use crate::drops::DropReason;
use crate::families::{PerFamily, PublicAddresses};
use crate::limits::KERNEL_PATH_ANNOUNCED_FOR;
use crate::mtu::{PathMtu, inner_mtu, min_inner};
use crate::now::Now;
pub use crate::peer_id::PeerId;
use crate::spec::{ClusterSpec, NodeSpec, PeerSpec};
use crate::underlay::Port;

/// All peers of one snapshot.
#[derive(Default)]
pub struct Peers {
    /// By number; a number whose peer went is given to the next that comes.
    list: Vec<Option<Arc<Peer>>>,
    /// The number of each, in the order of their specs.
    ids: Vec<PeerId>,
    by_source: HashMap<IpAddr, PeerId>,
    /// Some outer source has two peers: one stands, and the other is forgotten.
    contested: bool,
}

/// A peer and its number.
pub(crate) type Placed<'a> = (PeerId, &'a Arc<PeerSpec>);

/// What differs from the peers before.
#[derive(Default)]
pub(crate) struct Change<'a> {
    /// Peers that went, or are others now, by their old numbers.
    pub(crate) removed: Vec<Placed<'a>>,
    /// Peers that came, or were others before, by their new numbers.
    pub(crate) added: Vec<Placed<'a>>,
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
    drops: DropCounts,
    /// The source MAC of the latest frame with an inner packet of each family, if it was not the lease's; 0 = it was.
    other_mac: PerFamily<AtomicU64>,
    /// When data or a probe of it was accepted last; 0 = never.
    heard: AtomicU64,
    /// When control last took an answer of it for good; 0 = never.
    answered: AtomicU64,
    /// When its latest request came; the lowest bit says instead whether its kernel path is in use. 0 = never.
    announced: AtomicU64,
    /// The network of the latest datagram refused for it.
    other_vni: Refusal,
    /// The station that the latest frame was to that was refused for it.
    other_station: Refusal,
}

/// What the latest datagram of a peer had that was refused for it.
#[derive(Default)]
struct Refusal {
    value: AtomicU64,
    /// When; 0 = never.
    at: AtomicU64,
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
}

#[derive(Default)]
struct Tally {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Peers {
    /// The peers of `spec`. What was counted about `previous` peers lives on with either of their public addresses, or
    /// with their name where the node has moved. What was learned of the path to an address lives on with that address,
    /// as long as our own end of it stays. Peers whose spec is the same keep their numbers, and are the same in memory
    /// as long as what we send them stays.
    pub(crate) fn new<'a>(
        spec: &'a ClusterSpec,
        previous: Option<(&'a ClusterSpec, &Peers)>,
    ) -> (Peers, Change<'a>) {
        let before = previous.map(|(_, peers)| peers);
        let places = Places::of(spec, previous);
        let mut peers = Peers {
            list: before.map_or(vec![], |before| before.list.clone()),
            ids: places.ids,
            ..Peers::default()
        };
        let node_before = previous.map(|(spec, _)| &spec.node);
        let paths_stand =
            node_before.is_some_and(|before| near_end(before) == near_end(&spec.node));
        let stand =
            paths_stand && node_before.is_some_and(|before| sent(before) == sent(&spec.node));
        let path = |address| {
            let (_, peer) = before?.by_public(address).filter(|_| paths_stand)?;
            peer.path(address)
        };
        let states = continued_states(&places.change, before);
        for (id, _) in &places.change.removed {
            peers.place(*id, None);
        }
        for ((id, of), state) in places.change.added.iter().zip(states) {
            peers.place(*id, Some(Arc::new(Peer::new(&spec.node, of, state, path))));
        }
        if !stand {
            let is_new: HashSet<PeerId> = places.change.added.iter().map(|(id, _)| *id).collect();
            for (id, of) in peers.ids.clone().into_iter().zip(&spec.peers) {
                let kept = before
                    .and_then(|before| before.peer(id))
                    .filter(|_| !is_new.contains(&id));
                if let Some(kept) = kept {
                    let state = Arc::clone(&kept.state);
                    peers.place(id, Some(Arc::new(Peer::new(&spec.node, of, state, path))));
                }
            }
        }
        peers.index(spec, before, &places.change);
        (peers, places.change)
    }

    fn place(&mut self, id: PeerId, peer: Option<Arc<Peer>>) {
        let index = id.0 as usize;
        if index >= self.list.len() {
            self.list.resize(index + 1, None);
        }
        if let Some(place) = self.list.get_mut(index) {
            *place = peer;
        }
    }

    /// Learns which outer sources the peers have: from those before, or anew where that cannot be exact.
    fn index(&mut self, spec: &ClusterSpec, before: Option<&Peers>, change: &Change<'_>) {
        if let Some(before) = before.filter(|before| !before.contested) {
            self.by_source.clone_from(&before.by_source);
            for (_, peer) in &change.removed {
                for source in peer
                    .underlay_sources
                    .iter()
                    .copied()
                    .chain(peer.public.iter())
                {
                    self.by_source.remove(&source);
                }
            }
            for (id, peer) in &change.added {
                for source in peer
                    .underlay_sources
                    .iter()
                    .copied()
                    .chain(peer.public.iter())
                {
                    self.claim(source, *id);
                }
            }
            if !self.contested {
                return;
            }
        }
        self.by_source.clear();
        self.contested = false;
        let ids = self.ids.clone();
        for (id, peer) in ids.iter().zip(&spec.peers) {
            for source in &peer.underlay_sources {
                self.claim(*source, *id);
            }
        }
        // A public address is its owner's, whatever another node lists as further source.
        for (id, peer) in ids.iter().zip(&spec.peers) {
            for address in peer.public.iter() {
                self.claim(address, *id);
            }
        }
    }

    fn claim(&mut self, source: IpAddr, id: PeerId) {
        let other = self.by_source.insert(source, id);
        self.contested |= other.is_some_and(|other| other != id);
    }

    /// The number of each peer, in the order of their specs.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PeerId> {
        self.ids.iter().copied()
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
        self.list.get(id.0 as usize)?.as_deref()
    }

    /// Numbers that no peer has.
    fn holes(&self) -> impl Iterator<Item = PeerId> {
        let empty = (0u32..).zip(&self.list).filter(|(_, peer)| peer.is_none());
        empty.map(|(id, _)| PeerId(id))
    }

    /// Every peer, in the order of its number.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.list.iter().flatten().map(|peer| &**peer)
    }
}

/// Where the peers of a spec stand.
struct Places<'a> {
    /// The number of each.
    ids: Vec<PeerId>,
    change: Change<'a>,
}

impl<'a> Places<'a> {
    fn of(spec: &'a ClusterSpec, previous: Option<(&'a ClusterSpec, &Peers)>) -> Places<'a> {
        let new = &spec.peers;
        let (old, old_ids, list) = previous.map_or((&[][..], &[][..], 0), |(spec, peers)| {
            (&spec.peers[..], &peers.ids[..], peers.list.len())
        });
        let same = |(a, b): &(&Arc<PeerSpec>, &Arc<PeerSpec>)| Arc::ptr_eq(a, b) || a == b;
        // Mostly all but a few in one place are the same.
        let head = old.iter().zip(new).take_while(same).count();
        let rest = (old.iter().skip(head), new.iter().skip(head));
        let tail = rest.0.rev().zip(rest.1.rev()).take_while(same).count();
        let middle = |all: &[_]| head..all.len() - tail;
        // Where as many came as went, most of those between two that changed stand in their old places.
        let aligned = old.len() == new.len();
        let stands = |index: usize| {
            let pair = old.get(index).zip(new.get(index));
            aligned && pair.is_some_and(|pair| same(&pair))
        };
        let mut left: HashMap<&str, Placed<'_>> = HashMap::new();
        let mut change = Change::default();
        for index in middle(old).filter(|index| !stands(*index)) {
            let placed = old_ids.get(index).copied().zip(old.get(index));
            let namesake = placed.and_then(|(id, peer)| left.insert(&peer.name, (id, peer)));
            change.removed.extend(namesake);
        }
        let mut ids: Vec<Option<PeerId>> = Vec::with_capacity(new.len());
        ids.extend(old_ids.iter().take(head).copied().map(Some));
        for (index, peer) in new.iter().enumerate().take(middle(new).end).skip(head) {
            if stands(index) {
                ids.push(old_ids.get(index).copied());
                continue;
            }
            let kept = left
                .get(&*peer.name)
                .filter(|(_, before)| same(&(before, peer)));
            ids.push(kept.map(|(id, _)| *id));
            if kept.is_some() {
                left.remove(&*peer.name);
            }
        }
        ids.extend(old_ids.iter().skip(old.len() - tail).copied().map(Some));
        change.removed.extend(left.into_values());
        change.removed.sort_unstable_by_key(|(id, _)| id.0);
        // Numbers of those that went, then holes, then new ones.
        let went = change.removed.iter().map(|(id, _)| *id);
        let holes = previous.into_iter().flat_map(|(_, peers)| peers.holes());
        let further = (u32::try_from(list).unwrap_or(u32::MAX)..).map(PeerId);
        let mut free = went.chain(holes).chain(further);
        let placed = ids.into_iter().zip(new).filter_map(|(id, peer)| {
            let kept = id.is_some();
            let id = id.or_else(|| free.next())?;
            if !kept {
                change.added.push((id, peer));
            }
            Some(id)
        });
        Places {
            ids: placed.collect(),
            change,
        }
    }
}

/// The state with which each peer that came counts on. Addresses of one peer that are two peers' now do not both count on.
fn continued_states(change: &Change<'_>, before: Option<&Peers>) -> Vec<Arc<PeerState>> {
    let mut left: HashSet<PeerId> = change.removed.iter().map(|(id, _)| *id).collect();
    let by_name: HashMap<&str, PeerId> = change
        .removed
        .iter()
        .rev()
        .map(|(id, peer)| (&*peer.name, *id))
        .collect();
    let mut continue_as = |id: PeerId| {
        let peer = before?.peer(id).filter(|_| left.remove(&id))?;
        Some(Arc::clone(&peer.state))
    };
    let known = |address| Some(before?.by_public(address)?.0);
    let by_address = |(_, spec): &Placed<'_>| {
        let mut known = spec.public.iter().filter_map(known);
        known.find_map(&mut continue_as)
    };
    let states: Vec<_> = change.added.iter().map(by_address).collect();
    let or_by_name = |(state, (_, spec)): (Option<_>, &Placed<'_>)| {
        state.or_else(|| continue_as(*by_name.get(&*spec.name)?))
    };
    let states = states.into_iter().zip(&change.added).map(or_by_name);
    states.map(Option::unwrap_or_default).collect()
}

/// Our own end of every path: our public addresses, and the MTU of the underlay interface.
fn near_end(node: &NodeSpec) -> (PublicAddresses, u16) {
    (node.public, node.underlay_mtu)
}

/// What else of this node is in the headers that we send.
fn sent(node: &NodeSpec) -> (PerFamily<Mac>, Vni, u16, u16) {
    (node.vtep_mac, node.vni, node.udp_port, node.vxlan_port)
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

    /// Its drops: of what it sent, and of what was routed to it.
    pub fn drops(&self) -> &DropCounts {
        &self.state.drops
    }

    /// Traffic since the service started.
    pub fn traffic(&self) -> PeerTraffic {
        PeerTraffic {
            sent_packets: self.state.sent.packets.load(Relaxed),
            sent_bytes: self.state.sent.bytes.load(Relaxed),
            received_packets: self.state.received.packets.load(Relaxed),
            received_bytes: self.state.received.bytes.load(Relaxed),
        }
    }

    /// Packets from it that were dropped for what they are: for every reason but those of this node's own load (`OverShare`,
    /// `ProbeLimit`) and those of the answers to its probes (`UnderlayFull`, `UnderlayRefused`).
    pub fn refused(&self) -> u64 {
        self.state.drops.inbound_where(is_of_sender)
    }

    /// The MAC that its frames with inner packets of family `inner` come from, if that is not the one of its lease. The
    /// peer then discards what we send it: its VXLAN device was made anew, with another MAC, and its lease not.
    pub fn other_mac(&self, inner: Family) -> Option<Mac> {
        let [_, _, bytes @ ..] = self.state.other_mac.of(inner).load(Relaxed).to_be_bytes();
        let mac = Some(Mac(bytes)).filter(|mac| mac.is_unicast());
        mac.filter(|mac| self.format == Format::Vxlan && mac != self.vtep_mac.of(inner))
    }

    /// When data or a probe of it was accepted last: with its outer source, our VNI and MAC, and an inner packet that it may
    /// send to us. `None` if none was since the service started. What the kernel path carries, no worker sees.
    pub fn last_heard(&self) -> Option<Now> {
        moment(&self.state.heard)
    }

    /// When control last took an answer of it for good ([`Peer::note_answer`]).
    pub fn last_answer(&self) -> Option<Now> {
        moment(&self.state.answered)
    }

    /// Notes that an answer of it came at `at` to a request that was open. From then on workers tell the peer, in
    /// their answers, that it is heard.
    pub fn note_answer(&self, at: Now) {
        self.state.answered.store(at.0.max(1), Relaxed);
    }

    /// Whether its kernel path is in use, as its latest request says ([`encap::probe::KERNEL_PATH`]): a Tartan node that does
    /// not know the flag does not set it. `None` where none came within [`KERNEL_PATH_ANNOUNCED_FOR`]: it runs flannel,
    /// sends no probes, or has sent none yet. The source of a request can be forged: this is fit to choose a way by, and
    /// for no more.
    pub fn announced_kernel_path(&self, now: Now) -> Option<bool> {
        let word = self.state.announced.load(Relaxed);
        let at = Some(word & !ANNOUNCED).filter(|at| *at > 0).map(Now)?;
        (now.since(at) < KERNEL_PATH_ANNOUNCED_FOR).then_some(word & ANNOUNCED != 0)
    }

    /// The VXLAN network of its latest datagram that was refused for another network than ours, and when that was.
    pub fn other_vni(&self) -> Option<(u32, Now)> {
        let (vni, at) = self.state.other_vni.read()?;
        Some((u32::try_from(vni).ok()?, at))
    }

    /// The station to which its latest frame was that was refused because it was not to our VTEP, and when that was: its
    /// list has another `vtep-mac` for this node.
    pub fn other_station(&self) -> Option<(Mac, Now)> {
        let (mac, at) = self.state.other_station.read()?;
        let [_, _, bytes @ ..] = mac.to_be_bytes();
        Some((Mac(bytes), at))
    }

    /// The families of underlay by which packets go to it.
    pub fn underlays(&self) -> impl Iterator<Item = Family> {
        let families = [Family::V4, Family::V6].into_iter();
        families.filter(|underlay| self.way_over(*underlay).is_some())
    }

    /// Where datagrams go to it over `underlay`, and the largest outer packet that our own end of the path takes, bytes.
    /// `None` where we send nothing.
    pub fn destination(&self, underlay: Family) -> Option<(SocketAddr, u16)> {
        let (_, way) = self.way_over(underlay)?;
        Some((way.to, way.underlay_mtu))
    }

    /// Takes in that the largest outer packet that passes to its address of family `underlay` has `mtu` bytes, as probes
    /// have shown: more or less than what was known. Counts for [`PATH_MTU_LIFE`](crate::limits::PATH_MTU_LIFE), unless
    /// it is shown again or routers report less. Pods are told by the same ICMP errors as of a report.
    pub fn learn_path(&self, underlay: Family, mtu: u16, now: Now) {
        let Some((_, way)) = self.way_over(underlay) else {
            return;
        };
        if mtu >= way.underlay_mtu {
            way.path.forget();
        } else {
            let overhead = way.port.format.overhead(underlay);
            // As of a report: no path is learned to carry less than what every path is taken to carry.
            way.path.prove(mtu.max(min_inner(underlay) + overhead), now);
        }
    }

    /// How packets go to it over `underlay`, and the family of those that do.
    pub(crate) fn way_over(&self, underlay: Family) -> Option<(Family, &Way)> {
        let mut ways = [Family::V4, Family::V6]
            .into_iter()
            .filter_map(|inner| Some((inner, self.way(inner)?)));
        ways.find(|(_, way)| way.port.family == underlay)
    }

    pub(crate) fn note_heard(&self, now: Now) {
        self.state.heard.store(now.0.max(1), Relaxed);
    }

    /// Notes a request of it, and whether that says that its kernel path is in use. Data of the peer says nothing of that.
    pub(crate) fn note_kernel_path(&self, is_in_use: bool, now: Now) {
        let at = now.0.max(ANNOUNCED + 1) & !ANNOUNCED;
        let word = if is_in_use { at | ANNOUNCED } else { at };
        self.state.announced.store(word, Relaxed);
    }

    pub(crate) fn note_other_vni(&self, vni: u32, now: Now) {
        self.state.other_vni.note(vni.into(), now);
    }

    pub(crate) fn note_other_station(&self, mac: Mac, now: Now) {
        let [a, b, c, d, e, g] = mac.0;
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, g]);
        self.state.other_station.note(mac, now);
    }

    /// Notes the source MAC of a frame from it. Writes only when something has changed.
    pub(crate) fn note_source_mac(&self, inner: Family, mac: Mac) {
        let [a, b, c, d, e, g] = mac.0;
        let other = if mac == *self.vtep_mac.of(inner) {
            0
        } else {
            u64::from_be_bytes([0, 0, a, b, c, d, e, g])
        };
        let noted = self.state.other_mac.of(inner);
        if noted.load(Relaxed) != other {
            noted.store(other, Relaxed);
        }
    }

    pub(crate) fn count_sent(&self, packets: usize, bytes: usize) {
        self.state.sent.add(packets, bytes);
    }

    pub(crate) fn count_received(&self, packets: usize, bytes: usize) {
        self.state.received.add(packets, bytes);
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
                let (ours, theirs) = (*node.vtep_mac.of(inner), *spec.vtep_mac.of(inner));
                let header = push::vxlan(node.vni, ours, theirs, inner);
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

    /// Whether an inner packet of `length` bytes is to be let out now as a trial of what routers reported of the path.
    pub(crate) fn begin_trial(&self, length: usize, now: Now) -> bool {
        let overhead = self.port.format.overhead(self.port.family);
        let leaves = length + usize::from(overhead) <= usize::from(self.underlay_mtu);
        leaves && self.path.begin_trial(now)
    }

    /// The largest inner packet of family `inner`, bytes; never less than every host must accept, even where the path
    /// carries less.
    pub(crate) fn inner_mtu(&self, inner: Family, now: Now) -> u16 {
        inner_mtu(self.mtu(now), self.port.format, self.port.family, inner)
    }
}

impl Refusal {
    fn note(&self, value: u64, now: Now) {
        self.value.store(value, Relaxed);
        self.at.store(now.0.max(1), Relaxed);
    }

    fn read(&self) -> Option<(u64, Now)> {
        let at = moment(&self.at)?;
        Some((self.value.load(Relaxed), at))
    }
}

/// Whether a drop inbound is due to what the peer sent. Of what is over a share nothing is wrong, neither with the peer nor
/// with the list of nodes; more probes than are answered may be another's, forged; a full socket is this node's.
fn is_of_sender(reason: DropReason) -> bool {
    !matches!(
        reason,
        DropReason::OverShare
            | DropReason::ProbeLimit
            | DropReason::UnderlayFull
            | DropReason::UnderlayRefused
    )
}

/// The lowest bit of a word of time: the peer's kernel path is in use.
const ANNOUNCED: u64 = 1;

/// The time in a word where 0 is never.
fn moment(word: &AtomicU64) -> Option<Now> {
    Some(word.load(Relaxed)).filter(|at| *at > 0).map(Now)
}

impl Tally {
    fn add(&self, packets: usize, bytes: usize) {
        self.packets.fetch_add(packets as u64, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}
