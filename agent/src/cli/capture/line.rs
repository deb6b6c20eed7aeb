//! A captured packet in words: as a line, and as the comment in a file.

use std::fmt::Write;

use dataplane::capture::{Record, Stage};
use dataplane::drops::Direction;

use super::names::Names;
use super::packet::Packet;
use crate::api::wire::CaptureStart;
use crate::cli::table::printable;

/// A packet as a line, without its end. With `data` the first bytes of the packet, too.
pub(super) fn text(record: &Record<'_>, names: &Names, start: &CaptureStart, data: bool) -> String {
    let packet = packet(record);
    let peer = names.peer(record, packet.as_ref()).map(printable);
    let remote = record.remote.map(|remote| remote.ip().to_string());
    let pod = names.pod(record, packet.as_ref()).map(printable);
    let mut line = format!(
        "{} {:<8} {} {} {} {} bytes",
        clock(start.epoch.saturating_add(record.time.0)),
        record.stage.name(),
        peer.or(remote).as_deref().unwrap_or("-"),
        pod.as_deref().unwrap_or("-"),
        flow(record, packet.as_ref()),
        record.length,
    );
    for note in notes(record) {
        let _ = write!(line, ", {note}");
    }
    let _ = write!(line, ": {}", verdict(record));
    if data {
        let shown = record.bytes.get(..DATA).unwrap_or(record.bytes);
        let _ = write!(line, " [{}]", hex(shown));
    }
    line
}

/// What became of a packet, for a file.
pub(super) fn comment(record: &Record<'_>, names: &Names) -> String {
    let packet = packet(record);
    let mut comment = verdict(record).to_owned();
    if let Some(reason) = record.reason {
        let _ = write!(comment, ": {}", reason.gloss());
    }
    if let Some(peer) = names.peer(record, packet.as_ref()) {
        let _ = write!(comment, "; peer {peer}");
    }
    if let Some(pod) = names.pod(record, packet.as_ref()) {
        let _ = write!(comment, "; pod {pod}");
    }
    let _ = write!(comment, "; worker {}", record.worker);
    for note in notes(record) {
        let _ = write!(comment, "; {note}");
    }
    comment
}

/// What a record says of its packet beside addresses.
fn notes(record: &Record<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if record.packets > 1 {
        let what = match record.stage {
            Stage::Received => "datagrams received together",
            Stage::Sent => "datagrams in one message",
            _ => "wire packets",
        };
        notes.push(format!(
            "{} {what}, {} bytes in all",
            record.packets, record.total
        ));
    }
    if record.gso > 0 {
        notes.push(format!(
            "a super-packet of {} payload bytes each (gso)",
            record.gso
        ));
    }
    if record.is_own {
        notes.push("made by Tartan".to_owned());
    }
    if record.is_probe {
        notes.push("a probe of peer health".to_owned());
    }
    if record.is_not_ip {
        notes.push("no IP packet".to_owned());
    }
    if record.is_unfinished {
        notes.push("checksum unfinished (offload)".to_owned());
    }
    if record.bytes.is_empty() && record.length == 0 {
        notes.push("without its bytes, which are not known any more".to_owned());
    }
    notes
}

/// The inner packet, if it is one.
fn packet(record: &Record<'_>) -> Option<Packet> {
    Packet::read(record.inner()).filter(|_| !record.is_not_ip)
}

/// What became of it at the stage, in one word.
pub(super) fn verdict(record: &Record<'_>) -> &'static str {
    match (record.stage, record.reason) {
        (_, Some(reason)) => reason.name(),
        (Stage::Device, _) => "read",
        (Stage::Sent, _) => "sent",
        (Stage::Received, _) => "received",
        (Stage::Written, _) => "delivered",
        (Stage::Dropped, None) => "dropped",
    }
}

/// The name of a direction.
pub(super) const fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Outbound => "outbound",
        Direction::Inbound => "inbound",
    }
}

fn flow(record: &Record<'_>, packet: Option<&Packet>) -> String {
    let Some(packet) = packet else {
        let remote = record.remote.map(|remote| remote.to_string());
        return match (record.direction, remote) {
            (Direction::Inbound, Some(remote)) => format!("from {remote}, no inner packet"),
            (Direction::Outbound, Some(remote)) => format!("to {remote}, no inner packet"),
            (_, None) => "no packet".to_owned(),
        };
    };
    let end = |address: std::net::IpAddr, port: Option<u16>| match port {
        Some(port) => format!("{address}.{port}"),
        None => address.to_string(),
    };
    let fragment = if packet.is_later_fragment {
        " fragment"
    } else {
        ""
    };
    format!(
        "{} > {} {}{fragment}",
        end(packet.source, packet.ports.map(|ports| ports.0)),
        end(packet.destination, packet.ports.map(|ports| ports.1)),
        packet.kind(),
    )
}

/// The time of day in UTC, to the microsecond.
fn clock(nanos: u64) -> String {
    let micros = nanos / 1_000;
    let seconds = micros / 1_000_000 % 86_400;
    format!(
        "{:02}:{:02}:{:02}.{:06}",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60,
        micros % 1_000_000
    )
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Bytes of a packet that a line shows.
const DATA: usize = 48;
