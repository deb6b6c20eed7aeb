//! Packets as pods send them, and as peers do.

use dataplane::device::{Cut, GsoType, Offload, Unfinished};
use encap::inner::Inner;
use encap::protocol::TCP;
use encap::{checksum, segment};

/// A run of wire packets of one flow, the same for every bench.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How it is called in the results.
    pub name: &'static str,
    /// [`TCP`] or [`UDP`](encap::protocol::UDP).
    pub protocol: u8,
    /// Wire packets.
    pub count: usize,
    /// Payload bytes of each.
    pub payload: u16,
}

impl Shape {
    /// `count` packets of `payload` bytes each.
    pub const fn new(name: &'static str, protocol: u8, count: usize, payload: u16) -> Shape {
        Shape {
            name,
            protocol,
            count,
            payload,
        }
    }
}

/// Addresses of one flow: source, destination.
pub type Ends = [[u8; 4]; 2];

/// From the pod of node 1 to a pod of node 2, as in [`crate::cluster::spec`].
pub const OUT: Ends = [[10, 0, 1, 2], [10, 0, 2, 2]];
/// The way back.
pub const IN: Ends = [[10, 0, 2, 2], [10, 0, 1, 2]];

impl Shape {
    /// A super-packet of flow number `flow`, from which [`Shape::stream`] is cut. Its checksum is left out.
    pub fn super_packet(self, [source, destination]: Ends, flow: u16) -> Vec<u8> {
        let header = if self.protocol == TCP { 52 } else { 28 };
        let length = header + u16::try_from(self.count).unwrap() * self.payload;
        let mut bytes = packet(source, destination, length);
        bytes[9] = self.protocol;
        let header = checksum::ipv4_header(&bytes[..20]);
        bytes[10..12].copy_from_slice(&header.to_be_bytes());
        bytes[20..22].copy_from_slice(&(12_345 + flow).to_be_bytes());
        if self.protocol == TCP {
            // Data offset 8, ACK, and timestamps.
            bytes[24..52].fill(0);
            bytes[32..35].copy_from_slice(&[0x80, 0x10, 0x20]);
            bytes[40..44].copy_from_slice(&[1, 1, 8, 10]);
        } else {
            // Some checksum: a datagram without one is cut into datagrams without one.
            bytes[26..28].fill(1);
        }
        bytes
    }

    /// The wire packets of flow number `flow` in order, each with a right checksum.
    pub fn stream(self, ends: Ends, flow: u16) -> Vec<Vec<u8>> {
        let whole = self.super_packet(ends, flow);
        let inner = Inner::parse(&whole).unwrap();
        let plan = segment::plan(&whole, &inner, self.payload).unwrap();
        let mut header = [0; segment::MAX_HEADER];
        let segment = |i| {
            let len = plan.header(&whole, i, &mut header).unwrap();
            [&header[..len], &whole[plan.payload(i)]].concat()
        };
        (0..plan.count()).map(segment).collect()
    }

    /// The super-packet as a kernel hands it over: checksum unfinished, to be cut.
    pub fn handed_over(self, ends: Ends) -> (Offload, Vec<u8>) {
        let mut bytes = self.super_packet(ends, 0);
        let inner = Inner::parse(&bytes).unwrap();
        let (kind, offset, header) = if self.protocol == TCP {
            (GsoType::Tcp4, 16, 32)
        } else {
            (GsoType::Udp, 6, 8)
        };
        let start = inner.transport;
        let length = bytes.len() - start;
        let sum = checksum::pseudo(inner.source, inner.destination, self.protocol, length);
        bytes[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
        let cut = (self.count > 1).then_some(Cut {
            kind,
            size: self.payload,
            header: start as u16 + header,
        });
        let checksum = Some(Unfinished {
            start: start as u16,
            offset: offset as u16,
        });
        (Offload { checksum, cut }, bytes)
    }
}

/// A whole inner UDP packet of `length` bytes (at least 28) from `source` to `destination`, checksums left out.
pub fn packet(source: [u8; 4], destination: [u8; 4], length: u16) -> Vec<u8> {
    let mut bytes = vec![0x45, 0];
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend(source);
    bytes.extend(destination);
    bytes.extend([0x30, 0x39, 0x27, 0x0f]);
    bytes.extend(length.saturating_sub(20).to_be_bytes());
    bytes.resize(usize::from(length), 0);
    bytes
}
