//! UDP headers (RFC 768).

/// A UDP header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    /// Bytes of header and data.
    pub(crate) length: u16,
    pub(crate) checksum: u16,
}

impl Header {
    /// The header in front of `bytes`, or `None` where fewer than 8 bytes are left.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Header> {
        let &[s0, s1, d0, d1, l0, l1, c0, c1] = bytes.first_chunk::<HEADER>()?;
        Some(Header {
            source: u16::from_be_bytes([s0, s1]),
            destination: u16::from_be_bytes([d0, d1]),
            length: u16::from_be_bytes([l0, l1]),
            checksum: u16::from_be_bytes([c0, c1]),
        })
    }

    pub(crate) const fn emit(self) -> [u8; HEADER] {
        let [s0, s1] = self.source.to_be_bytes();
        let [d0, d1] = self.destination.to_be_bytes();
        let [l0, l1] = self.length.to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }
}

/// A computed checksum as the field carries it. "If the computed checksum is zero, it is transmitted as all ones"
/// (RFC 768): zero says that there is none.
pub(crate) const fn transmitted(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// Bytes of a UDP header.
pub(crate) const HEADER: usize = 8;
/// Offset of the length field.
pub(crate) const LENGTH: usize = 4;
/// Offset of the checksum field.
pub(crate) const CHECKSUM: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_back() {
        let header = Header {
            source: 1,
            destination: 0x8000,
            length: 8,
            checksum: 0xabcd,
        };
        assert_eq!(Header::parse(&header.emit()), Some(header));
        assert_eq!(Header::parse(&[0; 7]), None);
    }

    #[test]
    fn zero_is_sent_as_all_ones() {
        assert_eq!(transmitted(0), 0xffff);
        assert_eq!(transmitted(1), 1);
    }
}
