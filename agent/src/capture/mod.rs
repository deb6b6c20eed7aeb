//! Captures of packets for callers of the API.
//!
//! Theory of operation. A capture has a thread and a connection of its own. The thread empties the workers' rings some
//! hundred times a second and writes what it finds to the connection; where the caller reads slowly it waits, and the
//! rings fill and count what they lose; a caller that reads nothing for 30 s is given up. The caller ends its side of the connection, or is gone: then the workers capture
//! no more, what is left is written, and final counts behind it. How many captures run is bounded by the workers
//! ([`CAPTURES`](dataplane::limits::CAPTURES)). Begin and end are logged with the caller's process id.

pub mod filter;

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use dataplane::capture::{Capture, CaptureFilter, Captures};
use dataplane::drops::Direction;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::api::wire::{
    CaptureCounts, CaptureNames, CaptureStage, CaptureStart, CapturedDrop, MessageKind, NamedPeer,
    NamedPod, Reply, Request,
};
use crate::attachments::pod_name;
use crate::control::view::View;

/// The latest view of the control loop.
pub type Views = watch::Receiver<Option<Arc<View>>>;

/// Serves a capture on `connection`, in a thread of its own, until the caller ends it.
pub fn serve(connection: UnixStream, request: Request, views: Views, captures: Captures) {
    let run = move || {
        let pid = rustix::net::sockopt::socket_peercred(&connection)
            .map_or(0, |caller| caller.pid.as_raw_nonzero().get());
        if let Err(error) = answer(connection, &request, &views, &captures, pid) {
            // A caller that was killed.
            info!(pid, %error, "a capture of packets lost its caller");
        }
    };
    if let Err(error) = thread::Builder::new().name("capture".to_owned()).spawn(run) {
        warn!(%error, "no thread for a capture of packets");
    }
}

fn answer(
    mut connection: UnixStream,
    request: &Request,
    views: &Views,
    captures: &Captures,
    pid: i32,
) -> io::Result<()> {
    let latest = || views.borrow().clone();
    let Some(view) = latest() else {
        return refuse(
            &mut connection,
            "the agent is starting; try again".to_owned(),
        );
    };
    let filter = match filter::of_request(request, &view) {
        Ok(filter) => filter,
        Err(reason) => return refuse(&mut connection, reason),
    };
    let capture = match captures.start(filter.clone()) {
        Ok(capture) => capture,
        Err(error) => return refuse(&mut connection, error.to_string()),
    };
    // The caller's next packet is one that is seen.
    capture.wait_until_on();
    connection.set_write_timeout(Some(STALLED))?;
    info!(pid, stages = ?filter.stages.each().collect::<Vec<_>>(), "a capture of packets begins");
    let mut session = Session {
        in_kernel: in_kernel(&view),
        names_version: view.spec.version,
        capture,
        filter,
        connection,
        buffer: Vec::new(),
    };
    let reply = Reply::Ok(serde_json::to_value(start(&view, captures))?);
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    let ran = session.connection.write_all(&line);
    let ran = ran.and_then(|()| session.run(latest));
    if ran.is_err() {
        // What the workers have left is freed, also where the caller is gone.
        session.capture.end();
    }
    ran?;
    info!(pid, "a capture of packets ended");
    Ok(())
}

fn refuse(connection: &mut UnixStream, reason: String) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Reply::Error(reason))?;
    line.push(b'\n');
    connection.write_all(&line)
}

/// A capture that runs.
struct Session {
    capture: Capture,
    filter: CaptureFilter,
    connection: UnixStream,
    /// One message.
    buffer: Vec<u8>,
    /// What programs in the kernel had carried at the begin.
    in_kernel: u64,
    /// The version of the tables of which the caller has the names.
    names_version: u64,
}

impl Session {
    fn run(&mut self, latest: impl Fn() -> Option<Arc<View>>) -> io::Result<()> {
        let mut counted = Instant::now();
        loop {
            let full = self.pass_on()? >= CHUNK;
            if counted.elapsed() >= COUNTED_EVERY {
                counted = Instant::now();
                if let Some(view) = latest() {
                    self.send_names(&view)?;
                    self.send_counts(Some(&view), false)?;
                }
            }
            if self.has_ended(if full { Duration::ZERO } else { PAUSE })? {
                break;
            }
        }
        let is_final = self.capture.end();
        while self.pass_on()? > 0 {}
        self.send_counts(latest().as_deref(), is_final)
    }

    /// Writes what the workers captured since the last time. Returns how many bytes there were.
    fn pass_on(&mut self) -> io::Result<usize> {
        self.buffer.clear();
        self.buffer.extend([0; HEADER]);
        self.capture.drain(&mut self.buffer, CHUNK);
        let bytes = self.buffer.len() - HEADER;
        if bytes > 0 {
            self.send(MessageKind::Records)?;
        }
        Ok(bytes)
    }

    fn send_names(&mut self, view: &View) -> io::Result<()> {
        if view.spec.version == self.names_version {
            return Ok(());
        }
        self.names_version = view.spec.version;
        self.send_json(MessageKind::Names, &names(view))
    }

    fn send_counts(&mut self, view: Option<&View>, is_final: bool) -> io::Result<()> {
        let counts = self.capture.counts();
        let stages = self.filter.stages.each().filter_map(|stage| {
            let counted = counts.stages.get(stage as usize)?;
            Some(CaptureStage {
                stage: stage.name().to_owned(),
                offered: counted.offered,
                lost: counted.lost,
                left_out: counted.left_out,
            })
        });
        let drops = counts.each_drop().map(|(direction, reason, count)| {
            let direction = match direction {
                Direction::Outbound => "outbound",
                Direction::Inbound => "inbound",
            };
            CapturedDrop {
                reason: reason.name().to_owned(),
                direction: direction.to_owned(),
                count,
            }
        });
        let counts = CaptureCounts {
            is_final,
            stages: stages.collect(),
            drops: drops.collect(),
            in_kernel: view.map_or(0, |view| in_kernel(view).saturating_sub(self.in_kernel)),
        };
        self.send_json(MessageKind::Counts, &counts)
    }

    fn send_json(&mut self, kind: MessageKind, value: &impl Serialize) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.extend([0; HEADER]);
        serde_json::to_writer(&mut self.buffer, value)?;
        self.send(kind)
    }

    /// Writes the message in the buffer.
    fn send(&mut self, kind: MessageKind) -> io::Result<()> {
        let length = u32::try_from(self.buffer.len() - HEADER).map_err(io::Error::other)?;
        let header = [kind.number().to_le_bytes(), length.to_le_bytes()];
        for (place, byte) in self.buffer.iter_mut().zip(header.as_flattened()) {
            *place = *byte;
        }
        self.connection.write_all(&self.buffer)
    }

    /// Waits so long at most for the caller to end its side. It says nothing else.
    fn has_ended(&mut self, wait: Duration) -> io::Result<bool> {
        let mut ends = [PollFd::new(
            &self.connection,
            PollFlags::IN | PollFlags::RDHUP,
        )];
        let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
        if poll(&mut ends, Some(&wait))? == 0 {
            return Ok(false);
        }
        Ok(self.connection.read(&mut [0; 16])? == 0)
    }
}

fn start(view: &View, captures: &Captures) -> CaptureStart {
    let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let epoch = epoch.map_or(0, |since| since.as_nanos() as u64);
    let node = &view.spec.cluster.node;
    CaptureStart {
        node: view.own.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: epoch.saturating_sub(captures.clock().now().0),
        public: node.public.iter().collect(),
        udp_port: node.udp_port,
        vxlan_port: node.vxlan_port,
        is_kernel_path_in_use: view.kernel_path.is_live,
        names: names(view),
    }
}

fn names(view: &View) -> CaptureNames {
    let peers = view.spec.cluster.peers.iter().map(|peer| NamedPeer {
        name: peer.name.clone(),
        addresses: peer
            .public
            .iter()
            .chain(peer.underlay_sources.iter().copied())
            .collect(),
        subnets: peer.subnets.clone(),
    });
    let pods = view.attachments.iter().map(|attachment| NamedPod {
        name: pod_name(attachment).unwrap_or_else(|| attachment.container.clone()),
        addresses: attachment
            .addresses
            .iter()
            .map(|net| net.addr())
            .collect::<Vec<IpAddr>>(),
    });
    CaptureNames {
        peers: peers.collect(),
        pods: pods.collect(),
    }
}

/// Packets that programs in the kernel carried, both ways.
fn in_kernel(view: &View) -> u64 {
    let totals = view.kernel_path.totals();
    totals.map_or(0, |totals| totals.outbound.sent + totals.inbound.delivered)
}

/// A caller that reads nothing for so long has a place that another may need.
const STALLED: Duration = Duration::from_secs(30);
/// Bytes of a message's kind and length.
const HEADER: usize = 8;
/// Bytes drained of each ring at a time.
const CHUNK: usize = 256 * 1024;
/// How long nothing is drained: the rings hold packets of some ten times as long, at a hundred thousand a second.
const PAUSE: Duration = Duration::from_millis(5);
const COUNTED_EVERY: Duration = Duration::from_millis(500);
