use super::*;

/// IPv4 and TCP with all flags but SYN, RST and URG, DF, identification 0xfffe, sequence number 2³² − 5.
fn tcp(payload: &[u8]) -> (Vec<u8>, Inner) {
    let [l0, l1] = (40 + payload.len() as u16).to_be_bytes();
    let mut packet = vec![
        0x45, 0, l0, l1, 0xff, 0xfe, 0x40, 0, 64, 6, 0, 0, 10, 244, 1, 2, 10, 244, 2, 2,
    ];
    packet.extend([
        0, 1, 0, 2, 0xff, 0xff, 0xff, 0xfb, 0, 0, 0, 9, 0x50, 0xd9, 1, 0, 0, 0, 0, 0,
    ]);
    packet.extend(payload);
    let inner = Inner::parse(&packet).unwrap();
    (packet, inner)
}

fn header(packet: &[u8], plan: &SegmentPlan, i: usize) -> [u8; 40] {
    let mut out = [0; MAX_HEADER];
    assert_eq!(plan.header(packet, i, &mut out), Some(40));
    *out.first_chunk().unwrap()
}

#[test]
fn what_changes_from_segment_to_segment() {
    let (packet, inner) = tcp(&[7; 25]);
    let plan = plan(&packet, &inner, 10).unwrap();
    assert_eq!((plan.count(), plan.header_len()), (3, 40));
    assert_eq!(
        [plan.payload(0), plan.payload(1), plan.payload(2)],
        [40..50, 50..60, 60..65]
    );
    let headers = [0, 1, 2].map(|i| header(&packet, &plan, i));
    assert_eq!(
        headers.map(|h| u16::from_be_bytes([h[2], h[3]])),
        [50, 50, 45]
    );
    assert_eq!(
        headers.map(|h| u16::from_be_bytes([h[4], h[5]])),
        [0xfffe, 0xffff, 0x0000]
    );
    assert_eq!(
        headers.map(|h| u32::from_be_bytes([h[24], h[25], h[26], h[27]])),
        [0xffff_fffb, 5, 15]
    );
    // CWR on the first only, FIN and PSH on the last only.
    assert_eq!(headers.map(|h| h[33]), [0xd0, 0x50, 0x59]);
}

#[test]
fn a_packet_without_payload_is_one_segment() {
    let (packet, inner) = tcp(&[]);
    let plan = plan(&packet, &inner, 1).unwrap();
    assert_eq!((plan.count(), plan.payload(0)), (1, 40..40));
    assert_eq!(header(&packet, &plan, 0)[33], 0xd9);
}

#[test]
fn every_refusal() {
    let (packet, inner) = tcp(&[7; 25]);
    let refused = |packet: &[u8], inner: &Inner, size| plan(packet, inner, size).unwrap_err();
    for fragment in [Fragment::First, Fragment::Later] {
        assert_eq!(
            refused(&packet, &Inner { fragment, ..inner }, 10),
            Unsegmentable::Fragment
        );
    }
    assert_eq!(
        refused(
            &packet,
            &Inner {
                protocol: 132,
                ..inner
            },
            10
        ),
        Unsegmentable::NotTcpOrUdp
    );
    assert_eq!(refused(&packet, &inner, 0), Unsegmentable::ZeroSize);
    assert_eq!(
        refused(&packet[..64], &inner, 10),
        Unsegmentable::HeaderLength
    );
    for words in [0, 4, 15] {
        let mut broken = packet.clone();
        broken[32] = words << 4;
        let expected = if words == 15 { 85 > packet.len() } else { true };
        assert_eq!(
            plan(&broken, &inner, 10) == Err(Unsegmentable::HeaderLength),
            expected,
            "{words}"
        );
    }
    let (packet, inner) = tcp(&[7; MAX_SEGMENTS + 1]);
    assert_eq!(refused(&packet, &inner, 1), Unsegmentable::TooManySegments);
    assert_eq!(
        plan(&packet, &inner, 2).unwrap().count(),
        MAX_SEGMENTS / 2 + 1
    );
}

/// IPv6 and UDP behind destination options of `units` times 8 bytes more than 8, or a routing header.
fn udp_v6(next: u8, units: u8, segments_left: u8) -> (Vec<u8>, Inner) {
    let options = 8 + usize::from(units) * 8;
    let payload = options + 8 + 100;
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    packet[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    packet.extend([0x20; 32]);
    packet.extend([17, units, 4, segments_left]);
    packet.resize(40 + options, 0);
    packet.extend([0, 1, 0, 2, 0, 108, 0, 0]);
    packet.extend([7; 100]);
    let inner = Inner::parse(&packet).unwrap();
    (packet, inner)
}

#[test]
fn headers_up_to_the_buffers_size() {
    let (packet, inner) = udp_v6(60, 25, 0);
    assert_eq!(plan(&packet, &inner, 50).unwrap().header_len(), MAX_HEADER);
    let (packet, inner) = udp_v6(60, 26, 0);
    assert_eq!(plan(&packet, &inner, 50), Err(Unsegmentable::HeaderLength));
}

#[test]
fn a_routing_header_in_use_is_refused() {
    let (packet, inner) = udp_v6(43, 0, 0);
    assert_eq!(plan(&packet, &inner, 50).unwrap().count(), 2);
    let (packet, inner) = udp_v6(43, 0, 1);
    assert_eq!(plan(&packet, &inner, 50), Err(Unsegmentable::NotTcpOrUdp));
}

#[test]
fn tcp_size_needs_whole_tcp() {
    let (packet, inner) = tcp(&[7; 25]);
    assert_eq!(tcp_size(&inner, &packet, 1_450), Some(1_410));
    assert_eq!(tcp_size(&inner, &packet, 41), Some(1));
    assert_eq!(tcp_size(&inner, &packet, 40), None);
    assert_eq!(tcp_size(&inner, &packet, 0), None);
    assert_eq!(
        tcp_size(
            &Inner {
                fragment: Fragment::First,
                ..inner
            },
            &packet,
            1_450
        ),
        None
    );
    assert_eq!(
        tcp_size(
            &Inner {
                protocol: 17,
                ..inner
            },
            &packet,
            1_450
        ),
        None
    );
    assert_eq!(tcp_size(&inner, &packet[..30], 1_450), None);
}

#[test]
fn a_header_of_another_packet_is_none() {
    let (packet, inner) = tcp(&[7; 25]);
    let plan = plan(&packet, &inner, 10).unwrap();
    let mut out = [0; MAX_HEADER];
    assert_eq!(plan.header(&packet[..59], 1, &mut out), None);
    assert_eq!(plan.header(&[], 0, &mut out), None);
    assert_eq!(plan.header(&packet, 3, &mut out), None);
    assert_eq!(plan.header(&packet, 0, &mut out[..39]), None);
    assert!(plan.payload(usize::MAX).is_empty());
}
