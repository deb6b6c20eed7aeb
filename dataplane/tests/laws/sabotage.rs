//! The oracle itself is tested: switch off any one counter and it must object.

use dataplane::counters::{Flow, WorkerTotals};
use dataplane::drops::{Direction, DropReason};
use dataplane::now::Now;
use encap::Format;

use crate::reasons::{CASES, node};
use crate::world::network::Faults;
use crate::world::node::Node;
use crate::world::oracle::{Outside, audit};
use crate::world::packets::{udp, vxlan};
use crate::world::plan::{ClusterPlan, PODS, pod};
use crate::world::{Seed, World};

#[test]
fn no_counter_can_be_switched_off_unseen() {
    let (totals, outside) = run_that_reaches_everything();
    for term in terms() {
        let mut sabotaged = totals;
        let counter = (term.counter)(&mut sabotaged);
        assert!(*counter > 0, "the run does not reach {}", term.name);
        *counter = 0;
        assert!(
            !audit(&sabotaged, &outside).is_empty(),
            "the oracle does not miss {}",
            term.name
        );
    }
}

#[test]
fn no_counter_can_be_wrong_by_one_unseen() {
    let (totals, outside) = run_that_reaches_everything();
    for term in terms() {
        for wrong in [u64::wrapping_add, u64::wrapping_sub] {
            let mut sabotaged = totals;
            let counter = (term.counter)(&mut sabotaged);
            *counter = wrong(*counter, 1);
            assert!(
                !audit(&sabotaged, &outside).is_empty(),
                "the oracle does not miss one of {}",
                term.name
            );
        }
    }
}

/// Two wrongs must not make a right: packets that were sent or delivered but booked as drops are seen from outside.
#[test]
fn nothing_can_be_booked_as_dropped_that_went_through() {
    let (totals, outside) = run_that_reaches_everything();
    for (direction, fate) in [
        (
            Direction::Outbound,
            (|flow| &mut flow.sent) as fn(&mut Flow) -> &mut u64,
        ),
        (Direction::Outbound, |flow| &mut flow.delivered),
        (Direction::Outbound, |flow| &mut flow.held),
        (Direction::Inbound, |flow| &mut flow.delivered),
    ] {
        let mut sabotaged = totals;
        let flow = flow(&mut sabotaged, direction);
        *fate(flow) -= 1;
        flow.drops[DropReason::NotOurs as usize] += 1;
        assert!(!audit(&sabotaged, &outside).is_empty());
    }
}

/// The same in a whole cluster after real traffic: a packet that vanishes on any node is missed.
#[test]
fn a_vanished_packet_is_missed_in_a_cluster() {
    let _told = Seed(1);
    let faults = Faults {
        loss: 0.02,
        corruption: 0.02,
        ..Faults::NONE
    };
    let mut world = World::new(&ClusterPlan::new(3, Format::Vxlan), faults, 1);
    for i in 0..3 {
        let pod = |node: u8| usize::from(node % 3 * PODS);
        world.transfer(pod(i), pod(i + 1), false, 100_000);
    }
    world.complete_transfers(LIMIT);
    world.abort_transfers();
    world.settle(LIMIT);
    assert_eq!(world.audit(), [""; 0]);
    for index in 0..world.nodes.len() {
        world.nodes[index].outside.handed += 1;
        assert_eq!(world.audit().len(), 1);
        world.nodes[index].outside.handed -= 1;
        world.nodes[index].outside.pushed += 1;
        assert_eq!(world.audit().len(), 1);
        world.nodes[index].outside.pushed -= 1;
    }
}

/// One counter of the law.
struct Term {
    name: String,
    counter: Box<dyn Fn(&mut WorkerTotals) -> &mut u64>,
}

/// Every counter that a packet can reach.
fn terms() -> Vec<Term> {
    let out = Direction::Outbound;
    let mut terms = vec![
        term("outbound received", out, |flow| &mut flow.received),
        term("outbound originated", out, |flow| &mut flow.originated),
        term("outbound sent", out, |flow| &mut flow.sent),
        term("outbound delivered", out, |flow| &mut flow.delivered),
        term("outbound held", out, |flow| &mut flow.held),
        term("inbound received", Direction::Inbound, |flow| {
            &mut flow.received
        }),
        term("inbound delivered", Direction::Inbound, |flow| {
            &mut flow.delivered
        }),
        term("inbound probes", Direction::Inbound, |flow| {
            &mut flow.probes
        }),
    ];
    terms.extend(CASES.iter().map(|case| {
        let reason = case.reason as usize;
        let name = format!("{:?} {:?}", case.direction, case.reason);
        term(&name, case.direction, move |flow| &mut flow.drops[reason])
    }));
    terms
}

fn term(
    name: &str,
    direction: Direction,
    counter: impl Fn(&mut Flow) -> &mut u64 + 'static,
) -> Term {
    Term {
        name: name.into(),
        counter: Box::new(move |totals| counter(flow(totals, direction))),
    }
}

fn flow(totals: &mut WorkerTotals, direction: Direction) -> &mut Flow {
    match direction {
        Direction::Outbound => &mut totals.outbound,
        Direction::Inbound => &mut totals.inbound,
    }
}

/// A node that was sent to, delivered, dropped for every reason, and holds packets now.
fn run_that_reaches_everything() -> (WorkerTotals, Outside) {
    let mut node = node();
    for case in &CASES {
        (case.run)(&mut node);
    }
    let later = Now(u64::MAX / 2);
    deliver_and_send(&mut node, later);
    node.give_room(Some(0));
    for _ in 0..3 {
        node.push(udp(pod(1, 0), pod(2, 0), b"held"));
    }
    node.run(later);
    node.outside.held = 3;
    assert_eq!(node.audit(), [""; 0]);
    (node.totals(), node.outside)
}

fn deliver_and_send(node: &mut Node, now: Now) {
    node.push(udp(pod(1, 0), pod(2, 0), b"out"));
    node.hand(vxlan(2, 1, &udp(pod(2, 0), pod(1, 0), b"in")), 1);
    node.run(now);
}

const LIMIT: std::time::Duration = std::time::Duration::from_secs(600);
