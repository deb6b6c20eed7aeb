use std::net::Ipv4Addr;

use super::*;
use crate::config::NetConf;

/// Loopback addresses that nothing else of this host uses, and the host's list of them.
const HELD: [IpAddr; 3] = [address(1), address(2), address(3)];

const fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 61, 7, last))
}

fn backend() -> Backend {
    let text = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","Port":48472}}"#;
    NetConf::parse(text).unwrap().backend
}

fn followed(ports: &Ports, to: IpAddr) -> (Ports, Option<String>) {
    let (ports, delay) = ports.follow(to.into(), &HELD, &backend());
    (ports, delay.map(|delay| delay.to_string()))
}

#[test]
fn sockets_are_opened_stay_and_move() {
    let (first, delay) = followed(&Ports::default(), address(1));
    assert_eq!((first.bound(), delay), (Some(address(1).into()), None));
    let names: Vec<_> = first.each().map(|(name, _)| name).collect();
    assert_eq!(names, ["receive-udp-v4-0", "receive-vxlan-v4-0"]);
    let (again, delay) = followed(&first, address(1));
    assert!(again.are(&first) && delay.is_none());
    let (moved, delay) = followed(&first, address(2));
    assert_eq!((moved.bound(), delay), (Some(address(2).into()), None));
    assert!(!moved.are(&first));
    assert!(moved.sockets().is_ok_and(|sets| sets.len() == 1));
}

#[test]
fn an_address_that_cannot_be_had_is_not_moved_to() {
    let (first, _) = followed(&Ports::default(), address(3));
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
    let (_, delay) = moved.follow(address(9).into(), &HELD, &backend());
    let delay = delay.unwrap();
    assert_eq!(delay.told(&leases, &leases[0]), delay.to_string());
    leases[1].public = address(2).into();
    let told = delay.told(&leases, &leases[0]);
    assert!(
        told.ends_with("until then n2 is not reached, which 127.61.7.2 belongs to now"),
        "{told}"
    );
    // Nothing to keep: the reason stands alone.
    let (none, delay) = followed(&Ports::default(), address(9));
    assert_eq!(none.bound(), None);
    assert!(
        delay
            .unwrap()
            .starts_with("no interface of this host has the address 127.61.7.9")
    );
}
