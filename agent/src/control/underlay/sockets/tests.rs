use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use dataplane::limits::TRANSMIT_SOCKETS;
use encap::Format;
use rustix::net::sockopt::{set_socket_reuseport, socket_reuseport};
use rustix::net::{AddressFamily, RecvFlags, SocketType};

use super::*;
use crate::config::NetConf;
use crate::control::underlay::slot::SlotGroup;

/// Loopback addresses that nothing else of this host uses, and the host's list of them.
const HELD: [IpAddr; 3] = [address(1), address(2), address(3)];

const fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 61, 7, last))
}

fn format_ports() -> ReceivePorts {
    let text = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","Port":48472}}"#;
    ReceivePorts::of(&NetConf::parse(text).unwrap().backend)
}

fn sentence(delay: &Delay) -> String {
    delay.problem(&[], "n1", None).to_string()
}

fn followed(ports: &UnderlaySockets, to: IpAddr) -> (UnderlaySockets, Option<String>) {
    let (ports, delay) = ports.follow(to.into(), &HELD, format_ports());
    (ports, delay.map(|delay| sentence(&delay)))
}

#[test]
fn sockets_are_opened_stay_and_move() {
    let (first, delay) = followed(&UnderlaySockets::none(1), address(1));
    assert_eq!((first.bound(), delay), (Some(address(1).into()), None));
    let names: Vec<_> = first.receiving().queues().map(|(name, _)| name).collect();
    assert_eq!(names, ["receive-udp-v4-0", "receive-vxlan-v4-0"]);
    let (again, delay) = followed(&first, address(1));
    assert!(again.are(&first) && delay.is_none());
    let (moved, delay) = followed(&first, address(2));
    assert_eq!((moved.bound(), delay), (Some(address(2).into()), None));
    assert!(!moved.are(&first));
    assert!(moved.duplicates().is_ok_and(|sets| sets.len() == 1));
}

/// Each worker has a socket of its own in a group, and each a share of the flows. Who holds the port already is not joined,
/// and who just binds it is refused; only the same user can join the group, and asks for that. A single worker's socket
/// is open to nobody.
#[test]
fn workers_share_a_port_and_no_other_program_by_chance() {
    let at = address(4);
    let taken = UdpSocket::bind((at, 48472)).unwrap();
    let none = UnderlaySockets::none(3).follow(at.into(), &[at], format_ports());
    let refused = none.1.map(|delay| sentence(&delay));
    assert!(refused.is_some_and(|delay| delay.starts_with("UDP port 48472")));
    drop(taken);
    let (ports, _) = UnderlaySockets::none(3).follow(at.into(), &[at], format_ports());
    assert_eq!(named(&ports).len(), 3 * (1 + 1 + TRANSMIT_SOCKETS));
    assert_eq!(ports.duplicates().map(|sets| sets.len()).ok(), Some(3));
    assert!(UdpSocket::bind((at, 48472)).is_err());
    let joins = || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        set_socket_reuseport(&socket, true).unwrap();
        rustix::net::bind(&socket, &SocketAddr::new(at, 48472)).is_ok()
    };
    // The same user's, at once closed again.
    assert!(joins());
    let shares = shares(&ports, 3);
    assert_eq!(shares.iter().sum::<usize>(), FLOWS, "{shares:?}");
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    drop(ports);
    let _alone = UnderlaySockets::none(1).follow(at.into(), &[at], format_ports());
    assert!(!joins());
}

/// A take-over by more workers while the host has not the address: each has its sockets before any is read. A first
/// start there, or a place of which there is no socket, is refused.
#[test]
fn workers_come_while_the_address_is_away() {
    // No host has these (RFC 5737).
    let [away, other] = ["192.0.2.61", "192.0.2.62"].map(|text| text.parse::<IpAddr>().unwrap());
    let inherited = |workers| {
        let bound = |group: SlotGroup| {
            let spec = group.spec(away, format_ports());
            let worker = 0;
            let socket = match spec.lane {
                None => socket::bind_in_group(&spec),
                Some(_) => socket::bind_transmit(&spec, worker),
            };
            let socket = socket.unwrap();
            Arc::new(OwnSocket {
                spec,
                worker,
                socket,
            })
        };
        let groups = slots().filter(|group| group.port.family == Family::V4);
        let ports = groups.map(bound).collect();
        UnderlaySockets { workers, ports }
    };
    for wanted in [away, other, "2001:db8::61".parse().unwrap()] {
        let before = inherited(3);
        let (ports, delay) = before.follow(wanted.into(), &[], format_ports());
        assert_eq!(delay.is_some(), wanted != away, "{wanted}");
        assert!(before.ports.iter().all(|port| ports.has(port)), "{wanted}");
        assert_eq!(
            named(&ports).len(),
            3 * (1 + 1 + TRANSMIT_SOCKETS),
            "{wanted}"
        );
        assert_eq!(ports.bound(), Some(away.into()));
        assert!(ports.duplicates().is_ok_and(|sets| sets.len() == 3));
    }
    let (none, delay) = UnderlaySockets::none(3).follow(away.into(), &[], format_ports());
    assert!(none.bound().is_none() && delay.is_some());
}

/// With more workers sockets join the group, with fewer they leave it, and what is left takes all flows.
#[test]
fn workers_come_and_go_without_a_moment_in_which_the_port_is_free() {
    let at = address(5);
    let one = UnderlaySockets::none(1)
        .follow(at.into(), &[at], format_ports())
        .0;
    for workers in [2, 4, 1, 3] {
        let before = one.clone().of_workers(workers);
        let (now, delay) = before.follow(at.into(), &[at], format_ports());
        assert!(delay.is_none());
        assert!(before.ports.iter().all(|port| now.has(port)));
        let shares = shares(&now, workers);
        assert_eq!(shares.iter().sum::<usize>(), FLOWS, "{shares:?}");
        assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
        let shared = socket_reuseport(&one.ports[0].socket).unwrap();
        assert_eq!(shared, workers > 1);
        // To another address they go together.
        let (moved, delay) = now.follow(address(6).into(), &[address(6)], format_ports());
        assert!(delay.is_none());
        assert_eq!(moved.bound(), Some(address(6).into()));
        assert_eq!(named(&moved), named(&now));
    }
}

impl UnderlaySockets {
    /// As a service finds them that has another number of workers.
    fn of_workers(self, workers: usize) -> UnderlaySockets {
        UnderlaySockets { workers, ..self }
    }
}

const FLOWS: usize = 64;

/// How many of [`FLOWS`] come to each worker's VXLAN socket: to each a remainder of their ports.
fn shares(ports: &UnderlaySockets, workers: usize) -> Vec<usize> {
    let receiving = |port: &&Arc<OwnSocket>| {
        port.spec.lane.is_none() && port.spec.format == Format::Vxlan && port.worker < workers
    };
    let sockets: Vec<_> = ports.ports.iter().filter(receiving).collect();
    assert_eq!(sockets.len(), workers);
    ports.duplicates().unwrap();
    let mut remainders = vec![0; workers];
    for _ in 0..FLOWS {
        let flow = UdpSocket::bind("127.0.0.1:0").unwrap();
        remainders[usize::from(flow.local_addr().unwrap().port()) % workers] += 1;
        let to = (sockets[0].spec.address, 48472);
        assert_eq!(flow.send_to(b"x", to).unwrap(), 1);
    }
    let count = |port: &Arc<OwnSocket>| {
        let mut byte = [0];
        let received = || rustix::net::recv(&port.socket, &mut byte, RecvFlags::DONTWAIT).ok();
        std::iter::from_fn(received).count()
    };
    let shares: Vec<_> = sockets.into_iter().map(count).collect();
    // The kernel counts sockets in the order of its own.
    let sorted = |counts: &[usize]| {
        let mut counts = counts.to_vec();
        counts.sort_unstable();
        counts
    };
    assert_eq!(sorted(&shares), sorted(&remainders));
    shares
}

fn named(ports: &UnderlaySockets) -> std::collections::BTreeSet<String> {
    ports.ports.iter().map(|port| port.name()).collect()
}

#[test]
fn an_address_that_cannot_be_had_is_not_moved_to() {
    let (first, _) = followed(&UnderlaySockets::none(1), address(3));
    // The kernel would let us bind it: all of 127/8 is its own. The host's list does not have it.
    let (kept, delay) = followed(&first, address(9));
    assert!(kept.are(&first));
    let delay = delay.unwrap();
    for part in [
        "address is 127.61.7.9 now",
        "no interface",
        "arrive at 127.61.7.3",
        "or correct",
    ] {
        assert!(delay.contains(part), "{delay}");
    }
    // Of two formats one port is taken: neither moves.
    let taken = std::net::UdpSocket::bind((address(2), 48472)).unwrap();
    let (kept, delay) = followed(&first, address(2));
    assert!(kept.are(&first));
    let delay = delay.unwrap();
    assert!(
        delay.contains("arrive at 127.61.7.3: UDP port 48472"),
        "{delay}"
    );
    drop(taken);
    let (moved, delay) = followed(&kept, address(2));
    assert_eq!((moved.bound(), delay), (Some(address(2).into()), None));
    // The address that we are to leave is another node's already.
    let list = "[[node]]\nname = \"n1\"\nsubnets = [\"10.244.1.0/24\"]\npublic-ip = \"192.0.2.1\"\n\
                [[node]]\nname = \"n2\"\nsubnets = [\"10.244.2.0/24\"]\npublic-ip = \"192.0.2.2\"\n";
    let net_conf = NetConf::parse(r#"{"Network":"10.244.0.0/16"}"#).unwrap();
    let mut leases = crate::registry::parse(list, &net_conf).unwrap();
    let (_, delay) = moved.follow(address(9).into(), &HELD, format_ports());
    let delay = delay.unwrap();
    let words = |leases: &[_]| delay.problem(leases, "n1", None).sentence();
    assert!(!words(&leases).contains("until then"), "{}", words(&leases));
    leases[1].public = address(2).into();
    assert!(
        words(&leases).ends_with("until then n2 is not reached, which 127.61.7.2 belongs to now"),
        "{}",
        words(&leases)
    );
    // Nothing to keep: the reason stands alone.
    let (none, delay) = followed(&UnderlaySockets::none(1), address(9));
    assert_eq!(none.bound(), None);
    assert!(
        delay
            .unwrap()
            .starts_with("no interface of this host has the address 127.61.7.9")
    );
}
