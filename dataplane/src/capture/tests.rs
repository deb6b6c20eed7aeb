//! What is captured is what was offered: whole, in order, and what is lost is counted.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use encap::Format;
use proptest::prelude::*;

use super::ring::Ring;
use super::*;
use crate::now::Now;
use crate::snapshot::Snapshot;
use crate::spec::tests::spec;

fn snapshot() -> Snapshot {
    Snapshot::new(&spec(), None)
}

/// An event with a value of its own in each field, by `number`.
fn event<'a>(number: u32, outer: &'a [u8]) -> Event<'a> {
    let [low, high] = [number as u8, (number >> 8) as u8];
    let stage = Stage::ALL[number as usize % Stage::ALL.len()];
    let reasons = DropReason::ALL;
    let reason = reasons[number as usize % reasons.len()];
    let bit = |place: u32| number >> place & 1 == 1;
    Event {
        reason: (stage == Stage::Dropped).then_some(reason),
        gso: number as u16,
        total: bit(3).then_some(number as usize),
        remote: match number % 3 {
            0 => None,
            1 => Some(([192, 0, high, low], number as u16).into()),
            _ => Some(([0x2001, 0xdb8, 0, 0, 0, 0, high.into(), low.into()], 1).into()),
        },
        format: [None, Some(Format::Vxlan), Some(Format::Udp)][number as usize / 3 % 3],
        outer,
        is_not_ip: bit(4),
        is_own: bit(5),
        is_probe: bit(6),
        is_unfinished: bit(7),
        ..Event::inner(
            stage,
            [Direction::Outbound, Direction::Inbound][number as usize % 2],
            number as usize + 1,
        )
    }
}

/// The bytes of packet `number`, `length` of them.
fn bytes(number: u32, length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| (number as usize).wrapping_mul(31).wrapping_add(place) as u8)
        .collect()
}

fn records(mut stream: &[u8]) -> Vec<Record<'_>> {
    let mut records = Vec::new();
    while let Some((record, length)) = Record::parse(stream) {
        records.push(record);
        stream = &stream[length..];
    }
    assert_eq!(stream, [0; 0], "no part of a record is left");
    records
}

proptest! {
    /// Packets in any number of parts come back as they were, cut at the snap length.
    #[test]
    fn what_is_captured_parses_back_equal(
        packets in prop::collection::vec((any::<u16>(), 0usize..200, prop::collection::vec(0usize..90, 0..5)), 1..40),
        snap in 0usize..300,
    ) {
        let mut tap = Tap::new(7);
        let captures = Captures::of_points([tap.point()]);
        let filter = CaptureFilter { snap_length: snap, ..CaptureFilter::all(Stages::ALL) };
        let mut capture = captures.start(filter).unwrap();
        let snapshot = snapshot();
        let mut stream = Vec::new();
        for (place, (number, outer, cuts)) in packets.iter().enumerate() {
            tap.begin(Now(place as u64));
            let outer = bytes(!u32::from(*number), *outer);
            let parts: Vec<Vec<u8>> = cuts.iter().map(|length| bytes(u32::from(*number), *length)).collect();
            let event = event(u32::from(*number), &outer);
            tap.offer(&snapshot, &event, parts.iter().map(Vec::as_slice));
            if place % 7 == 3 {
                capture.drain(&mut stream, usize::MAX);
            }
        }
        capture.drain(&mut stream, usize::MAX);
        let records = records(&stream);
        prop_assert_eq!(records.len(), packets.len());
        for (place, (record, (number, outer, cuts))) in records.iter().zip(&packets).enumerate() {
            let number = u32::from(*number);
            let outer_bytes = bytes(!number, *outer);
            let mut whole = outer_bytes.clone();
            cuts.iter().for_each(|length| whole.extend(bytes(number, *length)));
            let event = event(number, &outer_bytes);
            let captured = &whole[..snap.min(whole.len())];
            let expected = Record {
                stage: event.stage,
                direction: event.direction,
                reason: event.reason,
                time: Now(place as u64),
                worker: 7,
                packets: event.packets as u32,
                length: whole.len() as u32,
                total: event.total.unwrap_or(whole.len()) as u64,
                gso: event.gso,
                remote: event.remote,
                format: event.format,
                outer: *outer.min(&captured.len()),
                is_not_ip: event.is_not_ip,
                is_own: event.is_own,
                is_probe: event.is_probe,
                is_unfinished: event.is_unfinished,
                bytes: captured,
            };
            prop_assert_eq!(record, &expected);
        }
        prop_assert!(capture.counts().all().lost == 0);
    }

    /// Whatever bytes a reader is given: no panic, and never a record of more bytes than there are.
    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Some((record, length)) = Record::parse(&bytes) {
            prop_assert!(length <= bytes.len());
            prop_assert!(record.bytes.len() < length);
            let _ = record.inner();
        }
    }
}

/// A worker that writes faster than the reader reads loses records, and each is counted: offered = read + lost.
#[test]
fn a_full_ring_loses_records_and_counts_them() {
    let ring = Arc::new(Ring::new(Arc::new(CaptureFilter::all(Stages::ALL))).unwrap());
    let done = AtomicBool::new(false);
    const OFFERED: u32 = 200_000;
    let (mut read, mut last) = (0u64, None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..OFFERED {
                let packet = bytes(number, 1_000 + number as usize % 500);
                assert!(ring.offer(Stage::Sent, Now(0), None));
                let event = Event::inner(Stage::Sent, Direction::Outbound, number as usize);
                let header = record::header(&event, packet.len(), packet.len(), (0, Now(0)));
                ring.write(
                    Stage::Sent,
                    &header,
                    packet.len(),
                    [&packet[..]].into_iter(),
                );
            }
            done.store(true, Ordering::Release);
        });
        let mut stream = Vec::new();
        loop {
            let is_last = done.load(Ordering::Acquire);
            stream.clear();
            ring.drain(&mut stream, 64 << 10);
            for record in records(&stream) {
                let number = record.packets;
                assert!(last.is_none_or(|last| number > last), "in order");
                assert_eq!(record.bytes, bytes(number, 1_000 + number as usize % 500));
                last = Some(number);
                read += 1;
            }
            if is_last && stream.is_empty() {
                break;
            }
            if read.is_multiple_of(3) {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
    });
    let mut counts = CaptureCounts::default();
    ring.count_into(&mut counts);
    let sent = counts.stages[Stage::Sent as usize];
    assert_eq!(sent.offered, u64::from(OFFERED));
    assert!(sent.lost > 0, "the reader was too fast for this test");
    assert_eq!(sent.offered, read + sent.lost);
}

fn offer(tap: &Tap, snapshot: &Snapshot, event: &Event<'_>, packet: &[u8]) {
    if tap.wants(event.stage) {
        tap.offer(snapshot, event, std::iter::once(packet));
    }
}

/// A flood of one reason leaves the others in the sample, and all are counted.
#[test]
fn a_sample_has_every_reason_of_a_flood() {
    let mut tap = Tap::new(0);
    let captures = Captures::of_points([tap.point()]);
    let filter = CaptureFilter {
        sampled: true,
        ..CaptureFilter::all(Stages::NONE.with(Stage::Dropped))
    };
    let mut capture = captures.start(filter).unwrap();
    let snapshot = snapshot();
    for step in 0..1_000u64 {
        tap.begin(Now(step * 1_000_000));
        let flood = Event::drop(Direction::Outbound, DropReason::SpoofedSource, 2);
        (0..100).for_each(|_| offer(&tap, &snapshot, &flood, b"flood"));
        if step == 999 {
            let rare = Event::drop(Direction::Inbound, DropReason::WrongVni, 1);
            offer(&tap, &snapshot, &rare, b"rare");
        }
    }
    let mut stream = Vec::new();
    capture.drain(&mut stream, usize::MAX);
    let records = records(&stream);
    assert_eq!(records.last().unwrap().reason, Some(DropReason::WrongVni));
    let slices = 1_000_000_000 / crate::limits::CAPTURE_SAMPLE_TIME.as_nanos() as usize;
    let samples = crate::limits::CAPTURE_SAMPLES as usize * slices;
    assert_eq!(records.len(), samples + 1);
    let counts = capture.counts();
    let drops: Vec<_> = counts.each_drop().collect();
    assert_eq!(
        drops,
        [
            (Direction::Outbound, DropReason::SpoofedSource, 200_000),
            (Direction::Inbound, DropReason::WrongVni, 1)
        ]
    );
    let all = counts.all();
    assert_eq!(all.offered, records.len() as u64 + all.lost + all.left_out);
}

/// A flood of one peer leaves the drops of others, for the same reason, in the sample.
#[test]
fn a_sample_has_every_sender_beside_a_flood() {
    let mut tap = Tap::new(0);
    let captures = Captures::of_points([tap.point()]);
    let filter = CaptureFilter {
        sampled: true,
        ..CaptureFilter::all(Stages::NONE.with(Stage::Dropped))
    };
    let mut capture = captures.start(filter).unwrap();
    let snapshot = snapshot();
    let of = |peer: u8| Event {
        remote: Some((Ipv4Addr::new(192, 0, 2, peer), 8472).into()),
        ..Event::drop(Direction::Inbound, DropReason::WrongVni, 1)
    };
    tap.begin(Now(0));
    (0..1_000).for_each(|_| offer(&tap, &snapshot, &of(1), b"flood"));
    for peer in 2..8 {
        (0..2).for_each(|_| offer(&tap, &snapshot, &of(peer), b"rare"));
    }
    let mut stream = Vec::new();
    capture.drain(&mut stream, usize::MAX);
    let records = records(&stream).len();
    // Two of them may be of one group.
    let samples = crate::limits::CAPTURE_SAMPLES as usize;
    assert!((samples + 4..=samples + 6).contains(&records), "{records}");
}

#[test]
fn a_filter_takes_its_pods_peers_and_reasons() {
    let mut tap = Tap::new(0);
    let captures = Captures::of_points([tap.point()]);
    let all = || CaptureFilter::all(Stages::ALL);
    let filters = [
        CaptureFilter {
            pods: vec![[10, 244, 1, 2].into()],
            ..all()
        },
        CaptureFilter {
            peers: vec![[192, 0, 2, 2].into()],
            ..all()
        },
        CaptureFilter {
            reasons: vec![DropReason::NoRoute],
            stages: Stages::NONE.with(Stage::Dropped),
            ..all()
        },
    ];
    let mut running: Vec<Capture> = filters.map(|filter| captures.start(filter).unwrap()).into();
    tap.begin(Now(0));
    let packet = |source: [u8; 4], destination: [u8; 4]| {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&source);
        packet[16..20].copy_from_slice(&destination);
        packet
    };
    let snapshot = snapshot();
    let device = Event::inner(Stage::Device, Direction::Outbound, 1);
    let mut taken = |event: &Event<'_>, packet: &[u8]| {
        offer(&tap, &snapshot, event, packet);
        running
            .iter_mut()
            .map(|capture| capture.drain(&mut Vec::new(), usize::MAX))
            .collect::<Vec<_>>()
    };
    // By the route of the inner destination, where there is no outer one yet.
    let ours = packet([10, 244, 1, 2], [10, 244, 2, 9]);
    assert_eq!(taken(&device, &ours), [true, true, false]);
    let others = packet([10, 244, 1, 3], [10, 244, 3, 9]);
    assert_eq!(taken(&device, &others), [false, false, false]);
    let received = |from: [u8; 4]| Event::received(Format::Udp, (from, 8285).into(), &[]);
    let reply = packet([10, 244, 2, 9], [10, 244, 1, 2]);
    assert_eq!(
        taken(&received([192, 0, 2, 2]), &reply),
        [true, true, false]
    );
    assert_eq!(
        taken(&received([192, 0, 2, 3]), &reply),
        [true, false, false]
    );
    let no_route = Event::drop(Direction::Outbound, DropReason::NoRoute, 1);
    assert_eq!(taken(&no_route, &others), [false, false, true]);
    let spoofed = Event::drop(Direction::Outbound, DropReason::SpoofedSource, 1);
    assert_eq!(taken(&spoofed, &others), [false, false, false]);
    assert_eq!(taken(&spoofed, b"none"), [false, false, false]);
}

/// Captures come and go while the worker runs: it writes only those that run, and control frees what it has left.
#[test]
fn captures_come_and_go() {
    let mut tap = Tap::new(0);
    let point = tap.point();
    let captures = Captures::of_points([Arc::clone(&point)]);
    let snapshot = snapshot();
    let event = Event::inner(Stage::Sent, Direction::Outbound, 1);
    assert!(!tap.wants(Stage::Sent));
    let mut first = captures
        .start(CaptureFilter::all(Stages::NONE.with(Stage::Sent)))
        .unwrap();
    assert!(!tap.wants(Stage::Sent), "not before the next step");
    tap.begin(Now(1));
    assert!(tap.wants(Stage::Sent) && !tap.wants(Stage::Device));
    let all = || CaptureFilter::all(Stages::ALL);
    let others: Vec<_> = (1..CAPTURES)
        .map(|_| captures.start(all()).unwrap())
        .collect();
    assert!(matches!(captures.start(all()), Err(CaptureError::TooMany)));
    offer(&tap, &snapshot, &event, b"first alone");
    assert_eq!(others[0].counts().all().offered, 0);
    tap.begin(Now(2));
    offer(&tap, &snapshot, &event, b"all");
    assert_eq!(others[0].counts().all().offered, 1);
    drop(others);
    std::thread::scope(|scope| {
        let end = scope.spawn(|| first.end());
        while captures.running() > 0 {
            std::thread::yield_now();
        }
        assert!(!end.is_finished(), "the worker has not left it");
        tap.begin(Now(3));
        assert!(end.join().unwrap());
    });
    assert!(!tap.wants(Stage::Sent));
    assert_eq!(point.waiting(), 0);
    assert_eq!(first.counts().all().offered, 2);
    assert!(
        first.drain(&mut Vec::new(), usize::MAX),
        "what was captured stays"
    );
}
