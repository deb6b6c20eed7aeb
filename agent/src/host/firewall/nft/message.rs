//! The messages of nf_tables: what is asked, what is answered, and batches.

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};

use super::attribute::Attribute;

/// The type of a netlink message of nf_tables.
pub(super) const fn message_type(kind: u8) -> u16 {
    (SUBSYSTEM as u16) << 8 | kind as u16
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
    let mut out = Vec::new();
    let head = Header {
        kind: message_type(kind),
        flags: NLM_F_REQUEST | flags,
        sequence,
        family,
        resource: 0,
    };
    write(&mut out, &head, attributes);
    out
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

/// One message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply<'a> {
    pub(super) sequence: u32,
    /// The state changed while it was listed.
    pub(super) interrupted: bool,
    pub(super) content: Content<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content<'a> {
    /// The end of a list, or the answer to a change: 0, or an errno negated.
    End(i32),
    /// An object.
    Object { family: u8, attributes: &'a [u8] },
    /// Something that was not asked for.
    Other,
}

/// The first message of a datagram, and what follows it.
pub(super) fn first(bytes: &[u8]) -> Option<(Reply<'_>, &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let flags = u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?);
    let sequence = u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
    let payload = bytes.get(HEADER..length)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    let content = match kind {
        NLMSG_ERROR | NLMSG_DONE => Content::End(
            payload
                .first_chunk()
                .map_or(0, |code| i32::from_ne_bytes(*code)),
        ),
        kind if kind >> 8 == u16::from(SUBSYSTEM) => Content::Object {
            family: *payload.first()?,
            attributes: payload.get(4..)?,
        },
        _ => Content::Other,
    };
    let reply = Reply {
        sequence,
        interrupted: flags & NLM_F_DUMP_INTR != 0,
        content,
    };
    Some((reply, rest))
}

struct Header {
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    resource: u16,
}

fn write(out: &mut Vec<u8>, head: &Header, attributes: &[Attribute]) {
    let start = out.len();
    out.extend([0; 4]);
    out.extend(head.kind.to_ne_bytes());
    out.extend(head.flags.to_ne_bytes());
    out.extend(head.sequence.to_ne_bytes());
    // The sender's port, which the kernel knows.
    out.extend([0; 4]);
    // struct nfgenmsg: family, version, resource.
    out.extend([head.family, 0]);
    out.extend(head.resource.to_be_bytes());
    attributes.iter().for_each(|attribute| attribute.write(out));
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(field) = out.get_mut(start..start + 4) {
        field.copy_from_slice(&length.to_ne_bytes());
    }
}

const SUBSYSTEM: u8 = libc::NFNL_SUBSYS_NFTABLES as u8;
const BATCH_BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
const BATCH_END: u16 = libc::NFNL_MSG_BATCH_END as u16;
/// Length of a netlink message header, in bytes.
const HEADER: usize = size_of::<libc::nlmsghdr>();

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLM_F_CREATE;
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut rest = &bytes[..];
            let mut count = 0;
            while let Some((_, after)) = first(rest) {
                prop_assert!(after.len() < rest.len());
                rest = after;
                count += 1;
            }
            prop_assert!(count <= bytes.len() / 16);
        }
    }
}
