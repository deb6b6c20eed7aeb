//! The headers of flows, ready made: what `write_header` of `dataplane/bpf/encapsulate.h` writes for each packet of the
//! stateless path.

use encap::{Family, Mac, Vni, push};

use super::layout::{FlowKey, OUTER_BYTES, Peer, Pod, Settings};

/// Ethernet, IPv4, UDP, VXLAN and Ethernet. Total length, TOS and UDP length are zero, and in place of the IPv4 checksum
/// stands the folded sum of the header, not complemented: the program adds what differs from packet to packet.
pub(super) fn outbound(settings: &Settings, peer: &Peer, key: &FlowKey) -> [u8; OUTER_BYTES] {
    let port = match settings.source_port_count {
        0 => settings.source_port_base,
        // Less than a 16-bit count.
        count => settings
            .source_port_base
            .wrapping_add((hash(key) % u32::from(count)) as u16),
    };
    let mut ip = [0; IPV4];
    let [s0, s1, s2, s3] = settings.local.to_ne_bytes();
    let [d0, d1, d2, d3] = peer.address.to_ne_bytes();
    ip.copy_from_slice(&[
        0x45,
        0,
        0,
        0,
        0,
        0,
        DONT_FRAGMENT,
        0,
        TTL,
        encap::protocol::UDP,
        0,
        0,
        s0,
        s1,
        s2,
        s3,
        d0,
        d1,
        d2,
        d3,
    ]);
    let [c0, c1] = sum(&ip);
    let [u0, u1] = port.to_be_bytes();
    let [v0, v1] = settings.vxlan_port.to_ne_bytes();
    let vni = Vni::new(u32::from_be(settings.vni) >> 8);
    let vxlan = vni.map(|vni| push::vxlan(vni, Mac(settings.vtep), Mac(peer.vtep), Family::V4));
    let parts: [&[u8]; 7] = [
        &peer.next_hop,
        &settings.underlay_mac,
        &ETHER_IPV4,
        ip.get(..CHECKSUM).unwrap_or_default(),
        &[c0, c1],
        ip.get(CHECKSUM + 2..).unwrap_or_default(),
        &[u0, u1, v0, v1, 0, 0, 0, 0],
    ];
    let vxlan = vxlan
        .as_ref()
        .map(push::Header::as_slice)
        .unwrap_or_default();
    concatenated(parts.into_iter().chain([vxlan]))
}

/// The MACs with which packets go to a pod: its own, and that of its host end.
pub(super) fn inbound(pod: &Pod) -> [u8; OUTER_BYTES] {
    concatenated([&pod.pod_mac[..], &pod.host_mac[..]].into_iter())
}

fn concatenated<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; OUTER_BYTES] {
    let mut bytes = [0; OUTER_BYTES];
    for (place, byte) in bytes.iter_mut().zip(parts.flatten()) {
        *place = *byte;
    }
    bytes
}

/// The ones' complement sum of the header, as it would stand in it (RFC 1071: the byte order does not matter).
fn sum(header: &[u8; IPV4]) -> [u8; 2] {
    let words = header.as_chunks::<2>().0.iter();
    let mut sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum as u16).to_be_bytes()
}

/// `flow_hash` of `dataplane/bpf/tables.h`.
pub(super) fn hash(key: &FlowKey) -> u32 {
    let ports = u32::from(key.source_port) << 16 | u32::from(key.destination_port);
    let hash = key.source.wrapping_mul(0x9e37_79b1) ^ key.destination.wrapping_mul(0x85eb_ca77);
    let hash = hash ^ ports.wrapping_mul(0xc2b2_ae3d) ^ u32::from(key.protocol);
    let hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    let hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

const IPV4: usize = 20;
const CHECKSUM: usize = 10;
const TTL: u8 = 64;
/// The upper byte of the IPv4 flags.
const DONT_FRAGMENT: u8 = 0x40;
const ETHER_IPV4: [u8; 2] = [0x08, 0x00];

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use etherparse::PacketHeaders;

    use super::*;
    use crate::kernel_path::layout::be;

    fn settings() -> Settings {
        Settings {
            local: be([192, 0, 2, 1].into()),
            vxlan_port: 8472u16.to_be(),
            source_port_base: 32_768,
            source_port_count: 28_232,
            vni: (7u32 << 8).to_be(),
            underlay_mac: [2, 0, 0, 1, 0, 1],
            vtep: [2, 0, 0, 0, 0, 1],
            ..Settings::default()
        }
    }

    fn peer() -> Peer {
        Peer {
            address: be([192, 0, 2, 2].into()),
            vtep: [2, 0, 0, 0, 0, 2],
            next_hop: [2, 0, 0, 1, 0, 9],
            ..Peer::default()
        }
    }

    fn key(source_port: u16) -> FlowKey {
        FlowKey {
            source: be([10, 244, 1, 2].into()),
            destination: be([10, 244, 2, 3].into()),
            source_port: source_port.to_be(),
            destination_port: 80u16.to_be(),
            protocol: 6,
            pad: [0; 3],
        }
    }

    /// Finishes the header as a program does (`finish_header`), and has another reader take it apart.
    #[test]
    fn a_finished_header_is_what_user_space_sends() {
        let inner = [0x45u8; 100];
        let mut bytes = outbound(&settings(), &peer(), &key(40_000));
        let length = (50 + inner.len()) as u16;
        bytes[16..18].copy_from_slice(&length.to_be_bytes());
        bytes[15] = 2;
        bytes[38..40].copy_from_slice(&(length - 20).to_be_bytes());
        let sum = u32::from(u16::from_be_bytes([bytes[24], bytes[25]])) + u32::from(length) + 2;
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        let frame: Vec<u8> = bytes.iter().copied().chain(inner).collect();

        let read = PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let link = read.link.unwrap().ethernet2().unwrap();
        assert_eq!(
            (link.destination, link.source),
            (peer().next_hop, settings().underlay_mac)
        );
        let ip = read.net.unwrap().ipv4_ref().unwrap().0.clone();
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        assert_eq!(
            (Ipv4Addr::from(ip.source), Ipv4Addr::from(ip.destination)),
            ([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
        );
        assert_eq!(
            (
                ip.time_to_live,
                ip.dont_fragment,
                ip.identification,
                ip.ecn.value()
            ),
            (64, true, 0, 2)
        );
        let udp = read.transport.unwrap().udp().unwrap();
        assert_eq!((udp.destination_port, udp.checksum), (8472, 0));
        assert_eq!(usize::from(udp.length), 8 + 22 + inner.len());
        assert!((32_768..32_768 + 28_232).contains(&u32::from(udp.source_port)));
        let vxlan = push::vxlan(
            Vni::new(7).unwrap(),
            Mac(settings().vtep),
            Mac(peer().vtep),
            Family::V4,
        );
        assert_eq!(&bytes[42..], vxlan.as_slice());
    }

    #[test]
    fn the_hash_spreads_flows_over_the_ports() {
        let ports: std::collections::HashSet<_> =
            (0..1_000).map(|port| hash(&key(port)) % 28_232).collect();
        assert!(ports.len() > 950, "{}", ports.len());
    }

    #[test]
    fn what_goes_to_a_pod_has_its_macs() {
        let pod = Pod {
            pod_mac: [1, 2, 3, 4, 5, 6],
            host_mac: [7, 8, 9, 10, 11, 12],
            ..Pod::default()
        };
        let header = inbound(&pod);
        assert_eq!(header[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(header[12..], [0; 52]);
    }
}
