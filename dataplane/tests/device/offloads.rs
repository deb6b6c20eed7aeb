//! Super-packets, and what becomes of them when the kernel does not take them.

use std::sync::Mutex;

use dataplane::device::plain::{self, Plain};
use dataplane::device::tun::{self, LinkLayer, Tun};
use dataplane::device::{Device, GsoType, Offload, Offloads};
use dataplane::faults::{self, InjectedFault};
use dataplane::limits::PROBATION;
use dataplane::now::Now;

use crate::packets::{Super, cut, forwarded, tcp, udp};
use testbed::Namespace;

use crate::rig::{NOTHING_LEFT, TYPES, addresses, forwarding, raise, read, read_all, write};

/// Faults are of the whole process.
pub static FAULTS: Mutex<()> = Mutex::new(());

/// The single queue of a new TUN.
pub fn fast(space: &Namespace, name: &str) -> Tun {
    of_type(space, name, LinkLayer::None)
}

/// The single queue of a new device of that type.
pub fn of_type(space: &Namespace, name: &str, link: LinkLayer) -> Tun {
    let opened = space.inside(|| tun::open(name, link, 1)).unwrap();
    let [queue] = opened.queues.try_into().unwrap();
    assert!(opened.writers.is_empty());
    Tun::adopt(queue, None, name).unwrap()
}

pub fn all_kinds(length: usize, size: u16) -> Vec<Super> {
    let both = addresses(1, 5).into_iter().zip(addresses(2, 6));
    both.flat_map(|(source, destination)| {
        [
            tcp(source, destination, length, size),
            udp(source, destination, length, size),
        ]
    })
    .collect()
}

/// Lengths around every edge: one segment, an exact cut, one byte more, as much as an IP packet holds.
const CUTS: [(usize, u16); 7] = [
    (1, 1400),
    (1399, 1400),
    (1400, 1400),
    (1401, 1400),
    (14_000, 1400),
    (60_001, 1400),
    (4_000, 64),
];

/// What we write as one packet leaves the kernel as the wire packets that our own cut would make.
#[test]
fn the_kernel_cuts_what_we_write_as_we_would() {
    let _faults = FAULTS.lock();
    for link in TYPES {
        let space = forwarding();
        let mut a = of_type(&space, "ta", link);
        let b = space.inside(|| plain::open("tb")).unwrap();
        let mut b = Plain::adopt(b, "tb").unwrap();
        raise(&space, "ta", 1);
        raise(&space, "tb", 2);
        let everything = Offloads {
            checksum: true,
            tcp: true,
            udp: true,
        };
        assert_eq!((a.granted(), a.offloads(Now(0))), (everything, everything));
        for (length, size) in CUTS {
            for packet in all_kinds(length, size) {
                let wire: Vec<_> = cut(&packet).into_iter().map(forwarded).collect();
                for pieces in [1, 2, 65] {
                    write(&mut a, &packet, pieces).unwrap();
                    let arrived: Vec<_> = read(&mut b, wire.len())
                        .into_iter()
                        .map(|p| p.bytes)
                        .collect();
                    assert!(
                        arrived == wire,
                        "{length} bytes, {size} each, {pieces} pieces"
                    );
                }
            }
        }
    }
}

/// A super-packet crosses the kernel whole and is read as one, with its size and its unfinished checksum.
#[test]
fn a_super_packet_is_read_as_one() {
    let _faults = FAULTS.lock();
    for link in TYPES {
        let space = forwarding();
        let (mut a, mut b) = (of_type(&space, "ta", link), of_type(&space, "tb", link));
        raise(&space, "ta", 1);
        raise(&space, "tb", 2);
        for (length, size) in CUTS {
            for packet in all_kinds(length, size) {
                let wire: Vec<_> = cut(&packet).into_iter().map(forwarded).collect();
                write(&mut a, &packet, 3).unwrap();
                let [arrived] = &read(&mut b, 1)[..] else {
                    panic!("not one packet")
                };
                let of =
                    |offload: Offload| (offload.checksum, offload.cut.map(|c| (c.kind, c.size)));
                assert_eq!(of(arrived.offload), of(packet.offload));
                assert!(cut(arrived) == wire, "{length} bytes, {size} each");
            }
        }
        assert!(read_all(&mut a).is_empty() && read_all(&mut b).is_empty());
    }
}

/// A plain packet needs no header and gets none.
#[test]
fn a_finished_packet_crosses_as_it_is() {
    let _faults = FAULTS.lock();
    for link in TYPES {
        let space = forwarding();
        let (mut a, mut b) = (of_type(&space, "ta", link), of_type(&space, "tb", link));
        raise(&space, "ta", 1);
        raise(&space, "tb", 2);
        for packet in all_kinds(100, 1400) {
            let [bytes] = cut(&packet).try_into().unwrap();
            let finished = Super {
                bytes,
                offload: NOTHING_LEFT,
            };
            write(&mut a, &finished, 1).unwrap();
            let arrived = read(&mut b, 1);
            assert_eq!(arrived[0].bytes, forwarded(finished.bytes));
            assert_eq!(arrived[0].offload, NOTHING_LEFT);
        }
    }
}

/// A kernel that refuses super-packets: three failures, and each kind of offload goes on its own and comes back.
#[test]
fn an_offload_is_given_up_after_failures_and_tried_again() {
    let _faults = FAULTS.lock();
    let space = forwarding();
    let mut a = fast(&space, "ta");
    raise(&space, "ta", 1);
    raise(&space, "ta", 2);
    let [source, _] = addresses(1, 5);
    let [destination, _] = addresses(2, 6);
    let packet = tcp(source, destination, 14_000, 1400);
    faults::set(InjectedFault::GsoWrites, true);
    for failure in 0..3 {
        assert!(a.offloads(Now(failure)).tcp, "failure {failure}");
        let refused = write(&mut a, &packet, 2).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc_einval()));
        for bytes in cut(&packet) {
            let whole = Super {
                bytes,
                offload: NOTHING_LEFT,
            };
            write(&mut a, &whole, 1).unwrap();
        }
        a.offload_failed(packet.offload, Now(failure));
    }
    faults::set(InjectedFault::GsoWrites, false);
    assert_eq!(
        a.offloads(Now(3)),
        Offloads {
            checksum: true,
            tcp: false,
            udp: true
        }
    );
    assert_eq!(a.given_up(), 1);
    // What is under way still goes.
    write(&mut a, &packet, 2).unwrap();
    let later = Now(2).after(PROBATION);
    assert!(!a.offloads(Now(later.0 - 1)).tcp);
    assert!(a.offloads(later).tcp);
    assert_eq!(packet.offload.cut.map(|cut| cut.kind), Some(GsoType::Tcp4));
}

fn libc_einval() -> i32 {
    rustix::io::Errno::INVAL.raw_os_error()
}
