//! Control messages of `recvmsg` and `sendmsg`, read and written as bytes (cmsg(3)), without unsafe.

use std::mem::size_of;

/// One control message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Control<'a> {
    pub(super) level: i32,
    pub(super) kind: i32,
    pub(super) data: &'a [u8],
}

/// Walks the control messages that the kernel wrote into `bytes`; stops at the first that does not fit.
pub(super) fn walk(mut bytes: &[u8]) -> impl Iterator<Item = Control<'_>> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<WORD>()?;
        let (level, rest) = rest.split_first_chunk::<4>()?;
        let (kind, _) = rest.split_first_chunk::<4>()?;
        let length = usize::from_ne_bytes(*length);
        let data = bytes.get(HEADER..length)?;
        bytes = bytes
            .get(length.next_multiple_of(WORD)..)
            .unwrap_or_default();
        Some(Control {
            level: i32::from_ne_bytes(*level),
            kind: i32::from_ne_bytes(*kind),
            data,
        })
    })
}

/// The first four bytes of a message's data as an `int`; a single byte counts as its value.
pub(super) fn int(data: &[u8]) -> Option<i32> {
    match data.first_chunk::<4>() {
        Some(bytes) => Some(i32::from_ne_bytes(*bytes)),
        None => data.first().map(|byte| i32::from(*byte)),
    }
}

/// A control message that carries one `int`, with its padding.
pub(super) fn with_int(level: i32, kind: i32, value: i32) -> [u8; INT_SPACE] {
    with(level, kind, &value.to_ne_bytes())
}

/// A control message that carries one `__u16`, with its padding.
pub(super) fn with_u16(level: i32, kind: i32, value: u16) -> [u8; INT_SPACE] {
    with(level, kind, &value.to_ne_bytes())
}

/// A control message that carries `data`, which fills no more than an `int`.
fn with(level: i32, kind: i32, data: &[u8]) -> [u8; INT_SPACE] {
    let mut bytes = [0; INT_SPACE];
    let fields = [
        &(HEADER + data.len()).to_ne_bytes()[..],
        &level.to_ne_bytes(),
        &kind.to_ne_bytes(),
        data,
    ];
    for (place, byte) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
        *place = *byte;
    }
    bytes
}

/// Bytes that one `int` message takes.
pub(super) const INT_SPACE: usize = (HEADER + 4).next_multiple_of(WORD);

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let three = [
            with_int(17, 104, 1472),
            with_u16(17, 103, 1400),
            with_int(0, 1, 3),
        ];
        let three = three.concat();
        let read: Vec<_> = walk(&three).map(|c| (c.level, c.kind, c.data)).collect();
        let expected = [
            (17, 104, &1472i32.to_ne_bytes()[..]),
            (17, 103, &1400u16.to_ne_bytes()),
            (0, 1, &3i32.to_ne_bytes()),
        ];
        assert_eq!(read, expected);
        assert_eq!(int(&1472i32.to_ne_bytes()), Some(1472));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(walk(&bytes).count() <= bytes.len());
        }
    }
}
