//! Internet checksums (RFC 1071): whole, incremental, and *unfinished*.
//!
//! A sum here is a 16-bit one's complement sum, not yet complemented, of big-endian words; an odd last byte counts
//! as the high half of a word. Sums of parts that start at even offsets may be [`add`]ed.
//!
//! An unfinished checksum is what Linux calls `CHECKSUM_PARTIAL`: the field holds the sum over the pseudo-header
//! alone and the device that transmits the packet completes it. A kernel VXLAN device on the same host hands such packets
//! to a plain UDP socket.

mod sum;

use std::fmt;
use std::net::IpAddr;

use crate::{field, udp};
use sum::fold;

#[cfg(target_arch = "x86_64")]
pub use sum::avx2;
pub use sum::{portable, sum, sum_long_by};

/// The one's complement sum of two sums.
pub const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u16
}

/// The sum of the pseudo-header of TCP, UDP and ICMPv6 (RFC 9293 section 3.1, RFC 8200 section 8.1): addresses,
/// `protocol`, and `len` bytes of transport header and data.
pub fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u16 {
    let len = len as u64;
    let length = fold((len & 0xffff) + (len >> 16));
    add(
        add(address(source), address(destination)),
        add(u16::from(protocol), length),
    )
}

/// The checksum after one word that it covers changed from `old` to `new` (RFC 1624 equation 3).
pub const fn update(old_checksum: u16, old: u16, new: u16) -> u16 {
    !add(add(!old_checksum, !old), new)
}

/// The checksum that `header`, an IPv4 header with its options, must carry. What stands in the field now is left out.
pub fn ipv4_header(header: &[u8]) -> u16 {
    let (before, rest) = header.split_at(header.len().min(10));
    let after = rest.get(2..).unwrap_or_default();
    !add(sum(before), sum(after))
}

/// The range to be summed or the field to be written lies outside the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds;

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the checksum field lies outside the packet")
    }
}

impl std::error::Error for OutOfBounds {}

/// Completes an unfinished checksum of any protocol: sums from `start` to the end of `packet` and writes the result
/// at `start + offset`. `packet` must end where the IP packet ends.
///
/// A result of zero is written as 0xffff for every protocol, as the kernel does (`skb_checksum_help`,
/// `CSUM_MANGLED_0`): for UDP zero means "none", and for all others the two are the same number.
///
/// # Errors
/// [`OutOfBounds`], and the packet is as it was.
pub fn finish(packet: &mut [u8], start: usize, offset: usize) -> Result<(), OutOfBounds> {
    let checksum = finished(packet, start);
    let covered = packet.get_mut(start..).ok_or(OutOfBounds)?;
    field::put(covered, offset, checksum).ok_or(OutOfBounds)
}

/// What [`finish`] writes, for packets whose bytes must stay as they are.
pub fn finished(packet: &[u8], start: usize) -> [u8; 2] {
    let covered = packet.get(start..).unwrap_or_default();
    udp::transmitted(!sum(covered)).to_be_bytes()
}

/// The sum of an address.
pub(crate) fn address(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(address) => {
            let bits = u64::from(address.to_bits());
            fold(bits)
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            let (high, low) = ((bits >> 64) as u64, bits as u64);
            add(fold(high), fold(low))
        }
    }
}

#[cfg(test)]
mod tests;
