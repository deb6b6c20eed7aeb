//! What connection tracking knows of a connection, with conntrack(8) as the independent oracle.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use dataplane::kernel_path::FlowKey;
use tartan::kernel_path::flows::conntrack::{Connection, Tracking};

use crate::namespace::Namespace;

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// Connections are tracked, and one address is translated to the loopback's.
fn namespace() -> Namespace {
    let namespace = Namespace::with_tun();
    namespace.ip("route add 10.96.0.1/32 dev lo");
    namespace.shell(
        "nft -f - <<END
        table ip oracle {
            chain tracked { type filter hook output priority 0; ct state invalid drop; }
            chain translated { type nat hook output priority -100; ip daddr 10.96.0.1 dnat to 127.0.0.1; }
        }
END",
    );
    namespace
}

fn key(from: SocketAddr, to: SocketAddr, protocol: u8) -> FlowKey {
    let v4 = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => *v4.ip(),
        SocketAddr::V6(_) => panic!("{address}"),
    };
    FlowKey {
        source: v4(from),
        destination: v4(to),
        source_port: from.port(),
        destination_port: to.port(),
        protocol,
    }
}

fn back(key: &FlowKey) -> FlowKey {
    FlowKey {
        source: key.destination,
        destination: key.source,
        source_port: key.destination_port,
        destination_port: key.source_port,
        protocol: key.protocol,
    }
}

/// What conntrack(8) says of the connection that was opened with this key.
fn oracle(namespace: &Namespace, key: &FlowKey) -> String {
    let protocol = match key.protocol {
        6 => "tcp",
        _ => "udp",
    };
    let listed = namespace.shell(&format!("conntrack -L -p {protocol} 2>/dev/null"));
    let own = tuple(key);
    let mut lines = listed.lines();
    let line = lines.find(|line| line.contains(&own));
    line.unwrap_or_else(|| panic!("{own} in {listed}"))
        .to_owned()
}

fn tuple(key: &FlowKey) -> String {
    format!(
        "src={} dst={} sport={} dport={}",
        key.source, key.destination, key.source_port, key.destination_port
    )
}

fn agrees(found: &Connection, line: &str) {
    assert!(
        line.contains(&format!(
            "{} {}",
            tuple(&found.original),
            tuple(&found.reply)
        )) || (line.contains(&tuple(&found.original)) && line.contains(&tuple(&found.reply))),
        "{found:?} {line}"
    );
    assert_eq!(found.status & 4 != 0, line.contains("[ASSURED]"), "{line}");
    assert_eq!(
        found.tcp.is_some_and(|tcp| tcp.is_established),
        line.contains("ESTABLISHED"),
        "{line}"
    );
    let left: u64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(
        found.timeout.as_secs().abs_diff(left) <= 2,
        "{found:?} {line}"
    );
    assert!(!found.is_marked && !found.is_rewritten);
}

#[test]
fn connections_are_found_in_both_directions_as_conntrack_lists_them() {
    let namespace = namespace();
    let listener = namespace.inside(|| async { TcpListener::bind("127.0.0.1:0").unwrap() });
    let server = listener.local_addr().unwrap();
    let service = SocketAddr::from((SERVICE, server.port()));
    let (mut plain, translated) = namespace.inside(|| async {
        (
            TcpStream::connect(server).unwrap(),
            TcpStream::connect(service).unwrap(),
        )
    });
    let mut accepted = listener.accept().unwrap().0;
    plain.write_all(b"x").unwrap();
    accepted.read_exact(&mut [0]).unwrap();

    let opened = key(plain.local_addr().unwrap(), server, 6);
    let mut tracking = namespace.inside(|| async { Tracking::open().unwrap() });
    for asked in [opened, back(&opened)] {
        let found = tracking.get(&asked).unwrap().unwrap();
        agrees(&found, &oracle(&namespace, &opened));
        assert_eq!((found.original, found.reply), (opened, back(&opened)));
        assert_eq!(found.status & 0x30, 0, "untranslated");
    }

    let strict = tracking.get(&opened).unwrap().unwrap();
    assert!(!strict.tcp.unwrap().is_liberal);
    tracking.make_liberal(&strict).unwrap();
    let liberal = tracking.get(&opened).unwrap().unwrap();
    assert!(liberal.tcp.unwrap().is_liberal && liberal.tcp.unwrap().is_established);
    agrees(&liberal, &oracle(&namespace, &opened));

    let by_service = key(translated.local_addr().unwrap(), service, 6);
    let found = tracking.get(&by_service).unwrap().unwrap();
    agrees(&found, &oracle(&namespace, &by_service));
    assert_ne!(found.status & 0x30, 0, "translated: {found:?}");
    assert_eq!(
        tracking.get(&key(service, server, 6)).unwrap(),
        None,
        "no such connection"
    );
}

#[test]
fn one_packet_of_udp_is_no_stream() {
    let namespace = namespace();
    let (client, server) = namespace.inside(|| async {
        let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
        (bind(), bind())
    });
    let (from, to) = (client.local_addr().unwrap(), server.local_addr().unwrap());
    client.send_to(b"x", to).unwrap();
    let mut tracking = namespace.inside(|| async { Tracking::open().unwrap() });
    let opened = key(from, to, 17);
    let found = tracking.get(&opened).unwrap().unwrap();
    agrees(&found, &oracle(&namespace, &opened));
    assert_eq!(found.status & 4, 0, "not assured");
    namespace.shell("conntrack -D -p udp 2>/dev/null");
    assert_eq!(tracking.get(&opened).unwrap(), None, "forgotten");
}
