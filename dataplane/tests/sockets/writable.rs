//! A worker that holds what a transmit socket did not take, and the poll that reports the socket as writable.

use std::fs;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dataplane::counters::{Counters, Flow};
use dataplane::drops::DropReason;
use dataplane::engine::{Engine, WorkerSetup};
use dataplane::limits::HOLD;
use dataplane::underlay::socket::{SocketSpec, Sockets, bind};
use encap::{Family, Format};
use rustix::fs::fstat;
use socket2::SockRef;

use testbed::{Namespace, linked};

use crate::rig::{address, bound, spec, tunnel};

/// A slow link and a socket that takes one GSO batch at a time: each waits until the one before has left, a millisecond.
/// The worker does not poll the socket before it is full. Without the poll it would wait for the end of each hold.
#[test]
fn what_is_held_is_sent_when_the_socket_is_writable() {
    // Others may use the processor too: one of the rounds must show what it can do.
    let times: Vec<_> = (0..ROUNDS).map(|_| time_of_a_round()).collect();
    let bar = HOLD * GSO_BATCHES / 2;
    assert!(times.iter().any(|time| *time < bar), "{times:?}");
}

/// How long all GSO batches take that wait in the device when the worker begins.
fn time_of_a_round() -> Duration {
    let node = Node::behind("rate 500mbit burst 10k limit 1m");
    // All before it begins: a packet that came later would wake the worker, too.
    for _ in 0..GSO_BATCHES * GSO_BATCH {
        node.send();
    }
    let start = Instant::now();
    node.engine.go();
    until(|| node.outbound().sent == u64::from(GSO_BATCHES * GSO_BATCH));
    let time = start.elapsed();
    let flow = node.stop();
    assert_eq!(flow.drops_of(DropReason::UnderlayFull), 0);
    assert_eq!(flow.sent, u64::from(GSO_BATCHES * GSO_BATCH));
    // At the pace of the link: the socket was full.
    assert!(time > AT_LEAST, "{time:?}");
    time
}

/// The kernel calls the poll of a socket for every datagram that leaves it, so a transmit socket is in the worker's
/// poll for as long as something waits for it, and no longer.
#[test]
fn a_transmit_socket_is_polled_while_it_is_full() {
    let node = Node::behind("rate 8kbit burst 2k limit 1m");
    node.engine.go();
    assert!(!node.polls_for_room());
    // A socket that stays full: what is held is dropped after its time, and the next is held.
    assert!(until(|| {
        node.send();
        node.polls_for_room()
    }));
    let rests = || {
        let flow = node.outbound();
        flow.received > 0 && flow.held == 0 && flow.balance() == 0
    };
    assert!(until(|| rests() && !node.polls_for_room()));
    let flow = node.stop();
    assert!(flow.drops_of(DropReason::UnderlayFull) > 0, "{flow:?}");
}

/// A node with one worker and one transmit socket, behind a slow link.
struct Node {
    engine: Engine,
    counters: Counters,
    /// In a pod of the node.
    pod: UdpSocket,
    /// A duplicate.
    transmit: OwnedFd,
    _listener: UdpSocket,
    _namespaces: [Namespace; 2],
}

impl Node {
    /// The link is shaped by a token bucket filter.
    fn behind(bucket: &str) -> Node {
        let [near, far] = linked(&["192.0.2.1"], &["192.0.2.2"]);
        let device = tunnel(&near);
        near.ip("link set t0 txqueuelen 2000");
        near.tc(&format!("qdisc add dev u0 root tbf {bucket}"));
        let listener = far.inside(|| UdpSocket::bind("192.0.2.2:8472").unwrap());
        let transmit = SocketSpec {
            address: address("192.0.2.1"),
            port: 0,
            format: Format::Vxlan,
            lane: Some(0),
        };
        let socket = near.inside(|| bind(&transmit)).unwrap();
        let kept = socket.try_clone().unwrap();
        let sockets = bound(&near, "192.0.2.1")
            .into_iter()
            .chain([(socket, transmit)]);
        let underlay = Sockets::adopt(sockets).unwrap();
        // The least that there is.
        SockRef::from(&kept).set_send_buffer_size(1).unwrap();
        let counters = Counters::create(1).unwrap();
        let setup = WorkerSetup {
            device,
            underlay,
            core: None,
            spin: Duration::ZERO,
        };
        let spec = spec(Format::Vxlan, Family::V4, 1500);
        Node {
            engine: Engine::start(vec![setup], counters.clone(), &spec).unwrap(),
            counters,
            pod: near.inside(|| UdpSocket::bind("10.244.1.2:7000").unwrap()),
            transmit: kept,
            _listener: listener,
            _namespaces: [near, far],
        }
    }

    fn send(&self) {
        self.pod.send_to(&[0; 1_372], "10.244.2.2:7000").unwrap();
    }

    fn outbound(&self) -> Flow {
        self.counters.read().workers[0].outbound
    }

    /// Whether some poll of this process waits for room of the transmit socket (proc_pid_fdinfo(5)).
    fn polls_for_room(&self) -> bool {
        let inode = format!("ino:{:x}", fstat(&self.transmit).unwrap().st_ino);
        let descriptors = fs::read_dir("/proc/self/fdinfo").unwrap();
        // Those of other tests come and go.
        let polled = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
        polled
            .flat_map(|info| info.lines().map(str::to_owned).collect::<Vec<_>>())
            .any(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                let events = words.iter().skip_while(|word| **word != "events:").nth(1);
                let room = events
                    .is_some_and(|word| u32::from_str_radix(word, 16).unwrap() & EPOLLOUT != 0);
                room && words.contains(&inode.as_str())
            })
    }

    /// Stops the worker, and returns what it did.
    fn stop(self) -> Flow {
        self.engine.stop();
        self.counters.read().workers[0].outbound
    }
}

/// Whether it becomes so in time.
fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < FULL_INBOX_WAIT {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    false
}

/// Of packets with 1,400 bytes.
const GSO_BATCH: u32 = 45;
const GSO_BATCHES: u32 = 20;
/// What all but the last GSO batch take on the link, at 500 Mb/s, is longer.
const AT_LEAST: Duration = Duration::from_millis(15);
const ROUNDS: usize = 5;
const FULL_INBOX_WAIT: Duration = Duration::from_secs(5);
/// epoll_ctl(2).
const EPOLLOUT: u32 = 4;
