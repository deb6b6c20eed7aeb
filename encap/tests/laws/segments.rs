//! A cut super-packet: each segment is a packet that others accept, and together they are what went in.

use encap::protocol::TCP;
use encap::segment::{self, MAX_HEADER, Unsegmentable};
use encap::transport::{self, ChecksumState};
use encap::{Inner, checksum};
use proptest::prelude::*;
use smoltcp::wire::{Ipv4Packet, TcpPacket, UdpPacket};

use crate::checksums::unfinished;
use crate::oracle;
use crate::packets::{self, Made};

fn cut(bytes: &[u8], size: u16) -> Result<Vec<Vec<u8>>, Unsegmentable> {
    let inner = Inner::parse(bytes).unwrap();
    let plan = segment::plan(bytes, &inner, size)?;
    let mut header = [0; MAX_HEADER];
    let segment = |i| {
        let len = plan.header(bytes, i, &mut header).unwrap();
        [&header[..len], &bytes[plan.payload(i)]].concat()
    };
    Ok((0..plan.count()).map(segment).collect())
}

fn size() -> impl Strategy<Value = u16> {
    prop_oneof![1..100u16, 500..1_500u16, 1_500..=u16::MAX]
}

/// Super-packets of up to 60 KB whose headers are short enough.
fn super_packet() -> impl Strategy<Value = Made> {
    prop_oneof![packets::tcp(60_000), packets::udp(60_000)]
        .prop_filter("headers", |made| made.header <= MAX_HEADER)
}

proptest! {
    #[test]
    fn the_oracle_holds(made in super_packet(), size in size()) {
        let inner = Inner::parse(&made.bytes).unwrap();
        oracle::segments_hold(&made.bytes, &inner, size);
    }

    #[test]
    fn segments_are_smoltcps(made in super_packet(), size in size()) {
        let Ok(segments) = cut(&made.bytes, size) else {
            prop_assert!(made.payload().len() > segment::MAX_SEGMENTS * usize::from(size));
            return Ok(());
        };
        let (source, destination) = (made.source.into(), made.destination.into());
        let mut payload = Vec::new();
        let count = segments.len();
        for (i, segment) in segments.iter().enumerate() {
            if made.is_v4() {
                let ip = Ipv4Packet::new_checked(segment).unwrap();
                prop_assert!(ip.verify_checksum());
                let first = Ipv4Packet::new_checked(&made.bytes).unwrap().ident();
                prop_assert_eq!(ip.ident(), first.wrapping_add(i as u16));
            }
            let (was, is) = (&made.bytes[made.transport..], &segment[made.transport..]);
            if made.protocol == TCP {
                let (was, is) = (TcpPacket::new_checked(was).unwrap(), TcpPacket::new_checked(is).unwrap());
                prop_assert!(is.verify_checksum(&source, &destination));
                prop_assert_eq!(is.seq_number(), was.seq_number() + payload.len());
                prop_assert_eq!((is.ack_number(), is.window_len()), (was.ack_number(), was.window_len()));
                prop_assert_eq!(is.options(), was.options());
                prop_assert_eq!((is.ack(), is.ece()), (was.ack(), was.ece()));
                let last = i + 1 == count;
                prop_assert_eq!((is.fin(), is.psh()), (was.fin() && last, was.psh() && last));
                prop_assert_eq!(is.cwr(), was.cwr() && i == 0);
                payload.extend_from_slice(is.payload());
            } else {
                let is = UdpPacket::new_checked(is).unwrap();
                prop_assert!(is.verify_checksum(&source, &destination));
                prop_assert_ne!(is.checksum(), 0);
                prop_assert_eq!(usize::from(is.len()), segment.len() - made.transport);
                payload.extend_from_slice(is.payload());
            }
        }
        prop_assert_eq!(payload, made.payload());
    }

    #[test]
    fn one_segment_is_the_packet(made in super_packet()) {
        let segments = cut(&made.bytes, u16::MAX).unwrap();
        prop_assert_eq!(segments, vec![made.bytes]);
    }

    #[test]
    fn an_unfinished_checksum_makes_no_difference(made in super_packet(), size in 300..1_500u16) {
        prop_assert_eq!(cut(&unfinished(&made), size), cut(&made.bytes, size));
    }

    #[test]
    fn udp_without_a_checksum_stays_so(made in packets::udp(5_000), size in 300..1_500u16) {
        let mut bytes = made.bytes.clone();
        bytes[made.transport + 6..made.transport + 8].fill(0);
        let Ok(segments) = cut(&bytes, size) else { return Ok(()) };
        let expected = if made.is_v4() { ChecksumState::Absent } else { ChecksumState::Valid };
        for segment in segments {
            prop_assert_eq!(transport::checksum_state(&segment, &Inner::parse(&segment).unwrap()), expected);
        }
    }

    #[test]
    fn a_udp_segment_checksum_of_zero_is_sent_as_ones(made in packets::udp(5_000), size in 2..1_500u16) {
        prop_assume!(made.header <= MAX_HEADER && made.payload().len() >= 2);
        let field = |bytes: &[u8]| {
            let first = cut(bytes, size).map(|segments| segments[0].clone());
            first.map(|first| u16::from_be_bytes([first[made.transport + 6], first[made.transport + 7]]))
        };
        // Payload that takes the first segment's checksum to zero: add the checksum itself into the first word.
        let Ok(sum) = field(&made.bytes) else { return Ok(()) };
        let mut bytes = made.bytes.clone();
        let word = u16::from_be_bytes([bytes[made.header], bytes[made.header + 1]]);
        bytes[made.header..made.header + 2].copy_from_slice(&checksum::add(word, sum).to_be_bytes());
        prop_assert_eq!(field(&bytes), Ok(0xffff));
    }

    #[test]
    fn tcp_size_fills_the_mtu(made in packets::tcp(5_000), mtu in 0..2_000u16) {
        let inner = Inner::parse(&made.bytes).unwrap();
        match segment::tcp_size(&inner, &made.bytes, mtu) {
            Some(size) => prop_assert_eq!(made.header + usize::from(size), usize::from(mtu)),
            None => prop_assert!(made.header >= usize::from(mtu)),
        }
    }

    #[test]
    fn only_tcp_and_udp(made in packets::echo(100)) {
        let inner = Inner::parse(&made.bytes).unwrap();
        prop_assert_eq!(segment::plan(&made.bytes, &inner, 100), Err(Unsegmentable::NotTcpOrUdp));
        prop_assert_eq!(segment::tcp_size(&inner, &made.bytes, 1_400), None);
    }
}
