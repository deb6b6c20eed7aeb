use std::net::Ipv4Addr;

use super::*;
use crate::peer_health::state::State;

fn targets(count: u32) -> Vec<Target> {
    let target = |index: u32| Target {
        name: format!("n{index}").into(),
        address: Ipv4Addr::from_bits(0x0a00_0000 + index).into(),
        of: 1,
        bounds: (626, 1500),
    };
    (0..count).map(target).collect()
}

/// Runs a table of peers of which those that `answers` says answer after 1 ms. Returns the probes of each second.
fn run(
    table: &mut Table,
    now: &mut Now,
    seconds: u32,
    answers: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let (mut nonce, mut rates) = (0, Vec::new());
    for _ in 0..seconds {
        let mut sent = 0;
        for _ in 0..50 {
            *now = now.after(Duration::from_millis(20));
            let (mut asks, mut learned) = (Vec::new(), Vec::new());
            table.turn(*now, &mut asks, &mut learned);
            sent += asks.len();
            for (index, ask) in asks {
                nonce += 1;
                let address = table.slots()[index].target.address;
                table.note_sent(address, nonce, ask, *now);
                if answers(index) {
                    let at = now.after(Duration::from_millis(1));
                    table.answer(address, nonce, at);
                }
            }
        }
        rates.push(sent);
        table.judge(*now, |_| Seen::default());
        the_bad_ones_are_known(table);
    }
    rates
}

fn the_bad_ones_are_known(table: &Table) {
    let names = |slot: &Slot| Arc::clone(&slot.target.name);
    let all = table.slots().iter();
    let bad = all.filter(|slot| slot.path.state().0.is_bad());
    assert_eq!(
        table.bad().map(names).collect::<Vec<_>>(),
        bad.map(names).collect::<Vec<_>>()
    );
}

#[test]
fn the_round_trip_of_each_answer_is_counted_once_and_none_that_was_not_asked() {
    let mut table = Table::new(Now(0));
    let mut targets = targets(2);
    targets[1].address = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]);
    let (v4, v6) = (targets[0].address, targets[1].address);
    table.follow(targets, Now(0));
    let now = Now(0).after(Duration::from_secs(1));
    for (address, nonce) in [(v4, 1), (v6, 2)] {
        let ask = Ask {
            size: None,
            is_watch: true,
        };
        table.note_sent(address, nonce, ask, now);
    }
    let at = now.after(Duration::from_micros(300));
    // Another nonce, another path's, an address that is no peer's.
    for (address, nonce) in [(v4, 7), (v4, 2), (IpAddr::from([203, 0, 113, 1]), 1)] {
        assert!(
            table.answer(address, nonce, at).is_none(),
            "{address} {nonce}"
        );
    }
    assert_eq!(table.round_trips().v4.count(), 0);
    for expected in [Some(Duration::from_micros(300)), None] {
        let took = table.answer(v4, 1, at).map(|answer| answer.round_trip);
        assert_eq!(took, expected);
    }
    let trips = table.round_trips();
    assert_eq!((trips.v4.count(), trips.v6.count()), (1, 0));
    assert_eq!(trips.v4.sum(), Duration::from_micros(300));
    assert!(table.answer(v6, 2, at).is_some());
    // What was counted of paths that went stays.
    table.follow(Vec::new(), at);
    let trips = table.round_trips();
    assert_eq!((trips.v4.count(), trips.v6.count()), (1, 1));
}

/// Regression: loss was a share of the last minute alone, of which Prometheus can make no rate.
#[test]
fn probes_are_counted_as_the_loss_of_paths_judges_them_and_counts_never_fall() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    let mut known = targets(3);
    known[2].address = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]);
    table.follow(known.clone(), now);
    run(&mut table, &mut now, 30, |_| true);
    let healthy = table.outcomes();
    assert_eq!((healthy.v4.lost, healthy.v6.lost), (0, 0), "trials are in");
    assert!(healthy.v4.answered > healthy.v6.answered && healthy.v6.answered > 15);
    // One of each family dies, and what they lost stays when they go.
    run(&mut table, &mut now, 20, |index| index == 1);
    let dead = table.outcomes();
    for family in [Family::V4, Family::V6] {
        assert!(dead.of(family).lost >= 10, "{dead:?}");
    }
    let shares = table.slots().iter().map(|slot| slot.path.loss.all());
    let lost: u64 = shares.map(|outcomes| outcomes.lost).sum();
    assert_eq!(dead.v4.lost + dead.v6.lost, lost);
    known.truncate(2);
    known.remove(0);
    table.follow(known, now);
    assert_eq!(table.outcomes(), dead);
    run(&mut table, &mut now, 5, |_| true);
    let after = table.outcomes();
    assert_eq!((after.v4.lost, after.v6), (dead.v4.lost, dead.v6));
    assert!(after.v4.sent() > dead.v4.sent());
}

/// A peer that runs flannel answers none, and is never said to lose any.
#[test]
fn probes_to_a_peer_that_never_answered_are_not_counted() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.follow(targets(1), now);
    run(&mut table, &mut now, 60, |_| false);
    assert_eq!(table.outcomes(), PerFamily::default());
}

#[test]
fn few_peers_are_watched_at_their_own_pace() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.follow(targets(10), now);
    run(&mut table, &mut now, 10, |_| true);
    let rates = run(&mut table, &mut now, 100, |_| true);
    let all: usize = rates.iter().sum();
    assert!((750..=1000).contains(&all), "{all}");
    assert!(
        table
            .slots()
            .iter()
            .all(|slot| *slot.path.state().0 == State::Up)
    );
}

/// A name that was known at the start is expected to answer until the peer goes: what comes by that name later may be anyone.
#[test]
fn a_peer_that_goes_and_comes_back_is_not_expected_to_answer() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.expect_answers(&["n0".to_owned(), "n9".to_owned()].into());
    table.follow(targets(2), now);
    run(&mut table, &mut now, 20, |_| false);
    let state = |table: &Table| table.slots()[0].path.state().0.clone();
    assert_eq!(state(&table), State::Silent);
    table.follow(Vec::new(), now);
    table.follow(targets(2), now);
    run(&mut table, &mut now, 20, |_| false);
    assert_eq!(state(&table), State::Quiet);
    // One that comes first after a while is expected all the same.
    table.follow(targets(10), now);
    run(&mut table, &mut now, 20, |_| false);
    assert_eq!(*table.slots()[9].path.state().0, State::Silent);
}

#[test]
fn five_thousand_peers_share_the_budget_evenly() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.follow(targets(5000), now);
    run(&mut table, &mut now, 75, |_| true);
    // Five rounds.
    let rates = run(&mut table, &mut now, 125, |_| true);
    let all: usize = rates.iter().sum();
    assert!(all <= 125 * WATCHING as usize, "{all}");
    let up = table
        .slots()
        .iter()
        .filter(|slot| *slot.path.state().0 == State::Up)
        .count();
    assert_eq!(up, 5000);
    // A hundred die.
    let rates = run(&mut table, &mut now, 30, |index| index >= 100);
    assert!(rates.iter().all(|rate| *rate <= 565), "{rates:?}");
    let silent = table
        .slots()
        .iter()
        .filter(|slot| *slot.path.state().0 == State::Silent)
        .count();
    assert_eq!(silent, 100);
    assert_eq!(table.bad().count(), 100);
    // Some of them go, and all get other numbers.
    table.follow(targets(5000).split_off(50), now);
    the_bad_ones_are_known(&table);
    assert_eq!(table.bad().count(), 50);
}

#[test]
fn an_answer_ends_the_doubt_for_which_a_turn_was_to_come() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.follow(targets(1), now);
    run(&mut table, &mut now, 30, |_| true);
    now = table.wake().unwrap();
    let mut asks = Vec::new();
    table.turn(now, &mut asks, &mut Vec::new());
    assert!(!asks.is_empty());
    let address = table.slots()[0].target.address;
    let nonces: Vec<u64> = (1 << 32..).take(asks.len()).collect();
    for (nonce, (_, ask)) in nonces.iter().zip(asks) {
        table.note_sent(address, *nonce, ask, now);
    }
    let doubted = table.wake().unwrap();
    assert!(doubted.since(now) < WATCH_EVERY / 2, "{doubted:?}");
    for nonce in nonces {
        let at = now.after(Duration::from_millis(1));
        assert!(table.answer(address, nonce, at).is_some());
    }
    let next = table.wake().unwrap();
    assert!(next.since(now) >= WATCH_EVERY, "{next:?}");
}

/// Regression: with 5,000 peers that answer, what was due beyond the budget was taken out of the heap and put back each
/// 20 ms, which cost more than the probes did.
#[test]
fn what_the_budget_does_not_cover_waits_in_its_order_and_is_not_touched() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.follow(targets(2000), now);
    // All are due, in the order of their numbers.
    now = now.after(Duration::from_secs(60));
    let mut asked = Vec::new();
    for _ in 0..30 {
        let before: Vec<Now> = table.slots().iter().map(|slot| slot.scheduled).collect();
        let mut asks = Vec::new();
        table.turn(now, &mut asks, &mut Vec::new());
        assert_eq!(table.wake(), Some(now.after(BATCHED)));
        let moved = (0..).zip(&before).zip(table.slots());
        let moved = moved.filter(|((_, before), slot)| **before != slot.scheduled);
        let moved: Vec<usize> = moved.map(|((index, _), _)| index).collect();
        assert!(
            asks.iter()
                .map(|(index, _)| *index)
                .eq(moved.iter().copied())
        );
        asked.extend(moved);
        now = now.after(BATCHED);
    }
    assert!(
        asked.iter().copied().eq(0..asked.len()) && asked.len() > 1000,
        "{}",
        asked.len()
    );
}

#[test]
fn every_path_is_looked_at_in_its_round_even_while_paths_come_and_go() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    let mut looked = std::collections::HashMap::new();
    for second in 0..20 {
        now = now.after(Duration::from_secs(1));
        table.follow(targets(4998 + second % 3), now);
        let seen = std::cell::RefCell::new(Vec::new());
        table.judge(now, |target| {
            seen.borrow_mut().push(target.address);
            Seen::default()
        });
        let seen = seen.into_inner();
        assert!(seen.len() <= MANY);
        for address in seen {
            *looked.entry(address).or_insert(0) += 1;
        }
    }
    // Rounds of 5 s each; what comes and goes may miss one.
    let of = |target: &Target| looked.get(&target.address).copied();
    for target in targets(4998) {
        assert!(of(&target) >= Some(3), "{target:?}: {:?}", of(&target));
    }
}

#[test]
fn a_flow_that_ceases_is_told_from_one_that_slows_down() {
    let mut now = Now(0).after(Duration::from_secs(9));
    let mut look = |flow: &mut Flow, rate: u64| {
        now = now.after(LOOK_EVERY);
        flow.has_ceased(flow.bytes + rate / 20, now)
    };
    let mut flow = Flow::default();
    for _ in 0..40 {
        assert!(!look(&mut flow, 8_000_000));
    }
    assert!(!look(&mut flow, 2_000_000), "a quarter");
    assert!(look(&mut flow, 100_000), "acknowledgements alone");
    for _ in 0..40 {
        assert!(!look(&mut flow, 0), "it was said");
    }
    // Little never ceases.
    for _ in 0..40 {
        assert!(!look(&mut flow, MUCH / 2));
    }
    assert!(!look(&mut flow, 0));
    // Nothing is known of a flow that was not looked at for a while.
    for _ in 0..40 {
        assert!(!look(&mut flow, 8_000_000));
    }
    let later = flow.at.after(FLOW_LASTS * 2);
    assert!(!flow.has_ceased(flow.bytes + 100_000_000, later));
    assert!(!flow.has_ceased(flow.bytes, later.after(LOOK_EVERY)));
}

#[test]
fn paths_in_use_are_suspected_when_their_packets_cease() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.follow(targets(200), now);
    run(&mut table, &mut now, 20, |_| true);
    assert_eq!(table.look_due(), None);
    let mut bytes = 0;
    for _ in 0..100 {
        now = now.after(LOOK_EVERY);
        bytes += 400_000;
        table.judge(now, |_| Seen {
            packets: bytes,
            ..Seen::default()
        });
        table.look(now, |_| bytes);
    }
    assert_eq!(table.looked.len(), LOOKED);
    let urgent = |table: &Table| {
        table
            .slots()
            .iter()
            .filter(|slot| slot.path.is_urgent())
            .count()
    };
    assert_eq!(urgent(&table), 0);
    now = now.after(LOOK_EVERY);
    table.look(now, |_| bytes);
    assert_eq!(urgent(&table), LOOKED);
}

#[test]
fn peers_that_never_answer_are_spared() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.follow(targets(300), now);
    run(&mut table, &mut now, 60, |_| false);
    let rates = run(&mut table, &mut now, 60, |_| false);
    let all: usize = rates.iter().sum();
    assert_eq!(all, 600);
    assert!(
        table
            .slots()
            .iter()
            .all(|slot| !slot.path.state().0.is_bad())
    );
}

#[test]
fn paths_that_stay_keep_what_is_known_of_them() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.follow(targets(3), now);
    run(&mut table, &mut now, 5, |_| true);
    let mut others = targets(5);
    others.remove(0);
    table.follow(others, now);
    let states: Vec<&str> = table
        .slots()
        .iter()
        .map(|slot| slot.path.state().0.name())
        .collect();
    assert_eq!(states, ["up", "up", "new", "new"]);
    run(&mut table, &mut now, 5, |_| true);
    assert!(
        table
            .slots()
            .iter()
            .all(|slot| *slot.path.state().0 == State::Up)
    );
}

#[test]
fn an_answer_is_awaited_until_it_comes_or_is_given_up() {
    let (mut table, mut now) = (Table::new(Now(0)), Now(0));
    table.follow(targets(3), now);
    run(&mut table, &mut now, 5, |_| true);
    assert!(!table.awaits());
    let address = |index: usize| targets(3).get(index).unwrap().address;
    let ask = Ask {
        size: None,
        is_watch: true,
    };
    table.note_sent(address(1), 71, ask, now);
    table.note_sent(address(0), 70, ask, now);
    assert!(table.awaits());
    table.on(address(1), now, |path| path.answer(71, now));
    assert!(table.awaits(), "the other is still under way");
    // The paths have other numbers now.
    let mut fewer = targets(3);
    fewer.swap(0, 2);
    table.follow(fewer, now);
    assert!(table.awaits());
    table.on(address(0), now, |path| path.answer(70, now));
    assert!(!table.awaits());
    // One that is never answered.
    table.note_sent(address(2), 72, ask, now);
    assert!(table.awaits());
    run(&mut table, &mut now, 5, |_| true);
    assert!(!table.awaits());
}
