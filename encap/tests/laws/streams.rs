//! Flows made of a few bytes per packet, and what must hold when they are coalesced. Property tests, the corpus and the
//! fuzz target call the same function.

use encap::checksum;
use encap::coalesce::{Coalescer, FrameSlice, Packet};
use encap::offload::{Cut, GsoType, Unfinished};
use encap::protocol::TCP;
use encap::transport::{self, ChecksumState};
use encap::{Family, Fragment, Inner, segment};
use smoltcp::wire::checksum as smol;

/// A packet and who sent it.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) bytes: Vec<u8>,
    pub(crate) owner: u32,
}

/// What came out in one write.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) bytes: Vec<u8>,
    pub(crate) checksum: Option<Unfinished>,
    pub(crate) cut: Option<Cut>,
    /// Which packets are in it.
    pub(crate) of: Vec<usize>,
}

/// Four bytes make a packet; all laws of coalescing hold for what they make.
pub(crate) fn coalesce(bytes: &[u8]) {
    let sent = packets(bytes);
    // Small limits, so that both are met.
    let mut coalescer = Coalescer::new(100, 40);
    for batch in pushed(&mut coalescer, &sent) {
        holds(&sent, &batch);
    }
}

/// Pushes all packets and drains whenever that is needed, and at the end.
pub(crate) fn pushed(coalescer: &mut Coalescer, sent: &[Sent]) -> Vec<Vec<Written>> {
    let mut batches = Vec::new();
    for (number, packet) in sent.iter().enumerate() {
        // The number of the packet is its buffer's; it begins at an offset of its own.
        let inner = Inner::parse(&packet.bytes).unwrap();
        let verdict = transport::checksum_state(&packet.bytes, &inner);
        let place = FrameSlice {
            frame: number as u16,
            start: number as u32 % 7,
            len: inner.len as u16,
        };
        let mut push = || coalescer.push(&packet.bytes, &inner, verdict, place, packet.owner);
        if push().is_err() {
            batches.push(drained(coalescer, sent));
            let inner = Inner::parse(&packet.bytes).unwrap();
            let again = coalescer.push(&packet.bytes, &inner, verdict, place, packet.owner);
            assert_eq!(again, Ok(()), "an empty coalescer takes a packet");
        }
    }
    batches.push(drained(coalescer, sent));
    assert!(coalescer.is_empty());
    batches
}

fn drained(coalescer: &mut Coalescer, sent: &[Sent]) -> Vec<Written> {
    let mut written = Vec::new();
    coalescer.drain(|packet| written.push(gathered(&packet, sent)));
    written
}

/// What the device would see, with everything checked that a [`Packet`] says of itself.
fn gathered(packet: &Packet<'_>, sent: &[Sent]) -> Written {
    let of: Vec<usize> = packet.packets().map(|place| place.frame.into()).collect();
    let whole = |place: FrameSlice| {
        assert_eq!(place.start, u32::from(place.frame) % 7);
        usize::from(place.len)
    };
    assert_eq!(packet.count, of.len());
    assert_eq!(packet.bytes, packet.packets().map(whole).sum());
    assert!(of.iter().all(|&number| sent[number].owner == packet.owner));
    let mut bytes = packet.header.to_vec();
    for place in packet.pieces() {
        let start = (place.start - u32::from(place.frame) % 7) as usize;
        let from = &sent[usize::from(place.frame)].bytes;
        bytes.extend_from_slice(&from[start..start + usize::from(place.len)]);
    }
    let inner = Inner::parse(&bytes).unwrap();
    match packet.offload.checksum {
        // By the field itself: a sum over all may happen to be right.
        Some(unfinished) => {
            assert_eq!(usize::from(unfinished.start), inner.transport);
            let place = usize::from(unfinished.start + unfinished.offset);
            let field = u16::from_be_bytes([bytes[place], bytes[place + 1]]);
            assert_eq!(field, pseudo_header(&bytes, &inner));
        }
        None => {
            let verdict = transport::checksum_state(&bytes, &inner);
            assert!(!matches!(verdict, ChecksumState::Partial { .. }));
        }
    }
    Written {
        bytes,
        checksum: packet.offload.checksum,
        cut: packet.offload.cut,
        of,
    }
}

fn pseudo_header(packet: &[u8], inner: &Inner) -> u16 {
    let (source, destination) = (inner.source.into(), inner.destination.into());
    let len = (packet.len() - inner.transport) as u32;
    smol::pseudo_header(&source, &destination, inner.protocol.into(), len)
}

/// All laws, for one batch.
fn holds(sent: &[Sent], batch: &[Written]) {
    for written in batch {
        match written.cut {
            None => {
                assert_eq!(written.of.len(), 1);
                assert_eq!(
                    written.bytes, sent[written.of[0]].bytes,
                    "a packet alone goes out as it came"
                );
            }
            Some(cut) => super_packet_holds(sent, written, cut),
        }
    }
    let mut order: Vec<usize> = batch
        .iter()
        .flat_map(|written| written.of.clone())
        .collect();
    order_holds(sent, &order);
    order.sort_unstable();
    assert!(
        order.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "each packet comes out once, in its batch"
    );
}

/// Cut again, a super-packet gives the packets that it was made of.
fn super_packet_holds(sent: &[Sent], written: &Written, cut: Cut) {
    assert!((2..=64).contains(&written.of.len()));
    assert!(written.bytes.len() <= 65_535);
    let inner = Inner::parse(&written.bytes).unwrap();
    assert_eq!(inner.len, written.bytes.len());
    let kind = match (inner.protocol, inner.family) {
        (6, Family::V4) => GsoType::Tcp4,
        (6, Family::V6) => GsoType::Tcp6,
        _ => GsoType::Udp,
    };
    assert_eq!(cut.kind, kind);
    let plan = segment::plan(&written.bytes, &inner, cut.size).unwrap();
    assert_eq!(plan.count(), written.of.len());
    assert_eq!(plan.header_len(), usize::from(cut.header));
    let push_at = |bytes: &[u8]| kind != GsoType::Udp && bytes[inner.transport + 13] & 8 != 0;
    let mut push = false;
    let mut header = [0; segment::MAX_HEADER];
    for (i, &number) in written.of.iter().enumerate() {
        let len = plan.header(&written.bytes, i, &mut header).unwrap();
        let again = [&header[..len], &written.bytes[plan.payload(i)]].concat();
        let was = finished(&sent[number].bytes);
        push |= push_at(&was);
        assert_eq!(canonical(&again), canonical(&was), "segment {i}");
    }
    assert_eq!(push_at(&written.bytes), push, "PSH is carried");
}

/// The packet with its checksum finished; it must have been right or unfinished.
fn finished(packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    let inner = Inner::parse(packet).unwrap();
    match transport::checksum_state(packet, &inner) {
        ChecksumState::Valid => {}
        ChecksumState::Partial { start, offset } => {
            checksum::finish(&mut bytes, start, offset).unwrap();
        }
        other => panic!("a packet with checksum {other:?} was joined"),
    }
    bytes
}

/// The packet without what a cut may change: the identification of packets that routers may not fragment, PSH, and
/// which of the two zeros a checksum is. Header checksums are made anew once they proved right.
fn canonical(packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    let inner = Inner::parse(packet).unwrap();
    if inner.family == Family::V4 {
        assert_eq!(smol::data(&packet[..inner.transport]), 0xffff);
        if inner.dont_fragment {
            bytes[4..6].fill(0);
        }
        bytes[10..12].fill(0);
    }
    if inner.protocol == TCP {
        bytes[inner.transport + 13] &= !8;
        // The checksum covers PSH; what remains is proved right by the verdict.
        assert_eq!(
            transport::checksum_state(packet, &inner),
            ChecksumState::Valid
        );
        bytes[inner.transport + 16..inner.transport + 18].fill(0);
    }
    bytes
}

/// Packets of one flow keep their order, but that an acknowledgment that says nothing new may be passed by data.
fn order_holds(sent: &[Sent], order: &[usize]) {
    for (at, &later) in order.iter().enumerate() {
        for &earlier in &order[at + 1..] {
            if earlier > later {
                continue;
            }
            // `later` came out first.
            let (passed, passing) = (&sent[earlier].bytes, &sent[later].bytes);
            assert!(
                !related(passed, passing) || is_stale(passed, passing),
                "{later} passed {earlier}"
            );
        }
    }
}

/// Whether the two packets may be of one flow.
fn related(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = (Inner::parse(a).unwrap(), Inner::parse(b).unwrap());
    let ends = (a.source, a.destination) == (b.source, b.destination);
    let flow = (a.protocol, a.ports) == (b.protocol, b.ports);
    ends && (flow || a.fragment != Fragment::Whole || b.fragment != Fragment::Whole)
}

/// Whether `ack` is a pure acknowledgment with no other acknowledgment, window or option than `data`.
fn is_stale(ack: &[u8], data: &[u8]) -> bool {
    let inner = Inner::parse(ack).unwrap();
    let at = inner.transport;
    let header = usize::from(ack[at + 12] >> 4) * 4;
    inner.protocol == TCP
        && at + header == inner.len
        && ack[at + 8..at + 13] == data[at + 8..at + 13]
        && ack[at + 14..at + 16] == data[at + 14..at + 16]
        && ack[at + 20..] == data[at + 20..at + header]
}

/// A flow in the making.
#[derive(Clone, Copy, Debug)]
struct Stream {
    v6: bool,
    udp: bool,
    /// Tells the flow from others between the same ends.
    port: u8,
    sequence: u32,
    last: u32,
    acknowledgment: u32,
    identification: u16,
    dont_fragment: bool,
    size: usize,
    timestamps: bool,
    tos: u8,
}

/// Departures from the ordinary that a packet makes.
#[derive(Clone, Copy, Debug)]
struct Quirks {
    /// TCP flags.
    flags: u8,
    hop_limit: u8,
    /// 0 for none: see [`Stream::emit`].
    damage: u8,
    fragment: bool,
    options: bool,
}

const PLAIN: Quirks = Quirks {
    flags: 0x10,
    hop_limit: 63,
    damage: 0,
    fragment: false,
    options: false,
};

/// Packets of eight flows, four bytes each: which flow, what happens, and how much.
pub(crate) fn packets(bytes: &[u8]) -> Vec<Sent> {
    let mut streams: Vec<Stream> = (0..8).map(Stream::new).collect();
    let events = bytes.as_chunks::<4>().0.iter().take(400);
    let packet = |event: &[u8; 4]| {
        let [flow, event, a, b] = *event;
        let stream = &mut streams[usize::from(flow & 7)];
        Sent {
            bytes: stream.event(event, u16::from_be_bytes([a, b])),
            owner: u32::from(flow == 0xff),
        }
    };
    events.map(packet).collect()
}

impl Stream {
    fn new(number: u8) -> Stream {
        Stream {
            v6: number & 1 != 0,
            udp: number & 2 != 0,
            port: number >> 2,
            sequence: u32::MAX - 3_000,
            last: 0,
            acknowledgment: 1_000,
            identification: 0xfff0,
            dont_fragment: number & 4 != 0,
            size: 100 + 300 * usize::from(number),
            timestamps: number & 4 != 0,
            tos: 0,
        }
    }

    /// Most events are data in order.
    fn event(&mut self, event: u8, amount: u16) -> Vec<u8> {
        let some = usize::from(amount);
        match event % 40 {
            0 => self.data(some % (self.size + 100), PLAIN),
            1 => self.data(
                self.size,
                Quirks {
                    flags: 0x18,
                    ..PLAIN
                },
            ),
            2 => {
                self.sequence = self.sequence.wrapping_add(amount.into());
                self.identification = self.identification.wrapping_add(amount & 1);
                self.data(self.size, PLAIN)
            }
            3 => {
                self.sequence = self.last;
                self.data(self.size, PLAIN)
            }
            4 => self.data(0, PLAIN),
            5 => {
                self.acknowledgment = self.acknowledgment.wrapping_add(amount.into());
                self.data(if amount & 1 == 0 { 0 } else { self.size }, PLAIN)
            }
            6 => self.data(
                self.size,
                Quirks {
                    flags: amount as u8,
                    ..PLAIN
                },
            ),
            7 => {
                self.tos = amount as u8;
                self.data(self.size, PLAIN)
            }
            8 => self.data(
                self.size,
                Quirks {
                    hop_limit: 62,
                    ..PLAIN
                },
            ),
            9..=12 | 22 => {
                let damage = if event % 40 == 22 { 5 } else { event % 40 - 8 };
                self.data(self.size, Quirks { damage, ..PLAIN })
            }
            13 => self.data(
                self.size,
                Quirks {
                    fragment: true,
                    ..PLAIN
                },
            ),
            14 => self.data(
                self.size,
                Quirks {
                    options: true,
                    ..PLAIN
                },
            ),
            15 => {
                self.dont_fragment = !self.dont_fragment;
                self.data(self.size, PLAIN)
            }
            16 => {
                self.size = 1 + some % 9_000;
                self.data(self.size, PLAIN)
            }
            21 => {
                // Says something that the data behind it does not repeat.
                let was = self.acknowledgment;
                self.acknowledgment = was.wrapping_add(amount.into());
                let packet = self.data(0, PLAIN);
                self.acknowledgment = was;
                packet
            }
            17..=20 => self.data(self.size, Quirks { damage: 2, ..PLAIN }),
            _ => self.data(self.size, PLAIN),
        }
    }

    fn data(&mut self, len: usize, quirks: Quirks) -> Vec<u8> {
        let packet = self.emit(len, quirks);
        self.last = self.sequence;
        self.sequence = self.sequence.wrapping_add(len as u32);
        self.identification = self.identification.wrapping_add(1);
        packet
    }

    /// The packet. Damage: 1 a wrong checksum, 2 an unfinished one, 3 none or one of zero, 4 a wrong IPv4 header,
    /// 5 a byte behind the datagram.
    fn emit(&self, len: usize, quirks: Quirks) -> Vec<u8> {
        let (protocol, mut segment) = if self.udp {
            (17, self.udp())
        } else {
            (6, self.tcp(quirks.flags))
        };
        let filler = |i: usize| (self.sequence as usize + 3 * i) as u8;
        segment.extend((0..len).map(filler));
        let stray = usize::from(self.udp && quirks.damage == 5 && len > 0);
        if self.udp {
            let length = ((segment.len() - stray) as u16).to_be_bytes();
            segment[4..6].copy_from_slice(&length);
        }
        let covered = &segment[..segment.len() - stray];
        let at = if self.udp { 6 } else { 16 };
        let (source, destination) = self.addresses();
        let pseudo = smol::pseudo_header(
            &source.into(),
            &destination.into(),
            protocol.into(),
            covered.len() as u32,
        );
        let right = !smol::combine(&[pseudo, smol::data(covered)]);
        let right = if self.udp && right == 0 {
            0xffff
        } else {
            right
        };
        let written = match quirks.damage {
            1 => right ^ 0x0100,
            2 => pseudo,
            3 => 0,
            _ => right,
        };
        segment[at..at + 2].copy_from_slice(&written.to_be_bytes());
        let header_damage = quirks.damage == 4;
        let mut packet = if self.v6 {
            self.ipv6(protocol, segment.len(), quirks)
        } else {
            self.ipv4(protocol, segment.len(), quirks, header_damage)
        };
        packet.append(&mut segment);
        packet
    }

    fn addresses(&self) -> (std::net::IpAddr, std::net::IpAddr) {
        if self.v6 {
            ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())
        } else {
            ("10.1.0.2".parse().unwrap(), "10.2.0.2".parse().unwrap())
        }
    }

    fn udp(&self) -> Vec<u8> {
        vec![0x30, self.port, 0x27, 0x0f, 0, 0, 0, 0]
    }

    fn tcp(&self, flags: u8) -> Vec<u8> {
        let mut tcp = vec![0x30, self.port, 0x27, 0x0f];
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledgment.to_be_bytes());
        tcp.extend([if self.timestamps { 0x80 } else { 0x50 }, flags]);
        tcp.extend([0x20, 0, 0, 0, 0, 0]);
        if self.timestamps {
            tcp.extend([1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8]);
        }
        tcp
    }

    fn ipv4(&self, protocol: u8, payload: usize, quirks: Quirks, damage: bool) -> Vec<u8> {
        let options: &[u8] = if quirks.options { &[1, 1, 1, 1] } else { &[] };
        let len = 20 + options.len() + payload;
        let mut ip = vec![0x45 + (options.len() / 4) as u8, self.tos];
        ip.extend((len as u16).to_be_bytes());
        ip.extend(self.identification.to_be_bytes());
        let flags = if self.dont_fragment { 0x40 } else { 0 };
        ip.push(flags | if quirks.fragment { 0x20 } else { 0 });
        ip.extend([0, quirks.hop_limit, protocol, 0, 0]);
        ip.extend([10, 1, 0, 2, 10, 2, 0, 2]);
        ip.extend(options);
        let sum = !smol::data(&ip) ^ u16::from(damage);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip
    }

    fn ipv6(&self, protocol: u8, payload: usize, quirks: Quirks) -> Vec<u8> {
        let [high, low] = (payload as u16 + 8).to_be_bytes();
        let extension: Option<(u8, [u8; 8])> = match (quirks.fragment, quirks.options) {
            (true, _) => Some((44, [protocol, 0, 0, 1, 0, 0, 0, 7])),
            // Padding that would pass for a UDP header's length.
            (_, true) => Some((60, [protocol, 0, 1, 4, high, low, 0, 0])),
            _ => None,
        };
        let extra = extension.map_or(0, |_| 8);
        let mut ip = vec![0x60 | self.tos >> 4, self.tos << 4, 0, self.port];
        ip.extend(((payload + extra) as u16).to_be_bytes());
        ip.extend([
            extension.map_or(protocol, |(next, _)| next),
            quirks.hop_limit,
        ]);
        ip.extend("fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        ip.extend("fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
        ip.extend(extension.iter().flat_map(|(_, bytes)| bytes));
        ip
    }
}
