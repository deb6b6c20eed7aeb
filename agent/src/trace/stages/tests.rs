use std::time::{Duration, SystemTime};

use dataplane::probe::Verdict;

use super::*;

fn packet(size: u16, dont_fragment: bool) -> TracedPacket {
    TracedPacket {
        source: [10, 244, 1, 2].into(),
        destination: [10, 244, 2, 3].into(),
        protocol: 1,
        port: 0,
        size,
        dont_fragment,
    }
}

fn path(state: State) -> PathReport {
    PathReport {
        address: [192, 0, 2, 2].into(),
        state,
        since: SystemTime::UNIX_EPOCH,
        is_busy: false,
        is_probed: true,
        round_trips: Some((Duration::from_micros(300), Duration::from_millis(1))),
        loss: (None, None),
        measured: None,
        configured: 1500,
        next: None,
    }
}

fn says(fate: Option<Fate>) -> PeerSays {
    PeerSays {
        report: None,
        verdict: fate.map(|fate| Verdict {
            fate,
            mtu_back: 1450,
        }),
        is_answered: true,
        round_trip: Some(Duration::from_micros(400)),
        size_passed: None,
        not_sent: None,
    }
}

#[test]
fn the_source_check_at_the_pods_interface() {
    let own = source_check([10, 244, 1, 2].into(), "tt1", true);
    assert_eq!((own.result, &own.code[..]), (Passes, "routed-back"));
    let forged = source_check([10, 244, 9, 9].into(), "tt1", false);
    assert_eq!(
        (forged.result, &forged.code[..]),
        (Refuses, "forged-source")
    );
    assert!(
        forged.reason.contains("10.244.9.9 by tt1"),
        "{}",
        forged.reason
    );
}

#[test]
fn the_filter_names_the_rule_and_claims_no_more_than_it_knows() {
    let rule = |handle| NamedRule {
        chain: "inet fw forward".to_owned(),
        handle,
        verdict: "drop",
    };
    let mut verdict = FilterVerdict {
        chains: 2,
        ..FilterVerdict::default()
    };
    assert_eq!(filter(&verdict).result, Passes);
    verdict.may_drop = vec![rule(Some(7)), rule(Some(9))];
    let may = filter(&verdict);
    assert_eq!((may.result, &may.code[..]), (NotKnown, "not-judged"));
    assert!(
        may.reason.contains("handle 7, and 1 more may drop it"),
        "{}",
        may.reason
    );
    let other = |handle, verdict| NamedRule {
        verdict,
        ..rule(handle)
    };
    for (other, words) in [
        (
            other(Some(7), NamedRule::UNKNOWN),
            "not judged: a verdict map, a queue or the like in nft inet fw forward, handle 7, may drop it",
        ),
        (
            other(None, NamedRule::UNREAD),
            "not judged: the rules of nft inet fw forward, which were not read, may drop it",
        ),
    ] {
        let translated = translation(&other);
        assert_eq!(
            (translated.result, &translated.code[..]),
            (NotKnown, "translated")
        );
        assert!(!translated.reason.contains("unknown"));
        verdict.may_drop = vec![other];
        let may = filter(&verdict);
        assert_eq!((may.result, &may.reason[..]), (NotKnown, words));
    }
    verdict.drops = Some(rule(Some(4)));
    let drops = filter(&verdict);
    assert_eq!(drops.result, Refuses);
    assert_eq!(
        drops.reason,
        "the rule `drop` in nft inet fw forward, handle 4, drops it"
    );
    let legacy = FilterVerdict {
        legacy: Some("legacy tables".to_owned()),
        ..FilterVerdict::default()
    };
    assert_eq!(filter(&legacy).result, NotKnown);
}

#[test]
fn each_reason_of_the_tables_has_its_stage_words_and_remedy() {
    for (reason, name) in [
        (DropReason::SpoofedSource, "source"),
        (DropReason::OwnSubnet, "fib"),
        (DropReason::NoRoute, "fib"),
        (DropReason::NoUnderlay, "fib"),
        (DropReason::Ipv6InUdp, "fib"),
        (DropReason::NotUnicast, "fib"),
    ] {
        let stage = refused(reason, &packet(84, false));
        assert_eq!((&stage.stage[..], stage.result), (name, Refuses));
        assert_eq!(stage.code, reason.name());
        assert!(!stage.reason.is_empty() && !stage.remedy.is_empty());
    }
}

#[test]
fn the_state_of_a_peer_is_a_tick_or_a_reason() {
    assert_eq!(peer("node2", None, false).result, NotKnown);
    for (state, result) in [
        (State::Up, Passes),
        (State::Heard, Passes),
        (State::Quiet, NotKnown),
        (State::New, NotKnown),
        (State::Silent, Refuses),
        (State::Refused, Refuses),
        (State::WrongVni(7), Refuses),
    ] {
        let stage = peer("node2", Some(&path(state.clone())), false);
        assert_eq!((stage.result, &stage.code[..]), (result, state.name()));
        assert_eq!(stage.remedy.is_empty(), result != Refuses);
        // Regression: a state of the past was a refusal beside an answer of this moment.
        let stage = peer("node2", Some(&path(state.clone())), true);
        assert_eq!(stage.result, result.min(NotKnown), "{}", state.name());
        assert_eq!(stage.code, state.name());
    }
}

#[test]
fn what_the_other_side_says() {
    let up = path(State::Up);
    for (fate, result, code) in [
        (Fate::Pod, Passes, "pod"),
        (Fate::KernelRoute, Passes, "kernel-route"),
        (Fate::Tunnel, Passes, "tunnel"),
        (Fate::NotPeersSource, Refuses, "NotPeersSource"),
        (Fate::NoSuchPod, Refuses, "NotOurs"),
        (Fate::NotOurs, Refuses, "NotOurs"),
        (Fate::Ipv6InUdp, Refuses, "Ipv6InUdp"),
        (Fate::NotUnderstood, NotKnown, "not-understood"),
        (Fate::Other(99), NotKnown, "not-understood"),
    ] {
        let stage = other_side("node2", &packet(84, false), &says(Some(fate)), Some(&up));
        assert_eq!((stage.result, &stage.code[..]), (result, code));
        assert!(stage.reason.contains("node2"), "{}", stage.reason);
    }
    let older = other_side("node2", &packet(84, false), &says(None), Some(&up));
    assert_eq!((older.result, &older.code[..]), (NotKnown, "older"));
}

#[test]
fn a_size_that_does_not_arrive_is_the_paths() {
    let mut said = says(Some(Fate::Pod));
    said.size_passed = Some(false);
    let stage = other_side("node2", &packet(1450, true), &said, Some(&path(State::Up)));
    assert_eq!((stage.result, &stage.code[..]), (Refuses, "path-narrow"));
    // What the pod's absence decides is not put on the path.
    said.verdict = says(Some(Fate::NoSuchPod)).verdict;
    let stage = other_side("node2", &packet(1450, true), &said, Some(&path(State::Up)));
    assert_eq!(stage.code, "NotOurs");
}

#[test]
fn what_silence_means_depends_on_what_was_heard_before() {
    let silent = PeerSays::default();
    for (state, result) in [
        (Some(State::Heard), NotKnown),
        (Some(State::Quiet), NotKnown),
        (None, NotKnown),
        (Some(State::Up), Refuses),
        (Some(State::Silent), Refuses),
        (Some(State::OneWay { unheard: None }), Refuses),
    ] {
        let report = state.map(path);
        let stage = other_side("node2", &packet(84, false), &silent, report.as_ref());
        assert_eq!((stage.result, &stage.code[..]), (result, "no-answer"));
    }
}

/// Regression: what the prober itself lacked was a refusal of the packet.
#[test]
fn only_what_the_kernel_refuses_is_a_refusal() {
    let not_sent = |reason| PeerSays {
        not_sent: Some(reason),
        ..PeerSays::default()
    };
    let refused = NotSent::Refused("this node has no route there (ENETUNREACH)".to_owned());
    let lacking = NotSent::NotAsked("this node has no socket to ask it by");
    for (reason, result, code) in [
        (refused, Refuses, "not-sent"),
        (lacking, NotKnown, "not-asked"),
    ] {
        // Not even beside a state that would be a refusal if it did not answer.
        let report = path(State::Silent);
        let says = not_sent(reason);
        let stage = other_side("node2", &packet(84, false), &says, Some(&report));
        assert_eq!((stage.result, &stage.code[..]), (result, code));
    }
}
