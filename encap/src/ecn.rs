//! Explicit congestion notification through a tunnel (RFC 6040).

use std::fmt;

use crate::{Family, checksum, field};

/// The ECN codepoint of an IP header (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not understand ECN.
    NotEct = 0,
    /// ECN-capable, codepoint 1 (L4S uses it).
    Ect1 = 1,
    /// ECN-capable, codepoint 0.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The codepoint in the two low bits of `traffic_class` (the TOS byte or the IPv6 traffic class).
    pub const fn of(traffic_class: u8) -> Ecn {
        match traffic_class & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

/// The packet must be dropped: a router on the way marked congestion, and the inner packet has no way to carry
/// the mark (RFC 6040 section 4.2, outer CE over inner Not-ECT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EcnError;

impl fmt::Display for EcnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the outer header marks congestion but the inner packet does not understand ECN (RFC 6040)")
    }
}

impl std::error::Error for EcnError {}

/// The outer codepoint for an inner packet: copied (RFC 6040 section 4.1, normal mode).
pub const fn encapsulate(inner: Ecn) -> Ecn {
    inner
}

/// What becomes of the inner codepoint at the far end (RFC 6040 section 4.2, figure 4).
///
/// `Ok(Some(new))` asks for the inner packet to be rewritten ([`set`]), `Ok(None)` leaves it alone.
///
/// # Errors
/// [`EcnError`] when the packet must be dropped.
pub const fn decapsulate(outer: Ecn, inner: Ecn) -> Result<Option<Ecn>, EcnError> {
    match (outer, inner) {
        (Ecn::Ce, Ecn::NotEct) => Err(EcnError),
        (Ecn::Ce, Ecn::Ect0 | Ecn::Ect1) => Ok(Some(Ecn::Ce)),
        (Ecn::Ect1, Ecn::Ect0) => Ok(Some(Ecn::Ect1)),
        _ => Ok(None),
    }
}

/// Writes the codepoint into `packet`, an IP packet of `family`; an IPv4 header checksum follows incrementally, so
/// that a wrong one stays wrong. `false` where the header is
/// cut off, and nothing is written.
pub fn set(packet: &mut [u8], family: Family, ecn: Ecn) -> bool {
    match family {
        Family::V4 => set_v4(packet, ecn).is_some(),
        Family::V6 => set_v6(packet, ecn).is_some(),
    }
}

fn set_v4(packet: &mut [u8], ecn: Ecn) -> Option<()> {
    let header = packet.first_chunk_mut::<20>()?;
    let old = field::u16(header, 0)?;
    let new = old & !3 | ecn as u16;
    let sum = field::u16(header, V4_CHECKSUM)?;
    field::put_u16(header, 0, new)?;
    field::put_u16(header, V4_CHECKSUM, checksum::update(sum, old, new))
}

fn set_v6(packet: &mut [u8], ecn: Ecn) -> Option<()> {
    let word = field::u16(packet, 0)?;
    field::put_u16(packet, 0, word & !0x0030 | (ecn as u16) << 4)
}

/// Offset of the IPv4 header checksum.
const V4_CHECKSUM: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use Ecn::{Ce, Ect0, Ect1, NotEct};

    #[test]
    fn figure_4_of_rfc_6040() {
        let outers = [NotEct, Ect0, Ect1, Ce];
        let rows = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce), Some(Ce), Some(Ce), Some(Ce)]),
        ];
        for (inner, results) in rows {
            for (outer, expected) in outers.into_iter().zip(results) {
                let got = decapsulate(outer, inner)
                    .ok()
                    .map(|new| new.unwrap_or(inner));
                assert_eq!(got, expected, "inner {inner:?} outer {outer:?}");
            }
        }
    }

    #[test]
    fn an_unchanged_codepoint_asks_for_no_write() {
        for outer in [NotEct, Ect0, Ect1, Ce] {
            for inner in [NotEct, Ect0, Ect1, Ce] {
                assert_ne!(decapsulate(outer, inner), Ok(Some(inner)));
            }
        }
    }

    #[test]
    fn outer_is_a_copy() {
        for (bits, ecn) in [NotEct, Ect1, Ect0, Ce].into_iter().enumerate() {
            assert_eq!(encapsulate(ecn), ecn);
            assert_eq!(Ecn::of(0xfc | bits as u8), ecn);
            assert_eq!(ecn as usize, bits);
        }
    }
}
