use super::*;

fn v4(protocol: u8, flags: u16, data: &[u8]) -> Vec<u8> {
    let [l0, l1] = (20 + data.len() as u16).to_be_bytes();
    let [f0, f1] = flags.to_be_bytes();
    let header = [
        0x45, 0x02, l0, l1, 0, 7, f0, f1, 64, protocol, 0, 0, 10, 244, 1, 2, 10, 244, 2, 2,
    ];
    [&header, data].concat()
}

fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let [l0, l1] = (payload.len() as u16).to_be_bytes();
    let mut packet = vec![0x60, 0x30, 0, 0, l0, l1, next, 64];
    packet.extend([0x20; 16]);
    packet.extend([0xfd; 16]);
    packet.extend(payload);
    packet
}

const PORTS: [u8; 8] = [0x9c, 0x40, 0, 80, 0, 8, 0, 0];

#[test]
fn a_packet_of_ipv4() {
    let inner = Inner::parse(&v4(17, 0x4000, &PORTS)).unwrap();
    let expected = Inner {
        family: Family::V4,
        source: "10.244.1.2".parse().unwrap(),
        destination: "10.244.2.2".parse().unwrap(),
        len: 28,
        ecn: Ecn::Ect0,
        dont_fragment: true,
        fragment: Fragment::Whole,
        protocol: 17,
        transport: 20,
        ports: Some((40_000, 80)),
    };
    assert_eq!(inner, expected);
}

#[test]
fn a_packet_of_ipv6() {
    let inner = Inner::parse(&v6(132, &PORTS)).unwrap();
    let expected = Inner {
        family: Family::V6,
        source: "2020:2020:2020:2020:2020:2020:2020:2020".parse().unwrap(),
        destination: "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd".parse().unwrap(),
        len: 48,
        ecn: Ecn::Ce,
        dont_fragment: true,
        fragment: Fragment::Whole,
        protocol: 132,
        transport: 40,
        ports: Some((40_000, 80)),
    };
    assert_eq!(inner, expected);
}

#[test]
fn every_refusal_of_ipv4() {
    assert_eq!(Inner::parse(&[]), Err(Malformed::Short));
    let good = v4(17, 0, &PORTS);
    for len in 1..20 {
        assert_eq!(Inner::parse(&good[..len]), Err(Malformed::Short));
    }
    for version in [0x05, 0x15, 0x55, 0x75, 0xf5] {
        assert_eq!(Inner::parse(&[version; 60]), Err(Malformed::Version));
    }
    let broken = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        Inner::parse(&packet)
    };
    assert_eq!(broken(0, 0x44), Err(Malformed::HeaderLength));
    assert_eq!(broken(0, 0x48), Err(Malformed::HeaderLength));
    assert_eq!(broken(3, 19), Err(Malformed::TotalLength));
    assert_eq!(broken(3, 0), Err(Malformed::TotalLength));
    assert_eq!(broken(3, 29), Err(Malformed::TotalLength));
    assert_eq!(Inner::parse(&good[..27]), Err(Malformed::TotalLength));
}

#[test]
fn every_refusal_of_ipv6() {
    let good = v6(17, &PORTS);
    for len in 1..40 {
        assert_eq!(Inner::parse(&good[..len]), Err(Malformed::Short));
    }
    assert_eq!(Inner::parse(&good[..47]), Err(Malformed::TotalLength));
    assert_eq!(
        Inner::parse(&v6(0, &[17, 1, 0, 0, 0, 0, 0, 0])),
        Err(Malformed::Extensions)
    );
    assert_eq!(
        Inner::parse(&v6(44, &[17, 0, 0, 0])),
        Err(Malformed::Extensions)
    );
    assert_eq!(
        Inner::parse(&v6(51, &[17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        Err(Malformed::Extensions)
    );
    let hop_by_hop_behind = [0, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(
        Inner::parse(&v6(60, &hop_by_hop_behind)),
        Err(Malformed::Extensions)
    );
}

#[test]
fn eight_extension_headers_and_no_more() {
    let chain = |headers: usize| {
        let mut payload = [60, 0, 1, 4, 0, 0, 0, 0].repeat(headers);
        let last = payload.len() - 8;
        payload[last] = 17;
        payload.extend(PORTS);
        Inner::parse(&v6(60, &payload))
    };
    let inner = chain(8).unwrap();
    assert_eq!(
        (inner.protocol, inner.transport, inner.ports),
        (17, 104, Some((40_000, 80)))
    );
    assert_eq!(chain(9), Err(Malformed::Extensions));
}

/// RFC 2675: the payload length is 0 and the length stands in a hop-by-hop option.
#[test]
fn a_jumbogram_is_refused() {
    let mut packet = v6(0, &[17, 0, 0xc2, 4, 0, 1, 0, 0]);
    packet[4..6].fill(0);
    packet.extend([0; 100]);
    assert_eq!(Inner::parse(&packet), Err(Malformed::Extensions));
}

#[test]
fn fragments() {
    let parse = |flags| Inner::parse(&v4(17, flags, &PORTS)).unwrap();
    assert_eq!(
        (parse(0).fragment, parse(0).dont_fragment),
        (Fragment::Whole, false)
    );
    assert_eq!(parse(0x2000).fragment, Fragment::First);
    assert_eq!(parse(0x2000).ports, Some((40_000, 80)));
    assert_eq!(parse(0x2001).fragment, Fragment::Later);
    assert_eq!(
        (parse(0x0001).fragment, parse(0x0001).ports),
        (Fragment::Later, None)
    );

    let header = |word: u16, next: u8| {
        let [w0, w1] = word.to_be_bytes();
        Inner::parse(&v6(
            44,
            &[&[next, 0, w0, w1, 0, 0, 0, 1], PORTS.as_slice()].concat(),
        ))
        .unwrap()
    };
    assert_eq!(header(0, 17).fragment, Fragment::Whole);
    assert_eq!(
        (header(1, 17).fragment, header(1, 17).ports),
        (Fragment::First, Some((40_000, 80)))
    );
    assert_eq!(
        (header(8, 17).fragment, header(8, 17).ports),
        (Fragment::Later, None)
    );
    // What looks like an extension header in a later fragment is data.
    assert_eq!((header(8, 60).protocol, header(8, 60).transport), (60, 48));
}

#[test]
fn ports_need_their_four_bytes() {
    for protocol in [6, 17, 33, 132, 136] {
        assert_eq!(
            Inner::parse(&v4(protocol, 0, &PORTS[..4])).unwrap().ports,
            Some((40_000, 80))
        );
        assert_eq!(
            Inner::parse(&v4(protocol, 0, &PORTS[..3])).unwrap().ports,
            None
        );
    }
    // Bytes behind the packet are no ports.
    let mut padded = v4(17, 0, &PORTS[..3]);
    padded.push(80);
    assert_eq!(Inner::parse(&padded).unwrap().ports, None);
    assert_eq!(Inner::parse(&v4(1, 0, &PORTS)).unwrap().ports, None);
}

#[test]
fn the_hash_tells_flows_apart() {
    let inner = Inner::parse(&v4(17, 0, &PORTS)).unwrap();
    let others = [
        Inner {
            ports: Some((40_001, 80)),
            ..inner
        },
        Inner {
            ports: Some((40_000, 81)),
            ..inner
        },
        // The ports change ends while the addresses stay: another flow.
        Inner {
            ports: Some((80, 40_000)),
            ..inner
        },
        Inner {
            protocol: 6,
            ..inner
        },
        Inner {
            source: "10.244.1.3".parse().unwrap(),
            ..inner
        },
        Inner {
            destination: "10.244.1.2".parse().unwrap(),
            ..inner
        },
        Inner {
            fragment: Fragment::First,
            ..inner
        },
    ];
    for other in others {
        assert_ne!(other.flow_hash(), inner.flow_hash(), "{other:?}");
    }
}

/// 4,096 flows that differ in the port or the last address byte fill 16 boxes evenly, by high and by low bits.
#[test]
fn the_hash_spreads() {
    let inner = Inner::parse(&v4(17, 0, &PORTS)).unwrap();
    let by_port = |i: u16| Inner {
        ports: Some((32_768 + i, 80)),
        ..inner
    };
    let by_address = |i: u16| Inner {
        source: IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0af4_0000 + u32::from(i))),
        ..inner
    };
    for shift in [0, 28] {
        for flow in [&by_port as &dyn Fn(u16) -> Inner, &by_address] {
            let mut boxes = [0u32; 16];
            for i in 0..4_096 {
                boxes[(flow(i).flow_hash() >> shift & 15) as usize] += 1;
            }
            assert!(
                boxes.iter().all(|count| (190..=322).contains(count)),
                "{boxes:?}"
            );
        }
    }
}

#[test]
fn every_gloss_is_a_sentence_of_its_own() {
    use Malformed::*;
    let all = [Short, Version, HeaderLength, TotalLength, Extensions];
    let glosses: std::collections::BTreeSet<String> = all.iter().map(ToString::to_string).collect();
    assert_eq!(glosses.len(), all.len());
}
