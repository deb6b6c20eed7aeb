//! TCP header fields (RFC 9293 section 3.1).

/// Bytes of a header without options.
pub(crate) const HEADER: usize = 20;
/// Offset of the sequence number.
pub(crate) const SEQUENCE: usize = 4;
/// Offset of the byte whose high half is the header length in words.
const DATA_OFFSET: usize = 12;
/// Offset of the flags.
pub(crate) const FLAGS: usize = 13;
/// Offset of the word that ends in the flags.
pub(crate) const FLAGS_WORD: usize = 12;
/// Offset of the checksum.
pub(crate) const CHECKSUM: usize = 16;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const ECE: u8 = 0x40;
pub(crate) const CWR: u8 = 0x80;

/// Bytes of the header at the start of `segment`, or `None` where it is cut off or too short to be one.
pub(crate) fn header(segment: &[u8]) -> Option<usize> {
    let len = usize::from(segment.get(DATA_OFFSET)? >> 4) * 4;
    (len >= HEADER && len <= segment.len()).then_some(len)
}
