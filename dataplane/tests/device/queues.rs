//! Queues, writers, and descriptors that are handed over.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use dataplane::device::plain::{self, Plain};
use dataplane::device::tun::{self, Fewer, LinkLayer, Opened, Tun};
use dataplane::device::{Device, DeviceError, make_persistent};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::offloads::{fast, of_type};
use crate::packets::{Super, cut, tcp, udp};
use testbed::Namespace;

use crate::rig::{NOTHING_LEFT, TYPES, addresses, forwarding, raise, read, read_all, write};

/// A device of several queues, ready to use.
fn several(space: &Namespace, name: &str, link: LinkLayer, workers: usize) -> Vec<Tun> {
    let Opened {
        queues, writers, ..
    } = space.inside(|| tun::open(name, link, workers)).unwrap();
    assert_eq!((queues.len(), writers.len()), (workers, workers));
    queues
        .into_iter()
        .zip(writers)
        .map(|(queue, writer)| Tun::adopt(queue, Some(writer), name).unwrap())
        .collect()
}

/// Which queue each flow comes to: the source port is the flow.
fn places(queues: &mut [Tun]) -> BTreeMap<u16, usize> {
    let mut places = BTreeMap::new();
    for (place, queue) in queues.iter_mut().enumerate() {
        for packet in read_all(queue) {
            let port = u16::from_be_bytes([packet.bytes[20], packet.bytes[21]]);
            assert_eq!(places.insert(port, place), None);
        }
    }
    places
}

/// Sends one packet of each of 64 flows out of device `b`.
fn offer_flows(a: &mut Tun) {
    for port in 1..=64u16 {
        a.write(NOTHING_LEFT, &[IoSlice::new(&flow(port, true))])
            .unwrap();
    }
}

/// A packet of flow `port`, towards `b` or back.
fn flow(port: u16, there: bool) -> Vec<u8> {
    let ([near, _], [far, _]) = (addresses(1, 5), addresses(2, 6));
    let (source, destination) = if there { (near, far) } else { (far, near) };
    let mut packet = udp(source, destination, 10, 1400);
    let place = if there { 20 } else { 22 };
    packet.bytes[place..place + 2].copy_from_slice(&port.to_be_bytes());
    let other = if there { 22 } else { 20 };
    packet.bytes[other..other + 2].copy_from_slice(&2000u16.to_be_bytes());
    let [bytes] = cut(&packet).try_into().unwrap();
    bytes
}

/// Whichever writer a flow's other direction is written through, its queue stays the same; every packet is delivered.
#[test]
fn a_flow_keeps_its_queue_whichever_worker_writes_its_other_direction() {
    for link in TYPES {
        let space = forwarding();
        let mut a = of_type(&space, "ta", link);
        let mut b = several(&space, "tb", link, 4);
        raise(&space, "ta", 1);
        raise(&space, "tb", 2);
        offer_flows(&mut a);
        let first = places(&mut b);
        assert_eq!(first.len(), 64);
        let used: std::collections::BTreeSet<_> = first.values().collect();
        assert_eq!(used.len(), 4, "all queues are used");
        for round in 0..4 {
            for port in 1..=64u16 {
                let writer = (usize::from(port) + round) % 4;
                b[writer]
                    .write(NOTHING_LEFT, &[IoSlice::new(&flow(port, false))])
                    .unwrap();
            }
            assert_eq!(read(&mut a, 64).len(), 64);
            offer_flows(&mut a);
            assert_eq!(places(&mut b), first, "round {round}");
        }
    }
}

/// With another number of workers the same device goes on, and all flows come to the queues that there are.
#[test]
fn a_device_grows_and_shrinks_under_its_addresses() {
    for link in TYPES {
        let space = forwarding();
        let mut a = of_type(&space, "ta", link);
        let mut held = space.inside(|| tun::open("tb", link, 1)).unwrap();
        raise(&space, "ta", 1);
        raise(&space, "tb", 2);
        let place = || {
            (
                space.ip("route"),
                space.ip("-6 route"),
                space.ip("-o link show tb"),
            )
        };
        let before = place();
        for workers in [1, 3, 2, 4, 1, 2] {
            held = space.inside(|| tun::resize("tb", held, workers)).unwrap();
            let writers = if workers > 1 { workers } else { 0 };
            assert_eq!((held.queues.len(), held.writers.len()), (workers, writers));
            assert_eq!(place(), before, "{workers}");
            let details = space.ip("-d link show tb");
            let numbers = format!(" numqueues {workers} numdisabled {writers} ");
            assert!(details.contains(&numbers), "{numbers}: {details}");
            let mut writers = held.writers.iter();
            let mut b: Vec<Tun> = held
                .queues
                .iter()
                .map(|queue| {
                    let writer = writers.next().map(|writer| writer.try_clone().unwrap());
                    Tun::adopt(queue.try_clone().unwrap(), writer, "tb").unwrap()
                })
                .collect();
            for round in 0..2 {
                offer_flows(&mut a);
                let places = places(&mut b);
                assert_eq!(places.len(), 64, "{workers}");
                let used: std::collections::BTreeSet<_> = places.values().collect();
                assert_eq!(used.len(), workers, "every queue is used, round {round}");
                for port in 1..=64u16 {
                    let writer = usize::from(port) % workers;
                    b[writer]
                        .write(NOTHING_LEFT, &[IoSlice::new(&flow(port, false))])
                        .unwrap();
                }
                assert_eq!(read(&mut a, 64).len(), 64);
            }
        }
    }
}

/// A device that was made persistent has no carrier without a process, keeps all else, and is attached to by the next.
#[test]
fn a_persistent_device_is_attached_to_as_it_is() {
    for (link, other) in [(TYPES[0], TYPES[1]), (TYPES[1], TYPES[0])] {
        let space = forwarding();
        let held = space.inside(|| tun::open("tb", link, 2)).unwrap();
        raise(&space, "tb", 2);
        make_persistent(&held.queues[0]).unwrap();
        let index = || space.ip("-o link show tb")[..4].to_owned();
        let before = (index(), space.ip("route"), space.ip("-6 route"));
        drop(held);
        // A command that another test starts may hold a duplicate until it is run.
        space.until("ip link show tb", "NO-CARRIER");
        let refused = space.inside(|| tun::reopen("tb", other, 1));
        assert!(matches!(refused, Err(DeviceError::NoOffloads(_))));
        assert!(space.inside(|| plain::open("tb")).is_err());
        let held = space.inside(|| tun::reopen("tb", link, 3)).unwrap();
        assert_eq!((held.queues.len(), held.writers.len()), (3, 3));
        space.until("ip link show tb", "LOWER_UP");
        let routes = || (index(), space.ip("route"), space.ip("-6 route"));
        let deadline = Instant::now() + Duration::from_secs(5);
        while routes() != before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(routes(), before);
        drop(held);
        space.ip("link delete tb");
    }
}

/// The kernel has places for 256 queues: a device that cannot grow goes on with those that it has, and can grow by less.
#[test]
fn a_device_that_cannot_grow_goes_on_as_it_is() {
    let space = forwarding();
    // A name each: a command that another test starts may hold a duplicate of the first one's queue until it is run.
    for (workers, name) in [(1, "tb"), (2, "tc")] {
        let held = space
            .inside(|| tun::open(name, LinkLayer::None, workers))
            .unwrap();
        assert!(held.fewer.is_none());
        let index = space.ip(&format!("-o link show {name}"));
        let held = space.inside(|| tun::resize(name, held, 257)).unwrap();
        let writers = if workers > 1 { workers } else { 0 };
        assert_eq!((held.queues.len(), held.writers.len()), (workers, writers));
        let refused = matches!(&held.fewer, Some(Fewer::Growth(error)) if error.raw_os_error() == Some(libc::E2BIG));
        assert!(refused, "{:?}", held.fewer);
        assert_eq!(space.ip(&format!("-o link show {name}")), index);
        let held = space.inside(|| tun::resize(name, held, 3)).unwrap();
        assert!(held.fewer.is_none());
        assert_eq!((held.queues.len(), held.writers.len()), (3, 3));
    }
}

/// What is no descriptor of the device, or of one that is gone, is not resized, and no other device is made.
#[test]
fn only_a_device_that_is_there_grows() {
    let space = forwarding();
    let a = space
        .inside(|| tun::open("ta", LinkLayer::None, 2))
        .unwrap();
    let b = space
        .inside(|| tun::open("tb", LinkLayer::None, 1))
        .unwrap();
    let resize = |held: Opened| {
        let resized = space.inside(|| tun::resize("tb", held, 3));
        matches!(resized, Err(DeviceError::Foreign { .. }))
    };
    assert!(resize(a), "of another device");
    let none = Opened {
        link: LinkLayer::None,
        queues: Vec::new(),
        writers: Vec::new(),
        fewer: None,
    };
    assert!(resize(none), "of none");
    space.ip("link delete tb");
    assert!(resize(b), "of a device that is gone");
    let left = space.ip("-o link show");
    assert!(!left.contains("tb"), "{left}");
}

/// On a kernel that refuses writes through a detached queue there is one worker.
#[test]
fn without_writers_there_is_one_queue() {
    // The fault is of the whole process: a process of its own.
    let this = std::env::current_exe().unwrap();
    let name = "queues::with_detached_writes_refused";
    let output = std::process::Command::new(this)
        .args(["--exact", name, "--ignored"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
#[ignore = "run in a process of its own by without_writers_there_is_one_queue"]
fn with_detached_writes_refused() {
    let space = forwarding();
    dataplane::faults::set(dataplane::faults::InjectedFault::DetachedWrites, true);
    let Opened {
        queues, writers, ..
    } = space
        .inside(|| tun::open("ta", LinkLayer::None, 3))
        .unwrap();
    assert_eq!((queues.len(), writers.len()), (1, 0));
    let details = space.ip("-d link show ta");
    assert!(details.contains(" numqueues 1 "), "{details}");
}

/// The first queue is opened for itself alone: if another process holds a device of that name, the error names it.
#[test]
fn a_device_that_exists_is_not_joined() {
    let space = forwarding();
    let held = fast(&space, "ta");
    let again = space.inside(|| tun::open("ta", LinkLayer::None, 1).map(|_| ()));
    assert!(matches!(again, Err(DeviceError::Busy(name)) if name == "ta"));
    drop(held);
    space.ip("link add tb type veth peer name tv");
    let other = space.inside(|| tun::open("tb", LinkLayer::None, 2).map(|_| ()));
    assert!(matches!(other, Err(DeviceError::Busy(name)) if name == "tb"));
    let bad = tun::open("t/a", LinkLayer::None, 1).map(|_| ());
    assert!(matches!(bad, Err(DeviceError::Name(_))));
}

/// Descriptors go to another process over a socket, the first owner ends, and what was queued meanwhile is read.
#[test]
fn a_device_outlives_its_first_owner_with_all_that_is_queued() {
    for link in TYPES {
        let space = forwarding();
        let mut a = of_type(&space, "ta", link);
        let Opened {
            queues, writers, ..
        } = space.inside(|| tun::open("tb", link, 2)).unwrap();
        let adopt = |queues: Vec<OwnedFd>, writers: Vec<OwnedFd>| -> Vec<Tun> {
            let pairs = queues.into_iter().zip(writers);
            pairs
                .map(|(queue, writer)| Tun::adopt(queue, Some(writer), "tb").unwrap())
                .collect()
        };
        let passed: Vec<_> = queues.iter().chain(&writers).map(pass).collect();
        let mut first = adopt(queues, writers);
        raise(&space, "ta", 1);
        raise(&space, "tb", 2);
        offer_flows(&mut a);
        let places_before = places(&mut first);
        drop(first);
        // No process reads now; the super-packets were offered under the old owner's offloads.
        let [near, _] = addresses(1, 5);
        let [far, _] = addresses(2, 6);
        let packet = tcp(near, far, 30_000, 1400);
        write(&mut a, &packet, 2).unwrap();
        offer_flows(&mut a);
        let mut passed = passed.into_iter();
        let queues: Vec<_> = passed.by_ref().take(2).collect();
        let mut second = adopt(queues, passed.collect());
        let super_packets: Vec<Super> = second
            .iter_mut()
            .flat_map(|queue| {
                let mut frame = Box::new([0; dataplane::limits::FRAME]);
                let read = queue.read(&mut frame).unwrap();
                let bytes = frame[..read.len].to_vec();
                let first = Super {
                    bytes,
                    offload: read.offload,
                };
                [first].into_iter().chain(read_all(queue))
            })
            .collect();
        let cuts: Vec<_> = super_packets
            .iter()
            .filter(|p| p.offload.cut.is_some())
            .collect();
        assert_eq!((super_packets.len(), cuts.len()), (65, 1));
        assert_eq!(cut(cuts[0]).len(), 22);
        offer_flows(&mut a);
        assert_eq!(places(&mut second), places_before, "the same queues");
        second[1]
            .write(NOTHING_LEFT, &[IoSlice::new(&flow(7, false))])
            .unwrap();
        assert_eq!(read(&mut a, 1).len(), 1);
    }
}

/// What is not the queue or writer that its name says is refused.
#[test]
fn foreign_descriptors_are_refused() {
    let space = forwarding();
    let open_as = |name: &'static str, link, workers| {
        space
            .inside(move || tun::open(name, link, workers))
            .unwrap()
    };
    let open = |name, workers| open_as(name, LinkLayer::None, workers);
    let again = |fd: &OwnedFd| fd.try_clone().unwrap();
    let a = open("ta", 2);
    let b = open("tb", 2);
    let p = space.inside(|| plain::open("tp")).unwrap();
    let foreign = |queue: &OwnedFd, writer: Option<&OwnedFd>| {
        let refused = Tun::adopt(again(queue), writer.map(again), "ta").map(|_| ());
        matches!(refused, Err(DeviceError::Foreign { .. }))
    };
    assert!(!foreign(&a.queues[0], Some(&a.writers[0])));
    assert!(!foreign(&a.queues[0], None));
    assert!(foreign(&b.queues[0], None), "another device");
    assert!(foreign(&a.writers[0], None), "a writer as queue");
    assert!(
        foreign(&a.queues[0], Some(&a.queues[1])),
        "a queue as writer"
    );
    assert!(
        foreign(&a.queues[0], Some(&b.writers[0])),
        "another's writer"
    );
    assert!(foreign(&p, None), "a plain device");
    let [_, ethernet] = TYPES;
    let tap = open_as("te", ethernet, 2);
    assert!(foreign(&tap.queues[0], None), "a TAP of another name");
    let mixed = Tun::adopt(again(&tap.queues[0]), Some(again(&a.writers[0])), "te");
    assert!(matches!(mixed, Err(DeviceError::Foreign { .. })));
    let as_tun = Opened {
        link: LinkLayer::None,
        ..tap
    };
    let resized = space.inside(|| tun::resize("te", as_tun, 2));
    assert!(
        matches!(resized, Err(DeviceError::Foreign { .. })),
        "a TAP as TUN"
    );
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    assert!(foreign(&file, None), "no device");
    assert!(Plain::adopt(again(&p), "tp").is_ok());
    assert!(
        matches!(
            Plain::adopt(again(&a.queues[0]), "ta"),
            Err(DeviceError::Foreign { .. })
        ),
        "a fast device as plain"
    );
}

/// `descriptor` as another process would have it, by a socket.
fn pass(descriptor: &OwnedFd) -> OwnedFd {
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(
        &near,
        &[IoSlice::new(b"x")],
        &mut control,
        SendFlags::empty(),
    )
    .unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(
        &far,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::empty(),
    )
    .unwrap();
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    received.unwrap()
}
