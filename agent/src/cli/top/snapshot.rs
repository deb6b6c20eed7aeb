//! `tartan top --once`: the picture as plain text.

use super::path;
use super::picture::Picture;
use super::sheet::{self, Sheet};
use super::tab::Tab;
use crate::cli::amount;
use crate::cli::table::{self, printable};

/// The tabs `tabs` one below the other, at most `rows` rows of each table, `width` cells wide.
pub(super) fn text(picture: &Picture, tabs: &[Tab], rows: usize, width: Option<u16>) -> String {
    let mut text = format!(
        "{}  {}  up {}, over {:.1} s\n",
        printable(&picture.node),
        printable(&picture.format),
        amount::duration(picture.uptime),
        picture.interval.unwrap_or_default(),
    );
    for problem in &picture.problems {
        text.push_str(&format!("PROBLEM: {}\n", printable(&problem.sentence)));
    }
    for tab in tabs {
        text.push('\n');
        match sheet::of(*tab, picture) {
            Some(sheet) => text.push_str(&table(&sheet, tab.name(), rows, width)),
            None => {
                let device = printable(&picture.device);
                let lines = path::draw(&picture.path, &device, width.map_or(100, usize::from));
                text.push_str(&lines.join("\n"));
                text.push('\n');
            }
        }
    }
    text
}

fn table(sheet: &Sheet, name: &str, rows: usize, width: Option<u16>) -> String {
    if sheet.rows.is_empty() {
        return format!("{name}: {}\n", sheet.empty);
    }
    let order = sheet.order(sheet.sorted_by, false, "");
    let shown = order
        .iter()
        .take(rows)
        .filter_map(|number| sheet.rows.get(*number));
    // A pipe has no width: every column is shown.
    let placed = sheet.fit(width.map_or(usize::MAX, usize::from));
    let columns: Vec<table::Column> = placed
        .iter()
        .filter_map(|placed| sheet.columns.get(placed.column))
        .map(|column| match column.is_number {
            true => table::Column::Number(column.heading),
            false => table::Column::Words(column.heading),
        })
        .collect();
    let cells = shown.map(|row| {
        let cells = placed.iter().filter_map(|placed| row.get(placed.column));
        cells.map(|cell| cell.text.clone()).collect::<Vec<_>>()
    });
    let mut text = table::render(&columns, cells, width);
    let hidden = order.len().saturating_sub(rows);
    if hidden > 0 {
        text.push_str(&format!("and {hidden} more {name}\n"));
    }
    text
}
