//! The framing of nfnetlink's messages: what is asked, and what is answered.

use netlink_packet_core::{NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};

use super::attribute::Attribute;

/// The type of a netlink message: the part of netfilter (`NFNL_SUBSYS_*`), and what it asks that part.
pub(crate) const fn message_type(subsystem: u8, kind: u8) -> u16 {
    (subsystem as u16) << 8 | kind as u16
}

/// What stands in front of the attributes: `struct nlmsghdr` and `struct nfgenmsg`.
pub(crate) struct Header {
    /// See [`message_type`].
    pub(crate) kind: u16,
    /// `NLM_F_*`.
    pub(crate) flags: u16,
    /// That of the answers.
    pub(crate) sequence: u32,
    /// `AF_*` or `NFPROTO_*`.
    pub(crate) family: u8,
    /// Of a batch: the part of netfilter that it is for.
    pub(crate) resource: u16,
}

/// Appends a message to `out`.
pub(crate) fn write(out: &mut Vec<u8>, head: &Header, attributes: &[Attribute]) {
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

/// A request that is no part of a batch. Its sequence number is that of the answers.
pub(crate) fn request(
    kind: u16,
    flags: u16,
    family: u8,
    attributes: &[Attribute],
    sequence: u32,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    let head = Header {
        kind,
        flags: NLM_F_REQUEST | flags,
        sequence,
        family,
        resource: 0,
    };
    write(&mut out, &head, attributes);
    out
}

/// One message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    /// See [`message_type`].
    pub(crate) kind: u16,
    /// That of the question; 0 in an announcement.
    pub(crate) sequence: u32,
    /// The state changed while it was listed.
    pub(crate) interrupted: bool,
    pub(crate) content: Content<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    /// The end of a list, or the answer to a change: 0, or an errno negated.
    End(i32),
    /// An object of a part of netfilter.
    Object { family: u8, attributes: &'a [u8] },
    /// A message of netlink itself that was not asked for.
    Other,
}

/// The first message of a datagram, and what follows it.
pub(crate) fn first(bytes: &[u8]) -> Option<(Reply<'_>, &[u8])> {
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
        kind if kind >= NLMSG_MIN_TYPE => Content::Object {
            family: *payload.first()?,
            attributes: payload.get(4..)?,
        },
        _ => Content::Other,
    };
    let reply = Reply {
        kind,
        sequence,
        interrupted: flags & NLM_F_DUMP_INTR != 0,
        content,
    };
    Some((reply, rest))
}

/// Types below are netlink's own (linux/netlink.h).
const NLMSG_MIN_TYPE: u16 = 0x10;
/// Length of a netlink message header, in bytes.
const HEADER: usize = size_of::<libc::nlmsghdr>();

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
