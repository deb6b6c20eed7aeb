//! The counters as they were at one moment.

use super::tally::{DELIVERED, DROPS, HELD, ORIGINATED, PROBES, RECEIVED, SENT};
use crate::device::Offloads;
use crate::drops::DropReason;

/// All counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    /// One per worker that there ever was; those that run now come first.
    pub workers: Vec<WorkerTotals>,
    /// Packets that one worker has handed to another, which has not taken them yet: held by the node, and received by no
    /// worker.
    pub in_rings: u64,
    /// How many run now.
    pub running: usize,
}

/// The counters of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerTotals {
    /// Steps made; does not change while the worker hangs.
    pub tick: u64,
    /// Version of the snapshot that the worker forwards by.
    pub snapshot: u64,
    /// ICMP errors that were not made because their receiver had drawn too many. They never were packets.
    pub unanswered: u64,
    /// Offloads in use at the last step.
    pub offloads: OffloadsInUse,
    /// How often an offload was given up because the kernel refused it.
    pub given_up: u64,
    /// Nanoseconds in which the worker had work.
    pub busy: u64,
    /// Nanoseconds in which it had none, and slept, paused or polled.
    pub idle: u64,
    /// What its steps read from the device.
    pub outbound_batches: Batches,
    /// What its steps received from the underlay, or from a worker that did.
    pub inbound_batches: Batches,
    /// Pod → peer.
    pub outbound: Flow,
    /// Peer → pod.
    pub inbound: Flow,
}

/// Batches of one direction. A batch is what one step reads; steps that read nothing are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batches {
    /// How many.
    pub count: u64,
    /// Packets in them as the kernel handed them over, super-packets as one; datagrams of the underlay.
    pub packets: u64,
    /// Bytes of those.
    pub bytes: u64,
}

/// Offloads that a worker uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadsInUse {
    /// What is written to the device unfinished.
    pub device: Offloads,
    /// Several datagrams are sent as one message, through every socket.
    pub gso_sends: bool,
}

/// One direction's terms of the conservation law, in inner wire packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Read from the device, or received from a peer.
    pub received: u64,
    /// Made by us: ICMP errors, fragments beyond the first.
    pub originated: u64,
    /// Sent to a peer.
    pub sent: u64,
    /// Written to the tunnel device.
    pub delivered: u64,
    /// Probes of peer health, which are no packets, that were answered or heard ([`crate::probe`]); the answers are not
    /// among `sent`.
    pub probes: u64,
    /// Held by the worker.
    pub held: u64,
    /// Dropped, by the reason's number.
    pub drops: [u64; DropReason::COUNT],
}

impl Totals {
    /// Those of the workers that run now.
    pub fn of_running(&self) -> impl Iterator<Item = &WorkerTotals> {
        self.workers.iter().take(self.running)
    }
}

impl OffloadsInUse {
    pub(super) fn bits(self) -> u64 {
        let OffloadsInUse { device, gso_sends } = self;
        let flags = [device.checksum, device.tcp, device.udp, gso_sends];
        flags
            .iter()
            .zip(0..)
            .map(|(on, bit)| u64::from(*on) << bit)
            .sum()
    }

    pub(super) fn of_bits(bits: u64) -> OffloadsInUse {
        let [checksum, tcp, udp, gso_sends] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 != 0);
        let device = Offloads { checksum, tcp, udp };
        OffloadsInUse { device, gso_sends }
    }
}

impl Flow {
    /// The terms that stand in the words of one direction; `read` gives the word at a place.
    pub(crate) fn of_words(read: impl Fn(usize) -> u64) -> Flow {
        Flow {
            received: read(RECEIVED),
            originated: read(ORIGINATED),
            sent: read(SENT),
            delivered: read(DELIVERED),
            probes: read(PROBES),
            held: read(HELD),
            drops: std::array::from_fn(|reason| read(DROPS + reason)),
        }
    }

    /// Both together.
    pub fn plus(&self, other: &Flow) -> Flow {
        let mut drops = self.drops;
        for (drop, more) in drops.iter_mut().zip(other.drops) {
            *drop = drop.wrapping_add(more);
        }
        Flow {
            received: self.received.wrapping_add(other.received),
            originated: self.originated.wrapping_add(other.originated),
            sent: self.sent.wrapping_add(other.sent),
            delivered: self.delivered.wrapping_add(other.delivered),
            probes: self.probes.wrapping_add(other.probes),
            held: self.held.wrapping_add(other.held),
            drops,
        }
    }

    /// `received + originated − sent − delivered − probes − Σ drops − held`: 0 while the law holds.
    pub fn balance(&self) -> i128 {
        i128::from(self.received) + i128::from(self.originated)
            - i128::from(self.sent)
            - i128::from(self.delivered)
            - i128::from(self.probes)
            - i128::from(self.held)
            - i128::from(self.dropped())
    }

    /// All drops together.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Drops for one reason.
    pub fn drops_of(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or_default()
    }
}
