use proptest::prelude::*;

use super::*;
use crate::pull::{self, Refusal, Vtep};
use crate::{Family, Mac, Vni, push};

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OURS_V6: Mac = Mac([2, 0, 0, 0, 6, 1]);
const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn vtep() -> Vtep {
    Vtep {
        mac: OURS,
        mac_v6: OURS_V6,
        vni: Vni::new(1).unwrap(),
        gbp: false,
    }
}

fn any_message() -> impl Strategy<Value = Message> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
    let verdict = (any::<u8>(), any::<u16>());
    let kind = prop_oneof![Just(Kind::Request), Just(Kind::Answer), Just(Kind::Report)];
    let rest = (kind, any::<u32>(), any::<u32>(), verdict);
    (numbers, rest).prop_map(
        |((nonce, clock, length, heard), (kind, inner_mtu, flags, (fate, mtu_back)))| Message {
            kind,
            nonce,
            clock,
            length,
            heard: Some(heard).filter(|heard| *heard != NEVER),
            inner_mtu,
            flags,
            verdict: Fate::numbered(fate)
                .filter(|_| kind == Kind::Answer)
                .map(|fate| Verdict { fate, mtu_back }),
        },
    )
}

/// A message with what fills it up to `size` bytes.
fn padded(message: &Message, size: usize) -> Vec<u8> {
    let mut bytes = message.emit().to_vec();
    bytes.resize(size.max(REQUEST), 0);
    bytes
}

/// The layout is a promise to other versions.
#[test]
fn byte_for_byte() {
    let message = Message {
        kind: Kind::Request,
        nonce: 0x0102_0304_0506_0708,
        clock: 0x1112_1314_1516_1718,
        length: 0,
        heard: Some(0x2122_2324),
        inner_mtu: 1450,
        flags: KERNEL_PATH,
        verdict: None,
    };
    let expected = [
        0, b'T', b'R', b'T', 1, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15,
        0x16, 0x17, 0x18, 0, 0, 0, 0, 0x21, 0x22, 0x23, 0x24, 0, 0, 5, 0xaa, 0, 0, 0, 1, 0, 0, 0,
        0, 0, 0, 0, 0,
    ];
    assert_eq!(message.emit(), expected);
    let never = Message {
        heard: None,
        kind: Kind::Answer,
        ..message
    };
    assert_eq!(never.emit()[5], 2);
    assert_eq!(never.emit()[28..32], [0xff; 4]);
}

#[test]
fn a_header_differs_in_its_ether_type_alone() {
    let data = push::vxlan(vtep().vni, THEIRS, OURS, Family::V4);
    let mut expected = data.as_slice().to_vec();
    expected[20..].copy_from_slice(&[0x88, 0xb5]);
    assert_eq!(header(data).as_slice(), expected);
    assert_eq!(header(push::udp()).as_slice(), []);
}

#[test]
fn what_is_no_message() {
    let request = Message::parse(&padded(&ask(7), REQUEST)).unwrap();
    let good = padded(&request, REQUEST);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Message::parse(&bytes)
    };
    assert_eq!(Message::parse(&[]), Err(NotAMessage::Magic));
    assert_eq!(Message::parse(&good[..3]), Err(NotAMessage::Magic));
    for length in 4..REQUEST {
        let refused = Message::parse(&good[..length]);
        assert_eq!(refused, Err(NotAMessage::Short), "{length}");
    }
    for at in 0..4 {
        assert_eq!(with(at, 0x45), Err(NotAMessage::Magic));
    }
    assert_eq!(with(4, 2), Err(NotAMessage::Version));
    for kind in [0, 4, 0xff] {
        assert_eq!(with(5, kind), Err(NotAMessage::Kind));
    }
    // An answer and a report are whole without anything behind them.
    let report = request.report(3);
    assert_eq!(Message::parse(&report.emit()), Ok(report));
    let answer = request.answer(120, None, 1450);
    assert_eq!(Message::parse(&answer.emit()), Ok(answer));
    assert_eq!(
        Message::parse(&answer.emit()[..MESSAGE - 1]),
        Err(NotAMessage::Short)
    );
}

/// The order of the refusals is that of data: a probe of another network, or to another station, is none of ours.
#[test]
fn a_frame_is_ours_as_data_is() {
    let frame = |vni, source, destination| {
        let front = header(push::vxlan(
            Vni::new(vni).unwrap(),
            source,
            destination,
            Family::V4,
        ));
        let datagram = [front.as_slice(), &padded(&ask(1), 0)].concat();
        pull::vxlan(&datagram, &vtep()).unwrap_err()
    };
    assert_eq!(frame(1, THEIRS, OURS), Refusal::Probe);
    // To either of our devices.
    assert_eq!(frame(1, THEIRS, OURS_V6), Refusal::Probe);
    assert_eq!(frame(2, THEIRS, OURS), Refusal::Vni);
    assert_eq!(frame(1, THEIRS, THEIRS), Refusal::DestinationMac);
    assert_eq!(frame(1, THEIRS, Mac([0xff; 6])), Refusal::DestinationMac);
    assert_eq!(frame(1, OURS, OURS), Refusal::SourceMac);
    assert_eq!(frame(1, OURS_V6, OURS_V6), Refusal::SourceMac);
    assert_eq!(frame(1, Mac([3; 6]), OURS), Refusal::SourceMac);
}

proptest! {
    #[test]
    fn a_message_survives_the_way(message in any_message(), size in 0..9000_usize) {
        let bytes = padded(&message, size);
        prop_assert_eq!(Message::parse(&bytes), Ok(message));
        prop_assert!(is_probe(&bytes));
        // What is behind it, and what is reserved, says nothing.
        let mut noise = bytes;
        noise[6..8].fill(0xaa);
        noise[41] = 0xaa;
        noise[44..].fill(0xaa);
        if message.kind != Kind::Answer {
            noise[40..44].fill(0xaa);
        }
        prop_assert_eq!(Message::parse(&noise), Ok(message));
    }

    #[test]
    fn an_answer_belongs_to_its_request(message in any_message(), length in any::<u32>(), heard in any::<u32>(), mtu in any::<u32>()) {
        let answer = message.answer(length, Some(heard), mtu);
        prop_assert_eq!((answer.kind, answer.nonce, answer.clock), (Kind::Answer, message.nonce, message.clock));
        prop_assert_eq!((answer.length, answer.inner_mtu), (length, mtu));
    }

    /// A report's text comes back without what fills it up, and never more than fits.
    #[test]
    fn a_text_survives_the_way(text in proptest::collection::vec(1..=255_u8, 0..600), zeros in 0..600_usize) {
        let mut bytes = ask(7).report(2).emit().to_vec();
        bytes.extend(&text);
        bytes.resize(bytes.len() + zeros, 0);
        prop_assert_eq!(report_text(&bytes), &text[..text.len().min(REPORT_TEXT)]);
        prop_assert_eq!(report_text(&bytes[..20]), b"");
    }

    /// Answer and report together are no longer than what draws them.
    #[test]
    fn a_report_has_no_more_room_than_its_request_leaves(length in 0..2000_u32, headers in 28..80_usize) {
        let both = |text| 2 * (headers + MESSAGE) + text;
        match room_for_report(length, headers) {
            Some(room) => prop_assert!(both(room) <= length as usize && (both(room) == length as usize || room == REPORT_TEXT)),
            None => prop_assert!(both(0) > length as usize),
        }
    }

    /// Any bytes at all, and any bytes that begin as a probe does.
    #[test]
    fn any_bytes_end(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), begins in any::<bool>()) {
        if begins {
            bytes.splice(..0, *b"\0TRT\x01\x01");
        }
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert!(bytes.len() >= MESSAGE);
            prop_assert!(message.kind != Kind::Request || bytes.len() >= REQUEST);
            prop_assert_eq!(&message.emit()[8..40], &bytes[8..40]);
        }
    }

    /// No packet is a probe and no probe a packet, in either format, with or without IPv6 allowed.
    #[test]
    fn a_probe_is_no_packet(message in any_message(), size in 0..2000_usize, mut packet in proptest::collection::vec(any::<u8>(), 1..200), six in any::<bool>()) {
        let bytes = padded(&message, size);
        for allow_v6 in [false, true] {
            prop_assert_eq!(pull::udp(&bytes, allow_v6), Err(Refusal::Probe));
        }
        // Behind the EtherType of IP it is no packet either.
        let front = push::vxlan(vtep().vni, THEIRS, OURS, Family::V4);
        let refused = pull::vxlan(&[front.as_slice(), &bytes].concat(), &vtep());
        prop_assert!(matches!(refused, Err(Refusal::Malformed(_))));
        prop_assert_eq!(pull::inner_span(&bytes, crate::Format::Udp), None);
        // And a packet is none, whatever a pod writes into it.
        packet[0] = (if six { 0x60 } else { 0x40 }) | packet[0] & 0x0f;
        packet.extend_from_slice(&bytes);
        prop_assert!(!is_probe(&packet));
        prop_assert_ne!(pull::udp(&packet, true), Err(Refusal::Probe));
        prop_assert_ne!(pull::vxlan(&[front.as_slice(), &packet].concat(), &vtep()), Err(Refusal::Probe));
    }
}

fn ask(nonce: u64) -> Message {
    Message {
        kind: Kind::Request,
        nonce,
        clock: 5,
        length: 0,
        heard: None,
        inner_mtu: 1450,
        flags: 0,
        verdict: None,
    }
}
