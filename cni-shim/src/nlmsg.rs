//! Netlink messages as bytes (netlink(7)), of any family: what `struct nlmsghdr` and `struct nlattr` say, and the kernel's
//! own words. Nothing in here panics, whatever the bytes are.

/// What is read of `struct nlmsghdr` (linux/netlink.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of message: [`NLMSG_ERROR`], or a family's own.
    pub kind: u16,
    /// NLM_F_*.
    pub flags: u16,
    /// The request's number, which its answers repeat.
    pub sequence: u32,
}

/// The first message of a datagram, header included, and the rest. `None`: the bytes are no message, or its length
/// exceeds the datagram.
pub fn split(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let ([l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3], _) = bytes.split_first_chunk()?;
    let length = u32::from_ne_bytes([*l0, *l1, *l2, *l3]) as usize;
    let one = bytes.get(..length).filter(|one| one.len() >= HEADER)?;
    let header = Header {
        kind: u16::from_ne_bytes([*k0, *k1]),
        flags: u16::from_ne_bytes([*f0, *f1]),
        sequence: u32::from_ne_bytes([*s0, *s1, *s2, *s3]),
    };
    let tail = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((header, one, tail))
}

/// The attributes of `bytes`, each by its kind without flags, and its value. Ends at the first that is malformed.
pub fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

/// See [`attributes`].
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let ([l0, l1, k0, k1], _) = self.rest.split_first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let value = self.rest.get(ATTRIBUTE..length)?;
        self.rest = self
            .rest
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
        Some((u16::from_ne_bytes([*k0, *k1]) & NLA_TYPE_MASK, value))
    }
}

/// Adds an attribute. A value longer than an attribute can be is cut: ours are short.
pub fn append_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let most = usize::from(u16::MAX) - ATTRIBUTE;
    let value = value.get(..most).unwrap_or(value);
    let length = u16::try_from(ATTRIBUTE + value.len()).unwrap_or(u16::MAX);
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// NLMSGERR_ATTR_MSG of an extended acknowledgement, or nothing. With NETLINK_CAP_ACK the attributes follow the errno and
/// the request's header.
pub fn kernel_words(message: &[u8]) -> String {
    let bytes = message.get(HEADER + 4 + HEADER..).unwrap_or_default();
    let words = attributes(bytes).find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG);
    let text = words.map_or(&[][..], |(_, value)| value);
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Length of `struct nlmsghdr`, in bytes.
pub const HEADER: usize = 16;

/// The kind of an acknowledgement or a refusal.
pub const NLMSG_ERROR: u16 = 2;

/// An attribute's flag: its value is attributes.
pub const NLA_F_NESTED: u16 = 1 << 15;

/// Length of `struct nlattr`, in bytes.
const ATTRIBUTE: usize = 4;
const NLA_TYPE_MASK: u16 = 0x3fff;
const NLMSGERR_ATTR_MSG: u16 = 1;
