//! A real flanneld's wire: every captured packet parses, and its inner packet pushed again gives the captured bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use encap::protocol::{ICMP, TCP, UDP};
use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;

use encap::checksum;
use encap::pull::{self, Outer, Vtep};
use encap::push::{self, Path};
use encap::transport::{self, ChecksumState};
use encap::{Ecn, Family, Fragment, Inner, Mac, Vni};
use pcap_file::pcap::PcapReader;

/// The outer IP packets of a capture, all of them.
fn capture(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.unwrap().data.into_owned();
        assert_eq!(frame[12..14], [8, 0], "an Ethernet frame with IPv4");
        packets.push(frame[14..].to_vec());
    }
    packets
}

/// The outer headers that we would make are the captured ones, but for IPv4 identification and DF.
fn outer_is_ours(packet: &[u8], outer: &Outer<'_>, header: &push::Header, inner: &[u8]) {
    assert_eq!(outer.checksum, ChecksumState::Valid);
    assert_eq!(outer.payload, [header.as_slice(), inner].concat());
    let path = Path {
        source: outer.source,
        destination: outer.destination,
        ecn: outer.ecn,
        ttl: packet[8],
        identification: u16::from_be_bytes([packet[4], packet[5]]),
    };
    let made = push::outer(&path, header, inner).unwrap();
    assert_eq!(
        made.as_slice()[20..],
        packet[20..28],
        "UDP header, checksum included"
    );
    if packet[6..8] == [0, 0] {
        assert_eq!(made.as_slice(), &packet[..28]);
    }
}

/// What the captures are said to hold, so that an empty or clipped one fails.
fn inner_is_as_described(inners: &[(Inner, Vec<u8>)]) {
    let pods: [IpAddr; 2] = ["10.244.1.2".parse().unwrap(), "10.244.2.2".parse().unwrap()];
    let protocols: BTreeSet<u8> = inners.iter().map(|(inner, _)| inner.protocol).collect();
    assert_eq!(protocols, BTreeSet::from([ICMP, TCP, UDP]));
    assert!(
        inners
            .iter()
            .any(|(inner, _)| inner.fragment == Fragment::First)
    );
    assert!(
        inners
            .iter()
            .any(|(inner, _)| inner.fragment == Fragment::Later)
    );
    let mut tcp = 0;
    for (inner, bytes) in inners {
        assert_eq!(inner.family, Family::V4);
        assert!(
            pods.contains(&inner.source) && pods.contains(&inner.destination),
            "{inner:?}"
        );
        let whole = inner.fragment == Fragment::Whole;
        let expected = if whole {
            ChecksumState::Valid
        } else {
            ChecksumState::Unknown
        };
        assert_eq!(
            transport::checksum_state(bytes, inner),
            expected,
            "{inner:?}"
        );
        assert_eq!(
            checksum::ipv4_header(&bytes[..inner.transport]).to_be_bytes(),
            bytes[10..12]
        );
        if inner.protocol == TCP && inner.destination == pods[1] {
            tcp += inner.len - inner.transport - usize::from(bytes[inner.transport + 12] >> 4) * 4;
        }
    }
    assert!(tcp >= 5_000, "{tcp} bytes over TCP");
}

#[test]
fn udp() {
    let packets = capture("udp-wire.pcap");
    assert_eq!(packets.len(), 67);
    let mut inners = Vec::new();
    for packet in &packets {
        let outer = pull::outer(packet).unwrap();
        assert_eq!(outer.destination.port(), 8285);
        let pulled = pull::udp(outer.payload, false).unwrap();
        let inner = &outer.payload[pulled.offset..pulled.offset + pulled.inner.len];
        assert_eq!(outer.ecn, Ecn::NotEct);
        assert_eq!(outer.source.port(), 8285);
        outer_is_ours(packet, &outer, &push::udp(), inner);
        inners.push((pulled.inner, inner.to_vec()));
    }
    inner_is_as_described(&inners);
}

#[test]
fn vxlan() {
    let packets = capture("vxlan-wire.pcap");
    assert_eq!(packets.len(), 54);
    let vni = Vni::new(1).unwrap();
    let mut inners = Vec::new();
    let mut vteps = BTreeSet::new();
    for packet in &packets {
        let outer = pull::outer(packet).unwrap();
        assert_eq!(outer.destination.port(), 8472);
        let destination = Mac(outer.payload[8..14].try_into().unwrap());
        let source = Mac(outer.payload[14..20].try_into().unwrap());
        vteps.insert((outer.destination.ip(), destination));
        let pulled = pull::vxlan(
            outer.payload,
            &Vtep {
                mac: destination,
                mac_v6: destination,
                vni,
                gbp: false,
            },
        )
        .unwrap();
        let inner = &outer.payload[pulled.offset..pulled.offset + pulled.inner.len];
        outer_is_ours(
            packet,
            &outer,
            &push::vxlan(vni, source, destination, Family::V4),
            inner,
        );
        inners.push((pulled.inner, inner.to_vec()));
    }
    assert_eq!(vteps.len(), 2, "one VTEP MAC per node");
    inner_is_as_described(&inners);
}
