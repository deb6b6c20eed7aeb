//! Answers below were recorded from Linux 6.18, of connections between 10.9.0.1 and 10.9.0.2.

use proptest::prelude::*;

use super::super::policy::lifetime;
use super::super::refusal::Refusal;
use super::*;
use crate::nfnetlink::message::{Content, Reply, first};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(char::is_ascii_hexdigit).collect();
    let pair = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn recorded(hex: &str) -> Connection {
    let bytes = bytes(hex);
    let (reply, rest) = first(&bytes).unwrap();
    assert!(rest.is_empty() && reply.kind == NEW && reply.sequence == 7);
    let Content::Object { family, attributes } = reply.content else {
        panic!("{reply:?}");
    };
    assert_eq!(i32::from(family), libc::AF_INET);
    connection(attributes).unwrap()
}

fn flow(protocol: i32, source_port: u16, destination_port: u16) -> FlowKey {
    FlowKey {
        source: Ipv4Addr::new(10, 9, 0, 1),
        destination: Ipv4Addr::new(10, 9, 0, 2),
        source_port,
        destination_port,
        protocol: protocol as u8,
    }
}

#[test]
fn an_established_connection_is_read_and_allowed_once_it_is_liberal() {
    let key = flow(libc::IPPROTO_TCP, 4001, 80);
    let strict = recorded(TCP);
    assert_eq!(strict.original, key);
    assert_eq!(strict.reply, inverse(&key));
    assert_eq!(strict.timeout, Duration::from_secs(432_000));
    let tcp = |is_liberal| {
        Some(TcpState {
            is_established: true,
            is_liberal,
        })
    };
    assert_eq!(strict.tcp, tcp(false));
    let liberal = recorded(TCP_LIBERAL);
    assert_eq!(liberal.tcp, tcp(true));
    for key in [key, inverse(&key)] {
        assert!(lifetime(&key, Some(&strict)).unwrap().is_strict);
        assert!(!lifetime(&key, Some(&liberal)).unwrap().is_strict);
    }
}

#[test]
fn a_connection_that_ends_is_refused() {
    let key = flow(libc::IPPROTO_TCP, 4001, 80);
    assert_eq!(
        lifetime(&key, Some(&recorded(TCP_CLOSING))),
        Err(Refusal::NotEstablished)
    );
}

#[test]
fn a_translated_connection_is_refused_by_its_bits_and_by_its_tuples() {
    let translated = recorded(NAT);
    assert_eq!(
        translated.original.destination,
        Ipv4Addr::new(10, 9, 0, 9),
        "the Service's address"
    );
    for key in [
        translated.original,
        translated.reply,
        inverse(&translated.reply),
    ] {
        assert_eq!(lifetime(&key, Some(&translated)), Err(Refusal::Translated));
        let mut unmarked = translated;
        unmarked.status &= !ips::NAT_MASK;
        assert_eq!(lifetime(&key, Some(&unmarked)), Err(Refusal::Translated));
    }
}

#[test]
fn udp_is_allowed_for_as_long_as_it_is_remembered() {
    let key = flow(libc::IPPROTO_UDP, 5001, 5002);
    let one_way = recorded(UDP_NEW);
    let allowed = lifetime(&key, Some(&one_way)).unwrap();
    assert_eq!(allowed.lifetime, one_way.timeout);
    assert!(allowed.lifetime <= Duration::from_secs(30));
    let mut unconfirmed = one_way;
    unconfirmed.status &= !ips::CONFIRMED;
    assert_eq!(
        lifetime(&key, Some(&unconfirmed)),
        Err(Refusal::NotEstablished)
    );
    let assured = lifetime(&key, Some(&recorded(UDP_ASSURED))).unwrap();
    assert_eq!(assured.lifetime, Duration::from_secs(60), "of 120 left");
    assert!(!assured.is_strict);
}

#[test]
fn a_mark_is_seen() {
    let marked = recorded(UDP_MARK);
    assert!(marked.is_marked);
    assert_eq!(
        lifetime(&flow(libc::IPPROTO_UDP, 5003, 7777), Some(&marked)),
        Err(Refusal::Marked)
    );
}

#[test]
fn an_unknown_connection_is_an_error_of_its_own() {
    let answer = bytes(NONE);
    let (reply, _) = first(&answer).unwrap();
    assert_eq!(reply.content, Content::End(-Errno::NOENT.raw_os_error()));
}

#[test]
fn a_forgotten_connection_names_both_directions() {
    let message = bytes(DESTROYED);
    let (reply, _) = first(&message).unwrap();
    let Content::Object { attributes, .. } = reply.content else {
        panic!("{reply:?}");
    };
    let key = flow(libc::IPPROTO_UDP, 5001, 5002);
    assert_eq!(
        destroyed(reply.kind, attributes),
        Some((key, inverse(&key)))
    );
    assert_eq!(destroyed(NEW, attributes), None, "another announcement");
    let mut scanned = attributes.to_vec();
    let status = [8, 0, 3, 0, 0, 0, 3, 0x8e];
    let at = scanned.windows(8).position(|bytes| bytes == status);
    scanned[at.unwrap() + 7] &= !(ips::ASSURED as u8);
    assert_eq!(
        destroyed(reply.kind, &scanned),
        Some((key, inverse(&key))),
        "one-way UDP is never assured, and may be installed"
    );
    // The same of TCP: its number stands in both tuples.
    let is_udp = [5, 0, 1, 0, 17, 0, 0, 0];
    for at in 0..scanned.len() - 8 {
        if scanned[at..at + 8] == is_udp {
            scanned[at + 4] = 6;
        }
    }
    assert_eq!(destroyed(reply.kind, &scanned), None, "never assured");
}

#[test]
fn the_questions_are_those_that_the_kernel_was_asked() {
    let key = flow(libc::IPPROTO_TCP, 4001, 80);
    let question = get(&key, 7);
    let tuple = &question[20..];
    // The tuple of the answer, which the kernel wrote.
    assert_eq!(tuple, &bytes(TCP)[20..20 + tuple.len()]);
    let demand = make_liberal(&key, 7);
    let (reply, _) = first(&demand).unwrap();
    let Content::Object { attributes, .. } = reply.content else {
        panic!("{reply:?}");
    };
    let tcp = find(find(attributes, CTA_PROTOINFO).unwrap(), CTA_PROTOINFO_TCP).unwrap();
    assert_eq!(
        find(tcp, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL),
        Some(&[8, 8][..])
    );
    assert_eq!(find(tcp, CTA_PROTOINFO_TCP_FLAGS_REPLY), Some(&[8, 8][..]));
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer_or_none(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        place in 0..200_usize,
    ) {
        connection(&bytes);
        destroyed(NEW, &bytes);
        // And a true answer with other bytes in it.
        let mut answer = self::bytes(TCP);
        for (at, byte) in answer.iter_mut().skip(place).zip(&bytes) {
            *at = *byte;
        }
        if let Some((Reply { content: Content::Object { attributes, .. }, .. }, _)) = first(&answer) {
            connection(attributes);
        }
    }
}

const TCP: &str = "d40000000001020007000000f00e18ee020000003400018014000180080001000a090001080002000a0900021c000280\
    0500010006000000060002000fa1000006000300005000003400028014000180080001000a090002080002000a090001\
    1c00028005000100060000000600020000500000060003000fa10000080003000000018e080008000000000008000c00\
    9b80c52008000b00000000020800070000069780300004802c0001800500010003000000050002000a00000005000300\
    0a00000006000400230000000600050023000000";
const TCP_LIBERAL: &str = "d40000000001020007000000f00e18ee020000003400018014000180080001000a090001080002000a0900021c000280\
    0500010006000000060002000fa1000006000300005000003400028014000180080001000a090002080002000a090001\
    1c00028005000100060000000600020000500000060003000fa10000080003000000018e080008000000000008000c00\
    9b80c52008000b0000000002080007000006977c300004802c0001800500010003000000050002000a00000005000300\
    0a000000060004002b000000060005002b000000";
const TCP_CLOSING: &str = "d40000000001020007000000f00e18ee020000003400018014000180080001000a090001080002000a0900021c000280\
    0500010006000000060002000fa1000006000300005000003400028014000180080001000a090002080002000a090001\
    1c00028005000100060000000600020000500000060003000fa10000080003000000018e080008000000000008000c00\
    9b80c52008000b0000000002080007000000003b300004802c0001800500010005000000050002000a00000005000300\
    0a000000060004002f000000060005002b000000";
const NAT: &str = "d40000000001020007000000f00e18ee020000003400018014000180080001000a090001080002000a0900091c000280\
    0500010006000000060002000fa2000006000300005000003400028014000180080001000a090002080002000a090001\
    1c00028005000100060000000600020000500000060003000fa2000008000300000001ae080008000000000008000c00\
    2f58e5d408000b00000000020800070000069780300004802c0001800500010003000000050002000a00000005000300\
    0a00000006000400230000000600050023000000";
const UDP_NEW: &str = "a40000000001020007000000f00e18ee020000003400018014000180080001000a090001080002000a0900021c000280\
    0500010011000000060002001389000006000300138a00003400028014000180080001000a090002080002000a090001\
    1c000280050001001100000006000200138a000006000300138900000800030000000188080008000000000008000c00\
    2cac7e8008000b0000000002080007000000001e";
const UDP_ASSURED: &str = "a40000000001020007000000f00e18ee020000003400018014000180080001000a090001080002000a0900021c000280\
    0500010011000000060002001389000006000300138a00003400028014000180080001000a090002080002000a090001\
    1c000280050001001100000006000200138a00000600030013890000080003000000018e080008000000000008000c00\
    2cac7e8008000b00000000020800070000000078";
const UDP_MARK: &str = "a40000000001020007000000f00e18ee020000003400018014000180080001000a090001080002000a0900021c000280\
    050001001100000006000200138b0000060003001e6100003400028014000180080001000a090002080002000a090001\
    1c0002800500010011000000060002001e61000006000300138b00000800030000000188080008000000000508000c00\
    765f345008000b0000000002080007000000001e";
const NONE: &str = "5c0000000200000007000000f00e18eefeffffff48000000010101000700000000000000020000003400018014000180\
    080001000a090007080002000a0900021c0002800500010006000000060002000fa100000600030000500000";
const DESTROYED: &str = "9400000002010000000000009adabfcf020000003400018014000180080001000a090001080002000a0900021c000280\
    0500010011000000060002001389000006000300138a00003400028014000180080001000a090002080002000a090001\
    1c000280050001001100000006000200138a0000060003001389000008000c002cac7e80080003000000038e08000700\
    00000077";
