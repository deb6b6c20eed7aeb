//! What must hold for any bytes whatever. Property tests, the corpus and the fuzz targets call the same functions.

use encap::checksum;
use encap::probe::{self, Kind, Message};
use encap::pull::{self, Vtep};
use encap::push::{self, Header};
use encap::transport::{self, ChecksumState};
use encap::{
    Ecn, Family, Format, Fragment, Inner, Mac, Malformed, Vni, ecn, fragment, icmp, segment,
};
use etherparse::{IpNumber, Ipv4HeaderSlice, Ipv6ExtensionsSlice, Ipv6HeaderSlice};
use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

/// Everything that is done with a packet read from the device.
pub(crate) fn inner(bytes: &[u8]) {
    let parsed = Inner::parse(bytes);
    match bytes.first().map(|first| first >> 4) {
        Some(4) => v4_agrees(bytes, parsed),
        Some(6) => v6_agrees(bytes, parsed),
        Some(_) => assert_eq!(parsed, Err(Malformed::Version)),
        None => assert_eq!(parsed, Err(Malformed::Short)),
    }
    let Ok(inner) = parsed else { return };
    let packet = &bytes[..inner.len];
    assert!(inner.transport <= inner.len);
    assert_eq!(
        Inner::parse(packet),
        Ok(inner),
        "bytes behind the packet change it"
    );
    hash_is_symmetric(&inner);
    unfinished_can_be_finished(packet, &inner);
    codepoint_alone_changes(packet, &inner);
    for size in [0, 1, 7, 536, 1_400, u16::MAX] {
        segments_hold(packet, &inner, size);
    }
    for mtu in [0, 27, 28, 68, 575, 1_400] {
        fragments_hold(packet, &inner, mtu);
    }
    errors_hold(packet, &inner);
}

/// Everything that is done with a datagram. The first byte chooses what the datagram is held against.
pub(crate) fn pull(input: &[u8]) {
    let Some((&choice, datagram)) = input.split_first() else {
        return;
    };
    let named = datagram.len() >= 22 && choice & 4 != 0;
    let mac = |own: u8| match named {
        true => Mac(datagram[8..14].try_into().unwrap()),
        false => Mac([2, 0, 0, 0, 0, own]),
    };
    let vtep = Vtep {
        mac: mac(1),
        mac_v6: mac(6),
        vni: Vni::new(if named {
            u32::from_be_bytes([0, datagram[4], datagram[5], datagram[6]])
        } else {
            1
        })
        .unwrap(),
        gbp: choice & 1 != 0,
    };
    vxlan_holds(datagram, &vtep);
    let allow_v6 = choice & 2 != 0;
    let pulled = pull::udp(datagram, allow_v6);
    if pulled == Err(pull::Refusal::Probe) {
        probe_holds(datagram, 0);
    }
    if let Ok(pulled) = pulled {
        assert!(allow_v6 || pulled.inner.family == Family::V4);
        pulled_holds(datagram, &pulled, Format::Udp, 0, &push::udp());
    }
    if let Ok(outer) = pull::outer(datagram) {
        assert!(outer.payload.len() + 28 <= datagram.len());
        assert_ne!(outer.source.is_ipv4(), outer.source.is_ipv6());
    }
}

fn vxlan_holds(datagram: &[u8], vtep: &Vtep) {
    let pulled = match pull::vxlan(datagram, vtep) {
        Ok(pulled) => pulled,
        Err(pull::Refusal::Probe) => return probe_holds(datagram, 22),
        Err(_) => return,
    };
    assert_eq!(datagram[0] & !0x80, 8);
    assert_eq!(datagram[7], 0);
    let ours = vtep.mac_of(pulled.inner.family);
    assert_eq!(datagram[8..14], ours.0);
    assert_ne!(datagram[8..14], datagram[14..20]);
    let source = Mac(datagram[14..20].try_into().unwrap());
    let header = push::vxlan(vtep.vni, source, ours, pulled.inner.family);
    assert_eq!(
        header.as_slice()[4..],
        datagram[4..22],
        "pushing again gives the datagram's headers"
    );
    if !vtep.gbp {
        assert_eq!(header.as_slice()[..4], datagram[..4]);
    }
    pulled_holds(datagram, &pulled, Format::Vxlan, 22, &header);
}

/// Whatever stands in the place of a probe: no packet is found there, and a message says what its bytes say.
fn probe_holds(datagram: &[u8], offset: usize) {
    let bytes = &datagram[offset..];
    if let Ok(message) = Message::parse(bytes) {
        assert!(Inner::parse(bytes).is_err());
        assert_eq!(message.emit()[..6], bytes[..6]);
        assert_eq!(message.emit()[8..40], bytes[8..40]);
        assert_eq!(probe::quoted_nonce(bytes), Some(message.nonce));
        let answer = message.answer(datagram.len() as u32, None, 1450).emit();
        // In either format, an answer is no longer than its request; nothing else is answered.
        assert!(message.kind != Kind::Request || answer.len() + 22 <= bytes.len());
    }
}

fn pulled_holds(
    datagram: &[u8],
    pulled: &pull::Pulled,
    format: Format,
    offset: usize,
    header: &Header,
) {
    assert_eq!(pulled.offset, offset);
    assert_eq!(header.as_slice().len(), offset);
    let end = offset + pulled.inner.len;
    assert!(end <= datagram.len());
    assert_eq!(pull::inner_span(datagram, format), Some(end));
    assert_eq!(Inner::parse(&datagram[offset..end]), Ok(pulled.inner));
}

fn v4_agrees(bytes: &[u8], parsed: Result<Inner, Malformed>) {
    let smol = Ipv4Packet::new_checked(bytes);
    assert_eq!(
        smol.is_ok(),
        parsed.is_ok(),
        "smoltcp: {smol:?}, ours: {parsed:?}"
    );
    let (Ok(smol), Ok(inner)) = (smol, parsed) else {
        return;
    };
    let header = Ipv4HeaderSlice::from_slice(bytes).expect("etherparse parses what smoltcp does");
    let fragment = match (header.fragments_offset().value(), header.more_fragments()) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    };
    assert_eq!(inner.family, Family::V4);
    assert_eq!(inner.source, smol.src_addr());
    assert_eq!(inner.destination, smol.dst_addr());
    assert_eq!(inner.len, usize::from(smol.total_len()));
    assert_eq!(inner.transport, usize::from(smol.header_len()));
    assert_eq!(inner.protocol, u8::from(smol.next_header()));
    assert_eq!(inner.dont_fragment, smol.dont_frag());
    assert_eq!(inner.ecn as u8, header.ecn().value());
    assert_eq!(inner.fragment, fragment);
    assert_eq!(
        checksum::ipv4_header(header.slice()),
        v4_checksum(header.slice())
    );
}

/// By smoltcp, which unlike etherparse keeps the reserved flag that RFC 3514 made famous.
fn v4_checksum(header: &[u8]) -> u16 {
    let mut copy = Ipv4Packet::new_unchecked(header.to_vec());
    copy.fill_checksum();
    copy.checksum()
}

fn v6_agrees(bytes: &[u8], parsed: Result<Inner, Malformed>) {
    let Ok(smol) = Ipv6Packet::new_checked(bytes) else {
        assert!(
            matches!(parsed, Err(Malformed::Short | Malformed::TotalLength)),
            "{parsed:?}"
        );
        return;
    };
    let chain =
        Ipv6ExtensionsSlice::from_slice(IpNumber(smol.next_header().into()), smol.payload());
    match (chain, parsed) {
        (Ok((chain, protocol, rest)), Ok(inner)) if inner.fragment != Fragment::Later => {
            assert_eq!(inner.protocol, protocol.0);
            assert_eq!(inner.len - inner.transport, rest.len());
            assert_eq!(
                inner.fragment == Fragment::First,
                chain.is_fragmenting_payload()
            );
        }
        (Ok((chain, ..)), Err(error)) => {
            assert_eq!(error, Malformed::Extensions);
            assert!(
                chain.into_iter().count() > 8,
                "a chain of at most 8 was refused"
            );
        }
        (Err(error), Ok(inner)) => {
            assert_eq!(inner.fragment, Fragment::Later, "accepted despite {error}")
        }
        (_, Ok(_)) | (Err(_), Err(_)) => {}
    }
    let Ok(inner) = parsed else { return };
    let header = Ipv6HeaderSlice::from_slice(bytes).expect("etherparse parses what smoltcp does");
    assert_eq!(inner.family, Family::V6);
    assert_eq!(inner.source, smol.src_addr());
    assert_eq!(inner.destination, smol.dst_addr());
    assert_eq!(inner.len, smol.total_len());
    assert_eq!(inner.ecn as u8, header.traffic_class() & 3);
    assert!(inner.dont_fragment);
}

fn hash_is_symmetric(inner: &Inner) {
    let ports = inner
        .ports
        .map(|(source, destination)| (destination, source));
    let back = Inner {
        source: inner.destination,
        destination: inner.source,
        ports,
        ..*inner
    };
    assert_eq!(inner.flow_hash(), back.flow_hash());
    if inner.fragment != Fragment::Whole {
        let other = Inner {
            protocol: 255,
            ports: None,
            fragment: Fragment::Later,
            ..*inner
        };
        assert_eq!(inner.flow_hash(), other.flow_hash());
    }
}

fn unfinished_can_be_finished(packet: &[u8], inner: &Inner) {
    let mut copy = packet.to_vec();
    match transport::checksum_state(packet, inner) {
        ChecksumState::Partial { start, offset } => {
            assert_eq!(start, inner.transport);
            checksum::finish(&mut copy, start, offset).unwrap();
            assert_eq!(
                transport::checksum_state(&copy, inner),
                ChecksumState::Valid
            );
        }
        ChecksumState::Unknown => {}
        ChecksumState::Valid | ChecksumState::Absent | ChecksumState::Invalid => {
            assert_eq!(inner.fragment, Fragment::Whole)
        }
    }
    for (start, offset) in [
        (0, packet.len()),
        (packet.len() + 1, 0),
        (usize::MAX, usize::MAX),
    ] {
        assert!(checksum::finish(&mut copy, start, offset).is_err());
    }
}

fn codepoint_alone_changes(packet: &[u8], inner: &Inner) {
    let right = |bytes: &[u8]| {
        checksum::ipv4_header(&bytes[..inner.transport]).to_be_bytes() == bytes[10..12]
    };
    for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
        let mut copy = packet.to_vec();
        assert!(ecn::set(&mut copy, inner.family, ecn));
        assert_eq!(Inner::parse(&copy), Ok(Inner { ecn, ..*inner }));
        assert_eq!(
            transport::checksum_state(&copy, inner),
            transport::checksum_state(packet, inner)
        );
        if inner.family == Family::V4 && right(packet) {
            assert!(right(&copy));
        }
    }
}

/// The segments are packets of their own, carry the payload in order, and each verifies.
pub(crate) fn segments_hold(packet: &[u8], inner: &Inner, size: u16) {
    let Ok(plan) = segment::plan(packet, inner, size) else {
        return;
    };
    let mut header = [0; segment::MAX_HEADER];
    let mut end = plan.header_len();
    for i in 0..plan.count() {
        let range = plan.payload(i);
        assert_eq!(range.start, end, "payload is cut without gaps");
        assert!(range.len() <= usize::from(size));
        assert!(i + 1 == plan.count() || range.len() == usize::from(size));
        end = range.end;
        let len = plan.header(packet, i, &mut header).unwrap();
        assert_eq!(len, plan.header_len());
        let segment = [&header[..len], &packet[range]].concat();
        let parsed = Inner::parse(&segment).expect("a segment is a packet");
        assert_eq!(
            parsed,
            Inner {
                len: segment.len(),
                ..*inner
            }
        );
        assert!(matches!(
            transport::checksum_state(&segment, &parsed),
            ChecksumState::Valid | ChecksumState::Absent
        ));
    }
    assert_eq!(end, packet.len(), "all payload is cut");
    assert!(plan.payload(plan.count()).is_empty());
    assert_eq!(plan.header(packet, plan.count(), &mut header), None);
    assert_eq!(
        plan.header(packet, 0, &mut header[..plan.header_len() - 1]),
        None
    );
    assert_eq!(
        plan.header(&packet[..plan.header_len() - 1], 0, &mut header),
        None
    );
}

/// The fragments fit, carry the payload in order, and say where it belongs.
pub(crate) fn fragments_hold(packet: &[u8], inner: &Inner, mtu: u16) {
    let Ok(plan) = fragment::plan(packet, inner, mtu) else {
        return;
    };
    let whole = Ipv4HeaderSlice::from_slice(packet).unwrap();
    let mut header = [0; fragment::MAX_HEADER];
    let mut end = plan.header_len();
    for i in 0..plan.count() {
        let range = plan.payload(i);
        assert_eq!(range.start, end, "payload is cut without gaps");
        end = range.end;
        let len = plan.header(packet, i, &mut header).unwrap();
        assert_eq!(len, plan.header_len());
        assert!(len + range.len() <= usize::from(mtu));
        let ip = Ipv4HeaderSlice::from_slice(&header[..len]).unwrap();
        let at =
            usize::from(whole.fragments_offset().byte_offset()) + range.start - plan.header_len();
        assert_eq!(usize::from(ip.fragments_offset().byte_offset()), at);
        assert_eq!(usize::from(ip.total_len()), len + range.len());
        assert_eq!(
            ip.more_fragments(),
            whole.more_fragments() || i + 1 < plan.count()
        );
        assert_eq!(ip.identification(), whole.identification());
        assert_eq!(ip.header_checksum(), v4_checksum(ip.slice()));
    }
    assert_eq!(end, packet.len(), "all payload is cut");
    assert!(plan.payload(plan.count()).is_empty());
    assert_eq!(plan.header(packet, plan.count(), &mut header), None);
}

/// An error is well made, quotes the packet, and is never answered itself.
fn errors_hold(packet: &[u8], inner: &Inner) {
    let source = match inner.family {
        Family::V4 => "10.244.1.0".parse().unwrap(),
        Family::V6 => "fd00::1".parse().unwrap(),
    };
    let most = if inner.family == Family::V4 {
        576
    } else {
        icmp::MAX_ICMP
    };
    let mut out = [0; icmp::MAX_ICMP];
    let mut again = [0; icmp::MAX_ICMP];
    for too_big in [false, true] {
        let made = if too_big {
            icmp::too_big(source, packet, inner, 1_400, &mut out)
        } else {
            icmp::net_unreachable(source, packet, inner, &mut out)
        };
        let Some(len) = made else { continue };
        let error = Inner::parse(&out[..len]).expect("an error is a packet");
        assert_eq!(error.len, len);
        assert!(len <= most);
        assert_eq!((error.source, error.destination), (source, inner.source));
        assert_eq!(
            transport::checksum_state(&out[..len], &error),
            ChecksumState::Valid
        );
        assert_eq!(
            out[error.transport + 8..len],
            packet[..packet.len().min(most - error.transport - 8)]
        );
        assert_eq!(
            icmp::net_unreachable(inner.source, &out[..len], &error, &mut again),
            None
        );
    }
}
