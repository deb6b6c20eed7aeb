//! Path MTU, per underlay address and ours: what the kernel learns for its own sockets is not used
//! (`IP_PMTUDISC_PROBE`), because one forged frag-needed would make it refuse sends for ten minutes.
//!
//! No report makes inner packets smaller than every host must accept. Where the path really is narrower than that, such
//! packets are lost: at a router unseen, at our own kernel with an ICMP error that says the least (an IPv6 sender may
//! ignore less, RFC 8201 section 4, and Linux does not go below 552 over IPv4).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use encap::{Family, Format};

use crate::limits::{MIN_INNER_V4, MIN_INNER_V6, PATH_MTU_LIFE};
use crate::now::Now;

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
