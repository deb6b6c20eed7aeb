//! Packets and workers that the benches share.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench that cannot be set up should fail loudly"
)]

use std::net::IpAddr;

use dataplane::counters::Counters;
use dataplane::device::memory::Memory as Device;
use dataplane::families::PerFamily;
use dataplane::snapshot::Snapshot;
use dataplane::spec::{NodeSpec, PeerSpec, Spec};
use dataplane::underlay::memory::Memory as Underlay;
use dataplane::worker::Worker;
use encap::inner::Inner;
use encap::{Format, Mac, Vni, segment};
use ipnet::{IpNet, Ipv4Net};

/// A whole inner UDP packet of `length` bytes (at least 28) from `source` to `destination`, checksums left out.
pub fn packet(source: [u8; 4], destination: [u8; 4], length: u16) -> Vec<u8> {
    let mut bytes = vec![0x45, 0];
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend(source);
    bytes.extend(destination);
    bytes.extend([0x30, 0x39, 0x27, 0x0f]);
    bytes.extend(length.saturating_sub(20).to_be_bytes());
    bytes.resize(usize::from(length), 0);
    bytes
}

/// `count` TCP segments (or UDP datagrams) in order of one flow from 10.0.2.2, port 12345 + `flow`, to 10.0.1.2, each
/// with `payload` bytes and a right checksum.
pub fn stream(protocol: u8, flow: u16, count: usize, payload: u16) -> Vec<Vec<u8>> {
    let whole = super_packet(protocol, flow, count, payload);
    let inner = Inner::parse(&whole).unwrap();
    let plan = segment::plan(&whole, &inner, payload).unwrap();
    let mut header = [0; segment::MAX_HEADER];
    let segment = |i| {
        let len = plan.header(&whole, i, &mut header).unwrap();
        [&header[..len], &whole[plan.payload(i)]].concat()
    };
    (0..plan.count()).map(segment).collect()
}

/// What [`stream`] is cut from.
pub fn super_packet(protocol: u8, flow: u16, count: usize, payload: u16) -> Vec<u8> {
    let header = if protocol == TCP { 52 } else { 28 };
    let length = header + u16::try_from(count).unwrap() * payload;
    let mut bytes = packet([10, 0, 2, 2], [10, 0, 1, 2], length);
    bytes[9] = protocol;
    bytes[20..22].copy_from_slice(&(12_345 + flow).to_be_bytes());
    if protocol == TCP {
        // Data offset 8, ACK, and timestamps.
        bytes[24..52].fill(0);
        bytes[32..35].copy_from_slice(&[0x80, 0x10, 0x20]);
        bytes[40..44].copy_from_slice(&[1, 1, 8, 10]);
    } else {
        // Some checksum: a datagram without one is cut into datagrams without one.
        bytes[26..28].fill(1);
    }
    bytes
}

/// IANA protocol numbers.
pub const TCP: u8 = 6;
/// See [`TCP`].
pub const UDP: u8 = 17;

/// Node 1 of a cluster with `peers` other nodes, each with a /24 of 10.0.0.0/8; its only pod is 10.0.1.2.
pub fn spec(peers: u32, format: Format) -> Spec {
    let subnet = |node: u32| Ipv4Net::new_assert((0x0a00_0000 + (node << 8)).into(), 24);
    let public = |node: u32| IpAddr::from((0xc000_0000 + node).to_be_bytes());
    Spec {
        version: 1,
        node: NodeSpec {
            cluster: vec![IpNet::V4(Ipv4Net::new_assert([10, 0, 0, 0].into(), 8))],
            subnets: vec![IpNet::V4(subnet(1))],
            tunnel: vec![IpAddr::V4(subnet(1).network())],
            public: public(1).into(),
            addresses: vec![public(1)],
            vtep_mac: Mac([2, 0, 0, 0, 0, 1]),
            vni: Vni::new(1).unwrap(),
            gbp: false,
            ipv6_over_udp: false,
            device_mtu: 1450,
            underlay_mtu: 1500,
            udp_port: 8285,
            vxlan_port: 8472,
        },
        peers: (2..peers + 2)
            .map(|node| PeerSpec {
                name: format!("node{node}"),
                public: public(node).into(),
                underlay_sources: vec![],
                subnets: vec![IpNet::V4(subnet(node))],
                accept_sources: vec![],
                format,
                vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 2])),
            })
            .collect(),
        attachments: vec![IpAddr::from([10, 0, 1, 2])],
        kernel_prefixes: vec![],
    }
}

/// A worker between memory devices, with the snapshot of [`spec`].
pub fn worker(peers: u32, format: Format) -> (Worker<Device, Underlay>, Snapshot) {
    let spec = spec(peers, format);
    let counters = Counters::create(1).unwrap();
    let underlay = Underlay::new(spec.node.public);
    (
        Worker::new(Device::default(), underlay, &counters, 0),
        Snapshot::new(&spec, None),
    )
}
