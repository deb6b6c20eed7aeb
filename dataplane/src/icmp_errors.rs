//! ICMP errors that we send to a pod or host process, bounded per source.
//!
//! Theory of operation: sources share a fixed number of token buckets by hash. A bucket starts with [`ICMP_BURST`]
//! tokens and gains one every [`ICMP_EVERY`]. An error without a token, or one that RFC 1122 section 3.2.2 forbids, is
//! not made: it appears in no packet counter because it never was a packet. Errors without a token are counted apart.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::IoSlice;
use std::net::IpAddr;

use encap::icmp::{self, MAX_ICMP};
use encap::inner::Inner;

use crate::counters::Tally;
use crate::device::{Device, Offload};
use crate::drops::{Direction, DropReason};
use crate::limits::{ICMP_BURST, ICMP_EVERY, ICMP_SOURCES};
use crate::now::Now;

/// The ICMP error for a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    /// No node owns the destination.
    Unreachable,
    /// Packets to it may have at most so many bytes.
    TooBig(u16),
}

/// The token buckets, and the buffer in which errors are built.
pub(crate) struct IcmpErrors {
    buckets: [Bucket; ICMP_SOURCES],
    packet: [u8; MAX_ICMP],
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: u32,
    filled: Now,
}

impl IcmpErrors {
    pub(crate) fn new() -> IcmpErrors {
        IcmpErrors {
            buckets: [Bucket {
                tokens: ICMP_BURST,
                filled: Now(0),
            }; ICMP_SOURCES],
            packet: [0; MAX_ICMP],
        }
    }

    /// Sends `error` from address `from` to the sender of `offender`, if the rate allows. The packet is counted as
    /// originated outbound, and as delivered or dropped.
    pub(crate) fn send(
        &mut self,
        error: IcmpError,
        from: IpAddr,
        offender: (&[u8], &Inner),
        now: Now,
        device: &mut impl Device,
        tally: &Tally,
    ) {
        let (bytes, inner) = offender;
        let built = match error {
            IcmpError::Unreachable => icmp::net_unreachable(from, bytes, inner, &mut self.packet),
            IcmpError::TooBig(mtu) => icmp::too_big(from, bytes, inner, mtu, &mut self.packet),
        };
        let Some(packet) = built.and_then(|length| self.packet.get(..length)) else {
            return;
        };
        let place = BuildHasherDefault::<DefaultHasher>::default().hash_one(inner.source) as usize
            % ICMP_SOURCES;
        if !self
            .buckets
            .get_mut(place)
            .is_some_and(|bucket| bucket.take(now))
        {
            return tally.suppress_icmp_error();
        }
        tally.originate(Direction::Outbound, 1);
        match device.write(Offload::NONE, &[IoSlice::new(packet)]) {
            Ok(()) => tally.deliver(Direction::Outbound, 1),
            Err(_) => tally.drop(Direction::Outbound, DropReason::DeviceRefused, 1),
        }
    }
}

impl Bucket {
    fn take(&mut self, now: Now) -> bool {
        let gained = now.since(self.filled).as_nanos() / ICMP_EVERY.as_nanos();
        if gained > 0 {
            self.tokens = self
                .tokens
                .saturating_add(gained.min(u128::from(ICMP_BURST)) as u32)
                .min(ICMP_BURST);
            self.filled = now;
        }
        self.tokens
            .checked_sub(1)
            .map(|left| self.tokens = left)
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket {
            tokens: ICMP_BURST,
            filled: Now(0),
        };
        let start = Now(0).after(Duration::from_secs(1));
        assert_eq!(
            (0..1000).filter(|_| bucket.take(start)).count(),
            ICMP_BURST as usize
        );
        let taken = (0..100u32)
            .filter(|i| bucket.take(start.after(ICMP_EVERY * *i / 2)))
            .count();
        assert!((48..=50).contains(&taken), "{taken}");
    }
}
