use super::*;

fn v4(source: [u8; 4], destination: [u8; 4], protocol: u8, flags: u8, transport: &[u8]) -> Vec<u8> {
    let mut packet = vec![
        0x45,
        0,
        0,
        20 + transport.len() as u8,
        0,
        0,
        flags,
        0,
        64,
        protocol,
        0,
        0,
    ];
    packet.extend(source);
    packet.extend(destination);
    packet.extend(transport);
    packet
}

fn v6(source: &str, destination: &str, next: u8, payload: &[u8]) -> Vec<u8> {
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 64];
    packet.extend(address(source));
    packet.extend(address(destination));
    packet.extend(payload);
    packet
}

/// Whether both errors are made in answer to `packet`; they are or are not together.
fn answered(packet: &[u8]) -> bool {
    let inner = Inner::parse(packet).unwrap();
    let source = if inner.family == Family::V4 {
        "10.244.1.0"
    } else {
        "fd00::"
    }
    .parse()
    .unwrap();
    let mut out = [0; MAX_ICMP];
    let unreachable = net_unreachable(source, packet, &inner, &mut out).is_some();
    assert_eq!(
        too_big(source, packet, &inner, 1_400, &mut out).is_some(),
        unreachable
    );
    unreachable
}

const POD: [u8; 4] = [10, 244, 1, 2];
const OTHER: [u8; 4] = [10, 244, 2, 2];

#[test]
fn ordinary_packets_are_answered() {
    assert!(answered(&v4(POD, OTHER, 17, 0, &[0; 8])));
    assert!(
        answered(&v4(POD, OTHER, 17, 0x20, &[0; 8])),
        "a first fragment"
    );
    assert!(answered(&v6("fd00::2", "fd01::2", 17, &[0; 8])));
}

#[test]
fn sources_that_are_not_one_host() {
    let sources = [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
    ];
    for source in sources {
        assert!(!answered(&v4(source, OTHER, 17, 0, &[0; 8])), "{source:?}");
    }
    for source in ["::", "::1", "ff02::1"] {
        assert!(!answered(&v6(source, "fd01::2", 17, &[0; 8])), "{source}");
    }
}

#[test]
fn destinations_that_are_many_hosts() {
    for destination in [[224, 0, 0, 251], [239, 255, 255, 250], [255, 255, 255, 255]] {
        assert!(
            !answered(&v4(POD, destination, 17, 0, &[0; 8])),
            "{destination:?}"
        );
    }
    assert!(!answered(&v6("fd00::2", "ff02::fb", 17, &[0; 8])));
}

#[test]
fn later_fragments() {
    let mut later = v4(POD, OTHER, 17, 0, &[0; 8]);
    later[7] = 1;
    assert!(!answered(&later));
    assert!(!answered(&v6(
        "fd00::2",
        "fd01::2",
        44,
        &[17, 0, 0, 8, 0, 0, 0, 1, 9, 9]
    )));
}

#[test]
fn icmp_queries_but_not_errors() {
    for kind in 0..=255u8 {
        let query = [0, 8, 9, 10, 13, 14, 15, 16, 17, 18, 42, 43].contains(&kind);
        assert_eq!(
            answered(&v4(POD, OTHER, 1, 0, &[kind, 0, 0, 0, 0, 0, 0, 0])),
            query,
            "type {kind}"
        );
        let informational = kind >= 128 && kind != 137;
        assert_eq!(
            answered(&v6("fd00::2", "fd01::2", 58, &[kind, 0, 0, 0])),
            informational,
            "v6 type {kind}"
        );
    }
    assert!(!answered(&v4(POD, OTHER, 1, 0, &[])), "no type to tell by");
    assert!(!answered(&v6("fd00::2", "fd01::2", 58, &[])));
    // An error may hide behind extension headers.
    assert!(!answered(&v6(
        "fd00::2",
        "fd01::2",
        60,
        &[58, 0, 1, 4, 0, 0, 0, 0, 1, 0, 0, 0]
    )));
    // Type 3 of another protocol is data.
    assert!(answered(&v4(POD, OTHER, 58, 0, &[3, 0, 0, 0])));
}

#[test]
fn an_error_byte_for_byte() {
    let offender = v4(POD, OTHER, 17, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let inner = Inner::parse(&offender).unwrap();
    let mut out = [0; MAX_ICMP];
    let len = too_big(
        "10.244.1.0".parse().unwrap(),
        &offender,
        &inner,
        1_400,
        &mut out,
    )
    .unwrap();
    let ip = [
        0x45, 0xc0, 0, 56, 0, 0, 0x40, 0, 64, 1, 0x22, 0x1c, 10, 244, 1, 0, 10, 244, 1, 2,
    ];
    assert_eq!(out[..20], ip);
    assert_eq!(out[20..22], [3, 4]);
    assert_eq!(out[24..28], [0, 0, 0x05, 0x78]);
    assert_eq!(out[28..len], offender);
}

#[test]
fn a_packet_that_is_not_the_inners_gets_nothing() {
    let offender = v4(POD, OTHER, 17, 0, &[0; 8]);
    let inner = Inner::parse(&offender).unwrap();
    let mut out = [0; MAX_ICMP];
    assert_eq!(
        net_unreachable(
            "10.244.1.0".parse().unwrap(),
            &offender[..27],
            &inner,
            &mut out
        ),
        None
    );
    assert_eq!(
        net_unreachable("fd00::".parse().unwrap(), &offender, &inner, &mut out),
        None
    );
}
