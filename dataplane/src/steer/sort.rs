//! Whose each datagram of a batch is.

use encap::Format;
use encap::checksum::{self, Transport};
use encap::inner::Inner;

use super::share::{Part, SteeredBatch};
use crate::inbound::{Datagrams, super_packet};
use crate::snapshot::Snapshot;

/// What a batch held.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sorted {
    /// Datagrams.
    pub(crate) datagrams: usize,
    /// Those that found no room in the share of their owner.
    pub(crate) lost: usize,
    /// Bytes received.
    pub(crate) bytes: usize,
}

/// Gives every datagram of the first `count` buffers of `batch`, of the `udp` format, to its owner. What shows no flow, or
/// comes from nobody we know, stays with `own`, the worker that received it.
pub(crate) fn sort(
    batch: &mut SteeredBatch,
    count: usize,
    own: usize,
    snapshot: &Snapshot,
) -> Sorted {
    let SteeredBatch { received, shares } = batch;
    shares.clear();
    let mut sorted = Sorted::default();
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
                    snapshot.cluster.device_mtu,
                );
            }
            let owner = flow.map_or(own, |inner| owner(inner.flow_hash(), shares.owners()));
            let part = Part::new(number, range, datagrams.inner_segment);
            sorted.lost += usize::from(!shares.give(owner, part));
        }
    }
    sorted
}

/// Which of `workers` workers delivers a flow. By the high bits of its hash: others take the low ones, transmit sockets
/// among them.
fn owner(hash: u32, workers: usize) -> usize {
    ((u64::from(hash) * workers as u64) >> u32::BITS) as usize
}

/// Leaves the checksum of a super-packet unfinished, if it is right: the device wants it so, and an owner must not write
/// where others read.
fn prepare(datagram: &mut [u8], inner: &Inner, inner_segment: Option<u16>, device_mtu: u16) {
    let packet = datagram.get_mut(..inner.len).unwrap_or_default();
    let plan = super_packet(packet, inner, inner_segment, device_mtu);
    let is_cut = matches!(plan, Some(Ok(plan)) if plan.count() > 1);
    if is_cut && checksum::transport(packet, inner) == Transport::Valid {
        let _ = checksum::unfinish(packet, inner);
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
