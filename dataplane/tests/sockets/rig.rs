//! Two namespaces, and a worker in one of them.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use dataplane::counters::{Counters, Flow, WorkerTotals};
use dataplane::device::memory::Memory;
use dataplane::device::plain::{self, Plain};
use dataplane::device::tunnel::Tunnel;
use dataplane::families::PerFamily;
use dataplane::limits::TRANSMIT_SOCKETS;
use dataplane::now::Now;
use dataplane::peers::Peer;
use dataplane::probe::{Heard, Prober};
use dataplane::sent::SentDatagrams;
use dataplane::snapshot::Snapshot;
use dataplane::spec::{ClusterSpec, LocalSpec, NodeSpec, PeerSpec, Spec};
use dataplane::underlay::Port;
use dataplane::underlay::socket::{SocketSpec, Sockets, bind};
use dataplane::worker::{Next, Source, Worker};
use encap::{Family, Format, Mac, Vni};
use ipnet::IpNet;
use testbed::{Namespace, await_link, linked};

/// A worker at 192.0.2.1 or 2001:db8::1 with two peers behind one link: the one at `2` listens, the one at `3` (the same
/// host) does not. Pods have addresses of the underlay's family.
pub struct Rig {
    worker: Worker<Memory, Sockets>,
    counters: Counters,
    snapshot: Snapshot,
    far: UdpSocket,
    /// Duplicates of the transmit sockets.
    pub transmits: Vec<UdpSocket>,
    family: Family,
    namespaces: [Namespace; 2],
}

impl Rig {
    /// Peers are sent to in `format` over `family`; the worker believes in an underlay of `underlay_mtu` bytes.
    pub fn new(format: Format, family: Family, underlay_mtu: u16) -> Rig {
        Rig::with(format, family, underlay_mtu, 0)
    }

    /// The same, VXLAN leaving through transmit sockets.
    pub fn with_transmit_sockets(family: Family) -> Rig {
        Rig::with_lanes(family, TRANSMIT_SOCKETS)
    }

    /// The same with the first few of them alone.
    pub fn with_lanes(family: Family, lanes: usize) -> Rig {
        Rig::with(Format::Vxlan, family, 1500, lanes)
    }

    fn with(format: Format, family: Family, underlay_mtu: u16, lanes: usize) -> Rig {
        let at = |number| node(family, number).to_string();
        let [near, far] = linked(&[&at(1)], &[&at(2), &at(3)]);
        // Otherwise the far kernel answers only a few of the datagrams to closed ports.
        for limit in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
            far.inside(|| std::fs::write(format!("/proc/sys/net/{limit}"), "0").unwrap());
        }
        let listener =
            far.inside(move || UdpSocket::bind((node(family, 2), port(format))).unwrap());
        listener
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        await_link(&near, &listener);
        let mut sockets = Vec::from(bound(&near, &at(1)));
        let mut transmits = Vec::new();
        for lane in 0..lanes {
            let spec = SocketSpec {
                address: node(family, 1),
                port: 0,
                format: Format::Vxlan,
                lane: Some(lane),
            };
            let socket = near.inside(|| bind(&spec)).unwrap();
            transmits.push(UdpSocket::from(socket.try_clone().unwrap()));
            sockets.push((socket, spec));
        }
        let sockets = Sockets::adopt(sockets).unwrap();
        let counters = Counters::create(1).unwrap();
        Rig {
            worker: Worker::new(
                Memory::default(),
                sockets,
                &counters,
                0,
                SentDatagrams::group(1, 0).remove(0),
            ),
            counters,
            snapshot: Snapshot::new(&spec(format, family, underlay_mtu), None),
            far: listener,
            transmits,
            family,
            namespaces: [near, far],
        }
    }

    /// Has the worker forward packets of its pod, and returns what it answered.
    pub fn send(&mut self, packets: &[Vec<u8>], now: Now) -> Vec<Vec<u8>> {
        self.worker
            .device_mut()
            .to_worker
            .extend(packets.iter().cloned());
        self.worker.wake(Source::Device);
        self.until_idle(now);
        self.worker.device_mut().delivered.drain(..).collect()
    }

    /// Has the peer that listens send so many of its datagrams, wakes the worker once, as an edge-triggered poll does, and
    /// returns what it received.
    pub fn receive(&mut self, format: Format, datagrams: &[Vec<u8>]) -> Flow {
        let to = SocketAddr::new(node(self.family, 1), port(format));
        for datagram in datagrams {
            self.far.send_to(datagram, to).unwrap();
        }
        let port = Port::towards(to.ip(), format);
        self.worker.wake(Source::Port(port));
        self.until_idle(Now(0));
        self.totals().inbound
    }

    fn until_idle(&mut self, now: Now) {
        for step in 0..1_000 {
            match self.worker.step(&self.snapshot, now) {
                Next::Now => {}
                Next::Held(_) => std::thread::sleep(Duration::from_micros(step)),
                Next::Idle => return,
            }
        }
        panic!("the worker never rests");
    }

    /// What the peer that listens received since it was last asked.
    pub fn arrived(&self) -> Vec<Vec<u8>> {
        self.arrived_from().into_iter().map(|(_, b)| b).collect()
    }

    /// The same, with the source of each.
    pub fn arrived_from(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut buffer = [0; 65_536];
        let next = || loop {
            match self.far.recv_from(&mut buffer) {
                Ok((length, from)) => return Some((from, buffer[..length].to_vec())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // The end of an `ip` command that another test started.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        };
        std::iter::from_fn(next).collect()
    }

    /// Has the peer that listens send something to `to`.
    pub fn send_back(&self, to: SocketAddr) {
        self.far.send_to(b"for no one", to).unwrap();
    }

    pub fn totals(&self) -> WorkerTotals {
        self.counters.read().workers[0]
    }

    pub fn outbound(&self) -> Flow {
        self.counters.read().workers[0].outbound
    }

    pub fn path_mtu(&self) -> u16 {
        self.peer(2).path_mtu(self.family, Now(0)).unwrap()
    }

    /// What the node knows of node `number`.
    pub fn peer(&self, number: u8) -> &Peer {
        let peers = &self.snapshot.cluster.peers;
        peers.by_source(node(self.family, number)).unwrap().1
    }

    /// A socket of the node for requests.
    pub fn prober(&self) -> Prober {
        let local = node(self.family, 1);
        let [near, _] = &self.namespaces;
        near.inside(move || Prober::new(local)).unwrap()
    }

    /// What the worker heard of probes.
    pub fn heard(&self) -> Vec<Heard> {
        self.worker.heard().collect()
    }
}

/// A device whose route has the pods of the peer at `2`, in the node's namespace.
pub fn tunnel(space: &Namespace) -> Tunnel {
    let device = space.inside(|| Plain::adopt(plain::open("t0").unwrap(), "t0").unwrap());
    space.ip("addr add 10.244.1.2/32 dev t0");
    space.ip("link set t0 up");
    space.ip("route add 10.244.2.0/24 dev t0");
    Tunnel::Plain(device)
}

/// The sockets of a node at `at`, for both formats.
pub fn bound(space: &Namespace, at: &str) -> [(OwnedFd, SocketSpec); 2] {
    space.inside(|| {
        [Format::Udp, Format::Vxlan].map(|format| {
            let spec = SocketSpec {
                address: address(at),
                port: port(format),
                format,
                lane: None,
            };
            (bind(&spec).unwrap(), spec)
        })
    })
}

/// A UDP packet of `length` bytes from our pod to one of 192.0.2.2's.
pub fn packet(length: u16, dont_fragment: bool) -> Vec<u8> {
    packet_to([10, 244, 2, 2], length, dont_fragment)
}

/// A UDP packet of `length` bytes from our pod.
pub fn packet_to(destination: [u8; 4], length: u16, dont_fragment: bool) -> Vec<u8> {
    testbed::packets::udp(
        address("10.244.1.2"),
        destination.into(),
        length,
        dont_fragment,
    )
}

/// An IPv6 UDP packet of `length` bytes from our pod to that of node `number`.
pub fn packet6_to(number: u8, length: u16) -> Vec<u8> {
    testbed::packets::udp(pod6(1).into(), pod6(number).into(), length, true)
}

/// Node 1 on an underlay of `family`.
pub fn spec(format: Format, family: Family, underlay_mtu: u16) -> Spec {
    let peer = |number: u8| {
        Arc::new(PeerSpec {
            name: format!("node{number}"),
            public: node(family, number).into(),
            underlay_sources: vec![],
            subnets: subnets(number),
            accept_sources: vec![],
            format,
            vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, number])),
        })
    };
    Spec {
        version: 1,
        cluster: Arc::new(ClusterSpec {
            node: NodeSpec {
                networks: vec![
                    "10.244.0.0/16".parse().unwrap(),
                    "fd00:10:244::/48".parse().unwrap(),
                ],

                public: node(family, 1).into(),

                vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 1])),
                vni: Vni::new(1).unwrap(),
                gbp: false,
                ipv6_over_udp: true,
                inner_mtu: PerFamily::each(|_| 1450),
                underlay_mtu,
                udp_port: 8285,
                vxlan_port: 8472,
            },
            peers: vec![peer(2), peer(3)],
        }),
        local: Arc::new(LocalSpec {
            subnets: subnets(1),
            tunnel: subnets(1).iter().map(IpNet::network).collect(),
            addresses: vec![node(family, 1)],
            attachments: vec![address("10.244.1.2"), pod6(1).into()],
            pods: [].into(),
            kernel_prefixes: vec![],
            allowed_sources: vec![],
        }),
    }
}

fn subnets(number: u8) -> Vec<IpNet> {
    vec![
        format!("10.244.{number}.0/24").parse().unwrap(),
        format!("fd00:10:244:{number}::/64").parse().unwrap(),
    ]
}

pub fn node(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => [192, 0, 2, number].into(),
        Family::V6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()].into(),
    }
}

fn pod6(number: u8) -> Ipv6Addr {
    [0xfd00, 0x10, 0x244, number.into(), 0, 0, 0, 2].into()
}

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn port(format: Format) -> u16 {
    match format {
        Format::Udp => 8285,
        Format::Vxlan => 8472,
    }
}
