//! An inner IPv4 packet cut into fragments (RFC 791 section 3.2), fragments cut again included.
//!
//! As in [`segment`](crate::segment), a plan describes the cut and payload is never copied. Like Linux
//! (`ip_options_fragment`), options that belong into the first fragment only are overwritten with no-operations in
//! the others, so that all headers have one length.
//!
//! The caller finishes the transport checksum before: it cannot be finished in a fragment.

use std::fmt;
use std::ops::Range;

use crate::inner::Inner;
use crate::{Family, field, ipv4};

/// How a packet is cut. Belongs to the packet that it was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragments {
    /// Bytes of every header.
    header: usize,
    /// Bytes of the packet.
    len: usize,
    /// Payload bytes per fragment, a multiple of 8; the last has what is left.
    size: usize,
    /// Offset of the packet itself in what it is a fragment of, units of 8 bytes.
    offset: u16,
    /// DF and MF of the packet.
    flags: u16,
}

/// Why a packet cannot be fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unfragmentable {
    /// It does not fit and forbids it: answer with [`icmp::too_big`](crate::icmp::too_big).
    DontFragment,
    /// IPv6 is fragmented by its source alone.
    NotIpv4,
    /// The header disagrees with the packet, its options are malformed, or its fragment offset would overflow.
    Malformed,
    /// Not even 8 bytes of payload fit beside the header.
    MtuTooSmall,
}

impl fmt::Display for Unfragmentable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unfragmentable::DontFragment => "the packet does not fit and forbids fragmentation",
            Unfragmentable::NotIpv4 => "only IPv4 packets are fragmented on the way",
            Unfragmentable::Malformed => "the packet's header cannot be repeated in fragments",
            Unfragmentable::MtuTooSmall => "no payload fits beside the header",
        })
    }
}

impl std::error::Error for Unfragmentable {}

/// Plans the cut of `packet`, which `inner` describes, into fragments of at most `mtu` bytes. A packet that fits
/// has one fragment, itself.
///
/// # Errors
/// [`Unfragmentable`] where it must not or cannot be cut.
pub fn plan(packet: &[u8], inner: &Inner, mtu: u16) -> Result<Fragments, Unfragmentable> {
    if inner.family != Family::V4 {
        return Err(Unfragmentable::NotIpv4);
    }
    let mtu = usize::from(mtu);
    let fits = inner.len <= mtu;
    if inner.dont_fragment && !fits {
        return Err(Unfragmentable::DontFragment);
    }
    let header = inner.transport;
    let options = packet
        .get(ipv4::HEADER..header)
        .ok_or(Unfragmentable::Malformed)?;
    let payload = packet
        .get(header..inner.len)
        .ok_or(Unfragmentable::Malformed)?
        .len();
    let word = field::u16(packet, ipv4::FLAGS).ok_or(Unfragmentable::Malformed)?;
    let offset = word & ipv4::OFFSET;
    if usize::from(offset) * UNIT + payload > MAX_PAYLOAD {
        return Err(Unfragmentable::Malformed);
    }
    let size = if fits {
        payload
    } else {
        mtu.saturating_sub(header) / UNIT * UNIT
    };
    if size == 0 && !fits {
        return Err(Unfragmentable::MtuTooSmall);
    }
    if !fits {
        check_options(options).ok_or(Unfragmentable::Malformed)?;
    }
    Ok(Fragments {
        header,
        len: inner.len,
        size,
        offset,
        flags: word & !ipv4::OFFSET,
    })
}

impl Fragments {
    /// Fragments, at least 1.
    pub fn count(&self) -> usize {
        (self.len - self.header).div_ceil(self.size.max(1)).max(1)
    }

    /// Bytes of every fragment's header, at most [`MAX_HEADER`].
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// Where fragment `i`'s payload lies in the packet; empty where there is no such fragment.
    pub fn payload(&self, i: usize) -> Range<usize> {
        let start = self
            .header
            .saturating_add(i.saturating_mul(self.size))
            .min(self.len);
        start..start.saturating_add(self.size).min(self.len)
    }

    /// Writes fragment `i`'s complete header at the start of `out` and returns its length.
    ///
    /// `None` where there is no such fragment, `out` is shorter than [`Fragments::header_len`], or `packet` is not
    /// the one that was planned.
    pub fn header(&self, packet: &[u8], i: usize, out: &mut [u8]) -> Option<usize> {
        if i >= self.count() {
            return None;
        }
        let payload = self.payload(i);
        let out = out.get_mut(..self.header)?;
        out.copy_from_slice(packet.get(..self.header)?);
        if i > 0 {
            blank_options(out.get_mut(ipv4::HEADER..)?)?;
        }
        let more = if i + 1 < self.count() {
            ipv4::MORE_FRAGMENTS
        } else {
            0
        };
        let offset = self.offset + field::length(i * self.size / UNIT)?;
        field::put_u16(
            out,
            ipv4::LENGTH,
            field::length(self.header + payload.len())?,
        )?;
        field::put_u16(out, ipv4::FLAGS, self.flags | more | offset)?;
        ipv4::put_checksum(out)?;
        Some(self.header)
    }
}

/// The longest IPv4 header, bytes: a buffer of this size always suffices for [`Fragments::header`].
pub const MAX_HEADER: usize = 60;

/// `None` where the options run out of their field.
fn check_options(options: &[u8]) -> Option<()> {
    let mut at = 0;
    while at < options.len() {
        at += option(options, at)?.1;
    }
    Some(())
}

/// Overwrites each option whose copied flag is clear with no-operations.
fn blank_options(options: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while at < options.len() {
        let (kind, len) = option(options, at)?;
        if kind & COPIED == 0 && kind != END {
            options.get_mut(at..at + len)?.fill(NO_OPERATION);
        }
        at += len;
    }
    Some(())
}

/// Kind and length, at least 1, of the option at `at`. Nothing is read behind the end of the list.
fn option(options: &[u8], at: usize) -> Option<(u8, usize)> {
    let rest = options.get(at..)?;
    match *rest {
        [END, ..] => Some((END, rest.len())),
        [NO_OPERATION, ..] => Some((NO_OPERATION, 1)),
        [kind, len, ..] if len >= 2 && usize::from(len) <= rest.len() => {
            Some((kind, usize::from(len)))
        }
        _ => None,
    }
}

/// Fragment offsets count these, bytes.
const UNIT: usize = 8;
/// The most payload that a reassembled packet can have, bytes.
const MAX_PAYLOAD: usize = 65_535 - ipv4::HEADER;

/// The flag in an option's kind that says "copy into all fragments".
const COPIED: u8 = 0x80;
/// End of the option list.
const END: u8 = 0;
/// An option of one byte that means nothing.
const NO_OPERATION: u8 = 1;

#[cfg(test)]
mod tests;
