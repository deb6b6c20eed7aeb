//! The filter of announcements of forgotten connections: a flow's end is let through, and hardly anything else. What is
//! announced below was recorded from Linux 6.18, of connections between 10.9.0.1 and 10.9.0.2.

use crate::rig::*;

const TABLES: [&str; 2] = ["flows_out", "flows_in"];

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(pair).collect()
}

/// Both directions of the connection from port `client` to port `server`.
fn directions(protocol: u8, client: u16, server: u16) -> [[u8; 16]; 2] {
    let key = |source: u8, from: u16, to: u16| {
        let mut key = [
            10,
            9,
            0,
            source,
            10,
            9,
            0,
            3 - source,
            0,
            0,
            0,
            0,
            protocol,
            0,
            0,
            0,
        ];
        key[8..10].copy_from_slice(&from.to_be_bytes());
        key[10..12].copy_from_slice(&to.to_be_bytes());
        key
    };
    [key(1, client, server), key(2, server, client)]
}

#[test]
fn the_end_of_a_connection_is_announced_where_either_direction_has_an_entry() {
    let mut rig = Rig::new();
    for (announcement, protocol, client, server) in [
        (UDP, 17, 4001, 9001),
        (UDP_IN_ZONE, 17, 4002, 9002),
        (TCP, 6, 4004, 80),
    ] {
        let announcement = bytes(announcement);
        for table in TABLES {
            for key in directions(protocol, client, server) {
                assert!(!rig.is_announced(&announcement), "{table} {key:?}");
                rig.flow(table, key, Flow::default());
                assert!(rig.is_announced(&announcement), "{table} {key:?}");
                rig.end_flow(table, key);
            }
        }
    }
}

/// Every other connection, and each in which one field differs, is of no flow.
#[test]
fn the_end_of_another_connection_is_not_announced() {
    let mut rig = Rig::new();
    for table in TABLES {
        for key in directions(6, 4004, 80) {
            rig.flow(table, key, Flow::default());
        }
    }
    assert!(rig.is_announced(&bytes(TCP)));
    for other in [UDP, UDP_IN_ZONE, UDP6, ICMP] {
        assert!(!rig.is_announced(&bytes(other)), "{other}");
    }
    for at in [SOURCE, DESTINATION, PROTOCOL, SOURCE_PORT, DESTINATION_PORT] {
        let mut other = bytes(TCP);
        // 6 becomes 7, which is no flow's; the others are one off.
        other[at] ^= 1;
        assert!(!rig.is_announced(&other), "byte {at}");
    }
}

/// What is laid out otherwise the thread is to read itself: cut anywhere, or with another kind or length of any attribute.
#[test]
fn what_cannot_be_read_is_announced() {
    let mut rig = Rig::new();
    let whole = bytes(TCP);
    assert!(!rig.is_announced(&whole));
    for length in 1..TUPLE_END {
        assert!(rig.is_announced(&whole[..length]), "of {length} bytes");
    }
    assert!(!rig.is_announced(&whole[..TUPLE_END]));
    for header in [
        ADDRESSES,
        SOURCE - 4,
        DESTINATION - 4,
        PROTOCOL - 4,
        SOURCE_PORT - 4,
        DESTINATION_PORT - 4,
    ] {
        for at in [header, header + 2] {
            let mut other = whole.clone();
            other[at] ^= 1;
            assert!(rig.is_announced(&other), "byte {at}");
        }
    }
    for kind in [ORIGINAL + 2, PORTS + 2] {
        let mut other = whole.clone();
        other[kind] ^= 1;
        assert!(rig.is_announced(&other), "byte {kind}");
    }
}

// Places in an announcement of IPv4.
const ORIGINAL: usize = 20;
const ADDRESSES: usize = 24;
const SOURCE: usize = 32;
const DESTINATION: usize = 40;
const PORTS: usize = 44;
const PROTOCOL: usize = 52;
const SOURCE_PORT: usize = 60;
const DESTINATION_PORT: usize = 68;
const TUPLE_END: usize = 72;

const TCP: &str = "a40000000201000000000000f50962b7020000003400018014000180080001000a090001080002000a0900021c0002800500010006000000060002000fa4000006000300005000003400028014000180080001000a090002080002000a0900011c00028005000100060000000600020000500000060003000fa4000008000c0004d85fb1080003000000020e080007000006977f100004800c0001800500010003000000";
const UDP: &str = "940000000201000000000000f50962b7020000003400018014000180080001000a090001080002000a0900021c0002800500010011000000060002000fa1000006000300232900003400028014000180080001000a090002080002000a0900011c00028005000100110000000600020023290000060003000fa1000008000c0062ba1e0b0800030000000208080007000000001d";
const UDP_IN_ZONE: &str = "9c0000000201000000000000f50962b7020000003400018014000180080001000a090001080002000a0900021c0002800500010011000000060002000fa2000006000300232a00003400028014000180080001000a090002080002000a0900011c000280050001001100000006000200232a0000060003000fa20000060012000007000008000c001fbb68f60800030000000208080007000000001d";
const UDP6: &str = "c40000000201000000000000f50962b70a0000004c0001802c00018014000300fd00000000000000000000000000000114000400fd0000000000000000000000000000011c0002800500010011000000060002000fa3000006000300232b00004c0002802c00018014000300fd00000000000000000000000000000114000400fd0000000000000000000000000000011c000280050001001100000006000200232b0000060003000fa3000008000c00f3bbb7150800030000000208080007000000001d";
const ICMP: &str = "a40000000201000000000000f50962b7020000003c00018014000180080001000a090001080002000a0900022400028005000100010000000600040004c20000050005000800000005000600000000003c00028014000180080001000a090002080002000a0900012400028005000100010000000600040004c200000500050000000000050006000000000008000c00c782b5b5080003000000020a080007000000001d";
