//! The way of packets through the node, drawn with its counters.
//!
//! ```text
//!      ┌ tartan0 ─────────┐    ┌ workers ─────────┐    ┌ sockets ─────────┐
//! pods │ 12.3 k/s read    │ ─▶ │ 0/s dropped      │ ─▶ │ 12.3 k/s sent    │ peers
//!      └──────────────────┘    └──────────────────┘    └──────────────────┘
//! ```

use super::figures::packets;
use super::picture::{Count, Path, Way};

/// The drawing, `width` cells wide, a line after the other. In a terminal and in a plain snapshot it is the same.
pub(super) fn draw(path: &Path, device: &str, width: usize) -> Vec<String> {
    let inner = (width.saturating_sub(FRAME) / 3).clamp(NARROWEST, WIDEST);
    let mut lines = Vec::new();
    let Path {
        outbound, inbound, ..
    } = path;
    lines.extend(strip(
        inner,
        "pods",
        "▶",
        [
            Stage(device, counted("read", outbound.received)),
            Stage("workers", worked(outbound)),
            Stage("sockets", counted("sent", outbound.sent)),
        ],
    ));
    lines.extend(strip(
        inner,
        "pods",
        "◀",
        [
            Stage(device, counted("written", inbound.delivered)),
            Stage("workers", worked(inbound)),
            Stage("sockets", counted("read", inbound.received)),
        ],
    ));
    lines.extend(notes(path));
    lines
}

/// What is lost beside the way of packets, and what the kernel path carries.
pub(super) fn notes(path: &Path) -> Vec<String> {
    let mut lines = vec![format!(
        "lost: {} at the device's queue, {} at the sockets; {} between workers",
        rate(path.device_drops),
        rate(path.socket_drops),
        path.in_rings,
    )];
    if let Some(kernel) = &path.kernel_path {
        lines.push(format!(
            "kernel path: {} sent, {} delivered, {} dropped; {} and {} packets in all",
            rate(kernel.outbound.sent),
            rate(kernel.inbound.delivered),
            rate(Count {
                total: 0,
                per_second: kernel
                    .outbound
                    .dropped
                    .per_second
                    .zip(kernel.inbound.dropped.per_second)
                    .map(|(out, inbound)| out + inbound),
            }),
            kernel.outbound.sent.total,
            kernel.inbound.delivered.total,
        ));
    }
    lines
}

/// A box: its title and two lines.
struct Stage<'a>(&'a str, [String; 2]);

/// Three boxes from pods to peers.
fn strip(inner: usize, from: &str, arrow: &str, boxes: [Stage<'_>; 3]) -> Vec<String> {
    let line = |of: &dyn Fn(&Stage<'_>) -> String, left: &str, between: &str, right: &str| {
        let cells: Vec<String> = boxes.iter().map(of).collect();
        let text = format!("{left:<5}{}{right}", cells.join(between));
        text.trim_end().to_owned()
    };
    let points = match arrow {
        "▶" => " ─▶ ",
        _ => " ◀─ ",
    };
    let text = |text: &str| format!("│ {} │", padded(text, inner));
    vec![
        line(&|Stage(title, _)| top(title, inner), "", GAP, ""),
        line(&|Stage(_, [first, _])| text(first), from, points, " peers"),
        line(&|Stage(_, [_, second])| text(second), "", GAP, ""),
        line(&|_| format!("└{}┘", "─".repeat(inner + 2)), "", GAP, ""),
    ]
}

fn top(title: &str, inner: usize) -> String {
    let title: String = title.chars().take(inner.saturating_sub(1)).collect();
    let rest = (inner + 2).saturating_sub(title.chars().count() + 2);
    format!("┌ {title} {}┐", "─".repeat(rest))
}

fn padded(text: &str, width: usize) -> String {
    let text: String = text.chars().take(width).collect();
    format!("{text:<width$}")
}

/// A rate and a total, and what they count.
pub(super) fn counted(what: &str, count: Count) -> [String; 2] {
    [
        format!("{} {what}", rate(count)),
        format!("{} in all", count.total),
    ]
}

/// The same of what workers drop.
pub(super) fn worked(way: &Way) -> [String; 2] {
    let held = match way.held {
        0 => String::new(),
        held => format!(", {held} held"),
    };
    [
        format!("{} dropped{held}", rate(way.dropped)),
        format!("{} in all", way.dropped.total),
    ]
}

fn rate(count: Count) -> String {
    count
        .per_second
        .map_or_else(|| "-/s".to_owned(), |rate| format!("{}/s", packets(rate)))
}

/// Between two boxes, as long as an arrow.
const GAP: &str = "    ";
/// Cells of a line that are no text of a box.
const FRAME: usize = 5 + 6 + 2 * 4 + 3 * 4;
const NARROWEST: usize = 14;
const WIDEST: usize = 30;
