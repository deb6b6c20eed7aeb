//! Which worker's socket gets what a node sends from its transmit sockets.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use dataplane::limits::TRANSMIT_SOCKETS;
use dataplane::underlay::socket::{SocketSpec, bind, join, share, spread, transmit};
use encap::{Family, Format};

use crate::rig::{await_link, linked, node};

/// By the kernel's own hash a sixth of these would be uneven at the least.
#[test]
fn what_a_node_sends_comes_to_all_workers_of_another_alike() {
    for family in [Family::V4, Family::V6] {
        let at = |number| node(family, number).to_string();
        let [near, far] = linked(&[&at(1)], &[&at(2)]);
        let heard = near.inside(|| UdpSocket::bind((node(family, 1), 0)).unwrap());
        heard.set_read_timeout(PATIENCE).unwrap();
        await_link(&far, &heard);
        for receiving in [2, 3, 4, 8] {
            let group = near.inside(|| group(family, receiving));
            for sending in 1..=4 {
                for socket in far.inside(|| transmits(family, sending)) {
                    socket.send_to(b"x", to(family)).unwrap();
                }
                let shares = shares(&group, sending * TRANSMIT_SOCKETS);
                let (least, most) = (shares.iter().min(), shares.iter().max());
                let even = most.unwrap() - least.unwrap() <= 1;
                assert!(even, "{family:?}, from {sending} workers: {shares:?}");
            }
        }
    }
}

/// The group of a node that has so many workers.
fn group(family: Family, workers: usize) -> Vec<UdpSocket> {
    let spec = spec(family, 1, None);
    let first = bind(&spec).unwrap();
    share(first.as_fd(), true).unwrap();
    let others = (1..workers).map(|_| join(&spec).unwrap());
    let group: Vec<_> = [first].into_iter().chain(others).collect();
    spread(group[0].as_fd(), family, workers as u32).unwrap();
    let socket = |socket| {
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(PATIENCE).unwrap();
        socket
    };
    group.into_iter().map(socket).collect()
}

/// The transmit sockets of a node that has so many workers.
fn transmits(family: Family, workers: usize) -> Vec<UdpSocket> {
    let socket = |worker| {
        let lanes = (0..TRANSMIT_SOCKETS).map(Some);
        lanes.map(move |lane| transmit(&spec(family, 2, lane), worker).unwrap().into())
    };
    (0..workers).flat_map(socket).collect()
}

fn spec(family: Family, number: u8, lane: Option<usize>) -> SocketSpec {
    SocketSpec {
        address: node(family, number),
        port: if lane.is_some() { 0 } else { 8472 },
        format: Format::Vxlan,
        lane,
    }
}

fn to(family: Family) -> SocketAddr {
    SocketAddr::new(node(family, 1), 8472)
}

const PATIENCE: Option<Duration> = Some(Duration::from_millis(1));

/// How many of `sent` datagrams come to each of a group.
fn shares(group: &[UdpSocket], sent: usize) -> Vec<usize> {
    let mut shares = vec![0; group.len()];
    let end = Instant::now() + Duration::from_secs(10);
    while shares.iter().sum::<usize>() < sent {
        assert!(Instant::now() < end, "{shares:?} of {sent}");
        for (share, socket) in shares.iter_mut().zip(group) {
            let mut buffer = [0; 16];
            while socket.recv(&mut buffer).is_ok() {
                *share += 1;
            }
        }
    }
    shares
}
