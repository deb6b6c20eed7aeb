//! A captured packet, and counts of drops, as one JSON object a line. Field names are an interface: docs/json.md.

use std::net::IpAddr;

use dataplane::capture::Record;
use serde::Serialize;

use super::line::{direction, hex, verdict};
use super::names::Names;
use super::packet::{Packet, protocol_name};
use crate::api::wire::{CaptureStart, CapturedDrop};

/// A packet at a stage.
#[derive(Debug, Serialize)]
pub(super) struct PacketLine<'a> {
    /// `packet`.
    pub(super) event: &'static str,
    /// Nanoseconds since the Unix epoch.
    pub(super) time: u64,
    pub(super) stage: &'static str,
    pub(super) direction: &'static str,
    pub(super) verdict: &'static str,
    pub(super) reason: Option<&'static str>,
    pub(super) worker: u16,
    pub(super) packets: u32,
    pub(super) length: u32,
    pub(super) total: u64,
    pub(super) gso: Option<u16>,
    pub(super) format: Option<String>,
    pub(super) remote: Option<IpAddr>,
    pub(super) peer: Option<&'a str>,
    pub(super) pod: Option<&'a str>,
    pub(super) source: Option<IpAddr>,
    pub(super) source_port: Option<u16>,
    pub(super) destination: Option<IpAddr>,
    pub(super) destination_port: Option<u16>,
    pub(super) protocol: Option<String>,
    pub(super) probe: bool,
    pub(super) data: String,
}

/// Counts of drops that have changed.
#[derive(Debug, Serialize)]
pub(super) struct CountsLine<'a> {
    /// `counts`.
    pub(super) event: &'static str,
    pub(super) counts: Vec<CountLine<'a>>,
}

/// One of them.
#[derive(Debug, Serialize)]
pub(super) struct CountLine<'a> {
    pub(super) reason: &'a str,
    pub(super) direction: &'a str,
    /// Since the command began.
    pub(super) count: u64,
    /// Since the last time.
    pub(super) more: u64,
}

impl<'a> PacketLine<'a> {
    pub(super) fn new(
        record: &Record<'_>,
        names: &'a Names,
        start: &CaptureStart,
    ) -> PacketLine<'a> {
        let packet = Packet::read(record.inner()).filter(|_| !record.is_not_ip);
        let packet = packet.as_ref();
        let ports = packet.and_then(|packet| packet.ports);
        PacketLine {
            event: "packet",
            time: start.epoch.saturating_add(record.time.0),
            stage: record.stage.name(),
            direction: direction(record.direction),
            verdict: verdict(record),
            reason: record.reason.map(|reason| reason.name()),
            worker: record.worker,
            packets: record.packets,
            length: record.length,
            total: record.total,
            gso: Some(record.gso).filter(|gso| *gso > 0),
            format: record.format.map(|format| format.to_string()),
            remote: record.remote.map(|remote| remote.ip()),
            peer: names.peer(record, packet),
            pod: names.pod(record, packet),
            source: packet.map(|packet| packet.source),
            source_port: ports.map(|ports| ports.0),
            destination: packet.map(|packet| packet.destination),
            destination_port: ports.map(|ports| ports.1),
            protocol: packet.map(|packet| protocol_name(packet.protocol)),
            probe: record.is_probe,
            data: hex(record.bytes),
        }
    }
}

impl<'a> CountsLine<'a> {
    /// Of reasons whose count has grown by so many.
    pub(super) fn new(changed: &[(&'a CapturedDrop, u64)]) -> CountsLine<'a> {
        let count = |(drop, more): &(&'a CapturedDrop, u64)| CountLine {
            reason: &drop.reason,
            direction: &drop.direction,
            count: drop.count,
            more: *more,
        };
        CountsLine {
            event: "counts",
            counts: changed.iter().map(count).collect(),
        }
    }
}
