//! What a proposal says of the socket that a TCP connection ends at, with real sockets in the pod's namespace.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use testbed::{Namespace, linked};

use crate::packets::*;
use crate::rig::*;

/// `event.kind`.
const FLOW_IN: u32 = 2;
const FLOW_IN_SOCKET: u32 = 4;

/// A host with the peer's pod address, and a pod behind a veth.
fn host_and_pod() -> [Namespace; 2] {
    let [host, pod] = linked(&["192.0.2.1"], &["192.0.2.2"]);
    for (space, address, to, by) in [
        (&host, REMOTE, POD, "192.0.2.2"),
        (&pod, POD, REMOTE, "192.0.2.1"),
    ] {
        let [address, to] = [address, to].map(std::net::Ipv4Addr::from);
        space.ip("link set lo up");
        space.ip(&format!("addr add {address}/32 dev lo"));
        space.ip(&format!("route add {to}/32 via {by} src {address}"));
    }
    [host, pod]
}

/// What is proposed when packets of that connection pass the host's end of the pod.
fn proposed(rig: &mut Rig, host: &Namespace, source_port: u16, port: u16) -> Vec<u32> {
    let inner = Inner {
        transport: Transport::Tcp(source_port, port, 0),
        ..Inner::back()
    };
    let packet = ether(POD_MAC, HOST_MAC, &inner.bytes());
    host.inside(|| {
        for _ in 0..FLOW_AFTER {
            rig.run("pod_in", &packet, Context::default());
        }
    });
    let posted = rig.posted();
    assert!(posted.iter().all(|event| event.4 == key(&inner)));
    posted.iter().map(|event| event.0).collect()
}

#[test]
fn only_an_established_socket_of_the_pod_counts() {
    let [host, pod] = host_and_pod();
    let number = host.list("link show u0")[0]["link_netnsid"].as_u64();
    let number = u32::try_from(number.unwrap()).unwrap();
    let mut rig = Rig::new();
    rig.settings(Settings {
        flags: ON | FLOWS,
        ..Settings::default()
    });
    rig.pod_in(POD, DEVICE, number);

    let at = SocketAddr::from((POD, 9_000));
    let listener = pod.inside(|| TcpListener::bind(at).unwrap());
    let connect = || TcpStream::connect_timeout(&at, Duration::from_secs(10)).unwrap();
    let near = host.inside(connect);
    let (far, _) = listener.accept().unwrap();
    let source = near.local_addr().unwrap();
    assert_eq!(source.ip(), std::net::IpAddr::from(REMOTE));
    assert_eq!(
        proposed(&mut rig, &host, source.port(), 9_000),
        [FLOW_IN_SOCKET]
    );
    let other = source.port() ^ 1;
    assert_eq!(
        proposed(&mut rig, &host, other, 9_000),
        [FLOW_IN],
        "a listener takes connections, and none of these packets"
    );
    assert_eq!(proposed(&mut rig, &host, other, 9_001), [FLOW_IN]);

    // The same connection, where the number is not known, and where it is that of no namespace.
    for number in [NO_NAMESPACE, 4_711] {
        let mut rig = Rig::new();
        rig.settings(Settings {
            flags: ON | FLOWS,
            ..Settings::default()
        });
        rig.pod_in(POD, DEVICE, number);
        let found = proposed(&mut rig, &host, source.port(), 9_000);
        assert_eq!(found, [FLOW_IN], "{number}");
    }
    drop((near, far));
}
