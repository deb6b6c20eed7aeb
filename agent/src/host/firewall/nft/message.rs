//! The messages of nf_tables: questions and batches.

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};

use crate::nfnetlink::attribute::Attribute;
use crate::nfnetlink::message::{self, Header, write};

/// The type of a netlink message of nf_tables.
pub(super) const fn message_type(kind: u8) -> u16 {
    message::message_type(SUBSYSTEM, kind)
}

/// One change, a part of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct BatchStep {
    kind: u8,
    flags: u16,
    family: u8,
    attributes: Vec<Attribute>,
}

impl BatchStep {
    pub(super) fn new(kind: u8, flags: u16, family: u8, attributes: Vec<Attribute>) -> BatchStep {
        BatchStep {
            kind,
            flags,
            family,
            attributes,
        }
    }
}

/// A question. Its sequence number is that of the answers.
pub(super) fn question(
    kind: u8,
    flags: u16,
    family: u8,
    attributes: &[Attribute],
    sequence: u32,
) -> Vec<u8> {
    message::request(message_type(kind), flags, family, attributes, sequence)
}

/// All steps as one transaction: the kernel takes every one or none. The parts
/// are numbered from `first` on; the answer awaited is that to the last step,
/// `first` plus the number of steps.
pub(super) fn batch(steps: &[BatchStep], first: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sequence = first;
    let edge = |kind, sequence| Header {
        kind,
        flags: NLM_F_REQUEST,
        sequence,
        family: 0,
        resource: u16::from(SUBSYSTEM),
    };
    write(&mut out, &edge(BATCH_BEGIN, sequence), &[]);
    for (number, step) in steps.iter().enumerate() {
        sequence = sequence.wrapping_add(1);
        let acknowledge = if number + 1 == steps.len() {
            NLM_F_ACK
        } else {
            0
        };
        let head = Header {
            kind: message_type(step.kind),
            flags: NLM_F_REQUEST | step.flags | acknowledge,
            sequence,
            family: step.family,
            resource: 0,
        };
        write(&mut out, &head, &step.attributes);
    }
    write(&mut out, &edge(BATCH_END, sequence.wrapping_add(1)), &[]);
    out
}

const SUBSYSTEM: u8 = libc::NFNL_SUBSYS_NFTABLES as u8;
const BATCH_BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
const BATCH_END: u16 = libc::NFNL_MSG_BATCH_END as u16;

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLM_F_CREATE;

    use super::*;
    use crate::nfnetlink::message::first;

    #[test]
    fn a_batch_is_framed_and_its_last_step_answered() {
        let step = |kind| BatchStep::new(kind, NLM_F_CREATE, 1, vec![Attribute::text(1, "tartan")]);
        let bytes = batch(&[step(0), step(3)], 7);
        let mut rest = &bytes[..];
        let mut seen = Vec::new();
        while !rest.is_empty() {
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            let flags = u16::from_ne_bytes([rest[6], rest[7]]);
            let (reply, after) = first(rest).unwrap();
            seen.push((kind, flags, reply.sequence));
            rest = after;
        }
        assert_eq!(
            seen,
            [
                (0x10, 1, 7),
                (0xa00, 0x401, 8),
                (0xa03, 0x405, 9),
                (0x11, 1, 10)
            ]
        );
        assert_eq!(&bytes[18..20], [0, SUBSYSTEM], "whose batch it is");
    }
}
