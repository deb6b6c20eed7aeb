//! The packets of one flow as the workers see them, counted for a few seconds: `tartan trace --live`.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use dataplane::capture::{Record, Stage};
use dataplane::drops::Direction;
use serde::Serialize;

use super::feed::{Feed, Message, each};
use super::packet::Packet;
use super::{ALL_STAGES, MOST_BYTES};
use crate::api::client::ClientError;
use crate::api::wire::Request;

/// A flow, by its first packet's addresses.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Flow {
    pub(in crate::cli) source: IpAddr,
    pub(in crate::cli) destination: IpAddr,
    pub(in crate::cli) protocol: u8,
    /// The destination port; 0: any.
    pub(in crate::cli) port: u16,
}

/// What was seen of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct Live {
    /// Seconds that it was watched.
    pub(in crate::cli) seconds: u64,
    /// Packets to the destination that the workers read from the pod.
    pub(in crate::cli) read: u64,
    /// Sent to the peer.
    pub(in crate::cli) sent: u64,
    /// Packets back that came from the peer.
    pub(in crate::cli) received: u64,
    /// Handed to the kernel for the pod.
    pub(in crate::cli) written: u64,
    /// Dropped, by reason.
    pub(in crate::cli) dropped: BTreeMap<String, u64>,
    /// Packets that the capture lost: the figures may be too small by as many.
    pub(in crate::cli) lost: u64,
    /// Packets that programs in the kernel carried meanwhile, of all pods, unseen.
    pub(in crate::cli) in_kernel: u64,
}

/// Why a flow was not watched.
pub(in crate::cli) enum LiveError {
    Client(ClientError),
    Io(io::Error),
}

/// Watches a flow for so many seconds.
pub(in crate::cli) fn watch(socket: &Path, flow: Flow, seconds: u64) -> Result<Live, LiveError> {
    let request = Request::Capture {
        stages: ALL_STAGES.map(String::from).to_vec(),
        pods: vec![flow.source.to_string()],
        peers: vec![],
        reasons: vec![],
        snap_length: HEADERS,
        sampled: false,
    };
    let (_, mut feed) = Feed::open(socket, &request).map_err(LiveError::Client)?;
    let stop = feed.stopper().map_err(LiveError::Io)?;
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(seconds));
        stop.stop();
    });
    let mut live = Live {
        seconds,
        ..Live::default()
    };
    while let Some(message) = feed.next().map_err(LiveError::Io)? {
        match message {
            Message::Records(records) => {
                each(&records).for_each(|record| live.count(flow, &record))
            }
            Message::Counts(counts) => {
                live.lost = counts.stages.iter().map(|stage| stage.lost).sum();
                live.in_kernel = counts.in_kernel;
            }
            Message::Names(_) => {}
        }
    }
    Ok(live)
}

impl Live {
    fn count(&mut self, flow: Flow, record: &Record<'_>) {
        let Some(packet) = Packet::read(record.inner()) else {
            return;
        };
        let is_there = flow.is_of(&packet, false);
        let is_back = flow.is_of(&packet, true);
        if !is_there && !is_back || record.is_probe {
            return;
        }
        let packets = u64::from(record.packets);
        match (record.stage, record.direction) {
            (Stage::Device, _) if is_there => self.read += packets,
            (Stage::Sent, Direction::Outbound) if is_there => self.sent += packets,
            (Stage::Received, _) if is_back => self.received += packets,
            (Stage::Written, _) if is_back => self.written += packets,
            (Stage::Dropped, _) => {
                let reason = record.reason.map_or("unknown", |reason| reason.name());
                *self.dropped.entry(reason.to_owned()).or_default() += packets;
            }
            _ => {}
        }
    }

    /// What it comes to, in words.
    pub(in crate::cli) fn words(&self) -> String {
        let Live {
            seconds,
            read,
            sent,
            received,
            written,
            ..
        } = self;
        let dropped: Vec<String> = self
            .dropped
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        let last = match (read, sent, received, written) {
            (.., 1..) => "the last stage reached: an answer was handed to the kernel for the pod",
            (_, _, 1.., _) => "the last stage reached: an answer came, and was not delivered",
            (_, 1.., ..) => "the last stage reached: sent to the peer; no answer came",
            (1.., ..) => "the last stage reached: read from the pod, and not sent",
            _ if self.in_kernel > 0 => {
                "no packet of it passed the workers; programs in the kernel carried packets"
            }
            _ => {
                "no packet of it passed: the pod sent none, or the kernel did not route it to the tunnel device"
            }
        };
        let mut words = format!(
            "in {seconds} s: read {read}, sent {sent}, answers received {received}, delivered {written}, dropped {}; {last}",
            match dropped.is_empty() {
                true => "0".to_owned(),
                false => dropped.join(", "),
            }
        );
        if self.lost > 0 {
            words.push_str(&format!("; the capture lost {}", self.lost));
        }
        words
    }
}

impl Flow {
    fn is_of(&self, packet: &Packet, back: bool) -> bool {
        let (source, destination) = match back {
            false => (self.source, self.destination),
            true => (self.destination, self.source),
        };
        let port = packet.ports.map(|(from, to)| if back { from } else { to });
        packet.source == source
            && packet.destination == destination
            && packet.protocol == self.protocol
            && (self.port == 0 || port.is_none_or(|port| port == self.port))
    }
}

/// Bytes of each packet: the longest headers of both packets.
const HEADERS: u32 = 256;
const _: () = assert!((HEADERS as i64) < MOST_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_stage_reached_is_named() {
        let live = |read, sent, received, written| Live {
            seconds: 5,
            read,
            sent,
            received,
            written,
            ..Live::default()
        };
        for (seen, words) in [
            (live(0, 0, 0, 0), "no packet of it passed: "),
            (live(2, 0, 0, 0), "read from the pod, and not sent"),
            (live(2, 2, 0, 0), "sent to the peer; no answer came"),
            (live(2, 2, 1, 0), "and was not delivered"),
            (live(2, 2, 2, 2), "handed to the kernel for the pod"),
        ] {
            assert!(seen.words().contains(words), "{}", seen.words());
        }
        let mut dropped = live(3, 0, 0, 0);
        dropped.dropped.insert("NoRoute".to_owned(), 3);
        assert!(dropped.words().contains("dropped 3 NoRoute;"));
    }
}
