//! The programs' lookups (`leave`, `arrive` and `follow` of `dataplane/bpf/`) over tables in memory, and user space's over
//! a snapshot.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use encap::{Family, Format, Mac, Vni, push};
use ipnet::IpNet;

use super::memory::{Memory, State, longest};
use crate::kernel_path::Facts;
use crate::kernel_path::layout::{
    FLOWS, LOCAL_DESTINATION, LOCAL_OURS, LOCAL_SOURCE, ON, PEER_RECEIVE, PEER_SEND, Peer, Pod,
    address,
};
use crate::snapshot::Snapshot;
use crate::spec::Spec;

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Probe {
    /// Inner source and destination.
    Out(Ipv4Addr, Ipv4Addr),
    /// Outer source, inner source and destination.
    In(Ipv4Addr, Ipv4Addr, Ipv4Addr),
}

/// How a packet is carried: to whom and behind which VXLAN header, or into which network and to which VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Sent(SocketAddr, push::Header),
    Delivered(Vni, Mac),
}

/// Packets between any two addresses that a spec names.
pub(super) struct Probes {
    near: BTreeSet<Ipv4Addr>,
    far: BTreeSet<Ipv4Addr>,
    outer: BTreeSet<Ipv4Addr>,
}

impl Probes {
    pub(super) fn new(spec: &Spec) -> Probes {
        let ends = |net: &IpNet| [net.network(), net.broadcast()];
        let v4 = |address: IpAddr| match address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        };
        let local = &spec.local;
        let near = [&local.tunnel, &local.addresses, &local.attachments]
            .into_iter()
            .flatten()
            .copied();
        let nets = [
            &local.subnets,
            &local.kernel_prefixes,
            &local.allowed_sources,
        ];
        let near = near.chain(nets.into_iter().flatten().flat_map(ends));
        let peers = &spec.cluster.peers;
        let far = peers
            .iter()
            .flat_map(|peer| peer.subnets.iter().flat_map(ends));
        let outer = peers
            .iter()
            .flat_map(|peer| peer.public.iter().chain(peer.underlay_sources.clone()));
        Probes {
            near: near.filter_map(v4).collect(),
            far: far.filter_map(v4).collect(),
            outer: outer.filter_map(v4).collect(),
        }
    }

    pub(super) fn and(mut self, other: Probes) -> Probes {
        self.near.extend(other.near);
        self.far.extend(other.far);
        self.outer.extend(other.outer);
        self
    }

    pub(super) fn outbound(&self) -> impl Iterator<Item = (Ipv4Addr, Ipv4Addr)> {
        let ends = self.near.union(&self.far);
        let ends: Vec<Ipv4Addr> = ends.copied().collect();
        let near = self.near.iter().copied();
        near.flat_map(move |near| ends.clone().into_iter().map(move |far| (near, far)))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Probe> {
        let out = self.outbound().map(|(near, far)| Probe::Out(near, far));
        let inward = self.outbound().flat_map(|(near, far)| {
            self.outer
                .iter()
                .map(move |outer| Probe::In(*outer, far, near))
        });
        out.chain(inward)
    }
}

impl Verdict {
    /// What user space does with the packet.
    pub(super) fn of(snapshot: &Snapshot, probe: Probe) -> Option<Verdict> {
        let Snapshot { cluster, pods, .. } = snapshot;
        match probe {
            Probe::Out(source, destination) => {
                if !pods.may_speak(source.into()) || pods.in_own_subnet(destination.into()) {
                    return None;
                }
                let peer = cluster
                    .peers
                    .peer(cluster.fib.lookup(destination.into())?)?;
                let way = peer.way(Family::V4)?;
                Some(Verdict::Sent(way.to, way.header))
            }
            Probe::In(outer, source, destination) => {
                let (id, peer) = cluster.peers.by_source(outer.into())?;
                let theirs = snapshot.belongs(id, peer, source.into());
                let delivered = theirs && pods.is_local(destination.into());
                delivered.then_some(Verdict::Delivered(cluster.vtep.vni, cluster.vtep.mac))
            }
        }
    }
}

/// Whether the kernel path carries such a packet, if user space does: the peer of the other end has the `vxlan` format and
/// an IPv4 address in common, its next hop is known, one peer alone claims the prefix, and the end is not ours.
pub(super) fn is_carried(spec: &Spec, facts: &Facts, snapshot: &Snapshot, probe: Probe) -> bool {
    let far = match probe {
        Probe::Out(_, far) | Probe::In(_, far, _) => IpAddr::V4(far),
    };
    let peers = &spec.cluster.peers;
    let claims = peers
        .iter()
        .flat_map(|peer| peer.subnets.iter().map(move |net| (net, peer)));
    let claims = claims.filter(|(net, _)| net.contains(&far));
    let Some(length) = claims.clone().map(|(net, _)| net.prefix_len()).max() else {
        return false;
    };
    let mut claims = claims.filter(|(net, _)| net.prefix_len() == length);
    let Some((_, peer)) = claims.next() else {
        return false;
    };
    if claims.next().is_some() || snapshot.pods.is_ours(far) {
        return false;
    }
    let Some(IpAddr::V4(address)) = spec.cluster.node.public.way_to(peer.public, Family::V4) else {
        return false;
    };
    let format = peer.format == Format::Vxlan;
    match probe {
        Probe::Out(..) => {
            format
                && facts.next_hops.contains_key(&address)
                && !facts.unusable.contains(&address)
                && peer.vtep_mac.v4.is_unicast()
        }
        Probe::In(outer, ..) => format && outer == address,
    }
}

impl State {
    /// What the programs do with the packet; `None` if they pass it on.
    pub(super) fn verdict(&self, probe: Probe) -> Option<Verdict> {
        if self.settings.flags & ON == 0 {
            return None;
        }
        match probe {
            Probe::Out(source, destination) => {
                if self.local(source) & LOCAL_SOURCE == 0
                    || self.local(destination) & LOCAL_OURS != 0
                {
                    return None;
                }
                let (_, peer) = self
                    .peer(destination)
                    .filter(|(_, peer)| peer.flags & PEER_SEND != 0)?;
                Some(self.sent(&peer))
            }
            Probe::In(outer, source, destination) => {
                let (_, peer) = self
                    .peer(source)
                    .filter(|(_, peer)| peer.flags & PEER_RECEIVE != 0)?;
                let theirs = address(peer.address) == outer && self.local(source) & LOCAL_OURS == 0;
                let delivered = theirs && self.local(destination) & LOCAL_DESTINATION != 0;
                let vni = Vni::new(u32::from_be(self.settings.vni) >> 8).unwrap();
                delivered.then_some(Verdict::Delivered(vni, Mac(self.settings.vtep)))
            }
        }
    }

    fn sent(&self, peer: &Peer) -> Verdict {
        let settings = &self.settings;
        let vni = Vni::new(u32::from_be(settings.vni) >> 8).unwrap();
        let header = push::vxlan(vni, Mac(settings.vtep), Mac(peer.vtep), Family::V4);
        Verdict::Sent(
            (address(peer.address), u16::from_be(settings.vxlan_port)).into(),
            header,
        )
    }

    fn local(&self, address: Ipv4Addr) -> u32 {
        longest(&self.local, address).unwrap_or(0)
    }

    fn peer(&self, address: Ipv4Addr) -> Option<(u32, Peer)> {
        let number = longest(&self.fib, address).filter(|number| *number != 0)?;
        Some((number, self.peers[number as usize]))
    }
}

/// A flow as control installs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    number: u32,
    peer: Peer,
    pod: Pod,
    epoch: u32,
    header: Verdict,
}

impl Flow {
    pub(super) fn probe(&self) -> Probe {
        Probe::Out(self.source, self.destination)
    }
}

impl Memory {
    pub(super) fn verdict(&self, probe: Probe) -> Option<Verdict> {
        self.state().verdict(probe)
    }

    /// The flow from a pod to an address, if the tables allow to install one.
    pub(super) fn flow(&self, source: Ipv4Addr, destination: Ipv4Addr) -> Option<Flow> {
        let state = self.state();
        let header = state.verdict(Probe::Out(source, destination))?;
        let (number, peer) = state.peer(destination)?;
        Some(Flow {
            source,
            destination,
            number,
            peer,
            pod: *state.pods.get(&source).filter(|pod| pod.ifindex != 0)?,
            epoch: state.settings.epoch,
            header,
        })
    }
}

impl State {
    /// What becomes of a packet of the flow; `None` if its entry is not followed.
    pub(super) fn followed(&self, flow: &Flow) -> Option<Verdict> {
        let peer = self.peers[flow.number as usize];
        let pod = self.pods.get(&flow.source)?;
        let live = self.settings.flags & (ON | FLOWS) == ON | FLOWS
            && self.settings.follows(flow.epoch)
            && flow.peer.generation == peer.generation
            && flow.pod.generation == pod.generation
            && flow.pod.ifindex == pod.ifindex
            && peer.flags & PEER_SEND != 0;
        live.then_some(flow.header)
    }
}
