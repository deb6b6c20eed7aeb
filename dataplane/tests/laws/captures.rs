//! A capture of all stages shows every packet exactly once at each stage that it reaches: what it shows adds up to what
//! the counters say, for every reason to drop one and under random traffic.

use std::collections::{BTreeMap, HashMap};

use dataplane::capture::{Capture, Record, Stage};
use dataplane::counters::Flow;
use dataplane::drops::{Direction, DropReason};
use dataplane::now::Now;
use encap::Format;

use crate::random_traffic::{from_peers, from_pods};
use crate::reasons::{CASES, node};
use crate::world::node::Node;
use crate::world::plan::ClusterPlan;

/// What a capture showed, in packets.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    /// By stage and direction; probes apart.
    stages: BTreeMap<(Stage, bool), u64>,
    drops: HashMap<(bool, DropReason), u64>,
    records: u64,
}

impl Shown {
    fn take(&mut self, node: &mut Node) {
        let mut stream = Vec::new();
        for capture in &mut node.captures {
            capture.drain(&mut stream, usize::MAX);
        }
        let mut rest = &stream[..];
        while let Some((record, length)) = Record::parse(rest) {
            rest = &rest[length..];
            self.records += 1;
            let is_outbound = record.direction == Direction::Outbound;
            let packets = u64::from(record.packets);
            if !record.is_probe {
                *self.stages.entry((record.stage, is_outbound)).or_default() += packets;
            }
            if let Some(reason) = record.reason {
                *self.drops.entry((is_outbound, reason)).or_default() += packets;
            }
        }
        assert!(rest.is_empty());
    }

    fn at(&self, stage: Stage, is_outbound: bool) -> u64 {
        self.stages.get(&(stage, is_outbound)).copied().unwrap_or(0)
    }

    fn dropped(&self, is_outbound: bool) -> Vec<(DropReason, u64)> {
        let drops = self.drops.iter();
        drops
            .filter(|((outbound, _), _)| *outbound == is_outbound)
            .map(|((_, reason), count)| (*reason, *count))
            .collect()
    }
}

/// The drops of a direction that a worker decides on, in the order of their numbers.
fn counted(flow: &Flow) -> Vec<(DropReason, u64)> {
    let reasons = DropReason::ALL.into_iter();
    reasons
        .filter(|reason| *reason != DropReason::LostInCrash)
        .map(|reason| (reason, flow.drops_of(reason)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn compare(shown: &Shown, node: &Node, what: &str) {
    let totals = node.totals();
    let (outbound, inbound) = (&totals.outbound, &totals.inbound);
    assert_eq!(shown.at(Stage::Device, true), outbound.received, "{what}");
    assert_eq!(shown.at(Stage::Sent, true), outbound.sent, "{what}");
    assert_eq!(shown.at(Stage::Written, true), outbound.delivered, "{what}");
    assert_eq!(shown.at(Stage::Written, false), inbound.delivered, "{what}");
    for (is_outbound, flow) in [(true, outbound), (false, inbound)] {
        let mut dropped = shown.dropped(is_outbound);
        dropped.sort_by_key(|(reason, _)| *reason as u8);
        assert_eq!(dropped, counted(flow), "{what}");
    }
    let mut offered = 0;
    let mut drops = HashMap::new();
    for counts in node.captures.iter().map(Capture::counts) {
        offered += counts.all().offered;
        assert_eq!((counts.all().lost, counts.all().left_out), (0, 0));
        for (direction, reason, count) in counts.each_drop() {
            *drops
                .entry((direction == Direction::Outbound, reason))
                .or_default() += count;
        }
    }
    assert_eq!((offered, &drops), (shown.records, &shown.drops), "{what}");
}

#[test]
fn every_reason_shows_as_often_as_it_is_counted() {
    // A worker that is killed shows nothing.
    let alive = CASES
        .iter()
        .filter(|case| case.reason != DropReason::LostInCrash);
    for case in alive {
        let mut node = node();
        node.capture(usize::MAX);
        (case.run)(&mut node);
        let mut shown = Shown::default();
        shown.take(&mut node);
        let what = format!("{:?} {:?}", case.reason, case.direction);
        compare(&shown, &node, &what);
    }
}

#[test]
fn random_traffic_shows_as_it_is_counted() {
    for seed in 0..30 {
        for workers in [1, 4] {
            let mut random = fastrand::Rng::with_seed(seed);
            let format = random.choice([Format::Udp, Format::Vxlan]).unwrap();
            let plan = ClusterPlan::new(5, format);
            let mut node = Node::with_workers(plan.spec(1), workers);
            node.capture(random.usize(0..300));
            let mut shown = Shown::default();
            for round in 0..8 {
                from_peers(&mut node, &mut random);
                from_pods(&mut node, 1, &mut random);
                node.turn(Now(round * 1_000_000_000));
                shown.take(&mut node);
            }
            node.take_sent();
            node.take_delivered();
            assert_eq!(node.audit(), [""; 0]);
            assert!(shown.records > 0);
            compare(&shown, &node, &format!("seed {seed}"));
        }
    }
}

/// Each datagram that came shows before any check, those of a flow in a row as one.
#[test]
fn what_is_received_shows_whatever_becomes_of_it() {
    let mut node = node();
    node.capture(usize::MAX);
    let mut random = fastrand::Rng::with_seed(3);
    from_peers(&mut node, &mut random);
    node.turn(Now(0));
    let mut shown = Shown::default();
    shown.take(&mut node);
    let received = shown.at(Stage::Received, false);
    let ended = node.totals().inbound;
    assert!(received > 0);
    // Super-packets count as several once they are understood.
    assert!(received <= ended.received);
}
