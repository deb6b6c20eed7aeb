//! Super-packets as a kernel hands them over, and packets built without the code under test.

use std::net::IpAddr;

use dataplane::device::{Cut, GsoType, Offload, Unfinished};
use encap::checksum;
use encap::inner::Inner;
use encap::segment;
use etherparse::{IpHeaders, PacketBuilder, TcpHeader};
use testbed::packets::pattern;

/// A packet and what is left to do for it.
pub struct Super {
    pub bytes: Vec<u8>,
    pub offload: Offload,
}

/// The wire packets that it stands for, each finished.
pub fn cut(packet: &Super) -> Vec<Vec<u8>> {
    let inner = Inner::parse(&packet.bytes).unwrap();
    let Some(cut) = packet.offload.cut else {
        let mut bytes = packet.bytes.clone();
        if let Some(Unfinished { start, offset }) = packet.offload.checksum {
            checksum::finish(&mut bytes, start.into(), offset.into()).unwrap();
        }
        return vec![bytes];
    };
    let plan = segment::plan(&packet.bytes, &inner, cut.size).unwrap();
    let one = |index| {
        let mut header = [0; segment::MAX_HEADER];
        let length = plan.header(&packet.bytes, index, &mut header).unwrap();
        [&header[..length], &packet.bytes[plan.payload(index)]].concat()
    };
    (0..plan.count()).map(one).collect()
}

/// TCP with `length` bytes of payload, to be cut every `size`.
pub fn tcp(source: IpAddr, destination: IpAddr, length: usize, size: u16) -> Super {
    let mut header = TcpHeader::new(1000, 2000, 0x1122_3344, 500);
    header.acknowledgment_number = 77;
    (header.ack, header.psh) = (true, true);
    header
        .set_options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2])
        .unwrap();
    let mut bytes = Vec::new();
    PacketBuilder::ip(headers(source, destination))
        .tcp_header(header)
        .write_to_vec(&mut bytes, &pattern(length))
        .unwrap();
    let kind = if source.is_ipv4() {
        GsoType::Tcp4
    } else {
        GsoType::Tcp6
    };
    unfinished(bytes, kind, 32, size)
}

/// UDP with `length` bytes of payload, to be cut every `size`.
pub fn udp(source: IpAddr, destination: IpAddr, length: usize, size: u16) -> Super {
    let mut bytes = Vec::new();
    PacketBuilder::ip(headers(source, destination))
        .udp(1000, 2000)
        .write_to_vec(&mut bytes, &pattern(length))
        .unwrap();
    unfinished(bytes, GsoType::Udp, 8, size)
}

/// `packet` with one hop less.
pub fn forwarded(mut packet: Vec<u8>) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        packet[8] -= 1;
        let checksum = checksum::ipv4_header(&packet[..20]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        packet[7] -= 1;
    }
    packet
}

fn unfinished(mut bytes: Vec<u8>, kind: GsoType, transport: u16, size: u16) -> Super {
    let inner = Inner::parse(&bytes).unwrap();
    let start = inner.transport;
    let offset = if kind == GsoType::Udp { 6 } else { 16 };
    let pseudo = checksum::pseudo(
        inner.source,
        inner.destination,
        inner.protocol,
        bytes.len() - start,
    );
    bytes[start + offset..start + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
    let start = start as u16;
    let many = bytes.len() > usize::from(start + transport + size);
    Super {
        bytes,
        offload: Offload {
            checksum: Some(Unfinished {
                start,
                offset: offset as u16,
            }),
            cut: many.then_some(Cut {
                kind,
                size,
                header: start + transport,
            }),
        },
    }
}

/// Those of the shared packets, with DF.
fn headers(source: IpAddr, destination: IpAddr) -> IpHeaders {
    let mut headers = testbed::packets::headers(source, destination);
    if let IpHeaders::Ipv4(header, _) = &mut headers {
        header.dont_fragment = true;
    }
    headers
}
