//! Where captured packets go: a pcapng file, lines, or one JSON object a line.

use std::collections::HashMap;
use std::io::{self, BufWriter, Stdout, Write};

use dataplane::capture::{Record, Stage};

use super::json::{CountsLine, PacketLine};
use super::line;
use super::names::Names;
use super::pcapng::Pcapng;
use crate::api::wire::{CaptureCounts, CaptureStart};
use crate::capture::filter::stage;

/// Where packets go.
pub(super) enum Output {
    Pcapng(Box<Pcapng<BufWriter<Box<dyn Write>>>>),
    Lines {
        out: BufWriter<Stdout>,
        is_json: bool,
        /// Drops are followed: their bytes are shown, and counts beside them.
        follow: Option<Told>,
    },
}

/// What was said of counts, by reason and direction.
pub(super) type Told = HashMap<(String, String), u64>;

impl Output {
    pub(super) fn pcapng(
        file: Box<dyn Write>,
        start: &CaptureStart,
        stages: &[String],
        snap_length: u32,
    ) -> io::Result<Output> {
        let file = BufWriter::with_capacity(BUFFER, file);
        let stages: Result<Vec<Stage>, String> = stages.iter().map(|name| stage(name)).collect();
        let stages = stages.map_err(io::Error::other)?;
        let pcapng = Pcapng::new(file, start, &stages, snap_length)?;
        Ok(Output::Pcapng(Box::new(pcapng)))
    }

    /// Lines; with `follow` those of `tartan drops --follow`.
    pub(super) fn lines(follow: bool) -> Output {
        Output::Lines {
            out: BufWriter::with_capacity(BUFFER, io::stdout()),
            is_json: false,
            follow: follow.then(Told::new),
        }
    }

    pub(super) fn json() -> Output {
        Output::Lines {
            out: BufWriter::with_capacity(BUFFER, io::stdout()),
            is_json: true,
            follow: None,
        }
    }

    /// One object a line, with counts of drops.
    pub(super) fn json_follow() -> Output {
        Output::Lines {
            out: BufWriter::with_capacity(BUFFER, io::stdout()),
            is_json: true,
            follow: Some(Told::new()),
        }
    }

    pub(super) fn packet(
        &mut self,
        record: &Record<'_>,
        names: &Names,
        start: &CaptureStart,
    ) -> io::Result<()> {
        match self {
            Output::Pcapng(file) => file.packet(record, &line::comment(record, names), start),
            Output::Lines {
                out, is_json: true, ..
            } => object(out, &PacketLine::new(record, names, start)),
            Output::Lines { out, follow, .. } => {
                writeln!(
                    out,
                    "{}",
                    line::text(record, names, start, follow.is_some())
                )
            }
        }
    }

    /// Takes counts: those of drops are told where drops are followed, once they have changed.
    pub(super) fn counts(&mut self, counts: &CaptureCounts) -> io::Result<()> {
        let Output::Lines {
            out,
            is_json,
            follow: Some(told),
        } = self
        else {
            return Ok(());
        };
        let mut changed = Vec::new();
        for drop in &counts.drops {
            let before = told.insert((drop.reason.clone(), drop.direction.clone()), drop.count);
            let more = drop.count.saturating_sub(before.unwrap_or(0));
            if more > 0 {
                changed.push((drop, more));
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        if *is_json {
            object(out, &CountsLine::new(&changed))?;
        } else {
            for (drop, more) in changed {
                writeln!(
                    out,
                    "counted: {} {} {} (+{more})",
                    drop.reason, drop.direction, drop.count
                )?;
            }
        }
        out.flush()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Pcapng(file) => file.flush(),
            Output::Lines { out, .. } => out.flush(),
        }
    }

    /// Ends it, with the final counts.
    pub(super) fn end(&mut self, counts: &CaptureCounts) -> io::Result<()> {
        match self {
            Output::Pcapng(file) => file.end(counts),
            Output::Lines { out, .. } => out.flush(),
        }
    }
}

/// Writes an object as a line.
fn object(out: &mut impl Write, value: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

const BUFFER: usize = 256 * 1024;
