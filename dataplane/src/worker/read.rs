//! The first stage outbound: what a step reads from the device, and when it has read enough.

use super::{Worker, would_block};
use crate::device::Device;
use crate::limits::{
    FULL_GSO_BATCH_ENDS_FROM, OUTBOUND_BYTES, OUTBOUND_SEGMENTS, OVER_SHARE_PACKETS,
};
use crate::now::Now;
use crate::outbound::Outbound;
use crate::snapshot::Snapshot;
use crate::underlay::Underlay;

impl<D: Device, U: Underlay> Worker<D, U> {
    /// Reads a bounded batch and walks it to datagrams that wait for the underlay, or to its drop.
    pub(super) fn read(&mut self, snapshot: &Snapshot, now: Now) {
        let Worker {
            device,
            tally,
            outbound,
            icmp_errors,
            outbound_shares,
            flows,
            tap,
            ..
        } = self;
        let mut stages = Outbound {
            snapshot,
            batch: outbound,
            device,
            icmp_errors,
            tally,
            tap,
            now,
            shares: outbound_shares,
            flows,
            cached: None,
        };
        // The frame for the next packet, and how many packets were over their pods' shares.
        let (mut index, mut dropped, mut bytes) = (0, 0, 0);
        while dropped < OVER_SHARE_PACKETS {
            if bytes >= OUTBOUND_BYTES
                || stages.batch.count() >= OUTBOUND_SEGMENTS
                || !stages.batch.has_room()
            {
                break;
            }
            let Some(frame) = stages.batch.frame(index) else {
                break;
            };
            match stages.device.read(frame) {
                Ok(read) => {
                    bytes += read.len;
                    self.work.outbound.add([(1, read.len)]);
                    stages.batch.note(index, read);
                    if !stages.packet(index) {
                        dropped += 1;
                        continue;
                    }
                    index += 1;
                    // The next packet would begin another GSO batch: leave it to the next step.
                    if index >= FULL_GSO_BATCH_ENDS_FROM && stages.batch.filled_gso_batch() {
                        break;
                    }
                }
                Err(error) => {
                    self.device_lost |=
                        matches!(error.raw_os_error(), Some(libc::EBADFD | libc::EIO));
                    // The poll announces the next packet only of an empty queue.
                    self.ready.device = !would_block(&error) && !self.device_lost;
                    stages.shares.end_round(now);
                    break;
                }
            }
        }
    }
}
