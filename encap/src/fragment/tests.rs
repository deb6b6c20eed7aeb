use super::*;

/// IPv4 with `options`, the word of flags and offset, and `payload` bytes.
fn packet(options: &[u8], word: u16, payload: usize) -> (Vec<u8>, Inner) {
    let header = 20 + options.len();
    let [l0, l1] = ((header + payload) as u16).to_be_bytes();
    let [f0, f1] = word.to_be_bytes();
    let mut packet = vec![
        0x40 | (header / 4) as u8,
        0,
        l0,
        l1,
        0,
        7,
        f0,
        f1,
        64,
        99,
        0,
        0,
        10,
        244,
        1,
        2,
        10,
        244,
        2,
        2,
    ];
    packet.extend(options);
    packet.extend((0..payload).map(|i| i as u8));
    let inner = Inner::parse(&packet).unwrap();
    (packet, inner)
}

fn headers(packet: &[u8], plan: &Fragments) -> Vec<Vec<u8>> {
    let mut out = [0; MAX_HEADER];
    let header = |i| {
        let len = plan.header(packet, i, &mut out).unwrap();
        out[..len].to_vec()
    };
    (0..plan.count()).map(header).collect()
}

fn words(headers: &[Vec<u8>]) -> Vec<u16> {
    headers
        .iter()
        .map(|header| u16::from_be_bytes([header[6], header[7]]))
        .collect()
}

#[test]
fn offsets_count_eights_and_all_but_the_last_say_more() {
    let (bytes, inner) = packet(&[], 0, 100);
    let plan = plan(&bytes, &inner, 68).unwrap();
    assert_eq!(
        [plan.payload(0), plan.payload(1), plan.payload(2)],
        [20..68, 68..116, 116..120]
    );
    assert_eq!(words(&headers(&bytes, &plan)), [0x2000, 0x2006, 0x000c]);
}

#[test]
fn a_fragment_keeps_its_place() {
    let (bytes, inner) = packet(&[], 0x2000 | 100, 96);
    let plan = plan(&bytes, &inner, 68).unwrap();
    assert_eq!(words(&headers(&bytes, &plan)), [0x2064, 0x206a]);
}

/// Record route (7) belongs into the first fragment, router alert (148) into all (RFC 791 section 3.1).
#[test]
fn options_are_copied_by_their_flag() {
    let options = [7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0, 0];
    let (bytes, inner) = packet(&options, 0, 100);
    let headers = headers(&bytes, &plan(&bytes, &inner, 80).unwrap());
    assert_eq!(headers[0][20..], options);
    assert_eq!(headers[1][20..], [1, 1, 1, 1, 1, 1, 1, 148, 4, 0, 0, 0]);
}

#[test]
fn every_refusal() {
    let (bytes, inner) = packet(&[], 0x4000, 100);
    assert_eq!(plan(&bytes, &inner, 119), Err(Unfragmentable::DontFragment));
    assert_eq!(plan(&bytes, &inner, 120).unwrap().count(), 1);
    let (bytes, inner) = packet(&[], 0, 100);
    assert_eq!(plan(&bytes, &inner, 27), Err(Unfragmentable::MtuTooSmall));
    assert_eq!(plan(&bytes, &inner, 0), Err(Unfragmentable::MtuTooSmall));
    assert_eq!(plan(&bytes, &inner, 28).unwrap().count(), 13);
    assert_eq!(
        plan(
            &bytes,
            &Inner {
                family: Family::V6,
                ..inner
            },
            68
        ),
        Err(Unfragmentable::NotIpv4)
    );
    assert_eq!(
        plan(&bytes[..119], &inner, 68),
        Err(Unfragmentable::Malformed)
    );
    for options in [[7, 1, 0, 0], [7, 5, 0, 0], [1, 1, 1, 7], [148, 0, 0, 0]] {
        let (bytes, inner) = packet(&options, 0, 100);
        assert_eq!(
            plan(&bytes, &inner, 68),
            Err(Unfragmentable::Malformed),
            "{options:?}"
        );
    }
}

/// The last fragment of a packet that reassembles to more than 65,535 bytes.
#[test]
fn an_offset_that_overflows_is_malformed() {
    let (bytes, inner) = packet(&[], 0x1fff, 100);
    assert_eq!(plan(&bytes, &inner, 68), Err(Unfragmentable::Malformed));
    let (bytes, inner) = packet(&[], (65_515 - 99) / 8, 99);
    assert!(plan(&bytes, &inner, 68).is_ok());
    let (bytes, inner) = packet(&[], (65_515 - 99) / 8 + 1, 99);
    assert_eq!(plan(&bytes, &inner, 68), Err(Unfragmentable::Malformed));
}

#[test]
fn a_packet_without_payload_is_one_fragment() {
    let (bytes, inner) = packet(&[], 0, 0);
    let plan = plan(&bytes, &inner, 68).unwrap();
    assert_eq!(
        (plan.count(), plan.payload(0), plan.header_len()),
        (1, 20..20, 20)
    );
    assert_eq!(headers(&bytes, &plan).len(), 1);
}

#[test]
fn a_header_of_another_packet_is_none() {
    let (bytes, inner) = packet(&[], 0, 100);
    let plan = plan(&bytes, &inner, 68).unwrap();
    let mut out = [0; MAX_HEADER];
    assert_eq!(plan.header(&bytes[..19], 0, &mut out), None);
    assert_eq!(plan.header(&bytes, 3, &mut out), None);
    assert_eq!(plan.header(&bytes, 0, &mut out[..19]), None);
    assert!(plan.payload(usize::MAX).is_empty());
}
