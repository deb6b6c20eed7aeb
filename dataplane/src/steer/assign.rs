//! Assigns each datagram of a batch to the worker that owns its flow.

use encap::Format;
use encap::inner::Inner;
use encap::transport::{self, ChecksumState};

use super::steered_batch::{SteeredBatch, SteeredDatagram};
use crate::families::PerFamily;
use crate::inbound::{Datagrams, super_packet};
use crate::snapshot::Snapshot;

/// The contents of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Assigned {
    /// Datagrams.
    pub(crate) datagrams: usize,
    /// Those for which their owner's share had no room.
    pub(crate) lost: usize,
    /// Bytes received.
    pub(crate) bytes: usize,
}

/// Assigns every datagram of the first `count` buffers of `batch`, of the `udp` format, to its owner. A datagram without
/// a flow, or from an address of no peer, stays with `own`, the worker that received it.
pub(crate) fn sort(
    batch: &mut SteeredBatch,
    count: usize,
    own: usize,
    snapshot: &Snapshot,
) -> Assigned {
    let SteeredBatch { received, shares } = batch;
    shares.clear();
    let mut sorted = Assigned::default();
    let buffers = received.frames.iter_mut().zip(&received.metas);
    for (number, (frame, meta)) in buffers.enumerate().take(count) {
        let len = if meta.truncated { 0 } else { meta.len };
        let bytes = frame.get(..len).unwrap_or_default();
        let datagrams = Datagrams::of(Format::Udp, bytes, meta.segment);
        sorted.datagrams += datagrams.count();
        sorted.bytes += meta.len;
        let is_peers = snapshot.cluster.peers.by_source(meta.source.ip()).is_some();
        for range in datagrams.ranges() {
            let bytes = frame.get_mut(range.clone()).unwrap_or_default();
            let flow = Inner::parse(bytes).ok().filter(|_| is_peers);
            if let Some(inner) = &flow {
                prepare(
                    bytes,
                    inner,
                    datagrams.inner_segment,
                    snapshot.cluster.inner_mtu,
                );
            }
            let owner = flow.map_or(own, |inner| owner(inner.flow_hash(), shares.owners()));
            let part = SteeredDatagram::new(number, range, datagrams.inner_segment);
            sorted.lost += usize::from(!shares.give(owner, part));
        }
    }
    sorted
}

/// The worker, of `workers`, that delivers a flow: selected by the high bits of its hash. Transmit sockets are selected
/// by the low bits.
fn owner(hash: u32, workers: usize) -> usize {
    ((u64::from(hash) * workers as u64) >> u32::BITS) as usize
}

/// Leaves the checksum of a super-packet unfinished, if it is right: the device requires that, and an owner must not
/// write to a batch that others read.
fn prepare(
    datagram: &mut [u8],
    inner: &Inner,
    inner_segment: Option<u16>,
    inner_mtu: PerFamily<u16>,
) {
    let packet = datagram.get_mut(..inner.len).unwrap_or_default();
    let plan = super_packet(packet, inner, inner_segment, inner_mtu);
    let is_cut = matches!(plan, Some(Ok(plan)) if plan.count() > 1);
    if is_cut && transport::checksum_state(packet, inner) == ChecksumState::Valid {
        let _ = transport::unfinish_checksum(packet, inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_owns_its_share_of_the_hashes() {
        for workers in 1..=64 {
            let step = u64::from(u32::MAX) / (workers as u64 * 100);
            let mut counts = vec![0; workers];
            for hash in (0..=u32::MAX).step_by(step as usize) {
                counts[owner(hash, workers)] += 1;
            }
            assert!(
                counts.iter().all(|count| (98..=102).contains(count)),
                "{counts:?}"
            );
        }
    }
}
