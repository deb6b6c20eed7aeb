//! What is written to a file is what an independent reader (`pcap-file`, etherparse) finds there.

use std::net::SocketAddr;
use std::time::Duration;

use dataplane::capture::{Record, Stage};
use dataplane::drops::{Direction, DropReason};
use dataplane::now::Now;
use encap::Format;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use proptest::prelude::*;

use super::names::Names;
use super::packet::Packet;
use super::pcapng::Pcapng;
use super::{line, stages_of};
use crate::api::wire::{
    CaptureCounts, CaptureNames, CaptureStage, CaptureStart, NamedPeer, NamedPod,
};

const EPOCH: u64 = 1_780_000_000_123_456_789;

fn start() -> CaptureStart {
    CaptureStart {
        node: "node1".to_owned(),
        version: "0.1.0".to_owned(),
        epoch: EPOCH,
        public: vec![[192, 0, 2, 1].into(), "2001:db8::1".parse().unwrap()],
        udp_port: 8285,
        vxlan_port: 8472,
        is_kernel_path_in_use: false,
        names: CaptureNames {
            peers: vec![NamedPeer {
                name: "node2".to_owned(),
                addresses: vec![[192, 0, 2, 2].into()],
                subnets: vec!["10.244.2.0/24".parse().unwrap()],
            }],
            pods: vec![NamedPod {
                name: "default/web".to_owned(),
                addresses: vec![[10, 244, 1, 2].into()],
            }],
        },
    }
}

fn record(bytes: &[u8]) -> Record<'_> {
    Record {
        stage: Stage::Device,
        direction: Direction::Outbound,
        reason: None,
        time: Now(5_000_000_000),
        worker: 0,
        packets: 1,
        length: bytes.len() as u32,
        total: bytes.len() as u64,
        gso: 0,
        remote: None,
        format: None,
        outer: 0,
        is_not_ip: false,
        is_own: false,
        is_probe: false,
        is_unfinished: false,
        bytes,
    }
}

/// A UDP packet from a pod of ours to one of node2.
fn inner(payload: &[u8]) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ipv4([10, 244, 1, 2], [10, 244, 2, 3], 64).udp(7, 80);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

fn any_record() -> impl Strategy<Value = (Stage, u64, Vec<u8>, u32, Option<SocketAddr>, bool)> {
    let remote = prop_oneof![
        Just(None),
        (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| Some(SocketAddr::from((ip, port)))),
        (any::<[u16; 8]>(), any::<u16>()).prop_map(|(ip, port)| Some(SocketAddr::from((ip, port)))),
    ];
    (
        prop::sample::select(Stage::ALL.to_vec()),
        0u64..1 << 50,
        prop::collection::vec(any::<u8>(), 0..200),
        0u32..66_000,
        remote,
        any::<bool>(),
    )
}

proptest! {
    /// Bytes, length, time, interface, direction and comment come back as they were written.
    #[test]
    fn a_file_parses_back_equal(packets in prop::collection::vec(any_record(), 0..20), lost in 0u64..1 << 40) {
        let start = start();
        let names = Names::new(&start.names);
        let mut file = Vec::new();
        let mut pcapng = Pcapng::new(&mut file, &start, &Stage::ALL, 256).unwrap();
        let mut expected = Vec::new();
        for (stage, time, bytes, more, remote, is_vxlan) in &packets {
            // A sent datagram has headers around it.
            let format = remote.map(|_| if *is_vxlan { Format::Vxlan } else { Format::Udp });
            let direction = if *is_vxlan { Direction::Inbound } else { Direction::Outbound };
            let record = Record {
                stage: *stage,
                direction,
                reason: (*stage == Stage::Dropped).then_some(DropReason::NoRoute),
                time: Now(*time),
                length: bytes.len() as u32 + more,
                remote: *remote,
                format,
                ..record(bytes)
            };
            let comment = line::comment(&record, &names);
            pcapng.packet(&record, &comment, &start).unwrap();
            expected.push((record, comment));
        }
        let stage = |stage: Stage| CaptureStage { stage: stage.name().to_owned(), offered: lost + 1, lost, left_out: 0 };
        let counts = CaptureCounts { stages: Stage::ALL.map(stage).to_vec(), ..CaptureCounts::default() };
        pcapng.end(&counts).unwrap();
        drop(pcapng);
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let (mut found, mut statistics, mut interfaces) = (Vec::new(), 0, Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(interface) => {
                    prop_assert_eq!(interface.linktype, DataLink::LINUX_SLL);
                    interfaces.extend(interface.options.iter().filter_map(|option| match option {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    }));
                }
                Block::EnhancedPacket(packet) => found.push(packet.into_owned()),
                Block::InterfaceStatistics(block) => {
                    prop_assert!(block.options.contains(&InterfaceStatisticsOption::IsbIfDrop(lost)));
                    prop_assert!(block.options.contains(&InterfaceStatisticsOption::IsbIfRecv(lost + 1)));
                    statistics += 1;
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(interfaces, Stage::ALL.map(Stage::name).to_vec());
        prop_assert_eq!(statistics, Stage::ALL.len());
        prop_assert_eq!(found.len(), expected.len());
        for (found, (record, comment)) in found.iter().zip(&expected) {
            prop_assert_eq!(found.interface_id as usize, record.stage as usize);
            // The reader takes times for microseconds whatever the interface says.
            let _ = found.timestamp;
            let around = match record.remote.filter(|_| record.format.is_some()) {
                None => 16,
                Some(SocketAddr::V4(_)) => 16 + 28,
                Some(SocketAddr::V6(_)) => 16 + 48,
            };
            prop_assert_eq!(found.original_len as usize, record.length as usize + around);
            prop_assert_eq!(&found.data[around..], record.bytes);
            prop_assert!(found.options.contains(&EnhancedPacketOption::Comment(comment.as_str().into())));
            let direction = if record.direction == Direction::Inbound { 1 } else { 2 };
            prop_assert!(found.options.contains(&EnhancedPacketOption::Flags(direction)));
        }
    }

    /// Whatever bytes a pod sends: no panic.
    #[test]
    fn any_packet_is_told_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..120), first in prop::sample::select(vec![0x45u8, 0x60, 0x4f, 0])) {
        let mut bytes = bytes;
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        let start = start();
        let names = Names::new(&start.names);
        let record = record(&bytes);
        let text = line::text(&record, &names, &start, true);
        prop_assert!(!text.contains('\n'));
        let object = super::json::PacketLine::new(&record, &names, &start);
        prop_assert_eq!(object.stage, "device");
        prop_assert!(serde_json::to_string(&object).is_ok());
        let _ = line::comment(&record, &names);
    }
}

/// The header in front says the direction and the EtherType; behind it etherparse finds the packet.
#[test]
fn the_cooked_header_names_the_protocol() {
    let start = start();
    let packet = inner(b"hello");
    let mut file = Vec::new();
    let mut pcapng = Pcapng::new(&mut file, &start, &[Stage::Device], 256).unwrap();
    pcapng.packet(&record(&packet), "read", &start).unwrap();
    let arp = [0, 1, 8, 0, 6, 4, 0, 1];
    let not_ip = Record {
        is_not_ip: true,
        ..record(&arp)
    };
    pcapng.packet(&not_ip, "read", &start).unwrap();
    drop(pcapng);
    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            packets.push(packet.data.into_owned());
        }
    }
    // etherparse does not know the hardware type of devices without a link layer, ARPHRD_NONE.
    assert_eq!(packets[0][..4], [0, 4, 0xff, 0xfe]);
    assert_eq!(packets[0][14..16], [0x08, 0x00]);
    let sliced = SlicedPacket::from_ip(&packets[0][16..]).unwrap();
    assert!(
        matches!(sliced.transport, Some(TransportSlice::Udp(udp)) if udp.payload() == b"hello")
    );
    assert_eq!(packets[1][14..], [&[0x08, 0x06], &arp[..]].concat());
}

/// The nanoseconds since the epoch are in the file as pcapng has them: two halves, units of the interface's resolution.
#[test]
fn times_are_nanoseconds() {
    let start = start();
    let mut file = Vec::new();
    let mut pcapng = Pcapng::new(&mut file, &start, &[Stage::Device], 256).unwrap();
    let before = {
        pcapng.flush().unwrap();
        drop(pcapng);
        file.len()
    };
    let mut file = Vec::new();
    let mut pcapng = Pcapng::new(&mut file, &start, &[Stage::Device], 256).unwrap();
    pcapng.packet(&record(b""), "", &start).unwrap();
    drop(pcapng);
    let halves = &file[before + 12..before + 20];
    let [high, low] =
        [0, 4].map(|place| u32::from_le_bytes(halves[place..place + 4].try_into().unwrap()));
    let nanos = u64::from(high) << 32 | u64::from(low);
    assert_eq!(nanos, EPOCH + Duration::from_secs(5).as_nanos() as u64);
}

/// Outer headers made here are ones that another program's parser takes, around the datagram as it was.
#[test]
fn outer_headers_are_sound() {
    let start = start();
    let packet = inner(b"hello");
    for (remote, direction, format, ports) in [
        (
            "192.0.2.2:8472",
            Direction::Outbound,
            Format::Vxlan,
            (0, 8472),
        ),
        (
            "192.0.2.2:8285",
            Direction::Outbound,
            Format::Udp,
            (8285, 8285),
        ),
        (
            "192.0.2.2:50000",
            Direction::Inbound,
            Format::Vxlan,
            (50_000, 8472),
        ),
        (
            "[2001:db8::2]:8285",
            Direction::Inbound,
            Format::Udp,
            (8285, 8285),
        ),
    ] {
        let record = Record {
            direction,
            remote: Some(remote.parse().unwrap()),
            format: Some(format),
            ..record(&packet)
        };
        let mut bytes = super::pcapng::outer_packet(&record, &start).unwrap();
        bytes.extend_from_slice(&packet);
        let sliced = SlicedPacket::from_ip(&bytes).unwrap();
        let Some(TransportSlice::Udp(udp)) = sliced.transport else {
            panic!("no UDP");
        };
        assert_eq!((udp.source_port(), udp.destination_port()), ports);
        assert_eq!(udp.payload(), packet);
        if let Some(NetSlice::Ipv4(ip)) = sliced.net {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum);
        }
    }
}

#[test]
fn a_line_says_who_what_and_why() {
    let start = start();
    let names = Names::new(&start.names);
    let packet = inner(b"hello");
    let device = record(&packet);
    assert_eq!(
        line::text(&device, &names, &start, false),
        "20:26:45.123456 device   node2 default/web 10.244.1.2.7 > 10.244.2.3.80 udp 33 bytes: read"
    );
    let dropped = Record {
        stage: Stage::Dropped,
        reason: Some(DropReason::TooBig),
        packets: 45,
        total: 60_000,
        gso: 1_398,
        ..device
    };
    let text = line::text(&dropped, &names, &start, true);
    assert!(
        text.contains("45 wire packets, 60000 bytes in all, a super-packet of 1398 payload bytes each (gso): TooBig [4500"),
        "{text}"
    );
    let comment = line::comment(&dropped, &names);
    assert!(
        comment.starts_with("TooBig: larger than the path to the peer")
            && comment.contains("; peer node2; pod default/web; worker 0; 45 wire packets"),
        "{comment}"
    );
    let stranger = Record {
        stage: Stage::Dropped,
        direction: Direction::Inbound,
        reason: Some(DropReason::TooShort),
        remote: Some(([203, 0, 113, 9], 4).into()),
        format: Some(Format::Vxlan),
        ..record(b"x")
    };
    let text = line::text(&stranger, &names, &start, false);
    assert!(
        text.contains(
            "dropped  203.0.113.9 - from 203.0.113.9:4, no inner packet 1 bytes: TooShort"
        ),
        "{text}"
    );
}

/// etherparse and this reader find the same in packets that it can read.
#[test]
fn headers_are_read_as_etherparse_reads_them() {
    for (bytes, ports) in [
        (inner(b"x"), Some((7, 80))),
        (
            {
                let mut bytes = Vec::new();
                etherparse::PacketBuilder::ipv6([1; 16], [2; 16], 9)
                    .tcp(1000, 2000, 1, 2)
                    .syn()
                    .write(&mut bytes, b"abc")
                    .unwrap();
                bytes
            },
            Some((1000, 2000)),
        ),
        (
            {
                let mut bytes = Vec::new();
                etherparse::PacketBuilder::ipv4([1; 4], [2; 4], 9)
                    .icmpv4_echo_request(1, 2)
                    .write(&mut bytes, b"abc")
                    .unwrap();
                bytes
            },
            None,
        ),
    ] {
        let packet = Packet::read(&bytes).unwrap();
        let sliced = SlicedPacket::from_ip(&bytes).unwrap();
        let (source, protocol) = match sliced.net.unwrap() {
            NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().protocol().0),
            NetSlice::Ipv6(ip) => (
                ip.header().source_addr().into(),
                ip.header().next_header().0,
            ),
            _ => panic!("no IP"),
        };
        assert_eq!((packet.source, packet.protocol), (source, protocol));
        assert_eq!(packet.ports, ports);
        // Cut anywhere, it is read as far as it goes.
        (0..bytes.len()).for_each(|length| _ = Packet::read(&bytes[..length]));
    }
}

#[test]
fn a_reason_asks_for_drops_alone() {
    let reasons = ["NoRoute".to_owned()];
    assert_eq!(stages_of(&[], &reasons), ["dropped"]);
    assert_eq!(stages_of(&[], &[]).len(), 5);
    let stages = ["sent".to_owned(), "dropped".to_owned()];
    assert_eq!(stages_of(&stages, &reasons), stages);
}
