//! What arrives together reaches the kernel as one packet, and leaves it as the wire packets that came.
//!
//! ```text
//!   a peer's datagrams ── worker ── ta ── kernel, forwarding ── tb ── we
//! ```

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::counters::Counters;
use dataplane::device::Device;
use dataplane::device::plain::{self, Plain};
use dataplane::device::tun::Tun;
use dataplane::drops::DropReason;
use dataplane::families::PerFamily;
use dataplane::limits::INBOUND_BUFFERS;
use dataplane::now::Now;
use dataplane::sent::SentDatagrams;
use dataplane::snapshot::Snapshot;
use dataplane::spec::{ClusterSpec, LocalSpec, NodeSpec, PeerSpec, Spec};
use dataplane::underlay::memory::{Datagram, Memory};
use dataplane::worker::{Source, Worker};
use encap::{Ecn, Family, Format, Mac, Vni};

use crate::offloads::{FAULTS, all_kinds, fast};
use crate::packets::{cut, forwarded, tcp, udp};
use testbed::Namespace;

use crate::rig::{addresses, forwarding, raise, read};

struct Node {
    worker: Worker<Tun, Memory>,
    snapshot: Snapshot,
    counters: Counters,
}

impl Node {
    fn new(device: Tun) -> Node {
        let spec = spec();
        let counters = Counters::create(1).unwrap();
        Node {
            worker: Worker::new(
                device,
                Memory::new(spec.cluster.node.public),
                &counters,
                0,
                SentDatagrams::group(1, 0).remove(0),
            ),
            snapshot: Snapshot::new(&spec, None),
            counters,
        }
    }

    /// The peer sends `payload`, merged from datagrams of `segment` bytes.
    fn hand(&mut self, segment: Option<u16>, payload: Vec<u8>) {
        self.worker.underlay_mut().to_worker.push_back(Datagram {
            from: "192.0.2.1:8285".parse().unwrap(),
            to: "192.0.2.2:8285".parse().unwrap(),
            format: Format::Udp,
            ecn: Ecn::NotEct,
            segment,
            payload,
        });
    }

    fn turn(&mut self) {
        let port = dataplane::underlay::Port::new(Format::Udp, Family::V4);
        self.worker.wake(Source::Port(port));
        self.worker.step(&self.snapshot, Now(0));
    }
}

/// Node 2, whose pods are behind `tb`; those of node 1 are behind `ta`.
fn spec() -> Spec {
    let net = |text: &str| text.parse().unwrap();
    let subnets = |number: u8| {
        vec![
            net(&format!("10.9.{number}.0/24")),
            net(&format!("fd00:{number}::/64")),
        ]
    };
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    Spec {
        version: 1,
        cluster: Arc::new(ClusterSpec {
            node: NodeSpec {
                networks: vec![net("10.9.0.0/16"), net("fd00::/16")],

                public: address("192.0.2.2").into(),

                vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 2])),
                vni: Vni::new(1).unwrap(),
                gbp: false,
                ipv6_over_udp: true,
                inner_mtu: PerFamily::each(|_| 1500),
                underlay_mtu: 1528,
                udp_port: 8285,
                vxlan_port: 8472,
            },
            peers: vec![Arc::new(PeerSpec {
                name: "node1".into(),
                public: address("192.0.2.1").into(),
                underlay_sources: vec![],
                subnets: subnets(1),
                accept_sources: vec![],
                format: Format::Udp,
                vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 1])),
            })],
        }),
        local: Arc::new(LocalSpec {
            subnets: subnets(2),
            tunnel: vec![],
            addresses: vec![address("192.0.2.2")],
            attachments: addresses(2, 6).to_vec(),
            pods: [].into(),
            kernel_prefixes: vec![],
            allowed_sources: vec![],
        }),
    }
}

/// Packets that came out of a device into the kernel.
fn received(space: &Namespace, device: &str) -> u64 {
    let said = space.ip(&format!("-s -o link show {device}"));
    let counts = said
        .split("RX:")
        .nth(1)
        .unwrap()
        .split('\\')
        .nth(1)
        .unwrap();
    counts.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A node whose device is `ta`, and the other end of the kernel.
fn ends(space: &Namespace) -> (Node, Plain) {
    let node = Node::new(fast(space, "ta"));
    let b = space.inside(|| plain::open("tb")).unwrap();
    let b = Plain::adopt(b, "tb").unwrap();
    raise(space, "ta", 1);
    raise(space, "tb", 2);
    (node, b)
}

/// Hands the datagrams over in one batch; they must reach the kernel as one packet and leave it as `wire`.
fn check(
    (node, b): &mut (Node, Plain),
    space: &Namespace,
    datagrams: Vec<(Option<u16>, Vec<u8>)>,
    wire: &[Vec<u8>],
) {
    let delivered = |node: &Node| node.counters.read().workers[0].inbound.delivered;
    let before = (delivered(node), received(space, "ta"));
    for (segment, payload) in datagrams {
        node.hand(segment, payload);
    }
    node.turn();
    assert_eq!(delivered(node) - before.0, wire.len() as u64);
    assert_eq!(received(space, "ta") - before.1, 1);
    let arrived = read(b, wire.len()).into_iter().map(|packet| packet.bytes);
    let expected = wire.iter().cloned().map(forwarded);
    assert!(
        arrived.eq(expected),
        "{} packets came out otherwise",
        wire.len()
    );
}

#[test]
fn what_arrives_together_is_one_packet_to_the_kernel() {
    let _faults = FAULTS.lock();
    let space = forwarding();
    let mut ends = ends(&space);
    for (length, size) in [
        (2_000, 1_400),
        (20_000, 1_400),
        (60_001, 1_400),
        (4_096, 64),
    ] {
        for packet in all_kinds(length, size) {
            let wire = cut(&packet);
            let mark = u16::try_from(wire[0].len()).unwrap();
            check(&mut ends, &space, vec![(Some(mark), wire.concat())], &wire);
            if wire.len() <= INBOUND_BUFFERS {
                let each = wire.iter().map(|one| (None, one.clone())).collect();
                check(&mut ends, &space, each, &wire);
            }
        }
    }
}

#[test]
fn a_kernel_peers_super_packet_is_one_packet_to_the_kernel() {
    let _faults = FAULTS.lock();
    let space = forwarding();
    let mut ends = ends(&space);
    for (source, destination) in addresses(1, 5).into_iter().zip(addresses(2, 6)) {
        // TCP is cut to the device: 1,500 bytes without its headers.
        let size = if source.is_ipv4() { 1_448 } else { 1_428 };
        for (packet, mark) in [
            (tcp(source, destination, 60_000, size), None),
            (udp(source, destination, 60_000, 1_200), Some(1_200)),
        ] {
            let wire = cut(&packet);
            check(&mut ends, &space, vec![(mark, packet.bytes)], &wire);
        }
    }
}

/// A device that takes nothing, with offloads or without, proves nothing against them.
#[test]
fn a_device_that_is_down_proves_nothing() {
    let _faults = FAULTS.lock();
    let space = forwarding();
    let mut node = Node::new(fast(&space, "ta"));
    let everything = node.worker.device_mut().granted();
    for packet in all_kinds(20_000, 1_400) {
        let wire = cut(&packet);
        for _ in 0..4 {
            node.hand(Some(wire[0].len() as u16), wire.concat());
            node.turn();
        }
    }
    let inbound = node.counters.read().workers[0].inbound;
    assert_eq!((inbound.received, inbound.delivered), (4 * 4 * 15, 0));
    assert_eq!(inbound.drops_of(DropReason::DeviceRefused), 4 * 4 * 15);
    let device = node.worker.device_mut();
    assert_eq!(device.given_up(), 0);
    assert_eq!(device.offloads(Now(0)), everything);
}
