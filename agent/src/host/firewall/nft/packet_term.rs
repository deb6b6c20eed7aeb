//! What the guard of the encapsulation ports asks of a packet: its ports, its way, and whether a set holds it.

use super::expression::{
    BITWISE_DREG, BITWISE_LEN, BITWISE_MASK, BITWISE_SREG, BITWISE_XOR, DATA_VALUE, EQUAL,
    FIB_DADDR, FIB_DREG, FIB_FLAGS, FIB_IIF, FIB_PRESENT, FIB_RESULT, FIB_RESULT_OIF, FIB_SADDR,
    META_IIFNAME, NETWORK_HEADER, NOT_EQUAL, PAYLOAD_BASE, PAYLOAD_DREG, PAYLOAD_LEN,
    PAYLOAD_OFFSET, REGISTER, compare, expression, meta,
};
use super::{IPV4, IPV6};
use crate::nfnetlink::attribute::Attribute;

/// One of these things. A set is named; it is in the rule's own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum PacketTerm {
    /// It came by an interface whose name does not begin so.
    NotFromInterfaces(&'static str),
    /// It came by an interface of the set.
    FromLinksIn(&'static str),
    /// It was made on this node: it came by no interface.
    MadeHere,
    /// It came by a kernel VXLAN device. Behind routing: that device made it, around another packet.
    FromVxlanDevice,
    /// Of this family, `NFPROTO_IPV4` or `NFPROTO_IPV6`.
    Family(u8),
    /// Not UDP. Neither this nor the next holds where the header chain cannot be read.
    NotUdp,
    /// Neither UDP nor ICMP nor ICMPv6; as [`NotUdp`](PacketTerm::NotUdp) otherwise.
    NotUdpNorIcmp,
    /// UDP to none of these ports: those of the formats, and the kernel path's.
    NotToPorts([u16; 2], Option<u16>),
    /// From this UDP port.
    FromPort(u16),
    /// A fragment that is not the first: it has no ports.
    LaterFragment(u8),
    /// Its source, of this family, is in the set.
    FromSet(u8, &'static str),
    /// Its source, of this family, is not in the set.
    NotFromSet(u8, &'static str),
    /// Its destination, of this family, is in the set.
    ToSet(u8, &'static str),
    /// Its destination, of this family, is not in the set.
    NotToSet(u8, &'static str),
    /// A route leads to its source by the interface it came by.
    RoutedBack,
    /// The interface it came by does not hold its destination.
    NotHeldByLink,
    /// An ICMP error of this family that says "too large" of what may be a UDP datagram. In IPv6 that is whatever does
    /// not begin with TCP: headers may stand in between.
    TooLarge(u8),
    /// Its source is not an address of this node.
    NotFromHere,
    /// ICMPv6 of these types, both included.
    Icmp6(u8, u8),
    /// Its source and its UDP source port are in the set, or there is room for them. They are renewed there.
    Remembered(u8, &'static str),
}

impl PacketTerm {
    /// The family of the packets that it holds for, if that is one.
    pub(super) fn family(self) -> Option<u8> {
        match self {
            PacketTerm::Family(family)
            | PacketTerm::LaterFragment(family)
            | PacketTerm::TooLarge(family)
            | PacketTerm::FromSet(family, _)
            | PacketTerm::NotFromSet(family, _)
            | PacketTerm::ToSet(family, _)
            | PacketTerm::NotToSet(family, _)
            | PacketTerm::Remembered(family, _) => Some(family),
            PacketTerm::Icmp6(..) => Some(IPV6),
            _ => None,
        }
    }

    /// Its expressions, behind those that ask for its family.
    pub(super) fn expressions(self) -> Vec<Attribute> {
        match self {
            PacketTerm::NotFromInterfaces(prefix) => {
                vec![meta(META_IIFNAME), compare(NOT_EQUAL, prefix.as_bytes())]
            }
            PacketTerm::FromLinksIn(set) => vec![meta(META_IIFNAME), lookup(set, 0)],
            PacketTerm::MadeHere => vec![meta(META_IIF), compare(EQUAL, &[0; 4])],
            PacketTerm::FromVxlanDevice => vec![meta(META_IIFKIND), compare(EQUAL, &VXLAN)],
            PacketTerm::Family(_) => Vec::new(),
            PacketTerm::NotUdp => vec![meta(META_L4PROTO), compare(NOT_EQUAL, &[UDP])],
            PacketTerm::NotUdpNorIcmp => vec![
                meta(META_L4PROTO),
                compare(NOT_EQUAL, &[UDP]),
                compare(NOT_EQUAL, &[ICMP]),
                compare(NOT_EQUAL, &[ICMPV6]),
            ],
            PacketTerm::NotToPorts(ports, private) => {
                let mut expressions = vec![meta(META_L4PROTO), compare(EQUAL, &[UDP])];
                for port in ports.into_iter().chain(private) {
                    expressions.push(load(TRANSPORT_HEADER, 2, 2, REGISTER));
                    expressions.push(compare(NOT_EQUAL, &port.to_be_bytes()));
                }
                expressions
            }
            PacketTerm::FromPort(port) => vec![
                meta(META_L4PROTO),
                compare(EQUAL, &[UDP]),
                load(TRANSPORT_HEADER, 0, 2, REGISTER),
                compare(EQUAL, &port.to_be_bytes()),
            ],
            PacketTerm::LaterFragment(IPV4) => vec![
                load(NETWORK_HEADER, 6, 2, REGISTER),
                masked(FRAGMENT_OFFSET4),
                compare(NOT_EQUAL, &[0; 2]),
            ],
            PacketTerm::LaterFragment(_) => vec![
                fragment_header(),
                masked(FRAGMENT_OFFSET6),
                compare(NOT_EQUAL, &[0; 2]),
            ],
            PacketTerm::FromSet(family, set) => vec![source(family), lookup(set, 0)],
            PacketTerm::NotFromSet(family, set) => vec![source(family), lookup(set, INVERTED)],
            PacketTerm::ToSet(family, set) => vec![destination(family), lookup(set, 0)],
            PacketTerm::NotToSet(family, set) => vec![destination(family), lookup(set, INVERTED)],
            PacketTerm::RoutedBack => {
                let flags = FIB_SADDR | FIB_IIF | FIB_PRESENT;
                vec![fib(FIB_RESULT_OIF, flags), compare(NOT_EQUAL, &[0; 4])]
            }
            PacketTerm::NotHeldByLink => vec![
                fib(FIB_RESULT_ADDRESS_TYPE, FIB_DADDR | FIB_IIF),
                compare(NOT_EQUAL, &LOCAL.to_ne_bytes()),
            ],
            PacketTerm::TooLarge(IPV4) => vec![
                meta(META_L4PROTO),
                compare(EQUAL, &[ICMP]),
                load(TRANSPORT_HEADER, 0, 2, REGISTER),
                compare(EQUAL, &FRAGMENTATION_NEEDED),
                load(TRANSPORT_HEADER, QUOTE + 9, 1, REGISTER),
                compare(EQUAL, &[UDP]),
            ],
            PacketTerm::TooLarge(_) => vec![
                meta(META_L4PROTO),
                compare(EQUAL, &[ICMPV6]),
                load(TRANSPORT_HEADER, 0, 1, REGISTER),
                compare(EQUAL, &[PACKET_TOO_BIG]),
                load(TRANSPORT_HEADER, QUOTE + 6, 1, REGISTER),
                compare(NOT_EQUAL, &[TCP]),
            ],
            PacketTerm::NotFromHere => vec![
                fib(FIB_RESULT_ADDRESS_TYPE, FIB_SADDR),
                compare(NOT_EQUAL, &LOCAL.to_ne_bytes()),
            ],
            PacketTerm::Icmp6(first, last) => {
                let mut list = vec![
                    meta(META_L4PROTO),
                    compare(EQUAL, &[ICMPV6]),
                    load(TRANSPORT_HEADER, 0, 1, REGISTER),
                ];
                if first == last {
                    list.push(compare(EQUAL, &[first]));
                } else {
                    list.extend([compare(NOT_LESS, &[first]), compare(NOT_MORE, &[last])]);
                }
                list
            }
            PacketTerm::Remembered(family, set) => vec![
                source(family),
                load(TRANSPORT_HEADER, 0, 2, behind_address(family)),
                expression(
                    "dynset",
                    vec![
                        Attribute::text(DYNSET_SET, set),
                        Attribute::number(DYNSET_OP, DYNSET_UPDATE),
                        Attribute::number(DYNSET_SREG_KEY, REGISTER),
                    ],
                ),
            ],
        }
    }
}

fn source(family: u8) -> Attribute {
    match family {
        IPV4 => load(NETWORK_HEADER, 12, 4, REGISTER),
        _ => load(NETWORK_HEADER, 8, 16, REGISTER),
    }
}

fn destination(family: u8) -> Attribute {
    match family {
        IPV4 => load(NETWORK_HEADER, 16, 4, REGISTER),
        _ => load(NETWORK_HEADER, 24, 16, REGISTER),
    }
}

/// The register behind an address in the first one: registers count 4 bytes, or 16.
fn behind_address(family: u8) -> u32 {
    match family {
        IPV4 => libc::NFT_REG32_00 as u32 + 1,
        _ => libc::NFT_REG_2 as u32,
    }
}

fn load(base: u32, offset: u32, length: u32, register: u32) -> Attribute {
    let data = vec![
        Attribute::number(PAYLOAD_DREG, register),
        Attribute::number(PAYLOAD_BASE, base),
        Attribute::number(PAYLOAD_OFFSET, offset),
        Attribute::number(PAYLOAD_LEN, length),
    ];
    expression("payload", data)
}

/// The offset, reserved bits and M flag of the IPv6 fragment header.
fn fragment_header() -> Attribute {
    let data = vec![
        Attribute::number(EXTHDR_DREG, REGISTER),
        Attribute::bytes(EXTHDR_TYPE, &[FRAGMENT]),
        Attribute::number(EXTHDR_OFFSET, 2),
        Attribute::number(EXTHDR_LEN, 2),
    ];
    expression("exthdr", data)
}

fn masked(bits: u16) -> Attribute {
    let data = vec![
        Attribute::number(BITWISE_SREG, REGISTER),
        Attribute::number(BITWISE_DREG, REGISTER),
        Attribute::number(BITWISE_LEN, 2),
        Attribute::nest(
            BITWISE_MASK,
            vec![Attribute::bytes(DATA_VALUE, &bits.to_be_bytes())],
        ),
        Attribute::nest(BITWISE_XOR, vec![Attribute::bytes(DATA_VALUE, &[0; 2])]),
    ];
    expression("bitwise", data)
}

fn lookup(set: &str, flags: u32) -> Attribute {
    let mut data = vec![
        Attribute::text(LOOKUP_SET, set),
        Attribute::number(LOOKUP_SREG, REGISTER),
    ];
    if flags != 0 {
        data.push(Attribute::number(LOOKUP_FLAGS, flags));
    }
    expression("lookup", data)
}

fn fib(result: u32, flags: u32) -> Attribute {
    let data = vec![
        Attribute::number(FIB_DREG, REGISTER),
        Attribute::number(FIB_RESULT, result),
        Attribute::number(FIB_FLAGS, flags),
    ];
    expression("fib", data)
}

const UDP: u8 = libc::IPPROTO_UDP as u8;
const TCP: u8 = libc::IPPROTO_TCP as u8;
const ICMP: u8 = libc::IPPROTO_ICMP as u8;
const ICMPV6: u8 = libc::IPPROTO_ICMPV6 as u8;
const FRAGMENT: u8 = libc::IPPROTO_FRAGMENT as u8;
const FRAGMENT_OFFSET4: u16 = 0x1fff;
const FRAGMENT_OFFSET6: u16 = 0xfff8;
/// The kind of a kernel VXLAN device, as long as an interface's name.
const VXLAN: [u8; libc::IFNAMSIZ] = *b"vxlan\0\0\0\0\0\0\0\0\0\0\0";
/// Type and code, RFC 792.
const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
/// The type, RFC 4443.
const PACKET_TOO_BIG: u8 = 2;
/// Where an ICMP error of either family quotes the packet that it is about.
const QUOTE: u32 = 8;
/// `RTN_LOCAL`, a number of the machine.
const LOCAL: u32 = libc::RTN_LOCAL as u32;

// As in `expression`, of include/uapi/linux/netfilter/nf_tables.h.
const META_IIF: u32 = libc::NFT_META_IIF as u32;
/// `NFT_META_IIFKIND`, since Linux 5.1.
const META_IIFKIND: u32 = 26;
const META_L4PROTO: u32 = libc::NFT_META_L4PROTO as u32;
const TRANSPORT_HEADER: u32 = libc::NFT_PAYLOAD_TRANSPORT_HEADER as u32;
const NOT_LESS: u32 = libc::NFT_CMP_GTE as u32;
const NOT_MORE: u32 = libc::NFT_CMP_LTE as u32;
const EXTHDR_DREG: u16 = 1;
const EXTHDR_TYPE: u16 = 2;
const EXTHDR_OFFSET: u16 = 3;
const EXTHDR_LEN: u16 = 4;
const LOOKUP_SET: u16 = 1;
const LOOKUP_SREG: u16 = 2;
const LOOKUP_FLAGS: u16 = 5;
/// `NFT_LOOKUP_F_INV`
const INVERTED: u32 = 1;
/// `NFT_FIB_RESULT_ADDRTYPE`
const FIB_RESULT_ADDRESS_TYPE: u32 = 3;
const DYNSET_SET: u16 = 1;
const DYNSET_OP: u16 = 3;
const DYNSET_SREG_KEY: u16 = 4;
/// `NFT_DYNSET_OP_UPDATE`
const DYNSET_UPDATE: u32 = 1;
