//! Packets built and checked without the code under test: `etherparse` makes them, `smoltcp` checks them, headers between
//! nodes are written by hand.

use encap::protocol::TCP;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use dataplane::underlay::memory::Datagram;
use encap::{Ecn, Format, Mac};
use etherparse::icmpv6::NeighborSolicitationPayload;
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, EtherType, Ethernet2Header, Icmpv6Type, IpEcn, Ipv4Header,
    PacketBuilder, TcpHeader,
};
use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};
use testbed::packets::headers;
pub use testbed::packets::pattern;

use super::node::{TAP, port};
use super::plan;

/// A UDP packet from port 1000 to port 2000, its IPv4 header without DF.
pub fn udp(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let step = PacketBuilder::ip(headers(source, destination)).udp(1000, 2000);
    step.write_to_vec(&mut bytes, payload).unwrap();
    bytes
}

/// A TCP segment from port 1000 to port 2000, its IPv4 header with DF, as TCP sends.
pub fn tcp(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut header = TcpHeader::new(1000, 2000, 0x1122_3344, 500);
    header.acknowledgment_number = 77;
    (header.ack, header.psh) = (true, true);
    // Timestamps, behind two no-operations, as Linux sends them.
    header
        .set_options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2])
        .unwrap();
    let mut bytes = Vec::new();
    let step = PacketBuilder::ip(headers(source, destination)).tcp_header(header);
    step.write_to_vec(&mut bytes, payload).unwrap();
    if source.is_ipv4() {
        edit_v4(&mut bytes, |ip| ip.dont_fragment = true);
    }
    bytes
}

/// An Ethernet frame to every station.
pub fn ethernet_frame(ether_type: EtherType, payload: &[u8]) -> Vec<u8> {
    let header = Ethernet2Header {
        source: TAP.0,
        destination: [0xff; 6],
        ether_type,
    };
    [&header.to_bytes()[..], payload].concat()
}

/// An ARP packet between IPv4 addresses.
pub fn arp(source: [u8; 4], target: [u8; 4], operation: ArpOperation) -> [u8; 28] {
    let packet = ArpEthIpv4Packet {
        operation,
        sender_mac: ASKER,
        sender_ipv4: source,
        target_mac: [0; 6],
        target_ipv4: target,
    };
    packet.to_bytes()
}

/// The station that asks in [`arp`].
pub const ASKER: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A neighbour solicitation to the group of its target.
pub fn solicitation(source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&target.octets()[13..]);
    let payload = NeighborSolicitationPayload {
        target_address: target,
    };
    let step =
        PacketBuilder::ipv6(source.octets(), group, 255).icmpv6(Icmpv6Type::NeighborSolicitation);
    let mut bytes = Vec::new();
    step.write_to_vec(&mut bytes, &payload.to_bytes()).unwrap();
    bytes
}

/// Rewrites the IPv4 header of `packet`, checksum included.
pub fn edit_v4(packet: &mut Vec<u8>, edit: impl FnOnce(&mut Ipv4Header)) {
    let (mut header, rest) = Ipv4Header::from_slice(packet).unwrap();
    edit(&mut header);
    header.header_checksum = header.calc_header_checksum();
    *packet = [&header.to_bytes()[..], rest].concat();
}

/// Sets DF.
pub fn dont_fragment(mut packet: Vec<u8>) -> Vec<u8> {
    edit_v4(&mut packet, |ip| ip.dont_fragment = true);
    packet
}

/// Sets the ECN codepoint.
pub fn with_ecn(mut packet: Vec<u8>, ecn: Ecn) -> Vec<u8> {
    edit_v4(&mut packet, |ip| {
        ip.ecn = IpEcn::try_new(ecn as u8).unwrap()
    });
    packet
}

/// Leaves the TCP or UDP checksum unfinished, as a kernel does that expects hardware to finish it: the field holds the
/// pseudo-header's sum.
pub fn unfinished(mut packet: Vec<u8>) -> Vec<u8> {
    let (addresses, transport, protocol) = match packet[0] >> 4 {
        4 => (packet[12..20].to_vec(), 20, packet[9]),
        _ => (packet[8..40].to_vec(), 40, packet[6]),
    };
    let place = transport + if protocol == TCP { 16 } else { 6 };
    let mut sum = u32::from(protocol) + (packet.len() - transport) as u32;
    for word in addresses.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(word[1]);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[place..place + 2].copy_from_slice(&(sum as u16).to_be_bytes());
    packet
}

/// Whether every checksum of a TCP or UDP packet is right, checked by `smoltcp`.
pub fn checksums_hold(packet: &[u8]) -> bool {
    let (source, destination, protocol, payload): (IpAddress, IpAddress, u8, &[u8]) =
        match packet[0] >> 4 {
            4 => {
                let ip = Ipv4Packet::new_checked(packet).unwrap();
                if !ip.verify_checksum() {
                    return false;
                }
                let place = usize::from(ip.header_len());
                let addresses = (ip.src_addr().into(), ip.dst_addr().into());
                (
                    addresses.0,
                    addresses.1,
                    ip.next_header().into(),
                    &packet[place..],
                )
            }
            _ => {
                let ip = Ipv6Packet::new_checked(packet).unwrap();
                let addresses = (ip.src_addr().into(), ip.dst_addr().into());
                (
                    addresses.0,
                    addresses.1,
                    ip.next_header().into(),
                    &packet[40..],
                )
            }
        };
    match protocol {
        6 => TcpPacket::new_checked(payload)
            .unwrap()
            .verify_checksum(&source, &destination),
        17 => UdpPacket::new_checked(payload)
            .unwrap()
            .verify_checksum(&source, &destination),
        other => panic!("protocol {other}"),
    }
}

/// `packet` in a VXLAN datagram with VNI 1 from node `from` to node `to`.
pub fn vxlan(from: u8, to: u8, packet: &[u8]) -> Datagram {
    let payload = [&frame(plan::mac(to), plan::mac(from), packet)[..], packet].concat();
    datagram(from, to, Format::Vxlan, payload)
}

/// `packet` in the `udp` format from node `from` to node `to`.
pub fn plain(from: u8, to: u8, packet: &[u8]) -> Datagram {
    datagram(from, to, Format::Udp, packet.to_vec())
}

/// A request of peer health between two nodes in a format, with what fills it up to `length` bytes of UDP payload; written
/// by hand.
pub fn request(from: u8, to: u8, format: Format, nonce: u64, length: usize) -> Datagram {
    let mut message = b"\0TRT\x01\x01\0\0".to_vec();
    message.extend(nonce.to_be_bytes());
    message.extend(0x1111_2222_u64.to_be_bytes());
    message.extend([
        0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 5, 0xaa, 0, 0, 0, 0,
    ]);
    message.extend([0; 8]);
    probe(from, to, format, message, length)
}

/// The answer to it.
pub fn answer(from: u8, to: u8, format: Format, nonce: u64) -> Datagram {
    let mut datagram = request(from, to, format, nonce, 0);
    let message = if format == Format::Vxlan { 22 } else { 0 };
    datagram.payload[message + 5] = 2;
    datagram
}

/// A message in the place of an inner packet.
pub fn probe(from: u8, to: u8, format: Format, message: Vec<u8>, length: usize) -> Datagram {
    let mut header = frame(plan::mac(to), plan::mac(from), &[]).to_vec();
    header[20..].copy_from_slice(&[0x88, 0xb5]);
    header.truncate(if format == Format::Vxlan { 22 } else { 0 });
    let mut payload = [header, message].concat();
    payload.resize(length.max(payload.len()), 0);
    datagram(from, to, format, payload)
}

/// Whether it holds a probe in the place of an inner packet.
pub fn is_probe(datagram: &Datagram) -> bool {
    match datagram.format {
        Format::Vxlan => datagram.payload.get(20..22) == Some(&[0x88, 0xb5]),
        Format::Udp => datagram.payload.first() == Some(&0),
    }
}

/// Any payload between two nodes.
pub fn datagram(from: u8, to: u8, format: Format, payload: Vec<u8>) -> Datagram {
    Datagram {
        from: SocketAddr::new(plan::v4(from).first(), 40_000),
        to: SocketAddr::new(plan::v4(to).first(), port(format)),
        format,
        ecn: Ecn::NotEct,
        segment: None,
        payload,
    }
}

/// A VXLAN header with the I flag and VNI 1, and an Ethernet header.
pub fn frame(to: Mac, from: Mac, packet: &[u8]) -> [u8; 22] {
    let mut header = [0; 22];
    header[0] = 8;
    header[6] = 1;
    header[8..14].copy_from_slice(&to.0);
    header[14..20].copy_from_slice(&from.0);
    let ether_type = if packet.first().is_some_and(|byte| byte >> 4 == 6) {
        [0x86, 0xdd]
    } else {
        [8, 0]
    };
    header[20..].copy_from_slice(&ether_type);
    header
}
