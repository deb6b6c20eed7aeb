//! The tables of the kernel path in this kernel: what is written is what a lookup gives, descriptors hand everything to the
//! next service, flows and counters.
//!
//! Needs root (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN) and, for what is announced, conntrack(8); fails, never skips, without. Nothing is attached: no packet meets a program here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use dataplane::drops::Direction;
use dataplane::families::PerFamily;
use dataplane::kernel_path::{
    Event, Facts, FlowGrant, FlowKey, InstallError, Installed, KernelPath, KernelPathError,
    PassReason, PodEnd, PodFacts, Program, Sizes, Traffic, TunnelFacts, UnderlayFacts,
};
use dataplane::spec::{ClusterSpec, LocalSpec, NodeSpec, PeerSpec, Spec};
use encap::{Format, Mac, Vni};
use etherparse::PacketBuilder;
use ipnet::IpNet;
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use testbed::Namespace;

/// linux/netfilter/nfnetlink.h
const NFNLGRP_CONNTRACK_DESTROY: u32 = 3;
const SIZES: Sizes = Sizes {
    peers: 1_024,
    pods: 1_024,
    flows: 1_024,
};

fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn peer(n: u32) -> PeerSpec {
    PeerSpec {
        name: format!("node{n}"),
        public: IpAddr::from((0xac10_0000 + n).to_be_bytes()).into(),
        underlay_sources: vec![],
        subnets: vec![
            IpNet::new(IpAddr::from((0x0a00_0000 + (n << 8)).to_be_bytes()), 24).unwrap(),
        ],
        accept_sources: vec![],
        format: Format::Vxlan,
        vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 9, (n >> 8) as u8, n as u8])),
    }
}

/// Node 0 at 172.16.255.255 with pod 10.200.0.2, and so many others.
fn spec(peers: u32) -> Spec {
    Spec {
        version: 1,
        cluster: Arc::new(ClusterSpec {
            node: NodeSpec {
                networks: vec!["10.0.0.0/8".parse().unwrap()],
                public: IpAddr::from([172, 16, 255, 255]).into(),
                vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 1])),
                vni: Vni::new(1).unwrap(),
                gbp: false,
                ipv6_over_udp: false,
                inner_mtu: PerFamily::each(|_| 1_450),
                underlay_mtu: 1_500,
                udp_port: 8285,
                vxlan_port: 8472,
            },
            peers: (1..=peers).map(|n| Arc::new(peer(n))).collect(),
        }),
        local: Arc::new(LocalSpec {
            subnets: vec!["10.200.0.0/24".parse().unwrap()],
            tunnel: vec![[10, 200, 0, 0].into()],
            addresses: vec![[172, 16, 255, 255].into()],
            attachments: vec![[10, 200, 0, 2].into()],
            pods: [].into(),
            kernel_prefixes: vec![],
            allowed_sources: vec![],
        }),
    }
}

fn facts(spec: &Spec) -> Facts {
    let peers = spec
        .cluster
        .peers
        .iter()
        .map(|peer| match peer.public.first() {
            IpAddr::V4(v4) => v4,
            IpAddr::V6(_) => unreachable!(),
        });
    let pods = spec.local.attachments.iter().map(|address| match address {
        IpAddr::V4(v4) => PodFacts {
            address: *v4,
            end: NonZeroU32::new(7).map(|ifindex| PodEnd {
                ifindex,
                namespace: None,
                pod_mac: Mac([2, 0, 0, 2, 0, 1]),
                host_mac: Mac([2, 0, 0, 3, 0, 1]),
            }),
        },
        IpAddr::V6(_) => unreachable!(),
    });
    Facts {
        on: true,
        underlay: UnderlayFacts {
            ifindex: 2,
            mac: Mac([2, 0, 0, 1, 0, 1]),
            address: v4("172.16.255.255"),
            cuts_datagrams_alone: false,
        },
        tunnel: TunnelFacts {
            ifindex: 3,
            mac: None,
        },
        private_port: None,
        next_hops: peers.map(|peer| (peer, Mac([2, 0, 0, 1, 0, 9]))).collect(),
        unusable: HashSet::new(),
        path_mtu: HashMap::new(),
        pods: pods.collect(),
        flows: true,
    }
}

fn held(path: &KernelPath) -> Vec<(String, OwnedFd)> {
    let all = path.descriptors().into_iter();
    all.map(|(name, descriptor)| (name, descriptor.try_clone_to_owned().unwrap()))
        .collect()
}

fn out() -> FlowKey {
    FlowKey {
        source: v4("10.200.0.2"),
        destination: v4("10.0.1.9"),
        source_port: 40_000,
        destination_port: 80,
        protocol: 6,
    }
}

fn grant(direction: Direction, epoch: u32) -> FlowGrant {
    let key = match direction {
        Direction::Outbound => out(),
        Direction::Inbound => FlowKey {
            source: out().destination,
            destination: out().source,
            source_port: 80,
            destination_port: 40_000,
            protocol: 6,
        },
    };
    FlowGrant {
        direction,
        key,
        peer: v4("172.16.0.1"),
        pod: v4("10.200.0.2"),
        epoch,
        until: Duration::from_secs(1_000),
        direct_tcp: false,
    }
}

#[test]
fn a_service_adopts_what_another_loaded_and_writes_nothing_again() {
    let told = spec(300);
    let facts = facts(&told);
    let mut path = KernelPath::load(SIZES).unwrap();
    assert!(!path.is_on());
    let first = path.follow(&told, &facts).unwrap();
    assert!(path.is_on());
    assert_eq!((first.peers, first.sending, first.pods), (300, 300, 1));
    assert!(first.writes >= 600, "{first:?}");
    assert_eq!(path.sizes(), SIZES);
    let descriptors = held(&path);
    drop(path);

    let mut path = KernelPath::adopt(descriptors).unwrap();
    assert!(path.is_on());
    let again = path.follow(&told, &facts).unwrap();
    assert_eq!((again.writes, again.sending), (0, 300));
    for program in Program::ALL {
        assert!(path.program(program).as_raw_fd() > 2);
    }
    path.switch_off().unwrap();
    assert!(!path.is_on());
    assert_eq!(path.follow(&told, &facts).unwrap().writes, 1);
}

/// What one service notes and sets the next one has, and the first again, if it goes on after the next.
#[test]
fn services_that_take_turns_at_the_tables_know_what_the_others_set() {
    let told = spec(3);
    let facts = facts(&told);
    let mut first = KernelPath::load(SIZES).unwrap();
    first.follow(&told, &facts).unwrap();
    let flows = first.flows().unwrap();
    assert_eq!(flows.rules_generation(), 0);
    flows.note_rules_generation(7).unwrap();
    first.follow(&spec(4), &facts).unwrap();
    assert_eq!(flows.rules_generation(), 7);

    let second = KernelPath::adopt(held(&first)).unwrap().flows().unwrap();
    assert_eq!(second.rules_generation(), 7);
    second.note_rules_generation(8).unwrap();
    let epoch = second.next_epoch().unwrap();
    flows.read_settings().unwrap();
    assert_eq!((flows.rules_generation(), flows.epoch()), (8, epoch));
    assert_eq!(flows.next_epoch().unwrap(), epoch + 1);
}

#[test]
fn descriptors_of_another_build_or_with_a_gap_are_refused() {
    let path = KernelPath::load(SIZES).unwrap();
    for missing in path.descriptors().iter().map(|(name, _)| name.clone()) {
        let rest = held(&path).into_iter().filter(|(name, _)| *name != missing);
        let error = KernelPath::adopt(rest.collect()).map(drop).unwrap_err();
        assert!(error.to_string().contains(&missing), "{error}");
    }
    let mut swapped = held(&path);
    let peers = swapped
        .iter()
        .position(|(name, _)| name == "peers")
        .unwrap();
    swapped[peers].1 = std::fs::File::open("/dev/null").unwrap().into();
    let error = KernelPath::adopt(swapped).map(drop).unwrap_err();
    assert!(
        matches!(&error, KernelPathError::Foreign { name, .. } if name == "peers"),
        "{error}"
    );
    let mut other = held(&path);
    let object = other.iter().position(|(name, _)| name == "object").unwrap();
    other[object].1 = std::fs::File::open("/dev/null").unwrap().into();
    let error = KernelPath::adopt(other).map(drop).unwrap_err();
    assert!(matches!(error, KernelPathError::OtherBuild), "{error}");
}

#[test]
fn flows_are_installed_only_for_what_the_tables_have() {
    let mut told = spec(3);
    let mut facts = facts(&told);
    let mut path = KernelPath::load(SIZES).unwrap();
    path.follow(&told, &facts).unwrap();
    let flows = path.flows().unwrap();
    let epoch = flows.epoch();
    for direction in [Direction::Outbound, Direction::Inbound] {
        let good = grant(direction, epoch);
        assert_eq!(flows.install(&good).unwrap(), Installed::New);
        assert_eq!(flows.install(&good).unwrap(), Installed::Renewed);
        let entry = flows.get(direction, &good.key).unwrap().unwrap();
        assert_eq!(
            (entry.peer, entry.epoch, entry.ifindex),
            (Some(good.peer), epoch, 7)
        );
        assert_eq!(entry.until, good.until);
        let all: Result<Vec<_>, _> = flows.list(direction).collect();
        assert_eq!(all.unwrap(), [entry]);
        let other_pod = FlowGrant {
            pod: v4("10.200.0.3"),
            ..good
        };
        assert!(matches!(
            flows.install(&other_pod),
            Err(InstallError::NoPod)
        ));
        let other_peer = FlowGrant {
            peer: v4("172.16.0.2"),
            ..good
        };
        assert!(matches!(
            flows.install(&other_peer),
            Err(InstallError::NotPeers)
        ));
        let late = FlowGrant {
            epoch: epoch.wrapping_sub(1),
            ..good
        };
        assert!(matches!(
            flows.install(&late),
            Err(InstallError::OtherEpoch)
        ));
        assert!(flows.remove(direction, &good.key).unwrap());
        assert!(!flows.remove(direction, &good.key).unwrap());
    }

    // A peer that user space keeps is received from and not sent to.
    facts.unusable.insert(v4("172.16.0.1"));
    path.follow(&told, &facts).unwrap();
    let sends = flows.install(&grant(Direction::Outbound, epoch));
    assert!(matches!(sends, Err(InstallError::NotPeers)));
    flows.install(&grant(Direction::Inbound, epoch)).unwrap();

    // Each revocation is seen by what was installed before.
    let alive = |path: &KernelPath| {
        let flows = path.flows().unwrap();
        let entry = flows.get(Direction::Inbound, &grant(Direction::Inbound, 0).key);
        let entry = entry.unwrap().unwrap();
        entry.peer.is_some() && entry.epoch == flows.epoch()
    };
    assert!(alive(&path));
    assert!(path.revoke_peer(v4("172.16.0.1")).unwrap());
    assert!(!alive(&path));
    flows.install(&grant(Direction::Inbound, epoch)).unwrap();
    assert!(alive(&path));
    // A service that starts goes on with what the one before it judged, and what it judges itself is no new flow.
    let earlier = grant(Direction::Outbound, epoch);
    facts.unusable.clear();
    path.follow(&told, &facts).unwrap();
    assert_eq!(flows.install(&earlier).unwrap(), Installed::New);
    flows.add_epoch().unwrap();
    assert!(matches!(
        flows.install(&earlier),
        Err(InstallError::OtherEpoch)
    ));
    let since = grant(Direction::Outbound, epoch + 1);
    assert_eq!(flows.install(&since).unwrap(), Installed::Renewed);
    assert!(flows.end_earlier_epochs().unwrap());
    assert!(!flows.end_earlier_epochs().unwrap());
    assert_eq!(flows.epoch(), epoch + 1);
    assert_eq!(flows.install(&since).unwrap(), Installed::Renewed);

    let epoch = epoch + 1;
    flows.install(&grant(Direction::Inbound, epoch)).unwrap();
    assert!(alive(&path));
    assert_eq!(flows.next_epoch().unwrap(), epoch + 1);
    let first = grant(Direction::Outbound, epoch + 1);
    assert_eq!(flows.install(&first).unwrap(), Installed::New);
    assert!(!alive(&path));
    flows
        .install(&grant(Direction::Inbound, epoch + 1))
        .unwrap();
    assert!(alive(&path));
    Arc::make_mut(&mut told.cluster).peers.remove(0);
    path.follow(&told, &facts).unwrap();
    assert!(!alive(&path));
    assert_eq!(path.next_epoch().unwrap(), epoch + 2);
    assert_eq!(flows.epoch(), epoch + 2);
}

/// Of the ends of connections that this kernel announces, the socket gets those alone of which a direction has an entry.
#[test]
fn the_end_of_a_connection_without_an_entry_is_not_announced() {
    let node = Namespace::new("forgotten");
    let (pod, remote) = (out().source, grant(Direction::Inbound, 0).key.source);
    node.ip("link set lo up");
    node.ip(&format!("address add {pod}/32 dev lo"));
    node.ip(&format!("address add {remote}/32 dev lo"));
    // Without a rule that asks for them, the kernel tracks no connections.
    node.shell("nft 'table ip tracked { chain out { type filter hook output priority 0; ct state invalid drop; }; }'");
    let told = spec(3);
    let mut path = KernelPath::load(SIZES).unwrap();
    path.follow(&told, &facts(&told)).unwrap();
    let flows = path.flows().unwrap();
    let socket = node.inside(|| {
        let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
        socket.bind_auto().unwrap();
        socket.set_non_blocking(true).unwrap();
        flows.filter_forgotten(&socket).unwrap();
        socket.add_membership(NFNLGRP_CONNTRACK_DESTROY).unwrap();
        socket
    });
    // The kernel announces an end before conntrack(8) has its answer.
    let announced = |from: Ipv4Addr, to: Ipv4Addr| {
        node.inside(|| {
            let socket = UdpSocket::bind((from, 40_000)).unwrap();
            socket.send_to(b"x", (to, 80)).unwrap();
        });
        let counted = node.shell("conntrack -D -p udp 2>&1 >/dev/null");
        assert!(counted.contains("1 flow entries"), "{counted}");
        let mut count = 0;
        while socket.recv(&mut Vec::with_capacity(8_192), 0).is_ok() {
            count += 1;
        }
        count
    };
    assert_eq!((announced(pod, remote), announced(remote, pod)), (0, 0));
    for direction in [Direction::Outbound, Direction::Inbound] {
        // The direction of the packets that opened the connection, then the other.
        for is_reply in [false, true] {
            let mut grant = grant(direction, flows.epoch());
            (
                grant.key.protocol,
                grant.key.source_port,
                grant.key.destination_port,
            ) = match is_reply {
                false => (17, 40_000, 80),
                true => (17, 80, 40_000),
            };
            let (from, to) = match is_reply {
                false => (grant.key.source, grant.key.destination),
                true => (grant.key.destination, grant.key.source),
            };
            flows.install(&grant).unwrap();
            assert_eq!(announced(from, to), 1, "{direction:?}, reply {is_reply}");
            assert_eq!(announced(to, from), 0, "{direction:?}, reply {is_reply}");
            assert!(flows.remove(direction, &grant.key).unwrap());
        }
    }
}

#[test]
fn a_new_table_has_counted_nothing_and_reports_nothing() {
    let told = spec(3);
    let mut path = KernelPath::load(SIZES).unwrap();
    path.follow(&told, &facts(&told)).unwrap();
    path.renew(Duration::from_secs(5)).unwrap();
    let totals = path.counters().unwrap();
    assert_eq!(
        (totals.outbound.balance(), totals.inbound.balance()),
        (0, 0)
    );
    assert_eq!((totals.outbound.received, totals.inbound.dropped()), (0, 0));
    let passes = path.passes().unwrap();
    assert_eq!(passes.len(), PassReason::COUNT);
    assert!(passes.iter().all(|(_, count)| *count == 0));
    let names: Vec<String> = path
        .peer_traffic()
        .unwrap()
        .into_iter()
        .map(|peer| peer.name)
        .collect();
    assert_eq!(names, ["node1", "node2", "node3"]);
    assert_eq!(path.pod_traffic().unwrap()[0].address, v4("10.200.0.2"));
    let mut events = path.flows().unwrap().events().unwrap();
    assert!(events.as_fd().as_raw_fd() > 2);
    assert_eq!(events.next(), None);
}

/// A frame from the pod to its gateway: a TCP segment to an address of node 1.
fn frame(source: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let key = out();
    let builder = PacketBuilder::ethernet2([2, 0, 0, 2, 0, 1], [2, 0, 0, 3, 0, 1])
        .ipv4(source, key.destination.octets(), 64)
        .tcp(key.source_port, key.destination_port, 1, 1_000)
        .ack(1);
    let mut frame = vec![];
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// Has the kernel run a program of `path` on a frame that came from loopback. Returns what it answered and made of it.
fn run(path: &KernelPath, program: Program, frame: &[u8]) -> (i32, Vec<u8>) {
    let info = format!("/proc/self/fdinfo/{}", path.program(program).as_raw_fd());
    let info = std::fs::read_to_string(info).unwrap();
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("prog_id:"))
        .unwrap();
    let id: u32 = id.trim().parse().unwrap();
    let mut loaded = aya::programs::loaded_programs().filter_map(Result::ok);
    let info = loaded.find(|info| info.id() == id).unwrap();
    let classifier = SchedClassifier::from_program_info(info, program.name().into()).unwrap();
    let mut made = vec![0; frame.len() + 256];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut made),
        ..TestRunOptions::default()
    };
    let result = classifier.test_run(options).unwrap();
    made.truncate(result.data_size_out as usize);
    (result.return_value as i32, made)
}

/// The programs find what the mirror wrote, and the service what the programs wrote.
#[test]
fn the_programs_act_by_what_was_mirrored() {
    const PASSED: i32 = -1;
    const REDIRECTED: i32 = 7;
    let mut told = spec(3);
    let mut facts = facts(&told);
    // The kernel runs programs as if on loopback.
    facts.pods[0].end = facts.pods[0].end.map(|end| PodEnd {
        ifindex: NonZeroU32::MIN,
        ..end
    });
    facts.underlay.ifindex = 1;
    let mut path = KernelPath::load(SIZES).unwrap();
    path.follow(&told, &facts).unwrap();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    let packet = frame([10, 200, 0, 2], b"hello");
    let passes = |path: &KernelPath| -> Vec<(PassReason, u64)> {
        let all = path.passes().unwrap().into_iter();
        all.filter(|(_, count)| *count > 0).collect()
    };

    // Without a lease nothing acts.
    assert_eq!(
        run(&path, Program::TunnelOutEther, &packet),
        (PASSED, packet.clone())
    );
    assert_eq!(passes(&path), [(PassReason::Lease, 1)]);
    path.renew(now).unwrap();

    // The stateless path, until the flow is proposed.
    let mut events = path.flows().unwrap().events().unwrap();
    let mut sent = 0;
    let (event, stateless) = loop {
        let (answer, made) = run(&path, Program::TunnelOutEther, &packet);
        assert_eq!(answer, REDIRECTED, "{:?}", passes(&path));
        sent += 1;
        if let Some(event) = events.next() {
            break (event, made);
        }
        assert!(sent < 1_000);
    };
    assert_eq!(sent, u64::from(dataplane::limits::KERNEL_PATH_FLOW_AFTER));
    let epoch = path.flows().unwrap().epoch();
    let expected = Event::Flow {
        direction: Direction::Outbound,
        key: out(),
        peer: Some(v4("172.16.0.1")),
        epoch,
        ends_at_socket: false,
    };
    assert_eq!(event, expected);
    assert_eq!(stateless[64..], packet[14..]);
    assert_eq!(stateless[..6], [2, 0, 0, 1, 0, 9], "the next hop");
    assert_eq!(stateless[30..34], [172, 16, 0, 1], "the peer");

    // The same flow from its entry: but for the TTL the same bytes, outer source port included.
    assert_eq!(run(&path, Program::PodOut, &packet).0, PASSED);
    let flows = path.flows().unwrap();
    let grant = FlowGrant {
        until: now + Duration::from_secs(60),
        ..grant(Direction::Outbound, epoch)
    };
    flows.install(&grant).unwrap();
    let (answer, mut direct) = run(&path, Program::PodOut, &packet);
    assert_eq!(answer, REDIRECTED, "{:?}", passes(&path));
    assert_eq!(direct[64 + 8], packet[14 + 8] - 1);
    direct[64 + 8] += 1;
    direct[64 + 10..64 + 12].copy_from_slice(&packet[14 + 10..14 + 12]);
    assert_eq!(direct, stateless);
    let entry = flows.get(Direction::Outbound, &out()).unwrap().unwrap();
    assert_eq!((entry.packets, entry.bytes), (1, packet.len() as u64 - 14));
    assert!(entry.last_seen >= now);

    // All of it is counted.
    let totals = path.counters().unwrap();
    assert_eq!(
        (totals.outbound.sent, totals.outbound.balance()),
        (sent + 1, 0)
    );
    let peers = path.peer_traffic().unwrap();
    let bytes = (sent + 1) * (packet.len() as u64 - 14);
    assert_eq!(
        (peers[0].traffic.sent_packets, peers[0].traffic.sent_bytes),
        (sent + 1, bytes)
    );
    assert_eq!(peers[1].traffic, Traffic::default());
    assert_eq!(path.pod_traffic().unwrap()[0].traffic, peers[0].traffic);

    // Each way to take a flow back works at once.
    type TakeBack = fn(&mut KernelPath);
    let ways: [TakeBack; 4] = [
        |path| assert!(path.revoke_peer(v4("172.16.0.1")).unwrap()),
        |path| assert!(path.revoke_pod(v4("10.200.0.2")).unwrap()),
        |path| _ = path.next_epoch().unwrap(),
        |path| path.switch_off().unwrap(),
    ];
    for way in ways {
        let epoch = flows.epoch();
        flows.install(&FlowGrant { epoch, ..grant }).unwrap();
        assert_eq!(run(&path, Program::PodOut, &packet).0, REDIRECTED);
        way(&mut path);
        assert_eq!(run(&path, Program::PodOut, &packet).0, PASSED);
    }
    path.follow(&told, &facts).unwrap();
    assert_eq!(run(&path, Program::TunnelOutEther, &packet).0, REDIRECTED);
    let before = passes(&path);
    assert_eq!(
        run(&path, Program::TunnelOutEther, &frame([10, 200, 0, 3], b"")).0,
        PASSED
    );
    assert!(
        !before
            .iter()
            .any(|(reason, _)| *reason == PassReason::Source)
    );
    assert!(passes(&path).contains(&(PassReason::Source, 1)));
    Arc::make_mut(&mut told.cluster).peers.remove(0);
    path.follow(&told, &facts).unwrap();
    assert_eq!(run(&path, Program::TunnelOutEther, &packet).0, PASSED);
    assert!(passes(&path).contains(&(PassReason::NoPeer, 1)));
}

/// Tables that are too small for the cluster must not keep what arrives from the sockets that the service goes back to.
#[test]
fn the_private_port_is_given_and_taken_whatever_the_tables_hold() {
    let (small, large) = (spec(3), spec(2 * SIZES.peers));
    let facts = facts(&small);
    let mut path = KernelPath::load(SIZES).unwrap();
    path.follow(&small, &facts).unwrap();
    let outgrown = path.follow(&large, &facts);
    assert!(matches!(outgrown, Err(KernelPathError::Full { .. })));
    let to_us = facts.underlay.address.octets();
    // To the MAC of loopback, on which the kernel runs a program.
    let builder = PacketBuilder::ethernet2([2, 0, 0, 1, 0, 9], [0; 6])
        .ipv4([172, 16, 0, 1], to_us, 64)
        .udp(40_000, 8_472);
    let mut datagram = vec![];
    builder.write(&mut datagram, &[0; 64]).unwrap();
    let port = |path: &KernelPath| {
        let (_, made) = run(path, Program::UnderlayIn, &datagram);
        u16::from_be_bytes([made[36], made[37]])
    };
    assert_eq!(port(&path), 8_472);
    for private in [18_472, 18_473] {
        path.set_private_port(Some(private)).unwrap();
        assert_eq!(port(&path), private);
        path.switch_off().unwrap();
        assert_eq!(port(&path), private);
    }
    path.set_private_port(None).unwrap();
    assert_eq!(port(&path), 8_472);
}

/// Of a pod none of whose flows may leave the host's stack out, what the programs carry is counted, and no flow is proposed or
/// installed.
#[test]
fn a_pod_without_flows_is_counted() {
    let told = spec(3);
    let mut facts = facts(&told);
    facts.pods[0].end = None;
    facts.underlay.ifindex = 1;
    let mut path = KernelPath::load(SIZES).unwrap();
    path.follow(&told, &facts).unwrap();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    path.renew(now).unwrap();
    let mut events = path.flows().unwrap().events().unwrap();
    let packet = frame([10, 200, 0, 2], b"hello");
    let sent = 2 * u64::from(dataplane::limits::KERNEL_PATH_FLOW_AFTER);
    for _ in 0..sent {
        const REDIRECTED: i32 = 7;
        assert_eq!(run(&path, Program::TunnelOutEther, &packet).0, REDIRECTED);
    }
    assert_eq!(events.next(), None);
    let traffic = path.pod_traffic().unwrap()[0].traffic;
    let bytes = sent * (packet.len() as u64 - 14);
    assert_eq!((traffic.sent_packets, traffic.sent_bytes), (sent, bytes));
    let flows = path.flows().unwrap();
    let grant = FlowGrant {
        until: now + Duration::from_secs(60),
        ..grant(Direction::Outbound, flows.epoch())
    };
    assert!(matches!(flows.install(&grant), Err(InstallError::NoPod)));
}

/// What 5,000 peers cost in this kernel. Printed; the bars are those of an unoptimised build on a busy machine.
#[test]
fn a_large_cluster_is_mirrored_soon_and_a_change_at_once() {
    let mut told = spec(5_000);
    let facts = facts(&told);
    let sizes = Sizes::for_cluster(5_000);
    let mut path = KernelPath::load(sizes).unwrap();
    let start = Instant::now();
    path.follow(&told, &facts).unwrap();
    let all = start.elapsed();
    let best = (0..10u8).map(|round| {
        let peers = &mut Arc::make_mut(&mut told.cluster).peers;
        Arc::make_mut(&mut peers[2_500]).vtep_mac.v4 = Mac([2, 0, 0, 7, 0, round]);
        let start = Instant::now();
        assert_eq!(path.follow(&told, &facts).unwrap().writes, 2);
        start.elapsed()
    });
    let lease = best.min().unwrap();
    let start = Instant::now();
    assert_eq!(path.peer_traffic().unwrap().len(), 5_000);
    let read = start.elapsed();
    let memory = sizes.memory(aya::util::nr_cpus().unwrap(), 5_300);
    println!(
        "5,000 peers: {all:?}; one changed lease: {lease:?}; traffic of each: {read:?}; {} KiB",
        memory / 1_024
    );
    assert!(all < Duration::from_secs(5) && lease < Duration::from_millis(100));
    // The kernel's own account of the tables, which knows neither slabs nor what is shared.
    let kernel = locked(&path);
    assert!(
        memory > kernel * 9 / 10 && memory < kernel * 11 / 10,
        "{memory} against {kernel}"
    );
}

/// The verifier lets programs do less where a process has less, and refuses two of these without CAP_PERFMON.
#[test]
fn the_capabilities_of_the_unit_and_its_drop_in_suffice() {
    let drop_in = include_str!("../../deploy/tartan-kernel-path.conf");
    let mut lines = drop_in.lines();
    let names = lines.find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = names.unwrap().split_whitespace();
    let kept = names.map(|name| match name {
        "CAP_NET_ADMIN" => CapabilitySet::NET_ADMIN,
        "CAP_BPF" => CapabilitySet::BPF,
        "CAP_PERFMON" => CapabilitySet::PERFMON,
        other => panic!("{other}"),
    });
    let kept = kept.fold(CapabilitySet::empty(), |all, one| all | one);
    // Capabilities are a thread's.
    let loaded = std::thread::spawn(move || {
        let inheritable = CapabilitySet::empty();
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable,
        };
        set_capabilities(None, sets).unwrap();
        KernelPath::load(Sizes::for_cluster(1)).map(drop)
    });
    loaded.join().unwrap().unwrap();
}

/// Bytes that the kernel says the tables have.
fn locked(path: &KernelPath) -> usize {
    let all = path.descriptors().into_iter();
    all.filter_map(|(_, descriptor)| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))
            .unwrap();
        let is_map = info.lines().any(|line| line.starts_with("map_type"));
        let locked = info
            .lines()
            .find_map(|line| line.strip_prefix("memlock:"))?;
        is_map.then(|| locked.trim().parse::<usize>().unwrap())
    })
    .sum()
}
