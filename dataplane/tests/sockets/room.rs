//! A worker that holds what a transmit socket did not take, and the poll that tells it of room.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use dataplane::counters::Counters;
use dataplane::drops::DropReason;
use dataplane::engine::{Engine, Seat};
use dataplane::limits::HOLD;
use dataplane::underlay::socket::{SocketSpec, Sockets, bind};
use encap::{Family, Format};
use socket2::SockRef;

use crate::rig::{address, bound, linked, spec, tunnel};

/// A slow link and a socket that takes one train at a time: each waits until the one before has left, a millisecond.
/// Nobody polls the socket before it is full. A worker that nobody told would wait for the end of each hold.
#[test]
fn a_full_transmit_socket_tells_of_room() {
    // The best of some, as others may use the processor too.
    let best = (0..ROUNDS).map(|_| time_of_a_round()).min().unwrap();
    assert!(best < HOLD * TRAINS / 2, "{best:?}");
}

/// How long all trains take that wait in the device when the worker begins.
fn time_of_a_round() -> Duration {
    let [near, far] = linked(&["192.0.2.1"], &["192.0.2.2"]);
    let device = tunnel(&near);
    near.ip("link set t0 txqueuelen 2000");
    near.tc("qdisc add dev u0 root tbf rate 500mbit burst 10k limit 1m");
    let _listener = far.inside(|| UdpSocket::bind("192.0.2.2:8472").unwrap());
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
    let seat = Seat {
        device,
        underlay,
        core: None,
        spin: Duration::ZERO,
    };
    let spec = spec(Format::Vxlan, Family::V4, 1500);
    let engine = Engine::start(vec![seat], counters.clone(), &spec).unwrap();
    // All before it begins: a packet that came later would wake the worker, too.
    let pod = near.inside(|| UdpSocket::bind("10.244.1.2:7000").unwrap());
    for _ in 0..TRAINS * TRAIN {
        pod.send_to(&[0; 1_372], "10.244.2.2:7000").unwrap();
    }
    let outbound = || counters.read().workers[0].outbound;
    let start = Instant::now();
    engine.go();
    while outbound().sent < u64::from(TRAINS * TRAIN) && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(100));
    }
    let time = start.elapsed();
    engine.stop();
    let flow = outbound();
    assert_eq!(flow.drops_of(DropReason::UnderlayFull), 0);
    assert_eq!(flow.sent, u64::from(TRAINS * TRAIN));
    // At the pace of the link: the socket was full.
    assert!(time > AT_LEAST, "{time:?}");
    time
}

/// Of packets with 1,400 bytes.
const TRAIN: u32 = 45;
const TRAINS: u32 = 20;
/// What all but the last train take on the link, at 500 Mb/s, is longer.
const AT_LEAST: Duration = Duration::from_millis(15);
const ROUNDS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(2);
