//! `tartan drops`: the drop counters, and per worker whether every packet is accounted for.

use dataplane::limits::{ICMP_BURST, ICMP_EVERY};

use super::table::Column;
use super::view::View;
use crate::api::wire::{Drops, Flow, Reason, Worker};

/// The counters as text, without reasons that are zero.
pub(super) fn render(drops: &Drops, view: &View) -> String {
    let counted: Vec<_> = drops
        .reasons
        .iter()
        .filter(|reason| reason.count > 0)
        .collect();
    let row = |reason: &&Reason| {
        vec![
            reason.reason.clone(),
            reason.direction.clone(),
            reason.count.to_string(),
            reason.gloss.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = counted.iter().map(row).collect();
    let picked = view.pick(&rows, None);
    let shown = picked
        .iter()
        .filter_map(|number| rows.get(*number).cloned());
    let counts = picked.iter().filter_map(|number| counted.get(*number));
    let sum = counts
        .map(|reason| reason.count)
        .fold(0, u64::saturating_add);
    let mut text = match counted.len() {
        0 => "nothing was dropped\n".to_owned(),
        _ => {
            let packets = if sum == 1 { "packet" } else { "packets" };
            view.table(&COLUMNS, shown) + &format!("{sum} {packets} dropped\n")
        }
    };
    text.push_str(&unanswered(drops));
    text.push('\n');
    text.push_str(&flows(drops, view));
    if drops.passed.iter().any(|passed| passed.count > 0) {
        text.push('\n');
        text.push_str(&passed(drops, view));
    }
    if !drops.kernel.is_empty() {
        text.push('\n');
        text.push_str(&kernel(drops, view));
    }
    text
}

/// The ICMP errors that the rate limit suppressed.
fn unanswered(drops: &Drops) -> String {
    let every = ICMP_EVERY.as_millis();
    let count: u64 = drops.workers.iter().map(|worker| worker.unanswered).sum();
    let errors = match count {
        0 => return String::new(),
        1 => "ICMP error was",
        _ => "ICMP errors were",
    };
    format!(
        "{count} {errors} not sent: Tartan sends a source {ICMP_BURST} at once, then one every {every} ms\n"
    )
}

fn flows(drops: &Drops, view: &View) -> String {
    let columns = [
        Column::Words("WORKER"),
        Column::Words("DIRECTION"),
        Column::Number("RECEIVED"),
        Column::Number("ORIGINATED"),
        Column::Number("SENT"),
        Column::Number("DELIVERED"),
        Column::Number("PROBES"),
        Column::Number("DROPPED"),
        Column::Number("HELD"),
        Column::Number("BALANCE"),
    ];
    let row = |worker: &Worker, direction: &str, flow: &Flow| {
        vec![
            match worker.name.is_empty() {
                true => worker.worker.to_string(),
                false => worker.name.clone(),
            },
            direction.to_owned(),
            flow.received.to_string(),
            flow.originated.to_string(),
            flow.sent.to_string(),
            flow.delivered.to_string(),
            flow.probes.to_string(),
            flow.dropped
                .values()
                .fold(0u64, |sum, count| sum.wrapping_add(*count))
                .to_string(),
            flow.held.to_string(),
            flow.balance.to_string(),
        ]
    };
    view.table(
        &columns,
        drops.workers.iter().flat_map(|worker| {
            [
                row(worker, "outbound", &worker.outbound),
                row(worker, "inbound", &worker.inbound),
            ]
        }),
    )
}

/// What the kernel path left to user space or the host's stack, and why.
fn passed(drops: &Drops, view: &View) -> String {
    let columns = [
        Column::Words("PASSED ON"),
        Column::Number("COUNT"),
        Column::Words("MEANING"),
    ];
    let counted = drops.passed.iter().filter(|passed| passed.count > 0);
    let rows = counted.map(|passed| {
        vec![
            passed.reason.clone(),
            passed.count.to_string(),
            passed.gloss.clone(),
        ]
    });
    view.table(&columns, rows)
}

fn kernel(drops: &Drops, view: &View) -> String {
    let columns = [
        Column::Words("KERNEL"),
        Column::Words("COUNTER"),
        Column::Number("COUNT"),
        Column::Words("MEANING"),
    ];
    let rows = drops.kernel.iter().map(|counter| {
        vec![
            counter.place.clone(),
            counter.counter.clone(),
            counter.count.to_string(),
            counter.gloss.clone(),
        ]
    });
    view.table(&columns, rows)
}

/// What `--sort` and `--filter` know.
pub(super) const COLUMNS: [Column; 4] = [
    Column::Words("REASON"),
    Column::Words("DIRECTION"),
    Column::Number("COUNT"),
    Column::Words("MEANING"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::wire::KernelCounter;

    #[test]
    fn reasons_workers_and_kernel_counters_are_printed() {
        let reason = |name: &str, direction: &str, count| Reason {
            reason: name.into(),
            direction: direction.into(),
            count,
            gloss: "why".into(),
        };
        let inbound = Flow {
            received: 12,
            delivered: 7,
            probes: 2,
            dropped: BTreeMap::from([("UnknownPeer".into(), 2), ("NotOurs".into(), 1)]),
            ..Flow::default()
        };
        let drops = Drops {
            reasons: vec![
                reason("NoRoute", "outbound", 0),
                reason("UnknownPeer", "inbound", 2),
                reason("NotOurs", "inbound", 1),
            ],
            workers: vec![Worker {
                worker: 0,
                inbound,
                unanswered: 7,
                ..Worker::default()
            }],
            in_rings: 0,
            passed: vec![],
            kernel: vec![KernelCounter {
                place: "tartan0".into(),
                counter: "tx_dropped".into(),
                count: 5,
                gloss: "queue full".into(),
            }],
        };
        assert_eq!(
            render(&drops, &View::default()),
            "\
REASON       DIRECTION  COUNT  MEANING
UnknownPeer  inbound        2  why
NotOurs      inbound        1  why
3 packets dropped
7 ICMP errors were not sent: Tartan sends a source 32 at once, then one every 10 ms

WORKER  DIRECTION  RECEIVED  ORIGINATED  SENT  DELIVERED  PROBES  DROPPED  HELD  BALANCE
0       outbound          0           0     0          0       0        0     0        0
0       inbound          12           0     0          7       2        3     0        0

KERNEL   COUNTER     COUNT  MEANING
tartan0  tx_dropped      5  queue full
"
        );
        assert!(render(&Drops::default(), &View::default()).starts_with("nothing was dropped\n"));
    }
}
