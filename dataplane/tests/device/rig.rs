//! A namespace whose kernel forwards between two TUN devices.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dataplane::device::tun::LinkLayer;
use dataplane::device::{Device, Offload};
use dataplane::limits::FRAME;
use encap::Mac;
use testbed::Namespace;

use super::packets::Super;

/// A namespace whose kernel forwards.
pub fn forwarding() -> Namespace {
    let space = Namespace::new("device");
    for setting in [
        "ipv4/ip_forward",
        "ipv6/conf/all/forwarding",
        "ipv6/conf/default/forwarding",
    ] {
        space.set(&format!("net/{setting}"), "1");
    }
    // No router solicitations, no duplicate address detection: only our packets are to be seen.
    for setting in [
        "ipv4/conf/all/rp_filter",
        "ipv4/conf/default/rp_filter",
        "ipv6/conf/default/accept_dad",
        "ipv6/conf/default/router_solicitations",
    ] {
        space.set(&format!("net/{setting}"), "0");
    }
    space
}

/// Both types of device.
pub const TYPES: [LinkLayer; 2] = [
    LinkLayer::None,
    LinkLayer::Ethernet(Mac([0x0a, 0x74, 1, 2, 3, 4])),
];

/// Brings a device up, with `10.9.N.0/24` and `fd00:N::/64` behind it.
pub fn raise(space: &Namespace, device: &str, number: u8) {
    space.ip(&format!("link set {device} arp off mtu 1500 up"));
    space.ip(&format!("route add 10.9.{number}.0/24 dev {device}"));
    space.ip(&format!("-6 route add fd00:{number}::/64 dev {device}"));
}

/// Writes a packet in pieces, as a chain is gathered.
pub fn write(device: &mut impl Device, packet: &Super, pieces: usize) -> std::io::Result<()> {
    let size = packet.bytes.len().div_ceil(pieces);
    let parts: Vec<_> = packet
        .bytes
        .chunks(size)
        .map(std::io::IoSlice::new)
        .collect();
    device.write(packet.offload, &parts)
}

/// The next `count` packets, waited for, between our prefixes; what the kernel says of its own accord is left out.
pub fn read(device: &mut impl Device, count: usize) -> Vec<Super> {
    let patience = Instant::now() + Duration::from_secs(5);
    let mut packets = Vec::new();
    while packets.len() < count {
        assert!(
            Instant::now() < patience,
            "{} of {count} came",
            packets.len()
        );
        packets.extend(read_all(device));
        std::thread::sleep(Duration::from_millis(1));
    }
    packets
}

/// Every packet that is queued now.
pub fn read_all(device: &mut impl Device) -> Vec<Super> {
    let mut frame = Box::new([0; FRAME]);
    let mut packets = Vec::new();
    loop {
        match device.read(&mut frame) {
            Ok(read) => {
                let bytes = frame[..read.len].to_vec();
                let multicast = bytes[0] >> 4 == 6 && bytes[24] == 0xff;
                if !multicast {
                    packets.push(Super {
                        bytes,
                        offload: read.offload,
                    });
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return packets,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Host `host` behind device `number`, of either family.
pub fn addresses(number: u8, host: u8) -> [IpAddr; 2] {
    [
        format!("10.9.{number}.{host}").parse().unwrap(),
        format!("fd00:{number}::{host}").parse().unwrap(),
    ]
}

/// What is finished and whole.
pub const NOTHING_LEFT: Offload = Offload::NONE;
