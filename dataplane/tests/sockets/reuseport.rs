//! Which worker's socket gets what a node sends from its transmit sockets.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use dataplane::limits::TRANSMIT_SOCKETS;
use dataplane::underlay::socket::{
    SocketSpec, UnderlayError, bind, bind_in_group, bind_transmit, select_by_source_port,
    set_group_open,
};
use encap::{Family, Format};

use testbed::{await_link, linked};

use crate::rig::node;

/// By the kernel's own hash a sixth of these would be uneven at the least.
#[test]
fn what_a_node_sends_comes_to_all_workers_of_another_alike() {
    for family in [Family::V4, Family::V6] {
        let at = |number| node(family, number).to_string();
        let [near, far] = linked(&[&at(1)], &[&at(2)]);
        let heard = near.inside(|| UdpSocket::bind((node(family, 1), 0)).unwrap());
        heard.set_read_timeout(FULL_INBOX_WAIT).unwrap();
        await_link(&far, &heard);
        for receiving in [2, 3, 4, 8] {
            let group = near.inside(|| group(family, receiving));
            for sending in 1..=4 {
                send(&far.inside(|| transmits(family, 2, sending)));
                let shares = shares(&group, sending * TRANSMIT_SOCKETS);
                assert!(
                    are_even(&shares),
                    "{family:?}, from {sending} workers: {shares:?}"
                );
            }
        }
    }
}

/// A node of many workers among nodes that have one each, and so fewer ports than it has workers.
#[test]
fn what_several_nodes_send_comes_to_all_workers_alike() {
    const NODES: std::ops::Range<u8> = 2..26;
    for family in [Family::V4, Family::V6] {
        let at = |number| node(family, number).to_string();
        let far: Vec<_> = NODES.map(at).collect();
        let far: Vec<_> = far.iter().map(String::as_str).collect();
        let [near, far] = linked(&[&at(1)], &far);
        let heard = near.inside(|| UdpSocket::bind((node(family, 1), 0)).unwrap());
        heard.set_read_timeout(FULL_INBOX_WAIT).unwrap();
        await_link(&far, &heard);
        for receiving in [3, 8, 24] {
            let group = near.inside(|| group(family, receiving));
            for number in NODES {
                send(&far.inside(|| transmits(family, number, 1)));
            }
            let shares = shares(&group, NODES.len() * TRANSMIT_SOCKETS);
            assert!(are_even(&shares), "{family:?}: {shares:?}");
        }
    }
}

fn are_even(shares: &[usize]) -> bool {
    shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1
}

fn send(sockets: &[UdpSocket]) {
    for socket in sockets {
        let at = socket.local_addr().unwrap().ip();
        let family = Family::of(at);
        socket.send_to(b"x", to(family)).unwrap();
    }
}

/// The group of a node that has so many workers.
fn group(family: Family, workers: usize) -> Vec<UdpSocket> {
    let spec = spec(family, 1, None);
    // A program that another test is just starting holds our sockets until its exec, those that we closed too.
    let mut tries = (0..500).map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        bind(&spec)
    });
    let is_taken = |bound: &Result<_, _>| matches!(bound, Err(UnderlayError::PortTaken(_)));
    let first = tries.find(|bound| !is_taken(bound)).unwrap().unwrap();
    set_group_open(first.as_fd(), true).unwrap();
    let others = (1..workers).map(|_| bind_in_group(&spec).unwrap());
    let group: Vec<_> = [first].into_iter().chain(others).collect();
    select_by_source_port(group[0].as_fd(), family, workers as u32).unwrap();
    let socket = |socket| {
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(FULL_INBOX_WAIT).unwrap();
        socket
    };
    group.into_iter().map(socket).collect()
}

/// The transmit sockets of node `number`, which has so many workers.
fn transmits(family: Family, number: u8, workers: usize) -> Vec<UdpSocket> {
    let socket = |worker| {
        let lanes = (0..TRANSMIT_SOCKETS).map(Some);
        lanes.map(move |lane| {
            bind_transmit(&spec(family, number, lane), worker)
                .unwrap()
                .into()
        })
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

const FULL_INBOX_WAIT: Option<Duration> = Some(Duration::from_millis(1));

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
