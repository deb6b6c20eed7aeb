//! Headers of a received datagram, proved and stripped.
//!
//! The rules of the kernel's VXLAN device (`vxlan_rcv`, `vxlan_set_mac`) and of flannel's `udp` proxy, and one that
//! the kernel applies only later: the inner destination MAC must be ours.

use std::fmt;
use std::net::SocketAddr;

use crate::inner::{Fragment, Inner, Malformed};
use crate::transport::ChecksumState;
use crate::{
    Ecn, Family, Format, Mac, Vni, ether, field, ipv4, ipv6, parse, probe, protocol, transport,
    udp as udp_header, vxlan as vxlan_header,
};

/// Our end of the VXLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vtep {
    /// The only inner destination accepted of frames with IPv4.
    pub mac: Mac,
    /// The only one of frames with IPv6. A flannel node has a device, and so a MAC, per family.
    pub mac_v6: Mac,
    /// The only network accepted.
    pub vni: Vni,
    /// Tolerate group policy bits, as a kernel device with `gbp` does.
    pub gbp: bool,
}

impl Vtep {
    /// Our MAC for inner packets of `family`.
    pub const fn mac_of(&self, family: Family) -> Mac {
        match family {
            Family::V4 => self.mac,
            Family::V6 => self.mac_v6,
        }
    }
}

/// Why a datagram has no inner packet for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Shorter than the format's headers.
    Short,
    /// VXLAN without the I flag, or with a flag or reserved bit that we do not understand.
    Flags,
    /// Another VXLAN network.
    Vni,
    /// The frame is addressed to another station, or to many.
    DestinationMac,
    /// The frame comes from our own MAC, from a group or from the zero MAC.
    SourceMac,
    /// The frame carries no IP, or announces another IP version than it carries.
    EtherType,
    /// The inner packet is no IP packet.
    Malformed(Malformed),
    /// IPv6 in the `udp` format, where it is not allowed.
    Family,
    /// A probe ([`crate::probe`]) stands in the place of the inner packet, in a frame that is ours.
    Probe,
}

impl Refusal {
    /// One sentence for the operator.
    pub const fn gloss(self) -> &'static str {
        match self {
            Refusal::Short => "the datagram is shorter than its format's headers",
            Refusal::Flags => "the VXLAN flags are not the I flag alone",
            Refusal::Vni => "the datagram belongs to another VXLAN network",
            Refusal::DestinationMac => "the inner frame is not addressed to our VTEP",
            Refusal::SourceMac => "the inner frame's source is our own VTEP, a group or zero",
            Refusal::EtherType => {
                "the inner frame carries no IP, or not the version that it announces"
            }
            Refusal::Malformed(malformed) => malformed.gloss(),
            Refusal::Family => "IPv6 in the udp format is not allowed here",
            Refusal::Probe => "the datagram is a probe of peer health, and holds no packet",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.gloss())
    }
}

impl std::error::Error for Refusal {}

/// An inner packet found in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Where the inner packet begins in the datagram; `inner.len` bytes of it count.
    pub offset: usize,
    /// What it is.
    pub inner: Inner,
    /// The MAC of the VTEP that the frame around it comes from; none in the `udp` format.
    pub source_mac: Option<Mac>,
}

/// Pulls a flannel `udp` datagram: the payload is the inner packet. Stock peers carry only IPv4 in it.
///
/// # Errors
/// [`Refusal::Malformed`], [`Refusal::Family`] of IPv6 unless `allow_v6`, and [`Refusal::Probe`].
pub fn udp(datagram: &[u8], allow_v6: bool) -> Result<Pulled, Refusal> {
    let inner = Inner::parse(datagram).map_err(|malformed| {
        if probe::is_probe(datagram) {
            Refusal::Probe
        } else {
            Refusal::Malformed(malformed)
        }
    })?;
    if inner.family == Family::V6 && !allow_v6 {
        return Err(Refusal::Family);
    }
    Ok(Pulled {
        offset: 0,
        inner,
        source_mac: None,
    })
}

/// Pulls a VXLAN datagram addressed to `vtep`.
///
/// # Errors
/// The first [`Refusal`] in the order of the headers.
pub fn vxlan(datagram: &[u8], vtep: &Vtep) -> Result<Pulled, Refusal> {
    let (front, rest) = datagram
        .split_first_chunk::<{ vxlan_header::HEADER }>()
        .ok_or(Refusal::Short)?;
    let (frame, packet) = rest
        .split_first_chunk::<{ ether::HEADER }>()
        .ok_or(Refusal::Short)?;
    let header = vxlan_header::Header::parse(front);
    if !header.flags_allowed(vtep.gbp) {
        return Err(Refusal::Flags);
    }
    if header.vni != vtep.vni {
        return Err(Refusal::Vni);
    }
    let frame = ether::Header::parse(frame);
    let family = ether::family(frame.ether_type);
    // What is no IP (ARP) belongs to the device for IPv4. A probe is for both.
    let is_probe = frame.ether_type == ether::PROBE;
    let to_v6 = is_probe && frame.destination == vtep.mac_v6;
    let other = if to_v6 { Family::V6 } else { Family::V4 };
    let ours = vtep.mac_of(family.unwrap_or(other));
    if frame.destination != ours {
        return Err(Refusal::DestinationMac);
    }
    if !frame.source.is_unicast() || frame.source == ours {
        return Err(Refusal::SourceMac);
    }
    if is_probe {
        return Err(Refusal::Probe);
    }
    let family = family.ok_or(Refusal::EtherType)?;
    let inner = Inner::parse(packet).map_err(Refusal::Malformed)?;
    if inner.family != family {
        return Err(Refusal::EtherType);
    }
    Ok(Pulled {
        offset: Format::Vxlan.header_len(),
        inner,
        source_mac: Some(frame.source),
    })
}

/// How many bytes the headers of `format` and the first inner packet's own length span, or `None` where there is no
/// such length. It may be more or less than the datagram has.
///
/// Nothing else is checked. It distinguishes one inner super-packet from several datagrams in one buffer: if the
/// span is the whole buffer, the `UDP_GRO` mark is the *inner* segment size and must not be cut by, since a pod
/// controls the bytes at the cuts.
pub fn inner_span(datagram: &[u8], format: Format) -> Option<usize> {
    let offset = format.header_len();
    let packet = datagram.get(offset..)?;
    let len = match parse::version(packet)? {
        Family::V4 => {
            let len = usize::from(field::u16(packet, ipv4::LENGTH)?);
            if len < ipv4::HEADER {
                return None;
            }
            len
        }
        Family::V6 => ipv6::HEADER + usize::from(field::u16(packet, ipv6::LENGTH)?),
    };
    Some(offset + len)
}

/// A captured datagram's outer headers, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer<'a> {
    /// Outer source address and port.
    pub source: SocketAddr,
    /// Outer destination address and port.
    pub destination: SocketAddr,
    /// Outer ECN codepoint.
    pub ecn: Ecn,
    /// State of the outer UDP checksum.
    pub checksum: ChecksumState,
    /// The UDP payload.
    pub payload: &'a [u8],
}

/// Why a captured packet is no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotADatagram {
    /// No IP packet.
    Malformed(Malformed),
    /// A fragment: its datagram is not all here.
    Fragment,
    /// Another transport than UDP.
    Protocol,
    /// A UDP length below 8 or beyond the packet.
    Length,
}

impl fmt::Display for NotADatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotADatagram::Malformed(malformed) => malformed.gloss(),
            NotADatagram::Fragment => "the outer packet is a fragment",
            NotADatagram::Protocol => "the outer packet is not UDP",
            NotADatagram::Length => "the outer UDP length disagrees with the packet",
        })
    }
}

impl std::error::Error for NotADatagram {}

/// Understands a whole captured outer packet, from its IP header on: for captures, tests and tools. Sockets hand us
/// the payload alone.
///
/// # Errors
/// [`NotADatagram`] where it is none.
pub fn outer(packet: &[u8]) -> Result<Outer<'_>, NotADatagram> {
    let outer = Inner::parse(packet).map_err(NotADatagram::Malformed)?;
    if outer.fragment != Fragment::Whole {
        return Err(NotADatagram::Fragment);
    }
    if outer.protocol != protocol::UDP {
        return Err(NotADatagram::Protocol);
    }
    let datagram = packet.get(outer.transport..outer.len).unwrap_or_default();
    let header = udp_header::Header::parse(datagram).ok_or(NotADatagram::Length)?;
    let payload = datagram
        .get(udp_header::HEADER..usize::from(header.length))
        .ok_or(NotADatagram::Length)?;
    Ok(Outer {
        source: SocketAddr::new(outer.source, header.source),
        destination: SocketAddr::new(outer.destination, header.destination),
        ecn: outer.ecn,
        checksum: transport::checksum_state(packet, &outer),
        payload,
    })
}

#[cfg(test)]
mod tests;
