//! The route of an outbound packet, and whether it fits the path.

use std::net::{IpAddr, SocketAddr};

use encap::inner::Inner;
use encap::{Ecn, Family, Format, ecn};

use super::{Outbound, Refusal};
use crate::drops::DropReason;
use crate::icmp_errors::IcmpError;
use crate::now::Now;
use crate::peers::Way;
use crate::snapshot::Snapshot;
use crate::underlay::TxSlot;

/// The way of a packet, its transmit slot, and its outer ECN codepoint.
pub(super) struct Target<'a> {
    way: &'a Way,
    pub(super) slot: TxSlot,
    ecn: Ecn,
}

/// How a packet fits the path.
#[derive(Clone, Copy)]
pub(super) enum Fit {
    Whole,
    /// To be cut into fragments of at most so many bytes.
    Fragments(u16),
}

impl<'a> Target<'a> {
    fn new(way: &'a Way, inner: &Inner) -> Target<'a> {
        // Stock peers of the `udp` format do not decapsulate ECN: there the outer header is Not-ECT.
        let ecn = match way.port.format {
            Format::Udp => Ecn::NotEct,
            Format::Vxlan => ecn::encapsulate(inner.ecn),
        };
        let slot = TxSlot::of_flow(way.port, inner.flow_hash());
        Target { way, slot, ecn }
    }

    /// The bytes in front of the inner packet.
    pub(super) fn outer(&self) -> &[u8] {
        self.way.header.as_slice()
    }

    /// Outer destination and ECN codepoint.
    pub(super) fn to(&self) -> (SocketAddr, Ecn) {
        (self.way.to, self.ecn)
    }
}

impl<'a, D> Outbound<'a, D> {
    /// Looks up the way of the packet, and whether a wire packet of `length` bytes fits it.
    pub(super) fn target(
        &mut self,
        inner: &Inner,
        length: usize,
    ) -> Result<(Target<'a>, Fit), Refusal> {
        let way = self.way(inner)?;
        let fit = fit(way, inner, length, self.now)?;
        Ok((Target::new(way, inner), fit))
    }

    /// Where to send a wire packet of `length` bytes that is larger than what routers reported of the path, if that is
    /// to be tried now.
    pub(super) fn trial_target(&mut self, inner: &Inner, length: usize) -> Option<Target<'a>> {
        let way = self.way(inner).ok()?;
        way.begin_trial(length, self.now)
            .then(|| Target::new(way, inner))
    }

    fn way(&mut self, inner: &Inner) -> Result<&'a Way, Refusal> {
        let (source, destination) = (inner.source, inner.destination);
        if let Some(cached) = &self.cached
            && (cached.source, cached.destination) == (source, destination)
        {
            return Ok(cached.way);
        }
        let way = route(self.snapshot, inner)?;
        self.cached = Some(RouteCache {
            source,
            destination,
            way,
        });
        Ok(way)
    }

    /// As [`Outbound::target`], for a packet that our own kernel refused as too large. The packet is refused if the path
    /// is narrower than the least size that every host must accept; if no such path MTU is known, it is sent once more.
    pub(super) fn retry_target(
        &mut self,
        inner: &Inner,
        length: usize,
    ) -> Result<(Target<'a>, Fit), Refusal> {
        let (target, fit) = self.target(inner, length)?;
        if matches!(fit, Fit::Whole) && !target.way.carries(length, self.now) {
            return Err(too_big(target.way, inner, self.now));
        }
        Ok((target, fit))
    }
}

/// The latest route: two pods, and the way from one to the other.
pub(crate) struct RouteCache<'a> {
    source: IpAddr,
    destination: IpAddr,
    way: &'a Way,
}

/// The way to the peer that the packet goes to.
fn route<'a>(snapshot: &'a Snapshot, inner: &Inner) -> Result<&'a Way, Refusal> {
    if !is_unicast(inner.destination) {
        return Err(Refusal(DropReason::NotUnicast, None));
    }
    if !snapshot.pods.may_speak(inner.source) {
        return Err(Refusal(DropReason::SpoofedSource, None));
    }
    if snapshot.pods.in_own_subnet(inner.destination) {
        return Err(Refusal(DropReason::OwnSubnet, None));
    }
    let Some(peer) = snapshot
        .cluster
        .fib
        .lookup(inner.destination)
        .and_then(|id| snapshot.cluster.peers.peer(id))
    else {
        return Err(Refusal(DropReason::NoRoute, Some(IcmpError::Unreachable)));
    };
    if inner.family == Family::V6 && peer.format == Format::Udp && !snapshot.cluster.ipv6_over_udp {
        return Err(Refusal(DropReason::Ipv6InUdp, Some(IcmpError::Unreachable)));
    }
    peer.way(inner.family).ok_or(Refusal(
        DropReason::NoUnderlay,
        Some(IcmpError::Unreachable),
    ))
}

fn fit(way: &Way, inner: &Inner, length: usize, now: Now) -> Result<Fit, Refusal> {
    let mtu = way.inner_mtu(inner.family, now);
    if length <= usize::from(mtu) {
        Ok(Fit::Whole)
    } else if inner.dont_fragment {
        Err(too_big(way, inner, now))
    } else {
        Ok(Fit::Fragments(mtu))
    }
}

/// RFC 792: an ICMP error answers only a packet that forbids fragmentation.
fn too_big(way: &Way, inner: &Inner, now: Now) -> Refusal {
    let answer = IcmpError::TooBig(way.inner_mtu(inner.family, now));
    Refusal(DropReason::TooBig, inner.dont_fragment.then_some(answer))
}

fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_multicast() && !v4.is_broadcast() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_multicast() && !v6.is_unspecified(),
    }
}
