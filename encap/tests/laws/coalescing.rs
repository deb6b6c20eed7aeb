//! Wire packets become super-packets and are what they were once cut again; ordinary streams become as few as can be.

use encap::coalesce::Coalescer;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::streams::{self, Sent, Written};

/// Events: mostly data in order, of few flows.
fn events() -> impl Strategy<Value = Vec<u8>> {
    let event = prop_oneof![
        4 => (0..8u8, Just(39u8), any::<[u8; 2]>()),
        4 => (0..2u8, Just(39u8), any::<[u8; 2]>()),
        3 => (0..8u8, any::<u8>(), any::<[u8; 2]>()),
        1 => (any::<u8>(), any::<u8>(), any::<[u8; 2]>()),
    ];
    let bytes = event.prop_map(|(flow, event, [a, b])| [flow, event, a, b]);
    vec(bytes, 0..200).prop_map(|events| events.concat())
}

proptest! {
    #[test]
    fn the_laws_hold(events in events()) {
        streams::coalesce(&events);
    }

    #[test]
    fn the_laws_hold_for_any_bytes(bytes in vec(any::<u8>(), 0..800)) {
        streams::coalesce(&bytes);
    }
}

fn one_batch(events: &[[u8; 4]]) -> Vec<Written> {
    let sent: Vec<Sent> = streams::packets(&events.concat());
    let mut batches = streams::pushed(&mut Coalescer::new(1_000, 1_000), &sent);
    assert_eq!(batches.len(), 1);
    batches.remove(0)
}

fn counts(events: &[[u8; 4]]) -> Vec<usize> {
    one_batch(events)
        .iter()
        .map(|written| written.of.len())
        .collect()
}

const DATA: u8 = 39;

/// Eight flows in turn: each becomes one super-packet.
#[test]
fn flows_that_take_turns_become_one_each() {
    let events: Vec<_> = (0..160).map(|i| [i % 8, DATA, 0, 0]).collect();
    assert_eq!(counts(&events), [20; 8]);
}

#[test]
fn at_most_64_packets_join() {
    for flow in 0..4 {
        assert_eq!(counts(&[[flow, DATA, 0, 0]; 130]), [64, 64, 2]);
    }
}

#[test]
fn at_most_65535_bytes_join() {
    // Of this much payload eight fit beside a header, of a byte more seven.
    for (flow, size) in [(0, 8_186), (1, 8_184), (2, 8_188), (3, 8_185)] {
        for (size, most) in [(size, 8), (size + 1, 7)] {
            let [a, b] = u16::to_be_bytes(size - 1);
            let mut events = vec![[flow, DATA, 0, 0]; 2 * most + 1];
            events[0] = [flow, 16, a, b];
            assert_eq!(counts(&events), [most, most, 1]);
        }
    }
}

#[test]
fn a_short_segment_is_the_last() {
    for flow in 0..8 {
        let events = [
            [flow, DATA, 0, 0],
            [flow, DATA, 0, 0],
            [flow, 0, 0, 50],
            [flow, 0, 0, 50],
            [flow, DATA, 0, 0],
        ];
        // The second short one begins a chain that nothing longer joins.
        assert_eq!(counts(&events), [3, 1, 1]);
    }
}

#[test]
fn push_is_carried_and_does_not_end_the_chain() {
    for flow in [0, 1, 4, 5] {
        let events = [[flow, DATA, 0, 0], [flow, 1, 0, 0], [flow, DATA, 0, 0]];
        assert_eq!(counts(&events), [3]);
    }
}

/// What cannot join ends the chain, and data behind it begins another: nothing passes it.
#[test]
fn what_cannot_join_seals() {
    // A gap, a repetition, FIN, SYN, RST, URG, CWR, another hop limit, a wrong checksum, options, a fragment.
    let events = [
        (2, 700),
        (3, 0),
        (6, 0x11),
        (6, 0x12),
        (6, 0x14),
        (6, 0x30),
        (6, 0x90),
        (8, 0),
        (9, 0),
        (13, 0),
        (14, 0),
    ];
    for (event, amount) in events {
        for flow in [0, 1, 4, 5] {
            let [a, b] = u16::to_be_bytes(amount);
            let odd = [flow, event, a, b];
            let data = [flow, DATA, 0, 0];
            let counts = counts(&[data, data, odd, data, data]);
            // A gap and a repetition are data themselves.
            let expected: &[usize] = if event < 4 { &[2, 3] } else { &[2, 1, 2] };
            assert_eq!(counts, expected, "{event} {amount:#x} in flow {flow}");
        }
    }
}

/// Not even with their like.
#[test]
fn what_cannot_join_stays_alone() {
    // FIN, SYN, RST, URG, CWR, no ACK, a wrong checksum, a wrong IPv4 header, a fragment, options.
    let flags = [0x11, 0x12, 0x14, 0x30, 0x90, 0x00].map(|flags| (6, flags));
    let others = [(9, 0), (12, 0), (13, 0), (14, 0)];
    for (event, flags) in flags.into_iter().chain(others) {
        for flow in 0..8u8 {
            let (v6, udp) = (flow & 1 != 0, flow & 2 != 0);
            if event == 6 && udp || event == 12 && v6 {
                continue;
            }
            let odd = [flow, event, 0, flags];
            assert_eq!(
                counts(&[odd; 3]),
                [1; 3],
                "{event} {flags:#x} in flow {flow}"
            );
        }
    }
}

#[test]
fn a_datagram_shorter_than_its_packet_stays_alone() {
    for flow in [2, 3, 6, 7] {
        assert_eq!(counts(&[[flow, 22, 0, 0]; 3]), [1; 3]);
    }
}

#[test]
fn nothing_joins_a_chain_that_its_flow_left() {
    // A gap makes a second chain; the first is not found again, whatever stood between.
    for flow in [0, 1, 4, 5] {
        let (data, gap, other) = ([flow, DATA, 0, 0], [flow, 2, 2, 0], [2, DATA, 0, 0]);
        let counts = counts(&[data, data, other, gap, other, data, gap]);
        assert_eq!(counts, [2, 2, 2, 1]);
    }
}

#[test]
fn an_acknowledgment_without_new_information_does_not_seal() {
    // Flow 0 counts identifications, and the acknowledgment takes one.
    for flow in [1, 4, 5] {
        let data = [flow, DATA, 0, 0];
        let (old, new) = ([flow, 4, 0, 0], [flow, 5, 0, 2]);
        assert_eq!(counts(&[data, data, old, data]), [3, 1]);
        assert_eq!(counts(&[data, data, new, data]), [2, 1, 1]);
        let ahead = [flow, 21, 0, 2];
        assert_eq!(counts(&[data, data, ahead, data]), [2, 1, 1]);
    }
}

#[test]
fn udp_without_a_checksum_never_joins() {
    for flow in [2, 3, 6, 7] {
        assert_eq!(counts(&[[flow, 11, 0, 0]; 3]), [1, 1, 1]);
    }
}

#[test]
fn unfinished_packets_join_unfinished_ones_only() {
    for flow in 0..8 {
        let (whole, partial) = ([flow, DATA, 0, 0], [flow, 10, 0, 0]);
        assert_eq!(counts(&[whole, whole, partial, partial, whole]), [2, 2, 1]);
    }
}

#[test]
fn owners_are_kept_apart() {
    // Flow 7 of the ordinary owner, and of the other.
    let (one, other) = ([7, DATA, 0, 0], [0xff, DATA, 0, 0]);
    assert_eq!(counts(&[one, one, other, other]), [2, 2]);
}

/// Identifications that do not count up forbid joining, unless DF is set.
#[test]
fn identifications_count_up() {
    let (data, skip) = ([0, DATA, 0, 0], [0, 2, 0, 1]);
    // `skip` also leaves a gap of one byte; a UDP stream has no such thing.
    assert_eq!(counts(&[data, skip, data]), [1, 2]);
    assert_eq!(
        counts(&[[2, DATA, 0, 0], [2, 2, 0, 1], [2, DATA, 0, 0]]),
        [1, 2]
    );
    assert_eq!(
        counts(&[[6, DATA, 0, 0], [6, 2, 0, 1], [6, DATA, 0, 0]]),
        [3]
    );
}
