//! The tables of `tartan top`: one for each tab, of the same columns on the screen and in a plain snapshot.

use std::cmp::Ordering;

use serde::Serialize;

use super::figures::{bits, packets, share};
use super::picture::{BatchSizes, Count, Drop, Flow, Peer, Picture, Pod, Traffic, Worker};
use super::tab::Tab;
use crate::cli::amount;
use crate::cli::order::natural;
use crate::cli::table::printable;

/// A table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Sheet {
    /// Its columns.
    pub(super) columns: Vec<Column>,
    /// Its rows, as the agent gave them.
    pub(super) rows: Vec<Vec<Cell>>,
    /// The column that sorts it at first, the largest first.
    pub(super) sorted_by: usize,
    /// The column that gives the others room where the screen is narrow, and the cells that it keeps.
    #[serde(skip)]
    pub(super) gives: (usize, usize),
    /// Whether that column goes on in further lines; if not, what has no room is left out.
    #[serde(skip)]
    pub(super) wraps: bool,
    /// What to say where there are no rows.
    pub(super) empty: &'static str,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Column {
    /// Its heading.
    pub(super) heading: &'static str,
    /// Whether it holds numbers, which are aligned right and sorted from the largest down.
    pub(super) is_number: bool,
    /// Where the screen is too narrow, columns with the largest number go first; 0 stays.
    pub(super) rank: u8,
}

/// A cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Cell {
    /// As it is shown; `-` where there is no value.
    pub(super) text: String,
    /// As it is sorted; none of words, or where there is no value.
    value: Option<f64>,
}

/// A column that has a place on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Its number.
    pub(super) column: usize,
    /// Cells to its left.
    pub(super) left: usize,
    /// Cells that it has.
    pub(super) width: usize,
}

impl Sheet {
    /// The numbers of the rows in the order of a column, those that contain `filter` in any cell.
    pub(super) fn order(&self, by: usize, reverse: bool, filter: &str) -> Vec<usize> {
        let filter = filter.to_lowercase();
        let holds = |row: &[Cell]| {
            filter.is_empty()
                || row
                    .iter()
                    .any(|cell| cell.text.to_lowercase().contains(&filter))
        };
        let rows = self.rows.iter().enumerate();
        let mut picked: Vec<_> = rows.filter(|(_, row)| holds(row)).collect();
        let falls = self.columns.get(by).is_some_and(|column| column.is_number);
        picked.sort_by(|(_, a), (_, b)| {
            let order = match (a.get(by), b.get(by)) {
                (Some(a), Some(b)) => a.compare(b, falls != reverse),
                _ => Ordering::Equal,
            };
            // Rows of one value keep their places from sample to sample.
            order.then_with(|| names(a, b))
        });
        picked.into_iter().map(|(number, _)| number).collect()
    }

    /// The columns that `width` cells have room for, two blanks between them.
    pub(super) fn fit(&self, width: usize) -> Vec<Placed> {
        let widest = |(number, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(number));
            let widths = cells.map(|cell| cell.text.chars().count());
            // The mark of the sorted column stands behind the heading.
            let heading = column.heading.chars().count() + 1;
            widths
                .chain([heading])
                .max()
                .unwrap_or_default()
                .min(WIDEST)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(widest).collect();
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let rank = |number: &usize| self.columns.get(*number).map_or(0, |column| column.rank);
        let (giver, keeps) = self.gives;
        let wide = |shown: &[usize], least: bool| -> usize {
            let of = |number: &usize| {
                let width = widths.get(*number).copied().unwrap_or_default();
                if least && *number == giver {
                    width.min(keeps)
                } else {
                    width
                }
            };
            shown.iter().map(of).sum::<usize>() + GAP * shown.len().saturating_sub(1)
        };
        while wide(&shown, true) > width {
            let Some(last) = shown
                .iter()
                .copied()
                .filter(|n| rank(n) > 0)
                .max_by_key(rank)
            else {
                break;
            };
            shown.retain(|number| *number != last);
        }
        let over = wide(&shown, false).saturating_sub(width);
        let mut left = 0;
        let place = |number: &usize| {
            let own = widths.get(*number).copied().unwrap_or_default();
            let own = if *number == giver {
                own.saturating_sub(over).max(1)
            } else {
                own
            };
            let own = own.min(width.saturating_sub(left));
            let placed = Placed {
                column: *number,
                left,
                width: own,
            };
            left += own + GAP;
            placed
        };
        shown
            .iter()
            .map(place)
            .filter(|placed| placed.width > 0)
            .collect()
    }
}

impl Cell {
    fn words(text: impl AsRef<str>) -> Cell {
        Cell {
            text: printable(text.as_ref()),
            value: None,
        }
    }

    fn number(value: Option<f64>, text: impl Fn(f64) -> String) -> Cell {
        Cell {
            text: value.map_or_else(|| "-".to_owned(), text),
            value,
        }
    }

    /// Without a value a cell comes last, whichever way the rest is sorted.
    fn compare(&self, other: &Cell, falling: bool) -> Ordering {
        let turn = |order: Ordering| if falling { order.reverse() } else { order };
        match (self.value, other.value) {
            (Some(a), Some(b)) => turn(a.total_cmp(&b)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) if self.text == "-" || other.text == "-" => {
                natural(&self.text, &other.text)
            }
            (None, None) => turn(natural(&self.text, &other.text)),
        }
    }
}

fn names(a: &[Cell], b: &[Cell]) -> Ordering {
    let cells = a.iter().zip(b);
    let orders = cells.map(|(a, b)| natural(&a.text, &b.text));
    orders.fold(Ordering::Equal, Ordering::then)
}

const fn words(heading: &'static str, rank: u8) -> Column {
    Column {
        heading,
        is_number: false,
        rank,
    }
}

const fn number(heading: &'static str, rank: u8) -> Column {
    Column {
        heading,
        is_number: true,
        rank,
    }
}

fn rate(count: Count, text: fn(f64) -> String) -> Cell {
    Cell::number(count.per_second, text)
}

fn bit_rate(bytes: Count) -> Cell {
    Cell::number(bytes.per_second.map(|rate| rate * 8.0), bits)
}

fn sum_of(counts: [Count; 2]) -> Count {
    let [one, other] = counts;
    Count {
        total: one.total.saturating_add(other.total),
        per_second: one.per_second.zip(other.per_second).map(|(a, b)| a + b),
    }
}

fn bytes(total: u64) -> Cell {
    Cell::number(Some(total as f64), |_| amount::bytes(total))
}

fn whole(total: u64) -> Cell {
    Cell::number(Some(total as f64), |_| total.to_string())
}

fn traffic(traffic: &Traffic) -> [Cell; 7] {
    [
        bit_rate(sum_of([traffic.sent_bytes, traffic.received_bytes])),
        bit_rate(traffic.sent_bytes),
        bit_rate(traffic.received_bytes),
        rate(traffic.sent_packets, packets),
        rate(traffic.received_packets, packets),
        bytes(traffic.sent_bytes.total),
        bytes(traffic.received_bytes.total),
    ]
}

const fn traffic_columns() -> [Column; 7] {
    [
        number("BOTH", 1),
        number("TX", 0),
        number("RX", 0),
        number("TX P/S", 2),
        number("RX P/S", 2),
        number("TX BYTES", 4),
        number("RX BYTES", 4),
    ]
}

/// The table of a tab; none of the path.
pub(super) fn of(tab: Tab, picture: &Picture) -> Option<Sheet> {
    Some(match tab {
        Tab::Path => return None,
        Tab::Peers => peers(picture),
        Tab::Pods => pods(picture),
        Tab::Flows => flows(picture),
        Tab::Workers => workers(picture),
        Tab::Drops => drops(picture),
    })
}

/// The other nodes.
pub(super) fn peers(picture: &Picture) -> Sheet {
    let row = |peer: &Peer| {
        let carried = |traffic: &Traffic| sum_of([traffic.sent_bytes, traffic.received_bytes]);
        let (all, in_kernel) = (carried(&peer.traffic), carried(&peer.in_kernel));
        let of_all = all.per_second.zip(in_kernel.per_second);
        let of_all = of_all
            .filter(|(all, _)| *all > 0.0)
            .map(|(all, part)| part / all);
        let mut row = vec![Cell::words(&peer.name), Cell::words(&peer.state)];
        row.extend(traffic(&peer.traffic));
        row.extend([
            Cell::number(of_all, share),
            rate(peer.refused, packets),
            Cell::words(&peer.format),
            Cell::words(peer.public_ip.to_string()),
        ]);
        row
    };
    let mut columns = vec![words("NODE", 0), words("STATE", 1)];
    columns.extend(traffic_columns());
    columns.extend([
        number("KERNEL", 3),
        number("REFUSED/S", 5),
        words("FORMAT", 8),
        words("ADDRESS", 6),
    ]);
    Sheet {
        columns,
        rows: picture.peers.iter().map(row).collect(),
        sorted_by: 2,
        gives: (0, 24),
        wraps: false,
        empty: "no other node is known; `tartan status` says where the list of nodes comes from",
    }
}

/// The pods of this node.
pub(super) fn pods(picture: &Picture) -> Sheet {
    let row = |pod: &Pod| {
        let addresses: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
        let mut row = vec![Cell::words(&pod.pod)];
        match &pod.traffic {
            Some(counted) => row.extend(traffic(counted)),
            None => row.extend((0..7).map(|_| Cell::words("-"))),
        }
        let in_kernel = pod.in_kernel.as_ref();
        row.extend([
            in_kernel.map_or_else(
                || Cell::words("-"),
                |carried| bit_rate(sum_of([carried.sent_bytes, carried.received_bytes])),
            ),
            Cell::words(addresses.join(", ")),
            Cell::words(&pod.host_ifname),
        ]);
        row
    };
    let mut columns = vec![words("POD", 0)];
    columns.extend(traffic_columns());
    columns.extend([
        number("KERNEL", 3),
        words("ADDRESS", 3),
        words("INTERFACE", 6),
    ]);
    Sheet {
        columns,
        rows: picture.pods.iter().map(row).collect(),
        sorted_by: 1,
        gives: (0, 24),
        wraps: false,
        empty: "no pod is attached by tartan-cni; pods of other plugins are seen in the flows alone",
    }
}

/// The heaviest flows.
pub(super) fn flows(picture: &Picture) -> Sheet {
    let row = |flow: &Flow| {
        let end = |address: std::net::IpAddr, port: Option<u16>| match port {
            Some(port) => std::net::SocketAddr::new(address, port).to_string(),
            None => address.to_string(),
        };
        let source = end(flow.source, flow.source_port);
        let destination = end(flow.destination, flow.destination_port);
        let size = flow.packets.total.max(1);
        vec![
            Cell::words(format!("{source} > {destination}")),
            Cell::words(&flow.protocol),
            bit_rate(flow.bytes),
            rate(flow.packets, packets),
            bytes(flow.bytes.total),
            bytes(flow.bytes.total / size),
            Cell::words(&flow.direction),
            Cell::words(flow.peer.as_deref().unwrap_or("-")),
            Cell::words(flow.pod.as_deref().unwrap_or("-")),
            Cell::number(Some(flow.age), |age| amount::duration(age as u64)),
        ]
    };
    Sheet {
        columns: vec![
            words("FLOW", 0),
            words("PROTO", 1),
            number("RATE", 0),
            number("P/S", 2),
            number("BYTES", 3),
            number("SIZE", 6),
            words("WAY", 5),
            words("PEER", 4),
            words("POD", 7),
            number("COUNTED", 8),
        ],
        rows: picture.flows.iter().map(row).collect(),
        sorted_by: 2,
        gives: (0, 45),
        wraps: false,
        empty: "no flow between pods and peers in user space; the kernel path's are counted by peer alone",
    }
}

/// The workers.
pub(super) fn workers(picture: &Picture) -> Sheet {
    let row = |worker: &Worker| {
        let size = |batches: Option<BatchSizes>| batches.and_then(|batches| batches.packets_of_one);
        let batch = |size: f64| format!("{size:.1}");
        let core = worker
            .core
            .map_or_else(|| "-".to_owned(), |core| core.to_string());
        vec![
            Cell::words(&worker.name),
            Cell::words(core),
            Cell::number(worker.busy, share),
            rate(worker.outbound.sent, packets),
            rate(worker.inbound.delivered, packets),
            rate(
                sum_of([worker.outbound.dropped, worker.inbound.dropped]),
                packets,
            ),
            Cell::number(size(worker.outbound_batches), batch),
            Cell::number(size(worker.inbound_batches), batch),
            match worker.queued {
                Some(queued) => bytes(queued),
                None => Cell::words("-"),
            },
            whole(worker.outbound.held.saturating_add(worker.inbound.held)),
        ]
    };
    Sheet {
        columns: vec![
            words("WORKER", 0),
            number("CORE", 4),
            number("BUSY", 0),
            number("SENT/S", 0),
            number("DELIVERED/S", 0),
            number("DROPPED/S", 1),
            number("BATCH OUT", 2),
            number("BATCH IN", 2),
            number("QUEUED", 3),
            number("HELD", 5),
        ],
        rows: picture.workers.iter().map(row).collect(),
        sorted_by: 2,
        gives: (0, 24),
        wraps: false,
        empty: "no worker runs",
    }
}

/// What was dropped and why.
pub(super) fn drops(picture: &Picture) -> Sheet {
    let row = |drop: &Drop| {
        vec![
            Cell::words(&drop.reason),
            Cell::words(&drop.place),
            rate(drop.count, packets),
            whole(drop.count.total),
            Cell::words(&drop.gloss),
        ]
    };
    Sheet {
        columns: vec![
            words("REASON", 0),
            words("WHERE", 1),
            number("PACKETS/S", 0),
            number("PACKETS", 0),
            words("MEANING", 0),
        ],
        rows: picture.drops.iter().map(row).collect(),
        sorted_by: 2,
        gives: (4, 20),
        wraps: true,
        empty: "nothing was dropped",
    }
}

/// Blanks between two columns.
const GAP: usize = 2;
/// No column is wider, but for what is left over.
const WIDEST: usize = 90;
