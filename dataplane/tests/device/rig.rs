//! A namespace whose kernel forwards between two TUN devices.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dataplane::device::{Device, Offload};
use dataplane::limits::FRAME;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::packets::Super;

/// A network namespace; it goes, with its devices, when it is dropped.
pub struct Namespace(String);

impl Namespace {
    pub fn new() -> Namespace {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let space = Namespace(format!("dp-device-{}-{number}", std::process::id()));
        run("ip", &format!("netns add {}", space.0));
        space.inside(|| {
            for setting in [
                "ipv4/ip_forward",
                "ipv6/conf/all/forwarding",
                "ipv6/conf/default/forwarding",
            ] {
                std::fs::write(format!("/proc/sys/net/{setting}"), "1").unwrap();
            }
            // No router solicitations, no duplicate address detection: only our packets are to be seen.
            for setting in [
                "ipv4/conf/all/rp_filter",
                "ipv4/conf/default/rp_filter",
                "ipv6/conf/default/accept_dad",
                "ipv6/conf/default/router_solicitations",
            ] {
                std::fs::write(format!("/proc/sys/net/{setting}"), "0").unwrap();
            }
        });
        space
    }

    /// Brings the device up, with `10.9.N.0/24` and `fd00:N::/64` behind it.
    pub fn raise(&self, device: &str, number: u8) {
        let name = &self.0;
        run("ip", &format!("-n {name} link set {device} mtu 1500 up"));
        run(
            "ip",
            &format!("-n {name} route add 10.9.{number}.0/24 dev {device}"),
        );
        run(
            "ip",
            &format!("-n {name} -6 route add fd00:{number}::/64 dev {device}"),
        );
    }

    /// What `ip ARGUMENTS` prints about the namespace.
    pub fn ip(&self, arguments: &str) -> String {
        run("ip", &format!("-n {} {arguments}", self.0))
    }

    /// Runs `body` on a thread of its own inside the namespace.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(format!("/run/netns/{}", self.0)).unwrap();
        let enter = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            body()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        run("ip", &format!("netns delete {}", self.0));
    }
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

fn run(command: &str, arguments: &str) -> String {
    let output = Command::new(command)
        .args(arguments.split_whitespace())
        .output()
        .expect("run as root, with iproute2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command} {arguments}: {said}; these tests need root"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
