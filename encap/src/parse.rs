//! Untrusted bytes to an [`Inner`], by the IP version.

use crate::inner::{Inner, Malformed};
use crate::{Family, ipv4, ipv6};

impl Inner {
    /// Understands the packet at the start of `bytes`. The IPv4 header checksum is left to the kernel, which drops
    /// what fails it.
    ///
    /// # Errors
    /// [`Malformed`] where the bytes are no IP packet, a jumbogram (RFC 2675) included.
    pub fn parse(bytes: &[u8]) -> Result<Inner, Malformed> {
        match version(bytes) {
            Some(Family::V4) => ipv4::parse(bytes),
            Some(Family::V6) => ipv6::parse(bytes),
            None if bytes.is_empty() => Err(Malformed::Short),
            None => Err(Malformed::Version),
        }
    }
}

/// The family named by the version nibble.
pub(crate) fn version(bytes: &[u8]) -> Option<Family> {
    match bytes.first()? >> 4 {
        4 => Some(Family::V4),
        6 => Some(Family::V6),
        _ => None,
    }
}
