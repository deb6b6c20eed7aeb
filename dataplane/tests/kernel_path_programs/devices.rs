//! The programs on devices, with a kernel VXLAN device as the peer: what a run alone does not show, super-packets above all.
//!
//! ```text
//!   near: pod 8.0.1.2 ── tunnel (TUN or TAP) ── u0 192.0.2.1 ── veth ── 192.0.2.2 u0 ── VXLAN device ── pod 10.244.2.2 :far
//!                        gro (VXLAN device, external)
//! ```

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use aya::programs::TcAttachType;
use encap::Mac;
use testbed::{Namespace, linked};

use crate::packets::*;
use crate::rig::*;

/// Bytes of one transfer.
const TRANSFER: usize = 8 << 20;

struct Devices {
    rig: Rig,
    near: Namespace,
    far: Namespace,
}

fn devices(tap: bool) -> Devices {
    let [near, far] = linked(&["192.0.2.1"], &["192.0.2.2"]);
    near.ip(&format!("link set u0 address {}", Mac(UNDERLAY_MAC)));
    far.ip(&format!("link set u0 address {}", Mac(NEXT_HOP)));
    near.ip("link set lo up");
    near.ip("addr add 8.0.1.2/32 dev lo");
    near.ip(&format!(
        "tuntap add tunnel mode {}",
        if tap { "tap" } else { "tun" }
    ));
    if tap {
        near.ip(&format!("link set tunnel address {}", Mac(OUR_VTEP)));
    }
    near.ip(&format!("link set tunnel up mtu {MTU}"));
    near.ip("link add gro type vxlan external dstport 8472 nolearning");
    near.ip("link set gro up");
    near.ip("route add 10.244.2.0/24 dev tunnel src 8.0.1.2");
    if tap {
        let vtep = Mac(PEER_VTEP);
        near.ip(&format!("neigh add 10.244.2.2 lladdr {vtep} dev tunnel"));
    }
    for device in ["all", "tunnel"] {
        near.set(&format!("net/ipv4/conf/{device}/rp_filter"), "0");
    }
    far.ip(&format!(
        "link add vx address {} type vxlan id {VNI} dev u0 local 192.0.2.2 dstport 8472 nolearning",
        Mac(PEER_VTEP)
    ));
    far.ip("addr add 10.244.2.2/32 dev vx");
    far.ip(&format!("link set vx up mtu {MTU}"));
    far.ip("route add 8.0.1.0/24 dev vx src 10.244.2.2");
    far.ip(&format!(
        "neigh add 8.0.1.2 lladdr {} dev vx",
        Mac(OUR_VTEP)
    ));
    far.shell(&format!(
        "bridge fdb append {} dev vx dst 192.0.2.1",
        Mac(OUR_VTEP)
    ));
    let index = |name: &str| {
        let text = near.shell(&format!("cat /sys/class/net/{name}/ifindex"));
        text.trim().parse().unwrap()
    };
    let mut rig = Rig::new();
    rig.settings(Settings {
        flags: ON | TO_PRIVATE_PORT,
        devices: [index("u0"), index("tunnel")],
        tunnel_mac: if tap { OUR_VTEP } else { [0; 6] },
        ..Settings::default()
    });
    let out = if tap {
        "tunnel_out_ether"
    } else {
        "tunnel_out"
    };
    near.inside(|| {
        rig.attach(out, "tunnel", TcAttachType::Egress);
        rig.attach("underlay_in", "u0", TcAttachType::Ingress);
        rig.attach("gro_in", "gro", TcAttachType::Ingress);
    });
    Devices { rig, near, far }
}

/// Sends and receives at once, and compares.
fn exchange(mut stream: TcpStream) {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let data: Vec<u8> = (0..TRANSFER).map(|at| (at * 31 % 251) as u8).collect();
    thread::scope(|scope| {
        let (mut writer, data) = (stream.try_clone().unwrap(), &data);
        scope.spawn(move || writer.write_all(data).unwrap());
        let mut received = vec![0; TRANSFER];
        stream.read_exact(&mut received).unwrap();
        assert!(received == *data, "the transfer is not intact");
    });
}

/// Both ways over TCP, in super-packets as the kernel makes them: nothing passed on, every wire packet counted.
#[test]
fn a_kernel_vxlan_device_is_a_peer() {
    for tap in [false, true] {
        let Devices { rig, near, far } = devices(tap);
        let listener = far.inside(|| TcpListener::bind("10.244.2.2:9000").unwrap());
        thread::scope(|scope| {
            scope.spawn(|| exchange(listener.accept().unwrap().0));
            let to = "10.244.2.2:9000".parse().unwrap();
            let stream =
                near.inside(|| TcpStream::connect_timeout(&to, Duration::from_secs(10)).unwrap());
            exchange(stream);
        });
        let (counted, passes) = rig.totals();
        let at = |place| counted.get(&place).copied().unwrap_or(0);
        // Segments are smaller than the MTU.
        let least = (TRANSFER / usize::from(MTU)) as u64;
        assert!(at(SENT) > least && at(SENT) < 3 * least, "{counted:?}");
        assert!(at(INBOUND + DELIVERED) > least, "{counted:?}");
        assert_eq!(at(RECEIVED), at(SENT));
        assert_eq!(at(INBOUND + RECEIVED), at(INBOUND + DELIVERED));
        let others: Vec<_> = passes
            .iter()
            .filter(|reason| **reason != "NotIpv4")
            .collect();
        assert!(others.is_empty(), "tap {tap}: {others:?}");
    }
}

/// A packet whose checksum is to be finished over its addresses is user space's: it would change them after the checks.
#[test]
fn an_unfinished_checksum_in_the_ip_header_is_user_spaces() {
    let Devices {
        rig,
        near,
        far: _far,
    } = devices(true);
    let [udp, tcp] = [Inner::out(), Inner::out().tcp(0)].map(|inner| {
        let frame = ether(PEER_VTEP, OUR_VTEP, &inner.bytes());
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        hex
    });
    // struct virtio_net_hdr: NEEDS_CSUM, then csum_start and csum_offset from the start of the frame.
    let send = |hex: &str, start: u16, offset: u16| {
        let script = format!(
            "import socket, struct\n\
             line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)\n\
             line.setsockopt(263, 15, 1)\n\
             line.bind(('tunnel', 0))\n\
             line.send(struct.pack('=BBHHHH', 1, 0, 0, 0, {start}, {offset}) + bytes.fromhex('{hex}'))\n"
        );
        let status = near.program("python3").args(["-c", &script]).status();
        assert!(status.unwrap().success());
    };
    let sent = |rig: &Rig| rig.totals().0.get(&SENT).copied().unwrap_or(0);
    // UDP's own checksum, as every pod sends it, and one in the payload: a pod may run a tunnel.
    for (hex, start, offset, expected) in [(&udp, 34, 6, 1), (&udp, 42, 2, 2), (&tcp, 34, 16, 3)] {
        send(hex, start, offset);
        assert_eq!(sent(&rig), expected);
    }
    assert!(!rig.totals().1.contains(&"Checksum"));
    // In the source address, in the destination, in the header's checksum; in UDP's ports and length; in TCP's ports,
    // flags and window, which the host's rules have looked at.
    let inside_ip = [(20, 6), (24, 6), (20, 4)].map(|place| (&udp, place));
    let inside_udp = [(34, 0), (34, 2), (34, 4), (34, 5)].map(|place| (&udp, place));
    let inside_tcp = [(34, 0), (34, 2), (34, 12), (34, 14), (34, 15)].map(|place| (&tcp, place));
    for (hex, (start, offset)) in [&inside_ip[..], &inside_udp[..], &inside_tcp[..]].concat() {
        send(hex, start, offset);
        assert_eq!(sent(&rig), 3, "{start} + {offset}");
        assert!(rig.totals().1.contains(&"Checksum"));
    }
}

/// Sends a frame behind a `struct virtio_net_hdr`; all zero, it asks for nothing.
fn send_raw(from: &Namespace, device: &str, header: [u8; 10], frame: &[u8]) {
    let script = format!(
        "import socket, sys\n\
         line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)\n\
         line.setsockopt(263, 15, 1)\n\
         line.bind(('{device}', 0))\n\
         line.send(sys.stdin.buffer.read())\n"
    );
    let mut python = from.program("python3");
    python.args(["-c", &script]).stdin(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let bytes = [&header[..], frame].concat();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
}

/// NEEDS_CSUM; kind, headers and size of segments; where the checksum begins and stands.
fn unfinished(kind: u8, headers: u16, size: u16, start: u16, offset: u16) -> [u8; 10] {
    let [h, s, a, o] = [headers, size, start, offset].map(u16::to_ne_bytes);
    [1, kind, h[0], h[1], s[0], s[1], a[0], a[1], o[0], o[1]]
}

/// What was counted, once what has been sent is through.
fn settled(rig: &Rig, place: u32) -> u64 {
    thread::sleep(Duration::from_millis(150));
    rig.totals().0.get(&place).copied().unwrap_or(0)
}

/// A pod behind a veth of the host, with a flow of each protocol.
fn pod_with_flows() -> (Rig, [Namespace; 2]) {
    let spaces = linked(&["192.0.2.1"], &["192.0.2.2"]);
    let text = spaces[0].shell("cat /sys/class/net/u0/ifindex");
    let index: u32 = text.trim().parse().unwrap();
    let mut rig = Rig::new();
    rig.settings(Settings {
        flags: ON | FLOWS,
        ..Settings::default()
    });
    rig.pod(POD, index);
    for inner in [Inner::out(), Inner::out().tcp(0)] {
        let flow = Flow {
            ifindex: index,
            ..crate::flows::out_flow()
        };
        rig.flow("flows_out", key(&inner), flow);
    }
    spaces[0].inside(|| rig.attach("pod_out", "u0", TcAttachType::Ingress));
    (rig, spaces)
}

/// As at the tunnel device: a pod names any place for it, and nothing has looked at the packet before.
#[test]
fn an_unfinished_checksum_in_a_pods_headers_is_the_stacks() {
    let (rig, [_host, pod]) = pod_with_flows();
    let [udp, tcp] =
        [Inner::out(), Inner::out().tcp(0)].map(|inner| ether(HOST_MAC, POD_MAC, &inner.bytes()));
    let right = [(&udp, 34, 6, 1), (&udp, 42, 2, 2), (&tcp, 34, 16, 3)];
    for (frame, start, offset, expected) in right {
        send_raw(&pod, "u0", unfinished(0, 0, 0, start, offset), frame);
        assert_eq!(settled(&rig, SENT), expected, "{start} + {offset}");
    }
    assert!(!rig.totals().1.contains(&"Checksum"));
    for (frame, start, offset) in [
        (&udp, 20, 6),
        (&udp, 24, 6),
        (&udp, 20, 4),
        (&udp, 34, 0),
        (&udp, 34, 5),
        (&tcp, 34, 0),
        (&tcp, 34, 12),
        (&tcp, 34, 15),
    ] {
        send_raw(&pod, "u0", unfinished(0, 0, 0, start, offset), frame);
        assert_eq!(settled(&rig, SENT), 3, "{start} + {offset}");
    }
    assert!(rig.totals().1.contains(&"Checksum"));
}

/// Other networks of a trunk are none of the underlay's, nor a pod's, though the kernel takes their tags off.
#[test]
fn what_came_in_a_vlan_is_not_taken() {
    let tagged = |frame: &[u8]| {
        let mut frame = frame.to_vec();
        frame.splice(12..12, [0x81, 0, 0, 5]);
        frame
    };
    let Devices {
        rig,
        near: _near,
        far,
    } = devices(false);
    let mut frame = from_peer(&Inner::back());
    frame[..6].copy_from_slice(&UNDERLAY_MAC);
    send_raw(&far, "u0", [0; 10], &tagged(&frame));
    assert_eq!(settled(&rig, INBOUND + DELIVERED), 0);
    send_raw(&far, "u0", [0; 10], &frame);
    assert_eq!(settled(&rig, INBOUND + DELIVERED), 1);

    let (rig, [_host, pod]) = pod_with_flows();
    let frame = ether(HOST_MAC, POD_MAC, &Inner::out().bytes());
    send_raw(&pod, "u0", [0; 10], &tagged(&frame));
    assert_eq!(settled(&rig, SENT), 0);
    send_raw(&pod, "u0", [0; 10], &frame);
    assert_eq!(settled(&rig, SENT), 1);
}

/// The outer length has 16 bits, of which the outer headers take their part.
#[test]
fn a_super_packet_whose_outer_length_overflows_is_user_spaces() {
    let Devices {
        rig,
        near,
        far: _far,
    } = devices(true);
    let frame = |length: usize| {
        let inner = Inner {
            payload: vec![0; length - 44],
            ..Inner::out().tcp(0)
        };
        ether(PEER_VTEP, OUR_VTEP, &inner.bytes())
    };
    let segments = unfinished(1, 58, 1_300, 34, 16);
    send_raw(&near, "tunnel", segments, &frame(65_486));
    assert_eq!(settled(&rig, SENT), 0);
    assert!(rig.totals().1.contains(&"TooBig"));
    send_raw(&near, "tunnel", segments, &frame(65_485));
    assert_eq!(settled(&rig, SENT), 51);
}

/// A socket's datagram, on this machine: its sum is to be finished itself, and must not lose its header.
#[test]
fn an_unfinished_outer_checksum_goes_to_the_vxlan_device() {
    let Devices { rig, near, far } = devices(false);
    // Down, it delivers nothing of what is marked.
    near.ip("link set gro down");
    let datagram = from_peer(&Inner::back());
    let hex: String = datagram[VXLAN..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // SO_NO_CHECK
    for (without, expected) in [(0, 0), (1, 1)] {
        let script = format!(
            "import socket\n\
             line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
             line.setsockopt(socket.SOL_SOCKET, 11, {without})\n\
             line.bind(('192.0.2.2', 0))\n\
             line.sendto(bytes.fromhex('{hex}'), ('192.0.2.1', {VXLAN_PORT}))\n"
        );
        let status = far.program("python3").args(["-c", &script]).status();
        assert!(status.unwrap().success());
        assert_eq!(settled(&rig, INBOUND + DELIVERED), expected);
    }
}
