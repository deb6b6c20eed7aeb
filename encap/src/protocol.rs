//! Protocol numbers of the IPv4 Protocol and IPv6 Next Header fields (IANA, "Assigned Internet Protocol Numbers").

/// ICMP (RFC 792).
pub const ICMP: u8 = 1;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// DCCP (RFC 4340).
pub const DCCP: u8 = 33;
/// ICMPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// SCTP (RFC 9260).
pub const SCTP: u8 = 132;
/// UDP-Lite (RFC 3828).
pub const UDP_LITE: u8 = 136;

/// IPv6 hop-by-hop options (RFC 8200 section 4.3).
pub(crate) const HOP_BY_HOP: u8 = 0;
/// IPv6 routing header (RFC 8200 section 4.4).
pub(crate) const ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200 section 4.5).
pub(crate) const FRAGMENT: u8 = 44;
/// Authentication header (RFC 4302).
pub(crate) const AUTHENTICATION: u8 = 51;
/// Nothing follows (RFC 8200 section 4.7).
pub(crate) const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options (RFC 8200 section 4.6).
pub(crate) const DESTINATION_OPTIONS: u8 = 60;
