use std::time::Duration;

use super::tally::DROPS;
use super::*;
use crate::worker::{Amount, Work};

#[test]
fn a_page_is_shared_and_an_imbalance_is_booked_once() {
    let counters = Counters::create(2).unwrap();
    let tally = counters.worker(1);
    tally.receive(Direction::Outbound, 10);
    tally.send(6);
    tally.drop(
        Direction::Outbound,
        DropReason::NoRoute,
        1,
        Parties::default(),
    );
    tally.hold(Direction::Outbound, 3);
    assert_eq!(counters.read().workers[1].outbound.balance(), 0);

    let next = Counters::adopt(counters.descriptor().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(next.book_lost(), 3);
    assert_eq!(next.book_lost(), 0);
    let flow = next.read().workers[1].outbound;
    assert_eq!(
        (
            flow.balance(),
            flow.held,
            flow.drops_of(DropReason::LostInCrash)
        ),
        (0, 0, 3)
    );
    assert_eq!(next.read().workers[0].outbound.received, 0);
    tally.receive(Direction::Inbound, 100);
    assert_eq!(next.from_device(), 10);
}

#[test]
fn offloads_are_kept_as_they_are_and_what_was_given_up_adds_up() {
    let counters = Counters::create(1).unwrap();
    let tally = counters.worker(0);
    for bits in 0..16 {
        let in_use = OffloadsInUse::of_bits(bits);
        tally.offloads(in_use, 2);
        assert_eq!(counters.read().workers[0].offloads, in_use);
        assert_eq!(in_use.bits(), bits);
    }
    assert_eq!(counters.read().workers[0].given_up, 32);
}

#[test]
fn what_a_worker_counted_that_runs_no_more_stays_in_the_sum() {
    let counters = Counters::create(2).unwrap();
    counters.worker(1).receive(Direction::Inbound, 5);
    counters.set_workers(1);
    let next = Counters::adopt(counters.descriptor().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(next.workers(), 1);
    assert_eq!(next.book_lost(), 5);
    let totals = next.read();
    assert_eq!((totals.workers.len(), totals.of_running().count()), (2, 1));
    assert_eq!(totals.workers[1].inbound.received, 5);
    next.set_workers(3);
    assert_eq!(next.read().of_running().count(), 3);
    assert_eq!(next.read().workers[1].inbound.received, 5);
}

#[test]
fn a_foreign_descriptor_is_refused() {
    let file = tempfile::tempfile().unwrap();
    assert!(Counters::adopt(file.into()).is_err());
    assert!(Counters::create(0).is_err());
    assert!(Counters::create(MAX_WORKERS + 1).is_err());
}

#[test]
fn blocks_hold_both_directions() {
    const { assert!(16 + 2 * FLOW <= BLOCK && DROPS + DropReason::COUNT <= FLOW) };
}

#[test]
fn batches_and_times_add_up_and_empty_steps_are_no_batches() {
    let counters = Counters::create(1).unwrap();
    let tally = counters.worker(0);
    let amount = |packets, bytes| Amount { packets, bytes };
    for (outbound, inbound) in [((3, 300), (0, 0)), ((0, 0), (0, 0)), ((5, 100), (2, 90))] {
        tally.batch(Work {
            outbound: amount(outbound.0, outbound.1),
            inbound: amount(inbound.0, inbound.1),
            probes: 0,
        });
        tally.time(Duration::from_nanos(10), Duration::from_nanos(30));
    }
    let worker = counters.read().workers[0];
    let batches = |count, packets, bytes| Batches {
        count,
        packets,
        bytes,
    };
    assert_eq!(worker.outbound_batches, batches(2, 8, 400));
    assert_eq!(worker.inbound_batches, batches(1, 2, 90));
    assert_eq!((worker.busy, worker.idle), (30, 90));
    assert_eq!(
        (worker.outbound, worker.inbound),
        (worker.inbound, worker.outbound)
    );
}
