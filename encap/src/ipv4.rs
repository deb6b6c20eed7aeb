//! IPv4 headers (RFC 791), by hand.

use std::net::{IpAddr, Ipv4Addr};

use crate::inner::{self, Fragment, Inner, Malformed};
use crate::{Ecn, Family, checksum, field};

/// Parses a packet whose version nibble is 4.
pub(crate) fn parse(bytes: &[u8]) -> Result<Inner, Malformed> {
    let fixed = bytes.first_chunk::<HEADER>().ok_or(Malformed::Short)?;
    let &[
        vihl,
        tos,
        l0,
        l1,
        _,
        _,
        f0,
        f1,
        _,
        protocol,
        _,
        _,
        s0,
        s1,
        s2,
        s3,
        d0,
        d1,
        d2,
        d3,
    ] = fixed;
    let header = usize::from(vihl & 0x0f) * 4;
    let len = usize::from(u16::from_be_bytes([l0, l1]));
    if header < HEADER {
        return Err(Malformed::HeaderLength);
    }
    if len < HEADER || len > bytes.len() {
        return Err(Malformed::TotalLength);
    }
    if header > len {
        return Err(Malformed::HeaderLength);
    }
    let flags = u16::from_be_bytes([f0, f1]);
    let fragment = match (flags & OFFSET, flags & MORE_FRAGMENTS) {
        (0, 0) => Fragment::Whole,
        (0, _) => Fragment::First,
        _ => Fragment::Later,
    };
    let packet = bytes.get(..len).unwrap_or_default();
    Ok(Inner {
        family: Family::V4,
        source: IpAddr::V4(Ipv4Addr::new(s0, s1, s2, s3)),
        destination: IpAddr::V4(Ipv4Addr::new(d0, d1, d2, d3)),
        len,
        ecn: Ecn::of(tos),
        dont_fragment: flags & DONT_FRAGMENT != 0,
        fragment,
        protocol,
        transport: header,
        ports: inner::ports(packet, protocol, header, fragment),
    })
}

/// Writes the checksum that `header`, with its options, must carry.
pub(crate) fn put_checksum(header: &mut [u8]) -> Option<()> {
    let checksum = checksum::ipv4_header(header);
    field::put_u16(header, CHECKSUM, checksum)
}

/// Bytes of a header without options.
pub(crate) const HEADER: usize = 20;

/// Offset of the total length.
pub(crate) const LENGTH: usize = 2;
/// Offset of the identification.
pub(crate) const IDENTIFICATION: usize = 4;
/// Offset of flags and fragment offset.
pub(crate) const FLAGS: usize = 6;
/// Offset of the header checksum.
pub(crate) const CHECKSUM: usize = 10;

/// DF, in the word at [`FLAGS`].
pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
/// MF, in the word at [`FLAGS`].
pub(crate) const MORE_FRAGMENTS: u16 = 0x2000;
/// The fragment offset in units of 8 bytes, in the word at [`FLAGS`].
pub(crate) const OFFSET: u16 = 0x1fff;
