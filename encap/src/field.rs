//! Big-endian fields at an offset, read and written without a way to panic.

/// The `N` bytes at `at`, or `None` where `bytes` ends before them.
pub(crate) fn bytes<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

/// The 16-bit number at `at`, or `None` where `bytes` ends before it.
pub(crate) fn u16(bytes: &[u8], at: usize) -> Option<u16> {
    self::bytes(bytes, at).map(u16::from_be_bytes)
}

/// Writes `value` at `at`, or returns `None` where `bytes` ends before it.
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut::<N>()? = value;
    Some(())
}

/// Writes the 16-bit number `value` at `at`, or returns `None` where `bytes` ends before it.
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    put(bytes, at, value.to_be_bytes())
}

/// `value` as a 16-bit length field, or `None` where it does not fit.
pub(crate) fn length(value: usize) -> Option<u16> {
    u16::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_big_endian() {
        let mut buffer = [0; 4];
        assert_eq!(put_u16(&mut buffer, 1, 0x1234), Some(()));
        assert_eq!(buffer, [0, 0x12, 0x34, 0]);
        assert_eq!(u16(&buffer, 1), Some(0x1234));
    }

    #[test]
    fn refuses_what_lies_outside() {
        let mut buffer = [0; 4];
        assert_eq!(u16(&buffer, 3), None);
        assert_eq!(u16(&buffer, usize::MAX), None);
        assert_eq!(put_u16(&mut buffer, 3, 1), None);
        assert_eq!(buffer, [0; 4]);
        assert_eq!(length(65_536), None);
    }
}
