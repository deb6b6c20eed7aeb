//! Requests leave as data does, what does not arrive is reported, and a worker answers through its own sockets.

use std::io::ErrorKind;
use std::time::Duration;

use dataplane::probe::{Kind, Message, REPORT_TEXT, REQUEST};
use encap::probe::MESSAGE;
use encap::{Family, Format};

use crate::rig::{Rig, node, port};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const FORMATS: [Format; 2] = [Format::Udp, Format::Vxlan];

fn request(nonce: u64) -> Message {
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

/// Bytes of outer IP and UDP headers.
fn headers(family: Family) -> usize {
    usize::from(Format::Udp.overhead(family))
}

#[test]
fn a_request_arrives_as_large_as_it_is_wanted() {
    for family in FAMILIES {
        for format in FORMATS {
            let rig = Rig::new(format, family, 1500);
            let (prober, peer) = (rig.prober(), rig.peer(2));
            prober.send(peer, &request(1), None).unwrap();
            prober.send(peer, &request(2), Some(10)).unwrap();
            prober.send(peer, &request(3), Some(1_000)).unwrap();
            prober.send(peer, &request(4), Some(1_500)).unwrap();
            // Our own end takes no more, and DF is set.
            let error = prober.send(peer, &request(5), Some(1_501)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
            prober.send(peer, &request(6), Some(1_500)).unwrap();
            let least = usize::from(prober.least(peer));
            assert_eq!(least, headers(family) + format.header_len() + REQUEST);
            let arrived = rig.arrived_from();
            let sizes: Vec<_> = arrived
                .iter()
                .map(|(_, bytes)| bytes.len() + headers(family))
                .collect();
            assert_eq!(sizes, [least, least, 1_000, 1_500, 1_500]);
            for ((from, bytes), nonce) in arrived.iter().zip([1, 2, 3, 4, 6]) {
                assert_eq!(from.ip(), node(family, 1));
                let (front, message) = bytes.split_at(format.header_len());
                assert_eq!(Message::parse(message), Ok(request(nonce)));
                if format == Format::Vxlan {
                    let expected = [
                        8, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5,
                    ];
                    assert_eq!(front, expected);
                }
            }
            assert_eq!(prober.undelivered().count(), 0);
        }
    }
}

/// In whole lines, and with its answer no longer than the request was.
#[test]
fn a_report_has_the_room_that_its_request_leaves() {
    for family in FAMILIES {
        for format in FORMATS {
            let rig = Rig::new(format, family, 1500);
            let (prober, peer) = (rig.prober(), rig.peer(2));
            let text = b"error device-missing flannel.1\n".repeat(40);
            let asked = request(9);
            let report = asked.report(40);
            let bare = headers(family) + format.header_len() + MESSAGE;
            for length in [2 * bare - 1, 2 * bare, 576, 9_000] {
                prober.tell(peer, &report, &text, length as u32).unwrap();
            }
            let arrived = rig.arrived();
            // The first has no room at all.
            assert_eq!(arrived.len(), 3);
            for (bytes, length) in arrived.iter().zip([2 * bare, 576, 9_000]) {
                let message = &bytes[format.header_len()..];
                assert_eq!(Message::parse(message), Ok(report));
                let said = &message[MESSAGE..];
                assert_eq!(said, &text[..said.len()]);
                assert!(said.is_empty() || said.ends_with(b"\n"));
                assert!(said.len() <= REPORT_TEXT);
                assert!(bytes.len() + headers(family) + bare <= length);
                let room = (length - 2 * bare).min(REPORT_TEXT);
                assert!(said.len() + 31 > room, "{} of {room}", said.len());
            }
        }
    }
}

/// At node 3 no socket has the port.
#[test]
fn what_does_not_arrive_is_reported_with_its_nonce() {
    for family in FAMILIES {
        for format in FORMATS {
            let rig = Rig::new(format, family, 1500);
            let prober = rig.prober();
            for nonce in 7..10 {
                prober.send(rig.peer(3), &request(nonce), None).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                // A report of an earlier request keeps none from leaving.
                prober.send(rig.peer(2), &request(nonce), None).unwrap();
            }
            assert_eq!(rig.arrived().len(), 3);
            let reports: Vec<_> = prober.undelivered().collect();
            let nonces: Vec<_> = reports.iter().map(|report| report.nonce).collect();
            assert_eq!(nonces, [Some(7), Some(8), Some(9)]);
            for report in reports {
                assert_eq!(report.to, (node(family, 3), port(format)).into());
                assert_eq!(report.reporter, Some(node(family, 3)));
                assert_eq!(report.reason(), "port unreachable");
                assert_eq!(report.errno, libc::ECONNREFUSED);
                assert_eq!(report.mtu, None);
                assert!(
                    report
                        .to_string()
                        .starts_with("port unreachable (ICMP type")
                );
            }
            assert_eq!(prober.undelivered().count(), 0);
        }
    }
}

#[test]
fn over_the_other_family_nothing_leaves() {
    let rig = Rig::new(Format::Vxlan, Family::V4, 1500);
    let other = Rig::new(Format::Vxlan, Family::V6, 1500);
    let error = rig.prober().send(other.peer(2), &request(1), None);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::AddrNotAvailable);
}

#[test]
fn a_worker_answers_through_its_sockets() {
    for family in FAMILIES {
        for format in FORMATS {
            for lanes in [false, format == Format::Vxlan] {
                let mut rig = match lanes {
                    true => Rig::with_transmit_sockets(family),
                    false => Rig::new(format, family, 1500),
                };
                let header = [
                    8, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5,
                ];
                let front = &header[..format.header_len()];
                let asks: Vec<_> = (0..8)
                    .map(|nonce| {
                        let mut bytes = [front, &request(nonce).emit()].concat();
                        bytes.resize(1_000 + nonce as usize, 0);
                        bytes
                    })
                    .collect();
                let flow = rig.receive(format, &asks);
                assert_eq!((flow.received, flow.probes, flow.balance()), (8, 8, 0));
                let mut answers: Vec<_> = rig
                    .arrived()
                    .iter()
                    .map(|bytes| Message::parse(&bytes[format.header_len()..]).unwrap())
                    .collect();
                answers.sort_by_key(|answer| answer.nonce);
                let expected: Vec<_> = (0..8)
                    .map(|nonce| {
                        let length = 1_000 + nonce as u32 + headers(family) as u32;
                        request(nonce).answer(length, None, 1450)
                    })
                    .collect();
                assert_eq!(answers, expected);
                assert_eq!(rig.heard().len(), 8);
                assert_eq!(rig.outbound().sent, 0);
            }
        }
    }
}
