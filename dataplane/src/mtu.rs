//! Path MTU, per underlay address and ours: what the kernel learns for its own sockets is not used
//! (`IP_PMTUDISC_PROBE`), because one forged frag-needed would make it refuse sends for ten minutes.
//!
//! No report makes inner packets smaller than every host must accept. Where the path really is narrower than that, such
//! packets are lost: at a router unseen, at our own kernel with an ICMP error that says the least (an IPv6 sender may
//! ignore less, RFC 8201 section 4, and Linux does not go below 552 over IPv4).

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use encap::{Family, Format};

use crate::limits::{MIN_INNER_V4, MIN_INNER_V6, PATH_MTU_LIFE};
use crate::now::Now;
use crate::peers::{PeerId, Way};
use crate::snapshot::Snapshot;
use crate::underlay::{ErrorReport, Port};

/// What was learned of the path to one address of a peer: the largest outer packet, for a while.
#[derive(Default)]
pub struct PathMtu {
    /// Bytes of outer packet; 0 = nothing learned.
    outer: AtomicU32,
    /// When it is forgotten.
    until: AtomicU64,
}

impl PathMtu {
    /// Takes in that outer packets above `mtu` bytes do not pass. Only ever lowers what is known; forgotten after
    /// [`PATH_MTU_LIFE`].
    pub fn learn(&self, mtu: u16, now: Now) {
        if self.outer(now).is_none_or(|known| mtu < known) {
            self.until.store(now.after(PATH_MTU_LIFE).0, Relaxed);
            self.outer.store(u32::from(mtu), Relaxed);
        }
    }

    /// The largest outer packet known to pass, bytes; `None` while nothing (or nothing any more) is known.
    pub fn outer(&self, now: Now) -> Option<u16> {
        let known = u16::try_from(self.outer.load(Relaxed))
            .ok()
            .filter(|mtu| *mtu > 0)?;
        (now.0 < self.until.load(Relaxed)).then_some(known)
    }
}

/// Bytes of the largest inner packet of family `inner` that fits an outer packet of `outer_mtu` bytes, but never less
/// than every host must accept.
pub fn inner_mtu(outer_mtu: u16, format: Format, underlay: Family, inner: Family) -> u16 {
    let floor = match inner {
        Family::V4 => MIN_INNER_V4,
        Family::V6 => MIN_INNER_V6,
    };
    outer_mtu
        .saturating_sub(format.overhead(underlay))
        .max(floor)
}

/// Believes a report of a path MTU if it speaks of a datagram that we could have sent: to a peer's address and port,
/// and, when a router says it, quoting our own headers towards that peer. Anything else changes nothing.
pub(crate) fn learn(failure: &ErrorReport, port: Port, snapshot: &Snapshot, now: Now) {
    let Some((id, peer)) = snapshot.peers.by_source(failure.to.ip()) else {
        return;
    };
    let least = match port.family {
        Family::V4 => LEAST_MTU_V4,
        Family::V6 => LEAST_MTU_V6,
    };
    let mtu = u16::try_from(failure.info).ok().filter(|mtu| *mtu >= least);
    let (libc::EMSGSIZE, Some(mtu)) = (failure.errno, mtu) else {
        return;
    };
    let proven = |inner: &Family| {
        peer.way(*inner).is_some_and(|way| {
            is_towards(way, failure, port)
                && (failure.local || quotes(failure, id, way, *inner, snapshot))
        })
    };
    let inner = [Family::V4, Family::V6].into_iter().find(proven);
    if let Some(way) = inner.and_then(|inner| peer.way(inner)) {
        way.path.learn(mtu, now);
    }
}

fn is_towards(way: &Way, failure: &ErrorReport, port: Port) -> bool {
    // For its own refusals an IPv4 kernel names the port of a connected socket, and ours are not: 0 (ip_local_error in
    // __ip_append_data, net/ipv4/ip_output.c).
    let udp_port = failure.local || way.to.port() == failure.to.port();
    way.port == port && way.to.ip() == failure.to.ip() && udp_port
}

/// Whether the quote is of an inner packet of family `inner` on its way to the peer.
fn quotes(
    failure: &ErrorReport,
    id: PeerId,
    way: &Way,
    inner: Family,
    snapshot: &Snapshot,
) -> bool {
    let quote = failure.quoted();
    match way.port.format {
        Format::Vxlan => quote.starts_with(way.header.as_slice()),
        // The inner packet itself: its destination must be the peer's.
        Format::Udp => quoted_destination(quote).is_some_and(|address| {
            Family::of(address) == inner && snapshot.fib.lookup(address) == Some(id)
        }),
    }
}

fn quoted_destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet
            .get(16..)?
            .first_chunk::<4>()
            .map(|bytes| IpAddr::from(*bytes)),
        6 => packet
            .get(24..)?
            .first_chunk::<16>()
            .map(|bytes| IpAddr::from(*bytes)),
        _ => None,
    }
}

/// No IPv4 link carries less (RFC 791); a report below it is a lie.
const LEAST_MTU_V4: u16 = 68;
/// No IPv6 link carries less; a report below it is to be discarded (RFC 8201 section 4).
const LEAST_MTU_V6: u16 = 1280;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn learns_the_least_and_forgets() {
        let path = PathMtu::default();
        assert_eq!(path.outer(Now(5)), None);
        path.learn(1400, Now(5));
        path.learn(1450, Now(6));
        assert_eq!(path.outer(Now(7)), Some(1400));
        path.learn(1300, Now(7));
        assert_eq!(path.outer(Now(8)), Some(1300));
        assert_eq!(path.outer(Now(7).after(PATH_MTU_LIFE)), None);
        let later = Now(7).after(PATH_MTU_LIFE + Duration::from_secs(1));
        path.learn(1490, later);
        assert_eq!(path.outer(later), Some(1490));
    }

    #[test]
    fn inner_mtu_is_flannels_and_has_a_floor() {
        assert_eq!(inner_mtu(1500, Format::Vxlan, Family::V4, Family::V4), 1450);
        assert_eq!(inner_mtu(1500, Format::Udp, Family::V4, Family::V4), 1472);
        assert_eq!(inner_mtu(1500, Format::Vxlan, Family::V6, Family::V4), 1430);
        assert_eq!(inner_mtu(68, Format::Vxlan, Family::V4, Family::V4), 576);
        assert_eq!(inner_mtu(68, Format::Vxlan, Family::V4, Family::V6), 1280);
    }
}
