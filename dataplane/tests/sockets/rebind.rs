//! The underlay address of a node moves under its running workers.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dataplane::counters::{Counters, Flow};
use dataplane::engine::{Engine, EngineError, WorkerSetup};
use dataplane::underlay::socket::{SocketSpec, Sockets};
use encap::{Family, Format};

use testbed::{Namespace, linked};

use crate::rig::{bound, packet, port, spec, tunnel};

/// A running engine at 192.0.2.1, on a host that has 192.0.2.9 too, and its peer.
struct Moving {
    engine: Option<Engine>,
    counters: Counters,
    peer: UdpSocket,
    near: Namespace,
    far: Namespace,
}

impl Moving {
    /// And duplicates of its sockets.
    fn new() -> (Moving, [(OwnedFd, SocketSpec); 2]) {
        Moving::on(None)
    }

    /// With a worker on that core.
    fn on(core: Option<usize>) -> (Moving, [(OwnedFd, SocketSpec); 2]) {
        let [near, far] = linked(&["192.0.2.1", "192.0.2.9"], &["192.0.2.2"]);
        let device = tunnel(&near);
        let pair = bound(&near, "192.0.2.1");
        let kept = pair
            .each_ref()
            .map(|(socket, spec)| (socket.try_clone().unwrap(), *spec));
        let counters = Counters::create(1).unwrap();
        let setup = WorkerSetup {
            device,
            underlay: Sockets::adopt(pair).unwrap(),
            core,
            spin: Duration::from_micros(50),
        };
        let spec = spec(Format::Udp, Family::V4, 1500);
        let engine = Engine::start(vec![setup], counters.clone(), &spec).unwrap();
        engine.go();
        let at = ("192.0.2.2", port(Format::Udp));
        let peer = far.inside(|| UdpSocket::bind(at).unwrap());
        peer.set_read_timeout(Some(FULL_INBOX_WAIT)).unwrap();
        let moving = Moving {
            engine: Some(engine),
            counters,
            peer,
            near,
            far,
        };
        (moving, kept)
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    /// The peer's pod sends to ours, by way of `to`. The socket hears whether that is refused.
    fn send_in(&self, to: &str) -> UdpSocket {
        let sender = self.far.inside(|| UdpSocket::bind("192.0.2.2:0").unwrap());
        sender.connect((to, port(Format::Udp))).unwrap();
        sender.send(&inner()).unwrap();
        sender
    }

    /// Our pod says `word` to the peer's; where the datagram comes from.
    fn source_of_ours(&self, word: &[u8]) -> String {
        self.near.inside(|| {
            let pod = UdpSocket::bind("10.244.1.2:7000").unwrap();
            pod.send_to(word, "10.244.2.2:7000").unwrap();
        });
        let mut datagram = [0; 2048];
        loop {
            // Replies of our kernel to the packets of the peer's pod come here too.
            let (length, from) = self.peer.recv_from(&mut datagram).unwrap();
            if datagram[..length].ends_with(word) {
                return from.ip().to_string();
            }
        }
    }

    fn inbound(&self) -> Flow {
        self.counters.read().workers[0].inbound
    }

    fn delivers(&self, count: u64) -> bool {
        let deadline = Instant::now() + FULL_INBOX_WAIT;
        while self.inbound().delivered < count && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inbound().delivered == count
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.stop();
        }
    }
}

/// What the peer's pod says: the rig's packet the other way round, under the same checksum.
fn inner() -> Vec<u8> {
    let mut packet = packet(40, false);
    let (source, destination) = packet[12..20].split_at_mut(4);
    source.swap_with_slice(destination);
    packet
}

/// Paused workers read nothing, and what arrives meanwhile waits for them, or for another service that reads the same sockets;
/// resumed, they go on, again and again.
#[test]
fn what_arrives_while_workers_are_paused_is_delivered_when_they_are_resumed() {
    let (moving, _kept) = Moving::new();
    for round in 0..5 {
        let sender = moving.send_in("192.0.2.1");
        assert!(moving.delivers(2 * round + 1), "{:?}", moving.inbound());
        moving.engine().pause();
        let deadline = Instant::now() + FULL_INBOX_WAIT;
        while !moving.engine().is_paused() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(moving.engine().is_paused());
        let before = moving.counters.read().workers[0];
        assert_eq!((before.inbound.held, before.outbound.held), (0, 0));
        sender.send(&inner()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(moving.inbound(), before.inbound, "nothing is read");
        assert!(moving.engine().resume());
        assert!(moving.delivers(2 * round + 2), "{:?}", moving.inbound());
    }
    assert!(!moving.engine().resume(), "they are not paused");
    assert_eq!(moving.source_of_ours(b"word"), "192.0.2.1");
}

/// A core that is not to be had keeps no worker from its packets, and the engine says so.
#[test]
fn a_worker_that_cannot_be_pinned_runs_and_is_named() {
    // The last that the kernel's mask has room for here.
    for (core, refused) in [(1023, vec![0]), (0, vec![])] {
        let (moving, _) = Moving::on(Some(core));
        assert_eq!(moving.source_of_ours(b"word"), "192.0.2.1");
        assert_eq!(moving.engine().unpinned().collect::<Vec<_>>(), refused);
    }
}

#[test]
fn running_workers_adopt_the_sockets_of_a_new_address_and_the_old_one_is_dead() {
    let (moving, kept) = Moving::new();
    moving.send_in("192.0.2.1");
    assert!(moving.delivers(1), "{:?}", moving.inbound());
    assert_eq!(moving.source_of_ours(b"before"), "192.0.2.1");
    let none = moving.engine().rebind(Vec::new());
    let (given, workers) = match none {
        Err(EngineError::Sockets { given, workers }) => (given, workers),
        other => panic!("{other:?}"),
    };
    assert_eq!((given, workers), (0, 1));

    let new = Sockets::adopt(bound(&moving.near, "192.0.2.9")).unwrap();
    moving.engine().rebind(vec![new]).unwrap();
    moving.send_in("192.0.2.9");
    assert!(moving.delivers(2), "{:?}", moving.inbound());
    assert_eq!(moving.source_of_ours(b"after"), "192.0.2.9");
    // While the keeper, or another process, has a duplicate, the kernel takes the datagram, but no worker does.
    moving.send_in("192.0.2.1");
    moving.send_in("192.0.2.9");
    assert!(moving.delivers(3), "{:?}", moving.inbound());
    drop(kept);
    // A process that another test starts may have duplicates too, until it executes: but no longer than one wait.
    let refused = (0..2).any(|_| {
        let sender = moving.send_in("192.0.2.1");
        sender.set_read_timeout(Some(FULL_INBOX_WAIT)).unwrap();
        sender.recv(&mut [0]).unwrap_err().kind() == ErrorKind::ConnectionRefused
    });
    assert!(refused);
    let flow = moving.inbound();
    assert_eq!((flow.received, flow.delivered, flow.balance()), (3, 3, 0));
}

/// Where one of several sockets moves, the others are handed over as duplicates.
#[test]
fn a_socket_that_stays_loses_nothing() {
    let (moving, kept) = Moving::new();
    for round in 1..=ROUNDS {
        (0..BURST).for_each(|_| drop(moving.send_in("192.0.2.1")));
        let again = kept
            .each_ref()
            .map(|(socket, spec)| (socket.try_clone().unwrap(), *spec));
        let again = Sockets::adopt(again).unwrap();
        moving.engine().rebind(vec![again]).unwrap();
        (0..BURST).for_each(|_| drop(moving.send_in("192.0.2.1")));
        assert!(moving.delivers(2 * BURST * round), "{:?}", moving.inbound());
    }
    assert_eq!(moving.inbound().dropped(), 0);
}

const FULL_INBOX_WAIT: Duration = Duration::from_secs(5);
const ROUNDS: u64 = 20;
const BURST: u64 = 5;
