//! What a browser gets of a sample: the tables as they are on a terminal, and the counters of the path.

use serde::Serialize;

use super::super::path::{self, counted, worked};
use super::super::picture::{Count, Path, Picture, Traffic};
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
    problems: &'a [Problem],
    /// Bits per second of all peers together, to them and from them; none without a sample before.
    sent: Option<f64>,
    received: Option<f64>,
    path: Vec<Strip>,
    /// What is lost beside the path, and what the kernel path carries, a line each.
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
        Frame {
            node: printable(&picture.node),
            version: &picture.version,
            format: &picture.format,
            device: &picture.device,
            uptime: amount::duration(picture.uptime),
            problems: &picture.problems,
            sent: bits(picture, |traffic| traffic.sent_bytes),
            received: bits(picture, |traffic| traffic.received_bytes),
            path: strips(&picture.path, &picture.device),
            notes: path::notes(&picture.path),
            tables: tables(picture),
        }
    }
}

/// The sum over all peers.
fn bits(picture: &Picture, of: fn(&Traffic) -> Count) -> Option<f64> {
    let peers = picture.peers.iter();
    let bytes: Option<f64> = peers.map(|peer| of(&peer.traffic).per_second).sum();
    bytes.map(|bytes| bytes * 8.0)
}

fn tables(picture: &Picture) -> Vec<Table> {
    let table = |tab: &Tab| {
        let mut sheet = sheet::of(*tab, picture)?;
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
    let passed =
        |name: &str, what: &str, count| stage(name, counted(what, count), Count::default());
    vec![
        Strip {
            from: "pods",
            to: "peers",
            stages: vec![
                passed(&device, "read", outbound.received),
                stage("workers", worked(outbound), outbound.dropped),
                passed("sockets", "sent", outbound.sent),
            ],
        },
        Strip {
            from: "peers",
            to: "pods",
            stages: vec![
                passed("sockets", "read", inbound.received),
                stage("workers", worked(inbound), inbound.dropped),
                passed(&device, "written", inbound.delivered),
            ],
        },
    ]
}

fn stage(name: &str, [rate, total]: [String; 2], losses: Count) -> Stage {
    Stage {
        name: name.to_owned(),
        rate,
        total,
        loses: losses.per_second.is_some_and(|rate| rate > 0.0),
    }
}

/// Rows of a table that are sent: a cluster of thousands is no table to read, and would be a megabyte a second.
const MOST_ROWS: usize = 300;
