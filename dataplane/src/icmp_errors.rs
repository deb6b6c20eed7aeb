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
use crate::drop_counts::Parties;
use crate::drops::{Direction, DropReason};
use crate::limits::{ICMP_BURST, ICMP_EVERY, ICMP_SOURCES};
use crate::now::Now;
use crate::token_bucket::{Rate, TokenBucket};

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
    buckets: [TokenBucket; ICMP_SOURCES],
    packet: [u8; MAX_ICMP],
}

impl IcmpErrors {
    pub(crate) fn new() -> IcmpErrors {
        IcmpErrors {
            buckets: [TokenBucket::full(RATE); ICMP_SOURCES],
            packet: [0; MAX_ICMP],
        }
    }

    /// Sends `error` from address `from` to the sender of `offender`, if the rate allows. The packet is counted as
    /// originated outbound, and as delivered or dropped. Returns it, and whether the device took it.
    pub(crate) fn send(
        &mut self,
        error: IcmpError,
        from: IpAddr,
        offender: (&[u8], &Inner),
        now: Now,
        device: &mut impl Device,
        tally: &Tally,
    ) -> Option<(&[u8], bool)> {
        let (bytes, inner) = offender;
        let built = match error {
            IcmpError::Unreachable => icmp::net_unreachable(from, bytes, inner, &mut self.packet),
            IcmpError::TooBig(mtu) => icmp::too_big(from, bytes, inner, mtu, &mut self.packet),
        };
        let packet = built.and_then(|length| self.packet.get(..length))?;
        let place = BuildHasherDefault::<DefaultHasher>::default().hash_one(inner.source) as usize
            % ICMP_SOURCES;
        if !self
            .buckets
            .get_mut(place)
            .is_some_and(|bucket| bucket.take(RATE, now))
        {
            tally.suppress_icmp_error();
            return None;
        }
        tally.originate(Direction::Outbound, 1);
        let written = device.write(Offload::NONE, &[IoSlice::new(packet)]);
        match written {
            Ok(()) => tally.deliver(Direction::Outbound, 1),
            // It is no pod's: Tartan sends it.
            Err(_) => tally.drop(
                Direction::Outbound,
                DropReason::DeviceRefused,
                1,
                Parties::default(),
            ),
        }
        Some((packet, written.is_ok()))
    }
}

const RATE: Rate = Rate {
    burst: ICMP_BURST,
    every: ICMP_EVERY,
};
