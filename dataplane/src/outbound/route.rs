//! The route of an outbound packet, and whether it fits the path.

use std::net::{IpAddr, SocketAddr};

use encap::inner::Inner;
use encap::{Ecn, Format, ecn};

use super::{Outbound, Refusal};
use crate::decision::{self, Fit};
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
    let route = snapshot.route(inner.family, inner.source, inner.destination);
    let (_, way) = route.map_err(|reason| Refusal(reason, answer(reason)))?;
    Ok(way)
}

/// The ICMP error for the sender of a packet that has no way.
fn answer(reason: DropReason) -> Option<IcmpError> {
    match reason {
        DropReason::NoRoute | DropReason::Ipv6InUdp | DropReason::NoUnderlay => {
            Some(IcmpError::Unreachable)
        }
        _ => None,
    }
}

fn fit(way: &Way, inner: &Inner, length: usize, now: Now) -> Result<Fit, Refusal> {
    decision::fit(way, inner.family, length, inner.dont_fragment, now)
        .map_err(|_| too_big(way, inner, now))
}

/// RFC 792: an ICMP error answers only a packet that forbids fragmentation.
fn too_big(way: &Way, inner: &Inner, now: Now) -> Refusal {
    let answer = IcmpError::TooBig(way.inner_mtu(inner.family, now));
    Refusal(DropReason::TooBig, inner.dont_fragment.then_some(answer))
}
