//! Super-packets byte for byte as the crate `tun-rs` makes them, on streams about which both have the same opinion.
//!
//! Kept out of these streams, because ours differ on purpose: PSH (there it ends a chain), segments out of order (put in
//! front there), unfinished checksums (not recognised there), fragments and options (passed by later datagrams there),
//! IPv4 headers that fail their checksum (joined there), identifications with gaps and ECE (ignored there), datagrams of
//! no bytes (passed there).

use encap::coalesce::Coalescer;
use encap::offload::GsoType;
use encap::protocol::UDP;
use encap::{Family, Inner};
use proptest::collection::vec;
use proptest::prelude::*;
use tun_rs::{VIRTIO_NET_HDR_LEN, VirtioNetHdr, handle_gro};

use crate::streams::{self, Sent, Written};

/// Packets of up to eight flows: data in order, data of other lengths, another traffic class or hop limit, a wrong
/// checksum, another size.
fn events() -> impl Strategy<Value = Vec<u8>> {
    let ordinary = Just((39u8, 0u16));
    let odd = prop_oneof![
        (Just(0u8), any::<u16>()),
        (Just(7), any::<u16>()),
        (prop_oneof![Just(8u8), Just(9)], Just(0)),
        (Just(16), 0..1_000u16),
    ];
    let event = (0..8u8, prop_oneof![6 => ordinary, 1 => odd]);
    let bytes = event.prop_map(|(flow, (event, amount))| {
        let [a, b] = amount.to_be_bytes();
        [flow, event, a, b]
    });
    // Below the 64 packets that ours stops at, and far from 64 KB.
    vec(bytes, 0..40).prop_map(|events| events.concat())
}

/// By `tun-rs`: what is written, with the header in front of it.
fn theirs(sent: &[Sent]) -> Vec<(VirtioNetHdr, Vec<u8>)> {
    let room = |packet: &Sent| {
        let mut buffer = Vec::with_capacity(140_000);
        buffer.resize(VIRTIO_NET_HDR_LEN, 0);
        buffer.extend_from_slice(&packet.bytes);
        buffer
    };
    let mut buffers: Vec<Vec<u8>> = sent.iter().map(room).collect();
    let mut written = Vec::new();
    let (mut tcp, mut udp) = Default::default();
    let at = VIRTIO_NET_HDR_LEN;
    handle_gro(&mut buffers, at, &mut tcp, &mut udp, true, &mut written).unwrap();
    let split = |&number: &usize| {
        let (header, packet) = buffers[number].split_at(at);
        (VirtioNetHdr::decode(header).unwrap(), packet.to_vec())
    };
    written.iter().map(split).collect()
}

fn ours(sent: &[Sent]) -> Vec<Written> {
    streams::pushed(&mut Coalescer::new(100, 100), sent).concat()
}

/// Whether a packet of no payload is one of those kept out: a datagram, or an acknowledgment that takes one of the
/// identifications that count up, and so leaves a gap between the data around it.
fn is_kept_out(packet: &Sent) -> bool {
    let inner = Inner::parse(&packet.bytes).unwrap();
    let header = match inner.protocol {
        6 => usize::from(packet.bytes[inner.transport + 12] >> 4) * 4,
        _ => 8,
    };
    let counted = inner.family == Family::V4 && !inner.dont_fragment;
    inner.transport + header == inner.len && (inner.protocol == UDP || counted)
}

proptest! {
    #[test]
    fn super_packets_are_theirs(events in events()) {
        let sent = streams::packets(&events);
        prop_assume!(!sent.iter().any(is_kept_out));
        let (ours, theirs) = (ours(&sent), theirs(&sent));
        prop_assert_eq!(ours.len(), theirs.len());
        for (ours, (header, bytes)) in ours.iter().zip(theirs) {
            prop_assert_eq!(&ours.bytes, &bytes);
            let gso = ours.cut.map_or((0, 0, 0), |cut| {
                let kind = match cut.kind { GsoType::Tcp4 => 1, GsoType::Tcp6 => 4, GsoType::Udp => 5 };
                (kind, cut.size, cut.header)
            });
            prop_assert_eq!((header.gso_type, header.gso_size, header.hdr_len), gso);
            let sum = ours.checksum.map_or((0, 0, 0), |sum| (1, sum.start, sum.offset));
            prop_assert_eq!((header.flags, header.csum_start, header.csum_offset), sum);
        }
    }
}
