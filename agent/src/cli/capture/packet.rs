//! The headers of a captured IP packet, as far as they were captured. The bytes are a pod's: nothing is trusted.

use std::net::IpAddr;

use encap::protocol::{ICMP, ICMPV6, TCP, UDP};

/// Protocol number of SCTP.
const SCTP: u8 = 132;

/// What an IP packet says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// IANA protocol number, behind IPv6 extension headers.
    pub(super) protocol: u8,
    /// Source and destination port, where the protocol has them and they were captured.
    pub(super) ports: Option<(u16, u16)>,
    /// A fragment that is not the first: no ports.
    pub(super) is_later_fragment: bool,
    /// Of TCP.
    pub(super) flags: Option<u8>,
    /// Type of ICMP.
    pub(super) icmp: Option<u8>,
}

impl Packet {
    /// The headers at the front of `bytes`.
    pub(super) fn read(bytes: &[u8]) -> Option<Packet> {
        match bytes.first()? >> 4 {
            4 => Packet::v4(bytes),
            6 => Packet::v6(bytes),
            _ => None,
        }
    }

    fn v4(bytes: &[u8]) -> Option<Packet> {
        let length = usize::from(bytes.first()? & 15) * 4;
        let source: [u8; 4] = *bytes.get(12..)?.first_chunk()?;
        let destination: [u8; 4] = *bytes.get(16..)?.first_chunk()?;
        let offset = word(bytes, 6)? & 0x1fff;
        let packet = Packet {
            source: source.into(),
            destination: destination.into(),
            protocol: *bytes.get(9)?,
            ports: None,
            is_later_fragment: offset > 0,
            flags: None,
            icmp: None,
        };
        Some(packet.with_transport(bytes.get(length..).unwrap_or_default()))
    }

    fn v6(bytes: &[u8]) -> Option<Packet> {
        let source: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
        let destination: [u8; 16] = *bytes.get(24..)?.first_chunk()?;
        let mut packet = Packet {
            source: source.into(),
            destination: destination.into(),
            protocol: *bytes.get(6)?,
            ports: None,
            is_later_fragment: false,
            flags: None,
            icmp: None,
        };
        let mut rest = bytes.get(40..).unwrap_or_default();
        for _ in 0..MOST_EXTENSIONS {
            let (Some(next), Some(length)) = (rest.first(), rest.get(1)) else {
                break;
            };
            let length = match packet.protocol {
                HOP_BY_HOP | ROUTING | OPTIONS => 8 + usize::from(*length) * 8,
                FRAGMENT => {
                    packet.is_later_fragment |= word(rest, 2).is_some_and(|field| field >> 3 > 0);
                    8
                }
                _ => break,
            };
            packet.protocol = *next;
            rest = rest.get(length..).unwrap_or_default();
        }
        Some(packet.with_transport(rest))
    }

    fn with_transport(mut self, bytes: &[u8]) -> Packet {
        if self.is_later_fragment {
            return self;
        }
        match self.protocol {
            TCP | UDP | SCTP => {
                self.ports = word(bytes, 0).zip(word(bytes, 2));
                if self.protocol == TCP {
                    self.flags = bytes.get(13).copied();
                }
            }
            ICMP | ICMPV6 => self.icmp = bytes.first().copied(),
            _ => {}
        }
        self
    }

    /// The protocol's name, with TCP's flags or the type of ICMP.
    pub(super) fn kind(&self) -> String {
        match (self.protocol, self.flags, self.icmp) {
            (TCP, Some(flags), _) => {
                let letters = [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (16, '.')];
                let set = letters.iter().filter(|(bit, _)| flags & bit != 0);
                let letters: String = set.map(|(_, letter)| *letter).collect();
                format!("tcp [{letters}]")
            }
            (ICMP, _, Some(kind)) => match kind {
                8 => "icmp echo-request".to_owned(),
                0 => "icmp echo-reply".to_owned(),
                3 => "icmp unreachable".to_owned(),
                kind => format!("icmp type-{kind}"),
            },
            (ICMPV6, _, Some(kind)) => match kind {
                128 => "icmp6 echo-request".to_owned(),
                129 => "icmp6 echo-reply".to_owned(),
                2 => "icmp6 too-big".to_owned(),
                kind => format!("icmp6 type-{kind}"),
            },
            (protocol, ..) => protocol_name(protocol),
        }
    }
}

/// The name of a protocol, or its number.
pub(super) fn protocol_name(protocol: u8) -> String {
    match protocol {
        TCP => "tcp".to_owned(),
        UDP => "udp".to_owned(),
        ICMP => "icmp".to_owned(),
        ICMPV6 => "icmp6".to_owned(),
        SCTP => "sctp".to_owned(),
        number => format!("ip-proto-{number}"),
    }
}

fn word(bytes: &[u8], place: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(place..)?.first_chunk()?))
}

/// IPv6 extension headers that are followed.
const MOST_EXTENSIONS: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const OPTIONS: u8 = 60;
