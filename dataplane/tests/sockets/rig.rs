//! Two namespaces, and a worker in one of them.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dataplane::counters::{Counters, Flow};
use dataplane::device::memory::Memory;
use dataplane::families::PerFamily;
use dataplane::now::Now;
use dataplane::snapshot::Snapshot;
use dataplane::spec::{NodeSpec, PeerSpec, Spec};
use dataplane::underlay::socket::{SocketSpec, Sockets, bind};
use dataplane::worker::{Next, Source, Worker};
use encap::{Family, Format, Mac, Vni};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A worker at 192.0.2.1 with two peers behind one link: 192.0.2.2 listens, 192.0.2.3 (the same host) does not.
pub struct Rig {
    worker: Worker<Memory, Sockets>,
    counters: Counters,
    snapshot: Snapshot,
    far: UdpSocket,
    _namespaces: [Namespace; 2],
}

pub struct Namespace(String);

impl Rig {
    /// Peers are sent to in `format`; the worker believes in an underlay of `underlay_mtu` bytes.
    pub fn new(format: Format, underlay_mtu: u16) -> Rig {
        let [near, far] = linked(&["192.0.2.1"], &["192.0.2.2", "192.0.2.3"]);
        // Otherwise the far kernel answers only a few of the datagrams that nobody wants.
        far.inside(|| std::fs::write("/proc/sys/net/ipv4/icmp_ratelimit", "0").unwrap());
        let listener = far.inside(move || UdpSocket::bind(("192.0.2.2", port(format))).unwrap());
        listener
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let sockets = Sockets::adopt(bound(&near, "192.0.2.1")).unwrap();
        let counters = Counters::create(1).unwrap();
        Rig {
            worker: Worker::new(Memory::default(), sockets, &counters, 0),
            counters,
            snapshot: Snapshot::new(&spec(format, underlay_mtu), None),
            far: listener,
            _namespaces: [near, far],
        }
    }

    /// Has the worker forward packets of its pod, and returns what it answered.
    pub fn send(&mut self, packets: &[Vec<u8>], now: Now) -> Vec<Vec<u8>> {
        self.worker
            .device_mut()
            .to_worker
            .extend(packets.iter().cloned());
        self.worker.wake(Source::Device);
        for step in 0..1_000 {
            match self.worker.step(&self.snapshot, now) {
                Next::Now => {}
                Next::Held(_) => std::thread::sleep(Duration::from_micros(step)),
                Next::Idle => return self.worker.device_mut().delivered.drain(..).collect(),
            }
        }
        panic!("the worker never rests");
    }

    /// What the peer at 192.0.2.2 received since it was last asked.
    pub fn arrived(&self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 65_536];
        let next = || match self.far.recv(&mut buffer) {
            Ok(length) => Some(buffer[..length].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        };
        std::iter::from_fn(next).collect()
    }

    pub fn outbound(&self) -> Flow {
        self.counters.read().workers[0].outbound
    }

    pub fn path_mtu(&self) -> u16 {
        self.snapshot
            .peers
            .iter()
            .next()
            .unwrap()
            .path_mtu(Family::V4, Now(0))
            .unwrap()
    }
}

/// Two namespaces and the link between them.
pub fn linked(near_addresses: &[&str], far_addresses: &[&str]) -> [Namespace; 2] {
    let [near, far] = ["near", "far"].map(Namespace::new);
    near.ip(&format!(
        "link add u0 type veth peer name u0 netns {}",
        far.0
    ));
    for (space, addresses) in [(&near, near_addresses), (&far, far_addresses)] {
        for address in addresses {
            space.ip(&format!("addr add {address}/24 dev u0"));
        }
        space.ip("link set u0 up");
    }
    [near, far]
}

/// The sockets of a node at `at`, for both formats.
pub fn bound(space: &Namespace, at: &str) -> [(OwnedFd, SocketSpec); 2] {
    space.inside(|| {
        [Format::Udp, Format::Vxlan].map(|format| {
            let spec = SocketSpec {
                address: address(at),
                port: port(format),
                format,
            };
            (bind(&spec).unwrap(), spec)
        })
    })
}

impl Namespace {
    pub fn new(role: &str) -> Namespace {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let space = Namespace(format!("dp-{role}-{}-{number}", std::process::id()));
        ip(&format!("netns add {}", space.0));
        space
    }

    pub fn ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.0));
    }

    /// Runs `body` on a thread of its own inside the namespace.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(format!("/run/netns/{}", self.0)).unwrap();
        let enter = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            body()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("netns delete {}", self.0));
    }
}

/// A UDP packet of `length` bytes from our pod to one of 192.0.2.2's.
pub fn packet(length: u16, dont_fragment: bool) -> Vec<u8> {
    packet_to([10, 244, 2, 2], length, dont_fragment)
}

/// A UDP packet of `length` bytes from our pod.
pub fn packet_to(destination: [u8; 4], length: u16, dont_fragment: bool) -> Vec<u8> {
    let flags = if dont_fragment { 0x40 } else { 0 };
    let mut header = vec![0x45, 0];
    header.extend(length.to_be_bytes());
    header.extend([0, 7, flags, 0, 64, 17, 0, 0, 10, 244, 1, 2]);
    header.extend(destination);
    let checksum = encap::checksum::ipv4_header(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header.extend([0x30, 0x39, 0x27, 0x0f]);
    header.extend((length - 20).to_be_bytes());
    header.resize(usize::from(length), 0);
    header
}

/// The node at 192.0.2.1.
pub fn spec(format: Format, underlay_mtu: u16) -> Spec {
    let peer = |number: u8| PeerSpec {
        name: format!("node{number}"),
        public: address(&format!("192.0.2.{number}")).into(),
        underlay_sources: vec![],
        subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
        accept_sources: vec![],
        format,
        vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, number])),
    };
    Spec {
        version: 1,
        node: NodeSpec {
            cluster: vec!["10.244.0.0/16".parse().unwrap()],
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            tunnel: vec![address("10.244.1.0")],
            public: address("192.0.2.1").into(),
            addresses: vec![address("192.0.2.1")],
            vtep_mac: Mac([2, 0, 0, 0, 0, 1]),
            vni: Vni::new(1).unwrap(),
            gbp: false,
            ipv6_over_udp: false,
            device_mtu: 1450,
            underlay_mtu,
            udp_port: 8285,
            vxlan_port: 8472,
        },
        peers: vec![peer(2), peer(3)],
        attachments: vec![address("10.244.1.2")],
        kernel_prefixes: vec![],
    }
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

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("run as root, with iproute2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {arguments}: {said}; these tests need root"
    );
}
