//! The messages of nf_tables: what is asked, what is answered, and batches.

use super::attribute::Attribute;

/// One change, a part of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct Step {
    kind: u8,
    flags: u16,
    family: u8,
    attributes: Vec<Attribute>,
}

impl Step {
    pub(super) fn new(kind: u8, flags: u16, family: u8, attributes: Vec<Attribute>) -> Step {
        Step {
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
    let head = Head {
        kind: u16::from(SUBSYSTEM) << 8 | u16::from(kind),
        flags: REQUEST | flags,
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
pub(super) fn batch(steps: &[Step], first: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sequence = first;
    let edge = |kind, sequence| Head {
        kind,
        flags: REQUEST,
        sequence,
        family: 0,
        resource: u16::from(SUBSYSTEM),
    };
    write(&mut out, &edge(BATCH_BEGIN, sequence), &[]);
    for (number, step) in steps.iter().enumerate() {
        sequence = sequence.wrapping_add(1);
        let acknowledge = if number + 1 == steps.len() { ACK } else { 0 };
        let head = Head {
            kind: u16::from(SUBSYSTEM) << 8 | u16::from(step.kind),
            flags: REQUEST | step.flags | acknowledge,
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
        ERROR | DONE => Content::End(
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
        interrupted: flags & DUMP_INTERRUPTED != 0,
        content,
    };
    Some((reply, rest))
}

struct Head {
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    resource: u16,
}

fn write(out: &mut Vec<u8>, head: &Head, attributes: &[Attribute]) {
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

/// `NFNL_SUBSYS_NFTABLES`
pub(in crate::host) const SUBSYSTEM: u8 = 10;
/// `NLM_F_DUMP`
pub(super) const DUMP: u16 = 0x300;
/// `NLM_F_CREATE`
pub(super) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`
pub(super) const APPEND: u16 = 0x800;
/// `NLM_F_REQUEST`
const REQUEST: u16 = 1;
/// `NLM_F_ACK`
const ACK: u16 = 4;
/// `NLM_F_DUMP_INTR`
const DUMP_INTERRUPTED: u16 = 0x10;
/// `NFNL_MSG_BATCH_BEGIN`
const BATCH_BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`
const BATCH_END: u16 = 0x11;
/// `NLMSG_ERROR`
const ERROR: u16 = 2;
/// `NLMSG_DONE`
const DONE: u16 = 3;
/// Length of a netlink message header, in bytes.
const HEADER: usize = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_batch_is_framed_and_its_last_step_answered() {
        let step = |kind| Step::new(kind, CREATE, 1, vec![Attribute::text(1, "tartan")]);
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
