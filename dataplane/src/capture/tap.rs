//! The worker's side: whether a stage is captured, and the record of what happens there.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use encap::Format;

use super::point::{CapturePoint, Rings};
use super::record;
use super::ring::Dropped;
use super::{Stage, Stages};
use crate::drop_counts::addresses;
use crate::drops::{Direction, DropReason};
use crate::now::Now;
use crate::snapshot::Snapshot;

/// A worker's end of the captures.
pub(crate) struct Tap {
    point: Arc<CapturePoint>,
    /// The version of `rings`.
    version: u64,
    rings: Arc<Rings>,
    /// Those of all captures together.
    stages: Stages,
    worker: u16,
    now: Now,
}

/// A packet at a stage.
#[derive(Clone, Copy)]
pub(crate) struct Event<'a> {
    pub(crate) stage: Stage,
    pub(crate) direction: Direction,
    /// Why it is dropped; `None` at other stages.
    pub(crate) reason: Option<DropReason>,
    /// Wire packets, or datagrams received.
    pub(crate) packets: usize,
    /// Payload bytes at which a super-packet is to be cut; 0: it is none.
    pub(crate) gso: u16,
    /// Bytes of all packets, where the bytes given are those of the first alone.
    pub(crate) total: Option<usize>,
    /// The outer address of the other node.
    pub(crate) remote: Option<SocketAddr>,
    /// The format of `outer`; `None` of a bare inner packet.
    pub(crate) format: Option<Format>,
    /// Headers in front of the inner packet.
    pub(crate) outer: &'a [u8],
    pub(crate) is_not_ip: bool,
    pub(crate) is_own: bool,
    pub(crate) is_probe: bool,
    pub(crate) is_unfinished: bool,
}

impl Tap {
    /// Of worker number `index`.
    pub(crate) fn new(index: usize) -> Tap {
        let point = CapturePoint::new();
        Tap {
            version: point.version(),
            rings: point.latest(),
            point: Arc::new(point),
            stages: Stages::NONE,
            worker: u16::try_from(index).unwrap_or(u16::MAX),
            now: Now(0),
        }
    }

    pub(crate) fn point(&self) -> Arc<CapturePoint> {
        Arc::clone(&self.point)
    }

    /// Begins a step: asks whether the captures are others now.
    #[inline]
    pub(crate) fn begin(&mut self, now: Now) {
        self.now = now;
        let version = self.point.version();
        if version != self.version {
            self.adopt(version);
        }
    }

    #[cold]
    fn adopt(&mut self, version: u64) {
        // Control keeps a share of what is replaced here: nothing is freed.
        self.rings = self.point.latest();
        self.version = version;
        let each = self.rings.iter().map(|ring| ring.filter.stages);
        self.stages = each.fold(Stages::NONE, Stages::or);
        self.point.note_adopted(version);
    }

    /// Whether some capture wants what happens at `stage`.
    #[inline]
    pub(crate) fn wants(&self, stage: Stage) -> bool {
        self.stages.has(stage)
    }

    /// Captures `event` of a packet whose inner bytes are `inner`, one part behind the other; the first, unless empty,
    /// holds the IP header.
    #[inline(never)]
    pub(crate) fn offer<'a>(
        &self,
        snapshot: &Snapshot,
        event: &Event<'a>,
        inner: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let first = inner.clone().find(|part| !part.is_empty());
        let parts = std::iter::once(event.outer).chain(inner);
        let length = parts.clone().map(<[u8]>::len).sum::<usize>();
        let dropped = event.reason.map(|reason| Dropped {
            direction: event.direction,
            reason,
            packets: event.packets,
            sender: event.sender(first.unwrap_or_default()),
        });
        for ring in self.rings.iter() {
            if !ring
                .filter
                .takes(event, first.unwrap_or_default(), snapshot)
                || !ring.offer(event.stage, self.now, dropped)
            {
                continue;
            }
            let captured = length.min(ring.filter.snap_length);
            let header = record::header(event, captured, length, (self.worker, self.now));
            ring.write(event.stage, &header, captured, parts.clone());
        }
    }
}

impl<'a> Event<'a> {
    /// A hash of who has sent it: the peer by its address, or the pod by that of the packet `inner`.
    fn sender(&self, inner: &[u8]) -> u32 {
        let peer = self.remote.map(|remote| remote.ip());
        let pod = || addresses(inner).map(|(source, _)| source);
        let bits = match (self.direction, peer) {
            (Direction::Inbound, Some(peer)) => Some(peer),
            _ => pod(),
        };
        let bits = match bits {
            Some(IpAddr::V4(address)) => u128::from(address.to_bits()),
            Some(IpAddr::V6(address)) => address.to_bits(),
            None => 0,
        };
        // Addresses of neighbours differ in their last bits, subnets further up.
        let folded = (bits ^ bits >> 64) as u64;
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as u32
    }

    /// A bare inner packet.
    pub(crate) fn inner(stage: Stage, direction: Direction, packets: usize) -> Event<'a> {
        Event {
            stage,
            direction,
            reason: None,
            packets,
            gso: 0,
            total: None,
            remote: None,
            format: None,
            outer: &[],
            is_not_ip: false,
            is_own: false,
            is_probe: false,
            is_unfinished: false,
        }
    }

    /// A bare inner packet that is dropped.
    pub(crate) fn drop(direction: Direction, reason: DropReason, packets: usize) -> Event<'a> {
        Event {
            reason: Some(reason),
            ..Event::inner(Stage::Dropped, direction, packets)
        }
    }
}
