//! Random datagrams and packets, each handed over with the number of packets that it counts as.

use std::net::{IpAddr, SocketAddr};

use dataplane::families::PublicAddresses;
use dataplane::limits::QUOTE;
use dataplane::underlay::ErrorReport;
use dataplane::underlay::memory::Datagram;
use encap::{Ecn, Family, Format};

use crate::world::node::{Node, port};
use crate::world::packets::{datagram, dont_fragment, pattern, plain, tcp, udp, unfinished, vxlan};
use crate::world::plan::{ip, pod, pod6};

/// Datagrams from addresses that are no peer's: whatever they hold, they count one each.
pub fn from_strangers(node: &mut Node, random: &mut fastrand::Rng) {
    for _ in 0..random.u8(1..20) {
        let payload = match random.u8(..3) {
            0 => bytes(random, 300),
            1 => {
                vxlan(
                    2,
                    1,
                    &unfinished(tcp(pod(2, 0), pod(1, 0), &pattern(5_000))),
                )
                .payload
            }
            _ => tcp(pod(2, 0), pod(1, 0), &pattern(5_000)),
        };
        let from = SocketAddr::new(ip("203.0.113.1"), random.u16(..));
        let datagram = datagram(1, 1, format(random), payload);
        node.hand(Datagram { from, ..datagram }, 1);
    }
}

/// Datagrams from a peer's address: noise, damaged packets, super-packets, GRO buffers.
pub fn from_peers(node: &mut Node, random: &mut fastrand::Rng) {
    let Some(peer) = random.choice(node.spec.cluster.peers.clone()) else {
        return;
    };
    let (i, j) = (
        number(node.spec.cluster.node.vtep_mac.v4.0),
        number(peer.vtep_mac.v4.0),
    );
    for _ in 0..random.u8(1..20) {
        let (mut datagram, weight) = match random.u8(..6) {
            0 => (datagram(j, i, format(random), bytes(random, 300)), 1),
            1 => (
                vxlan(j, i, &damaged(random, udp(pod(j, 0), pod(i, 0), b"noise"))),
                1,
            ),
            2 => (
                plain(j, i, &damaged(random, tcp(pod(j, 0), pod(i, 0), b"noise"))),
                1,
            ),
            3 => (
                vxlan(
                    j,
                    i,
                    &unfinished(tcp(pod(j, 0), pod(i, 0), &pattern(5_000))),
                ),
                4,
            ),
            4 => {
                let packet = unfinished(udp(pod6(j, 0), pod6(i, 0), &pattern(5_000)));
                (
                    Datagram {
                        segment: Some(600),
                        ..vxlan(j, i, &packet)
                    },
                    9,
                )
            }
            _ => {
                // No version nibble: this is no packet, and so no super-packet.
                let payload = vec![0xff; random.usize(2..5_000)];
                let size = random.usize(1..payload.len());
                let weight = payload.len().div_ceil(size) as u64;
                let merged = datagram(j, i, format(random), payload);
                (
                    Datagram {
                        segment: Some(size as u16),
                        ..merged
                    },
                    weight,
                )
            }
        };
        let from = any_of(random, peer.public);
        datagram.from.set_ip(from);
        if let Some(to) = node.spec.cluster.node.public.of(Family::of(from)) {
            datagram.to.set_ip(to);
        }
        datagram.ecn = Ecn::of(random.u8(..));
        node.hand(datagram, weight);
    }
}

/// Packets from the pods of node `i`: noise, damaged packets, and some that are too large for any path.
pub fn from_pods(node: &mut Node, i: u8, random: &mut fastrand::Rng) {
    for _ in 0..random.u8(1..40) {
        let to = random.u8(1..6);
        node.push(match random.u8(..5) {
            0 => bytes(random, 300),
            1 => damaged(random, udp(pod(i, 0), pod(to, 0), b"noise")),
            2 => damaged(random, tcp(pod6(i, 0), pod6(to, 0), b"noise")),
            3 => udp(pod(i, 1), pod(to, 1), &pattern(random.usize(1_500..60_000))),
            _ => dont_fragment(udp(
                pod(i, 1),
                pod(to, 1),
                &pattern(random.usize(1_500..9_000)),
            )),
        });
    }
}

/// A report about a path, true or not, and an error that makes the node read it.
pub fn report(node: &mut Node, random: &mut fastrand::Rng) {
    let format = format(random);
    let peer = random.choice(&node.spec.cluster.peers);
    let to = peer.map_or(ip("203.0.113.1"), |peer| any_of(random, peer.public));
    let mut quote = [0; QUOTE];
    random.fill(&mut quote);
    let failure = ErrorReport {
        to: SocketAddr::new(to, port(format)),
        socket: 0,
        local: random.bool(),
        errno: random.choice([libc::EMSGSIZE, libc::ECONNREFUSED]).unwrap(),
        info: random.u32(..2_000),
        quote,
        quoted: random.usize(..=QUOTE),
    };
    let underlay = node.worker.underlay_mut();
    underlay.error_reports.push_back((format, failure));
    underlay.errors.push_back(libc::EMSGSIZE);
}

fn bytes(random: &mut fastrand::Rng, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; random.usize(..most)];
    random.fill(&mut bytes);
    bytes
}

/// `packet` with up to three wrong bits, or without its end.
fn damaged(random: &mut fastrand::Rng, mut packet: Vec<u8>) -> Vec<u8> {
    for _ in 0..random.u8(..4) {
        let place = random.usize(..packet.len());
        packet[place] ^= 1 << random.u8(..8);
    }
    if random.u8(..4) == 0 {
        packet.truncate(random.usize(..packet.len()));
    }
    packet
}

fn format(random: &mut fastrand::Rng) -> Format {
    random.choice([Format::Udp, Format::Vxlan]).unwrap()
}

fn any_of(random: &mut fastrand::Rng, public: PublicAddresses) -> IpAddr {
    let addresses: Vec<_> = public.iter().collect();
    random.choice(addresses).unwrap()
}

/// The number of the node with that MAC.
fn number(mac: [u8; 6]) -> u8 {
    mac[5]
}
