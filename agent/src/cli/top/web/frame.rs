//! What a browser gets of a sample: the tables as they are on a terminal, and the counters of the path.

use serde::Serialize;

use super::super::figures::packets;
use super::super::picture::{Count, Path, Picture, Way};
use super::super::sheet::{self, Sheet};
use super::super::tab::Tab;
use crate::api::wire::Problem;
use crate::cli::amount;
use crate::cli::table::printable;

/// One sample. Texts are formatted here, so that the page shows what the terminal shows.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Frame<'a> {
    node: String,
    version: &'a str,
    format: &'a str,
    device: &'a str,
    /// In words.
    uptime: String,
    /// Seconds between the samples; none of the first.
    interval: Option<f64>,
    problems: &'a [Problem],
    /// Bits per second of all peers together, to them and from them; none without a sample before.
    sent: Option<f64>,
    received: Option<f64>,
    path: Vec<Strip>,
    /// What is lost beside the path, and what the kernel path carries, a sentence each.
    notes: Vec<String>,
    tables: Vec<Table>,
}

/// A way through the node, in the order of its packets.
#[derive(Debug, PartialEq, Serialize)]
struct Strip {
    /// Where it begins and where it ends.
    from: &'static str,
    to: &'static str,
    stages: Vec<Stage>,
}

/// A place that packets pass.
#[derive(Debug, PartialEq, Serialize)]
struct Stage {
    name: String,
    rate: String,
    total: String,
    /// Whether packets are lost here now.
    loses: bool,
}

/// A table.
#[derive(Debug, PartialEq, Serialize)]
struct Table {
    name: &'static str,
    sheet: Sheet,
    /// Rows that are not sent: the lightest.
    more: usize,
}

impl<'a> Frame<'a> {
    pub(super) fn of(picture: &'a Picture) -> Frame<'a> {
        let bytes = |of: fn(&Picture) -> Vec<Option<f64>>| -> Option<f64> {
            let rates: Option<Vec<f64>> = of(picture).into_iter().collect();
            rates.map(|rates| rates.iter().sum::<f64>() * 8.0)
        };
        Frame {
            node: printable(&picture.node),
            version: &picture.version,
            format: &picture.format,
            device: &picture.device,
            uptime: amount::duration(picture.uptime),
            interval: picture.interval,
            problems: &picture.problems,
            sent: bytes(|picture| {
                let peers = picture.peers.iter();
                peers
                    .map(|peer| peer.traffic.sent_bytes.per_second)
                    .collect()
            }),
            received: bytes(|picture| {
                let peers = picture.peers.iter();
                peers
                    .map(|peer| peer.traffic.received_bytes.per_second)
                    .collect()
            }),
            path: strips(&picture.path, &picture.device),
            notes: notes(&picture.path),
            tables: tables(picture),
        }
    }
}

fn tables(picture: &Picture) -> Vec<Table> {
    let table = |tab: &Tab| {
        let mut sheet = match tab {
            Tab::Path => return None,
            Tab::Peers => sheet::peers(picture),
            Tab::Pods => sheet::pods(picture),
            Tab::Flows => sheet::flows(picture),
            Tab::Workers => sheet::workers(picture),
            Tab::Drops => sheet::drops(picture),
        };
        let order = sheet.order(sheet.sorted_by, false, "");
        let heaviest = order.iter().take(MOST_ROWS);
        let rows = heaviest.filter_map(|row| sheet.rows.get(*row).cloned());
        sheet.rows = rows.collect();
        Some(Table {
            name: tab.name(),
            sheet,
            more: order.len().saturating_sub(MOST_ROWS),
        })
    };
    Tab::ALL.iter().filter_map(table).collect()
}

fn strips(path: &Path, device: &str) -> Vec<Strip> {
    let Path {
        outbound, inbound, ..
    } = path;
    let device = printable(device);
    vec![
        Strip {
            from: "pods",
            to: "peers",
            stages: vec![
                counted(&device, "read", outbound.received),
                worked(outbound),
                counted("sockets", "sent", outbound.sent),
            ],
        },
        Strip {
            from: "peers",
            to: "pods",
            stages: vec![
                counted("sockets", "read", inbound.received),
                worked(inbound),
                counted(&device, "written", inbound.delivered),
            ],
        },
    ]
}

fn counted(name: &str, what: &str, count: Count) -> Stage {
    Stage {
        name: name.to_owned(),
        rate: format!("{} {what}", rate(count)),
        total: format!("{} in all", count.total),
        loses: false,
    }
}

fn worked(way: &Way) -> Stage {
    Stage {
        loses: way.dropped.per_second.is_some_and(|rate| rate > 0.0),
        ..counted("workers", "dropped", way.dropped)
    }
}

fn notes(path: &Path) -> Vec<String> {
    let mut notes = vec![format!(
        "Lost: {} at the device's queue, {} at the sockets.",
        rate(path.device_drops),
        rate(path.socket_drops),
    )];
    if let Some(kernel) = &path.kernel_path {
        notes.push(format!(
            "Kernel path: {} sent, {} delivered.",
            rate(kernel.outbound.sent),
            rate(kernel.inbound.delivered),
        ));
    }
    notes
}

fn rate(count: Count) -> String {
    count
        .per_second
        .map_or_else(|| "-/s".to_owned(), |rate| format!("{}/s", packets(rate)))
}

/// Rows of a table that are sent: a cluster of thousands is no table to read, and would be a megabyte a second.
const MOST_ROWS: usize = 300;
