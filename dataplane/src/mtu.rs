//! Path MTU, per underlay address and ours: what the kernel learns for its own sockets is not used
//! (`IP_PMTUDISC_PROBE`), because one forged frag-needed would make it refuse sends for ten minutes.
//!
//! Theory of operation: our own kernel's word counts at once and for [`PATH_MTU_LIFE`]. A router's report is a stranger's
//! word, even if it quotes what was sent ([`crate::mtu_reports`]): it becomes a *candidate*, which changes nothing, and
//! counts when a second report about another datagram follows within [`REPORT_CONFIRMED_WITHIN`]; of the two the larger
//! value. What counts is then put to the *trial*: now and then a larger datagram is let out. A router that still means it
//! reports that one too. If none does within [`PATH_TRIAL_WAIT`], the path carries more, and what was learned is
//! forgotten. A trial costs nothing but a datagram: it is a copy of a TCP segment whose sender is told to send smaller
//! ones ([`crate::outbound`]).
//!
//! A probe is a better witness than both: its answer says that a datagram of that size arrived, and who did not see the
//! request cannot give it ([`crate::probe`]). What probes have shown replaces what was learned, up or down.
//!
//! No report makes inner packets smaller than every host must accept. Where the path really is narrower than that, such
//! packets are lost: at a router unseen, at our own kernel with an ICMP error that says the least (an IPv6 sender may
//! ignore less, RFC 8201 section 4, and Linux does not go below 552 over IPv4).
//!
//! Workers share a path and write without a lock. A report that meets another one at the same moment may be lost; the
//! next one counts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use encap::{Family, Format};

use crate::limits::{
    FIRST_PATH_TRIAL, MIN_INNER_V4, MIN_INNER_V6, PATH_MTU_LIFE, PATH_TRIAL_AT_LEAST_EVERY,
    PATH_TRIAL_WAIT, REPORT_CONFIRMED_WITHIN,
};
use crate::now::Now;

/// What was learned of the path to one address of a peer: the largest outer packet, for a while.
#[derive(Default)]
pub struct PathMtu {
    /// Bytes of outer packet; 0 = nothing learned.
    outer: AtomicU32,
    /// When it is forgotten.
    until: AtomicU64,
    /// When it is tried next; never what our own kernel said.
    next_trial: AtomicU64,
    /// Nanoseconds from that trial to the one after it.
    interval: AtomicU64,
    /// Since when a trial has been waiting for a report; 0 = none is.
    tried: AtomicU64,
    /// The report that waits to be confirmed: bytes of outer packet, 0 = none, and when it is forgotten.
    candidate: AtomicU32,
    candidate_until: AtomicU64,
    /// The datagram that it is about.
    candidate_about: AtomicU64,
}

impl PathMtu {
    /// Takes in that our own kernel sends no outer packets above `mtu` bytes there. Only ever lowers what is known;
    /// forgotten after [`PATH_MTU_LIFE`].
    pub fn learn(&self, mtu: u16, now: Now) {
        if self.outer(now).is_none_or(|known| mtu < known) {
            self.next_trial.store(NEVER, Relaxed);
            self.adopt(mtu, now);
        }
    }

    /// Takes in that outer packets of `mtu` bytes pass and larger ones do not, as probes have shown: whatever was known is
    /// forgotten for it. It is not tried; who probes goes on probing.
    pub fn prove(&self, mtu: u16, now: Now) {
        self.candidate.store(0, Relaxed);
        self.next_trial.store(NEVER, Relaxed);
        self.adopt(mtu, now);
    }

    /// Forgets what was learned: probes have shown that the path carries all that leaves this node.
    pub fn forget(&self) {
        self.candidate.store(0, Relaxed);
        if self.outer.load(Relaxed) != 0 {
            self.outer.store(0, Relaxed);
            self.tried.store(0, Relaxed);
        }
    }

    /// Takes in a router's report that outer packets above `mtu` bytes do not pass, about the datagram with the
    /// fingerprint `about`, which was sent lately.
    pub fn report(&self, mtu: u16, about: u64, now: Now) {
        let known = self.outer(now);
        if known.is_none_or(|known| mtu < known) {
            self.consider(mtu, about, now);
        } else if self.tried.load(Relaxed) != 0 {
            // The answer to a trial, which may know of a wider path by now.
            let interval = Duration::from_nanos(self.interval.load(Relaxed));
            self.try_after((interval * 2).min(PATH_TRIAL_AT_LEAST_EVERY), now);
            self.adopt(mtu, now);
        }
    }

    /// Makes a report the candidate, or confirms by it the one that waits.
    fn consider(&self, mtu: u16, about: u64, now: Now) {
        let waits = now.0 < self.candidate_until.load(Relaxed);
        let candidate = u16::try_from(self.candidate.load(Relaxed)).unwrap_or_default();
        if waits && candidate > 0 {
            if self.candidate_about.load(Relaxed) == about {
                return;
            }
            let confirmed = mtu.max(candidate);
            if self.outer(now).is_none_or(|known| confirmed < known) {
                self.candidate.store(0, Relaxed);
                self.try_after(FIRST_PATH_TRIAL, now);
                return self.adopt(confirmed, now);
            }
        }
        self.candidate_about.store(about, Relaxed);
        let until = now.after(REPORT_CONFIRMED_WITHIN).0;
        self.candidate_until.store(until, Relaxed);
        self.candidate.store(u32::from(mtu), Relaxed);
    }

    fn try_after(&self, interval: Duration, now: Now) {
        self.next_trial.store(now.after(interval).0, Relaxed);
        self.interval.store(interval.as_nanos() as u64, Relaxed);
    }

    fn adopt(&self, mtu: u16, now: Now) {
        self.tried.store(0, Relaxed);
        self.until.store(now.after(PATH_MTU_LIFE).0, Relaxed);
        self.outer.store(u32::from(mtu), Relaxed);
    }

    /// The largest outer packet known to pass, bytes; `None` while nothing (or nothing any more) is known.
    pub fn outer(&self, now: Now) -> Option<u16> {
        let known = u16::try_from(self.outer.load(Relaxed))
            .ok()
            .filter(|mtu| *mtu > 0)?;
        let tried = self.tried.load(Relaxed);
        let refuted = tried != 0 && now.since(Now(tried)) >= PATH_TRIAL_WAIT;
        (now.0 < self.until.load(Relaxed) && !refuted).then_some(known)
    }

    /// Whether a larger datagram is to be let out now, as a trial of what is known. True once for each trial.
    pub(crate) fn begin_trial(&self, now: Now) -> bool {
        let due = self.outer(now).is_some() && now.0 >= self.next_trial.load(Relaxed);
        due && self
            .tried
            .compare_exchange(0, now.0.max(1), Relaxed, Relaxed)
            .is_ok()
    }
}

/// When what our own kernel said is tried.
const NEVER: u64 = u64::MAX;

/// The least inner packet of a family that every path is taken to carry, bytes.
pub const fn min_inner(family: Family) -> u16 {
    match family {
        Family::V4 => MIN_INNER_V4,
        Family::V6 => MIN_INNER_V6,
    }
}

/// Bytes of the largest inner packet of family `inner` that fits an outer packet of `outer_mtu` bytes, but never less
/// than every host must accept.
pub fn inner_mtu(outer_mtu: u16, format: Format, underlay: Family, inner: Family) -> u16 {
    outer_mtu
        .saturating_sub(format.overhead(underlay))
        .max(min_inner(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_report_counts_when_another_confirms_it() {
        let path = PathMtu::default();
        path.report(1300, 1, Now(5));
        path.report(1300, 1, Now(6));
        assert_eq!(path.outer(Now(6)), None);
        path.report(1400, 2, Now(7));
        assert_eq!(path.outer(Now(7)), Some(1400));
        // The narrower of two routers is learned after the wider one.
        path.report(1300, 3, Now(8));
        assert_eq!(path.outer(Now(8)), Some(1400));
        path.report(1300, 4, Now(9));
        assert_eq!(path.outer(Now(9)), Some(1300));
        let late = Now(5).after(REPORT_CONFIRMED_WITHIN);
        let path = PathMtu::default();
        path.report(1300, 1, Now(5));
        path.report(1300, 2, late);
        assert_eq!(path.outer(late), None);
    }

    #[test]
    fn a_trial_without_an_answer_refutes() {
        let path = reported(1300, Now(5));
        let due = Now(5).after(FIRST_PATH_TRIAL);
        assert!(!path.begin_trial(Now(due.0 - 1)));
        assert!(path.begin_trial(due));
        assert!(!path.begin_trial(due));
        assert_eq!(
            path.outer(Now(due.after(PATH_TRIAL_WAIT).0 - 1)),
            Some(1300)
        );
        assert_eq!(path.outer(due.after(PATH_TRIAL_WAIT)), None);
        // It takes two reports again.
        let late = due.after(PATH_TRIAL_WAIT);
        path.report(1300, 3, late);
        assert_eq!(path.outer(late), None);
    }

    #[test]
    fn trials_that_are_answered_grow_rare() {
        let path = reported(1300, Now(5));
        let (mut now, mut interval) = (Now(5), FIRST_PATH_TRIAL);
        for about in 10..20 {
            now = now.after(interval);
            assert!(path.begin_trial(now), "after {interval:?}");
            path.report(1300, about, now);
            assert!(!path.begin_trial(now));
            assert_eq!(path.outer(now.after(PATH_TRIAL_WAIT)), Some(1300));
            interval = (interval * 2).min(PATH_TRIAL_AT_LEAST_EVERY);
        }
        assert!(interval < PATH_MTU_LIFE);
        // A wider path is learned from the answer.
        now = now.after(interval);
        assert!(path.begin_trial(now));
        path.report(1400, 20, now);
        assert_eq!(path.outer(now), Some(1400));
    }

    #[test]
    fn probes_replace_reports_up_and_down() {
        let path = reported(1300, Now(5));
        path.prove(1400, Now(6));
        assert_eq!(path.outer(Now(6)), Some(1400));
        assert!(!path.begin_trial(Now(6).after(FIRST_PATH_TRIAL)));
        path.prove(1350, Now(7));
        assert_eq!(path.outer(Now(7)), Some(1350));
        // A renewal counts from its own time.
        let later = Now(7).after(PATH_MTU_LIFE / 2);
        path.prove(1350, later);
        assert_eq!(path.outer(Now(7).after(PATH_MTU_LIFE)), Some(1350));
        assert_eq!(path.outer(later.after(PATH_MTU_LIFE)), None);
        // Two reports of a narrower path count after it, and what passes again ends them.
        path.prove(1350, later);
        path.report(1200, 3, later);
        path.report(1200, 4, later);
        assert_eq!(path.outer(later), Some(1200));
        path.forget();
        assert_eq!(path.outer(later), None);
        path.report(1200, 5, later);
        path.forget();
        path.report(1200, 6, later);
        assert_eq!(
            path.outer(later),
            None,
            "a report of before does not confirm"
        );
    }

    #[test]
    fn our_own_kernels_word_is_not_tried() {
        let path = PathMtu::default();
        path.learn(1300, Now(5));
        let last = Now(Now(5).after(PATH_MTU_LIFE).0 - 1);
        assert!(!path.begin_trial(last));
        assert_eq!(path.outer(last), Some(1300));
    }

    fn reported(mtu: u16, now: Now) -> PathMtu {
        let path = PathMtu::default();
        path.report(mtu, 1, now);
        path.report(mtu, 2, now);
        assert_eq!(path.outer(now), Some(mtu));
        path
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
