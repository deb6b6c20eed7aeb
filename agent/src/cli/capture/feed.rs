//! The agent's messages of a capture, and the end of it.

use std::io::{self, BufReader, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use dataplane::capture::Record;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::client::{self, ClientError};
use crate::api::wire::{CaptureCounts, CaptureNames, CaptureStart, MessageKind, Request};

/// A capture that runs.
pub(super) struct Feed {
    reader: BufReader<UnixStream>,
    /// The latest message, but of packets.
    bytes: Vec<u8>,
}

/// A message of the agent.
pub(super) enum Message {
    /// Packets: [`each`] of them.
    Records(Vec<u8>),
    Counts(CaptureCounts),
    Names(CaptureNames),
}

/// Ends a capture from any thread.
pub(super) struct Stopper(UnixStream);

impl Feed {
    /// Has the agent capture.
    pub(super) fn open(
        socket: &Path,
        request: &Request,
    ) -> Result<(CaptureStart, Feed), ClientError> {
        let (value, reader) = client::open(socket, request)?;
        let start = serde_json::from_value(value).map_err(ClientError::Answer)?;
        let feed = Feed {
            reader,
            bytes: Vec::new(),
        };
        Ok((start, feed))
    }

    /// The next message; `None` when the agent has ended.
    pub(super) fn next(&mut self) -> io::Result<Option<Message>> {
        let mut header = [0; 8];
        match self.reader.read_exact(&mut header) {
            Err(error) if is_end(&error) => return Ok(None),
            read => read?,
        }
        let [a, b, c, d, e, f, g, h] = header;
        let (kind, length) = (
            u32::from_le_bytes([a, b, c, d]),
            u32::from_le_bytes([e, f, g, h]),
        );
        if length > MOST {
            return Err(not_understood());
        }
        self.bytes.clear();
        let mut body = (&mut self.reader).take(length.into());
        if body.read_to_end(&mut self.bytes)? < length as usize {
            return Ok(None);
        }
        let message = match MessageKind::numbered(kind).ok_or_else(not_understood)? {
            MessageKind::Records => Message::Records(std::mem::take(&mut self.bytes)),
            MessageKind::Counts => Message::Counts(serde_json::from_slice(&self.bytes)?),
            MessageKind::Names => Message::Names(serde_json::from_slice(&self.bytes)?),
        };
        Ok(Some(message))
    }

    /// What ends it.
    pub(super) fn stopper(&self) -> io::Result<Stopper> {
        Ok(Stopper(self.reader.get_ref().try_clone()?))
    }
}

impl Stopper {
    /// Has the agent end the capture: it sends what is left, and final counts.
    pub(super) fn stop(&self) {
        // Where the agent has gone there is nothing to end.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// Ends the capture at a signal that asks the program to end; at the second one the program ends at once.
pub(super) fn at_signal(stopper: Stopper) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let signals = runtime.block_on(async {
        io::Result::Ok((
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ))
    });
    let (mut interrupt, mut terminate, mut hangup) = signals?;
    let run = move || {
        let mut wait = || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            });
        };
        wait();
        stopper.stop();
        wait();
        std::process::exit(1);
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(run)?;
    Ok(())
}

/// The packets of a message.
pub(super) fn each(records: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut rest = records;
    std::iter::from_fn(move || {
        let (record, length) = Record::parse(rest)?;
        rest = rest.get(length..).unwrap_or_default();
        Some(record)
    })
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
    )
}

fn not_understood() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the agent's message is not understood; use the `tartan` of the agent's version",
    )
}

/// Bytes of a message: what is drained of the rings of all workers at a time, and names of a large cluster.
const MOST: u32 = 256 << 20;
