//! What the tables say of one packet: where it goes, whether it fits, and whether it is taken.
//!
//! The workers ask here for each pair of addresses, and `tartan trace` asks for a packet that does not exist, so both get
//! one answer. What depends on the moment (a pod's share, a full socket) is decided elsewhere.

use std::net::{IpAddr, SocketAddr};

use encap::probe::{Fate, Question, Verdict};
use encap::{Family, Format};

use crate::drops::DropReason;
use crate::now::Now;
use crate::peers::{Peer, PeerId, Way};
use crate::pods::Local;
use crate::snapshot::Snapshot;

/// How a packet fits the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// In one piece.
    Whole,
    /// To be cut into fragments of at most so many bytes.
    Fragments(u16),
}

/// How a packet leaves this node.
#[derive(Clone, Copy)]
pub struct Departure<'a> {
    /// The peer that it goes to.
    pub peer: &'a Peer,
    /// Where its datagrams go.
    pub to: SocketAddr,
    /// The format of its datagrams.
    pub format: Format,
    /// Whether it fits, or the reason to drop it.
    pub fit: Result<Fit, DropReason>,
    /// The largest inner packet of its family that passes in one piece, bytes.
    pub mtu: u16,
}

impl Snapshot {
    /// How a packet of `size` bytes leaves this node for a peer.
    ///
    /// # Errors
    /// The reason for which a worker drops it whatever its size.
    pub fn departure(
        &self,
        (source, destination): (IpAddr, IpAddr),
        size: usize,
        dont_fragment: bool,
        now: Now,
    ) -> Result<Departure<'_>, DropReason> {
        let family = Family::of(source);
        let (peer, way) = self.route(family, source, destination)?;
        Ok(Departure {
            peer,
            to: way.to,
            format: way.port.format,
            fit: fit(way, family, size, dont_fragment, now),
            mtu: way.inner_mtu(family, now),
        })
    }

    /// The peer that an outbound packet goes to, and the way there.
    ///
    /// # Errors
    /// The reason to drop it.
    pub(crate) fn route(
        &self,
        family: Family,
        source: IpAddr,
        destination: IpAddr,
    ) -> Result<(&Peer, &Way), DropReason> {
        if !is_unicast(destination) {
            return Err(DropReason::NotUnicast);
        }
        if !self.pods.may_speak(source) {
            return Err(DropReason::SpoofedSource);
        }
        if self.pods.in_own_subnet(destination) {
            return Err(DropReason::OwnSubnet);
        }
        let id = self.cluster.fib.lookup(destination);
        let peer = id.and_then(|id| self.cluster.peers.peer(id));
        let peer = peer.ok_or(DropReason::NoRoute)?;
        if family == Family::V6 && peer.format == Format::Udp && !self.cluster.ipv6_over_udp {
            return Err(DropReason::Ipv6InUdp);
        }
        let way = peer.way(family).ok_or(DropReason::NoUnderlay)?;
        Ok((peer, way))
    }

    /// Whether an inner packet of `peer`, whose number is `id`, is taken.
    ///
    /// # Errors
    /// The reason to drop it.
    pub fn accepts(
        &self,
        (id, peer): (PeerId, &Peer),
        source: IpAddr,
        destination: IpAddr,
    ) -> Result<(), DropReason> {
        if !self.belongs(id, peer, source) {
            return Err(DropReason::NotPeersSource);
        }
        if !self.pods.is_local(destination) {
            return Err(DropReason::NotOurs);
        }
        Ok(())
    }

    /// What becomes of the packet that `peer`, whose number is `id`, asks about, if it comes in `format`. A peer learns
    /// from it what a packet of its own would show.
    pub fn verdict(
        &self,
        (id, peer): (PeerId, &Peer),
        format: Format,
        question: &Question,
        now: Now,
    ) -> Verdict {
        let Question {
            source,
            destination,
            ..
        } = *question;
        let family = question.family();
        let is_v6_in_udp = family == Family::V6 && format == Format::Udp;
        let fate = if is_v6_in_udp && !self.cluster.ipv6_over_udp {
            Fate::Ipv6InUdp
        } else {
            match self.accepts((id, peer), source, destination) {
                Ok(()) => match self.pods.local(destination) {
                    Some(Local::Attachment) => Fate::Pod,
                    Some(Local::Tunnel) => Fate::Tunnel,
                    Some(Local::Kernel) | None => Fate::KernelRoute,
                },
                Err(DropReason::NotPeersSource) => Fate::NotPeersSource,
                Err(_) if self.pods.in_own_subnet(destination) => Fate::NoSuchPod,
                Err(_) => Fate::NotOurs,
            }
        };
        Verdict {
            fate,
            mtu_back: peer.way(family).map_or(0, |way| way.inner_mtu(family, now)),
        }
    }
}

/// Whether a wire packet of `length` bytes fits the way.
///
/// # Errors
/// [`DropReason::TooBig`] where it does not, and must not be cut.
pub(crate) fn fit(
    way: &Way,
    family: Family,
    length: usize,
    dont_fragment: bool,
    now: Now,
) -> Result<Fit, DropReason> {
    let mtu = way.inner_mtu(family, now);
    if length <= usize::from(mtu) {
        Ok(Fit::Whole)
    } else if dont_fragment {
        Err(DropReason::TooBig)
    } else {
        Ok(Fit::Fragments(mtu))
    }
}

fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_multicast() && !v4.is_broadcast() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_multicast() && !v6.is_unspecified(),
    }
}
