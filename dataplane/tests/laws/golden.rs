//! A real flanneld's wire, both ways: what it sent is delivered byte for byte, and what its pods sent goes out as it did.
//!
//! The captures are `encap`'s: two nodes, pods 10.244.1.2 and 10.244.2.2, underlay 192.0.2.1 and 192.0.2.2.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};

use dataplane::families::PerFamily;
use dataplane::now::Now;
use dataplane::spec::Spec;
use dataplane::underlay::memory::Datagram;
use encap::{Ecn, Format, Mac};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pcap_file::pcap::PcapReader;

use crate::world::node::Node;
use crate::world::plan;
use crate::world::plan::{ClusterPlan, v4};

#[test]
fn flannels_udp_format() {
    replay(Format::Udp, "udp-wire.pcap");
}

#[test]
fn flannels_vxlan_format() {
    replay(Format::Vxlan, "vxlan-wire.pcap");
}

fn replay(format: Format, file: &str) {
    let wire = capture(format, file);
    for receiver in [1, 2] {
        let sender = 3 - receiver;
        let to = v4(receiver).first();
        let datagrams: Vec<_> = wire
            .iter()
            .filter(|datagram| datagram.to.ip() == to)
            .collect();
        let packets: Vec<_> = datagrams
            .iter()
            .map(|d| d.payload[format.header_len()..].to_vec())
            .collect();
        assert!(
            packets.len() >= 20,
            "only {} datagrams towards node {receiver}",
            packets.len()
        );

        let mut receiving = Node::new(spec(receiver, format, &wire));
        let mut delivered = Vec::new();
        for datagram in &datagrams {
            receiving.hand((*datagram).clone(), 1);
            // What arrives together is gathered, and cut again without the PSH in its middle.
            if crate::with_offloads() {
                delivered.extend(receiving.run(Now(0)).1);
            }
        }
        delivered.extend(receiving.run(Now(0)).1);
        assert!(
            delivered == packets,
            "{file} towards node {receiver}: other packets are delivered"
        );
        assert_eq!(receiving.audit(), [""; 0]);

        let mut sending = Node::new(spec(sender, format, &wire));
        for (packet, flannels) in packets.iter().zip(&datagrams) {
            sending.push(packet.clone());
            let (sent, _) = sending.run(Now(0));
            let [ours] = &sent[..] else {
                panic!("{} datagrams", sent.len())
            };
            assert_eq!((ours.to, &ours.payload), (flannels.to, &flannels.payload));
            assert_eq!(ours.ecn, flannels.ecn);
        }
        assert_eq!(sending.audit(), [""; 0]);
    }
}

/// The spec of node `i` of the captured cluster. The captured nodes drew their MACs, so they are read off the wire.
fn spec(i: u8, format: Format, wire: &[Datagram]) -> Spec {
    let mut spec = ClusterPlan::new(2, format).spec(i);
    if format == Format::Vxlan {
        let ours = v4(i).first();
        let mac = |towards_us: bool| {
            let datagram = wire
                .iter()
                .find(|d| (d.to.ip() == ours) == towards_us)
                .unwrap();
            Mac(datagram.payload[8..14].try_into().unwrap())
        };
        plan::cluster(&mut spec).node.vtep_mac = PerFamily::each(|_| mac(true));
        plan::peer(&mut spec, 0).vtep_mac = PerFamily::each(|_| mac(false));
    }
    spec
}

/// The captured datagrams of a format, read by `etherparse`.
fn capture(format: Format, file: &str) -> Vec<Datagram> {
    let path = format!(
        "{}/../encap/tests/fixtures/{file}",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut datagrams = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let sliced = SlicedPacket::from_ethernet(&packet.data);
        datagrams.extend(datagram(format, &sliced.unwrap()));
    }
    datagrams
}

fn datagram(format: Format, packet: &SlicedPacket<'_>) -> Option<Datagram> {
    let (Some(NetSlice::Ipv4(outer)), Some(TransportSlice::Udp(udp))) =
        (&packet.net, &packet.transport)
    else {
        return None;
    };
    let header = outer.header();
    let at = |address, port| SocketAddr::new(IpAddr::V4(address), port);
    Some(Datagram {
        from: at(header.source_addr(), udp.source_port()),
        to: at(header.destination_addr(), udp.destination_port()),
        format,
        ecn: Ecn::of(header.ecn().value()),
        segment: None,
        payload: udp.payload().to_vec(),
    })
}
