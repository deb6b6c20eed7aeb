//! Requests for the link-layer address of a neighbour, ARP (RFC 826) and neighbour solicitations (RFC 4861), and the
//! answers to them.
//!
//! Behind the tunnel there is no link to ask on: the node itself answers for every address that it forwards to. Whether it
//! does is the caller's decision.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::inner::{Fragment, Inner};
use crate::protocol::ICMPV6;
use crate::transport::{self, ChecksumState};
use crate::{Family, Mac, checksum, field};

/// A request for a link-layer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address of the sender.
    pub source: IpAddr,
    /// The address whose link-layer address it wants.
    pub target: IpAddr,
}

/// The request in an ARP packet; `None` of what is no request between IPv4 addresses on Ethernet, or asks for the sender's
/// own address (an announcement, RFC 5227 section 3).
pub fn arp_request(packet: &[u8]) -> Option<Request> {
    let packet: &[u8; ARP] = packet.first_chunk()?;
    let source: Ipv4Addr = field::bytes::<4>(packet, SENDER_ADDRESS)?.into();
    let target: Ipv4Addr = field::bytes::<4>(packet, TARGET_ADDRESS)?.into();
    let asks = packet.starts_with(&ETHERNET_IPV4) && field::u16(packet, OPERATION)? == REQUEST;
    (asks && source != target).then_some(Request {
        source: source.into(),
        target: target.into(),
    })
}

/// The answer to the ARP request in `packet`: its target has address `mac`. `None` where [`arp_request`] finds none.
pub fn arp_reply(packet: &[u8], mac: Mac) -> Option<[u8; ARP]> {
    arp_request(packet)?;
    let mut reply: [u8; ARP] = *packet.first_chunk()?;
    field::put_u16(&mut reply, OPERATION, REPLY)?;
    field::put(&mut reply, SENDER_MAC, mac.0)?;
    // Hardware and protocol address together.
    let asker: [u8; 10] = field::bytes(packet, SENDER_MAC)?;
    field::put(&mut reply, TARGET_MAC, asker)?;
    let target: [u8; 4] = field::bytes(packet, TARGET_ADDRESS)?;
    field::put(&mut reply, SENDER_ADDRESS, target)?;
    Some(reply)
}

/// The neighbour solicitation that `packet`, which `inner` describes, is; `None` if it is none, or RFC 4861 section 7.1.1
/// has it discarded. One that a router forwarded is among those: its hop limit is less than 255.
pub fn solicitation(packet: &[u8], inner: &Inner) -> Option<Request> {
    let packet = packet.get(..inner.len)?;
    let message = packet.get(inner.transport..)?;
    let is_one = inner.family == Family::V6
        && inner.protocol == ICMPV6
        && inner.fragment == Fragment::Whole
        && message.starts_with(&[SOLICITATION, 0]);
    if !is_one || packet.get(HOP_LIMIT) != Some(&255) {
        return None;
    }
    let target: Ipv6Addr = field::bytes::<16>(message, 8)?.into();
    let sound = transport::checksum_state(packet, inner) == ChecksumState::Valid;
    (sound && !target.is_multicast() && inner.source != IpAddr::V6(target)).then_some(Request {
        source: inner.source,
        target: target.into(),
    })
}

/// The answer to a [`solicitation`]: a packet that says that its target has address `mac`. `None` of a request that is
/// none of IPv6.
pub fn advertisement(request: &Request, mac: Mac) -> Option<[u8; ADVERTISEMENT_PACKET]> {
    let (IpAddr::V6(asker), IpAddr::V6(target)) = (request.source, request.target) else {
        return None;
    };
    let mut packet = [0; ADVERTISEMENT_PACKET];
    field::put(
        &mut packet,
        0,
        [0x60, 0, 0, 0, 0, MESSAGE as u8, ICMPV6, 255],
    )?;
    field::put(&mut packet, 8, target.octets())?;
    field::put(&mut packet, 24, asker.octets())?;
    // Solicited, and it replaces what the asker knows.
    field::put(&mut packet, IP6, [ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0])?;
    field::put(&mut packet, IP6 + 8, target.octets())?;
    // Option "target link-layer address", of 8 bytes.
    field::put(&mut packet, IP6 + 24, [2, 1])?;
    field::put(&mut packet, IP6 + 26, mac.0)?;
    let pseudo = checksum::pseudo(request.target, request.source, ICMPV6, MESSAGE);
    let message = packet.get(IP6..)?;
    let sum = !checksum::add(pseudo, checksum::sum(message));
    field::put_u16(&mut packet, IP6 + 2, sum)?;
    Some(packet)
}

/// Bytes of an ARP packet between IPv4 addresses on Ethernet.
pub const ARP: usize = 28;
/// Bytes of an [`advertisement`].
pub const ADVERTISEMENT_PACKET: usize = IP6 + MESSAGE;

/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
// Offsets in an ARP packet.
const OPERATION: usize = 6;
const SENDER_MAC: usize = 8;
const SENDER_ADDRESS: usize = 14;
const TARGET_MAC: usize = 18;
const TARGET_ADDRESS: usize = 24;
/// Operations of ARP.
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// Bytes of an IPv6 header.
const IP6: usize = 40;
/// Offset of the hop limit in it.
const HOP_LIMIT: usize = 7;
/// Bytes of an advertisement with one option.
const MESSAGE: usize = 32;
/// ICMPv6 types (RFC 4861 section 4).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

#[cfg(test)]
mod tests;
