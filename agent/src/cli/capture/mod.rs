//! `tartan capture`: packets as the workers see them, into a file or as lines. And `tartan drops --follow`.
//!
//! Theory of operation. The workers choose by stage, pod, peer and reason, by what they know anyway; the expression is
//! evaluated here ([`expression`]). One thread reads the agent's messages ([`feed`]) and writes to an output ([`output`]).
//! To end, at a signal or after so many packets, this side of the connection is ended; the agent then sends what is left
//! and its final counts, so what is printed at the end adds up.

mod expression;
mod feed;
mod follow;
mod json;
mod line;
pub(super) mod live;
mod names;
mod output;
mod packet;
mod pcapng;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Args;

use super::query::{Target, code_of, failure};
use super::{OK, Output as Form, PROBLEM, USAGE, complain, complain_with_causes, print};
use crate::api::client::ClientError;
use crate::api::wire::{CaptureCounts, CaptureStart, Request};
use crate::capture::filter::{reason, stage};
use expression::Expression;
use feed::{Feed, Message};
pub(super) use follow::{FollowArgs, follow};
use names::Names;
use output::Output;

/// Arguments of `tartan capture`.
#[derive(Args, Debug)]
pub(super) struct CaptureArgs {
    #[command(flatten)]
    target: Target,
    /// Show packets of this pod, by `NAMESPACE/NAME`, name or address; may be given several times
    #[arg(long, value_name = "NAME|ADDRESS")]
    pod: Vec<String>,
    /// Show packets to and from this node, by name or address; may be given several times
    #[arg(long, value_name = "NAME|ADDRESS")]
    peer: Vec<String>,
    /// Show packets at these stages: device, sent, received, written, dropped [default: all]
    #[arg(long, value_name = "STAGES", value_delimiter = ',', value_parser = stage_name)]
    stage: Vec<String>,
    /// Show drops for these reasons (docs/drops.md), and no other stage unless --stage names it
    #[arg(long, value_name = "REASONS", value_delimiter = ',', value_parser = reason_name)]
    reason: Vec<String>,
    /// Write a pcapng file for Wireshark or tcpdump; `-`: to standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after N packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Take so many bytes of each packet; 0: all of it
    #[arg(short, long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(..=MOST_BYTES))]
    snaplen: u32,
    /// Show packets for which this is true of the inner packet, as for tcpdump: `tcp port 80 and host 10.244.1.7`
    #[arg(value_name = "EXPRESSION")]
    expression: Vec<String>,
}

/// What is captured, for the agent and for this side.
struct Order {
    request: Request,
    expression: Expression,
    count: Option<u64>,
}

/// What became of a capture.
struct Tally {
    /// Packets that the agent sent.
    received: u64,
    /// Packets that were put out.
    shown: u64,
    /// The agent's last counts.
    counts: CaptureCounts,
}

/// Captures until a signal, or so many packets. Returns the exit code.
pub(super) fn execute(args: &CaptureArgs, before: Option<PathBuf>) -> u8 {
    let order = match order(args) {
        Ok(order) => order,
        Err(misuse) => {
            complain(misuse);
            return USAGE;
        }
    };
    let socket = args.target.socket(before);
    let (start, feed) = match Feed::open(&socket, &order.request) {
        Ok(opened) => opened,
        Err(error) => return refuse(args.target.output, &error),
    };
    let output = match open_output(args, &start) {
        Ok(output) => output,
        Err(sentence) => {
            complain(sentence);
            return PROBLEM;
        }
    };
    tell_of_kernel_path(&start);
    match run(feed, output, &order, &start) {
        Ok(tally) => summary(&tally, &order),
        Err(error) => {
            complain(format!("the capture ended: {error}"));
            PROBLEM
        }
    }
}

fn order(args: &CaptureArgs) -> Result<Order, String> {
    let words = args.expression.join(" ");
    let expression = Expression::parse(&words)
        .map_err(|error| format!("the expression cannot be used: {error}"))?;
    if args.target.output == Form::Json && args.write.is_some() {
        return Err("a file is pcapng: leave out `-o json` or `--write`".to_owned());
    }
    let is_standard = args
        .write
        .as_ref()
        .is_some_and(|path| path.as_os_str() == "-");
    if is_standard && io::stdout().is_terminal() {
        return Err(
            "a pcapng file is nothing for a terminal: pipe it, or name a file with --write"
                .to_owned(),
        );
    }
    Ok(Order {
        request: Request::Capture {
            stages: stages_of(&args.stage, &args.reason),
            pods: args.pod.clone(),
            peers: args.peer.clone(),
            reasons: args.reason.clone(),
            snap_length: whole(args.snaplen),
            sampled: false,
        },
        expression,
        count: args.count,
    })
}

fn open_output(args: &CaptureArgs, start: &CaptureStart) -> Result<Output, String> {
    let Some(path) = &args.write else {
        return Ok(match args.target.output {
            Form::Json => Output::json(),
            Form::Table => Output::lines(false),
        });
    };
    let file: Box<dyn Write> = if path.as_os_str() == "-" {
        Box::new(io::stdout())
    } else {
        Box::new(private_file(path).map_err(|error| {
            format!(
                "cannot write {}: {error}; name another file with --write",
                path.display()
            )
        })?)
    };
    let stages = stages_of(&args.stage, &args.reason);
    Output::pcapng(file, start, &stages, whole(args.snaplen))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// A file that its owner alone can read, for it holds what pods say to each other; one that is there is emptied, and no
/// link is followed.
fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
    let found = file.metadata()?;
    // A pipe or a device is the caller's own choice.
    if found.is_file() {
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it is another user's file"));
        }
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(file)
}

fn stages_of(stages: &[String], reasons: &[String]) -> Vec<String> {
    match (stages, reasons) {
        ([], []) => ALL_STAGES.map(String::from).to_vec(),
        ([], _) => vec!["dropped".to_owned()],
        (stages, _) => stages.to_vec(),
    }
}

/// Passes packets on until the agent says that it was all.
fn run(
    mut feed: Feed,
    mut output: Output,
    order: &Order,
    start: &CaptureStart,
) -> io::Result<Tally> {
    let mut names = Names::new(&start.names);
    let mut tally = Tally {
        received: 0,
        shown: 0,
        counts: CaptureCounts::default(),
    };
    let stop = feed.stopper()?;
    feed::at_signal(feed.stopper()?)?;
    let mut is_ending = false;
    while let Some(message) = feed.next()? {
        match message {
            Message::Names(changed) => names = Names::new(&changed),
            Message::Counts(counts) => {
                if !is_ending && output.counts(&counts).is_err() {
                    is_ending = true;
                    stop.stop();
                }
                tally.counts = counts;
            }
            Message::Records(records) => {
                for record in feed::each(&records) {
                    tally.received += 1;
                    let is_enough = order.count.is_some_and(|count| tally.shown >= count);
                    if is_ending || is_enough || !order.expression.holds(&record, start) {
                        continue;
                    }
                    if let Err(error) = output.packet(&record, &names, start) {
                        end_of_reader(&error)?;
                        is_ending = true;
                        stop.stop();
                        continue;
                    }
                    tally.shown += 1;
                    if order.count == Some(tally.shown) {
                        stop.stop();
                    }
                }
                if !is_ending && let Err(error) = output.flush() {
                    end_of_reader(&error)?;
                    is_ending = true;
                    stop.stop();
                }
            }
        }
    }
    if !is_ending && let Err(error) = output.end(&tally.counts) {
        end_of_reader(&error)?;
    }
    Ok(tally)
}

/// That nothing reads the output any more (`| head`) is no error.
fn end_of_reader(error: &io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        kind => Err(io::Error::new(kind, error.to_string())),
    }
}

fn tell_of_kernel_path(start: &CaptureStart) {
    if start.is_kernel_path_in_use {
        note(
            "the kernel path carries packets past the workers: they are in no capture. `kernel-path = \"off\"` in tartan.toml has the workers carry all",
        );
    }
}

/// Prints what was captured and what is missing.
fn summary(tally: &Tally, order: &Order) -> u8 {
    let counts = &tally.counts;
    let sum =
        |of: fn(&crate::api::wire::CaptureStage) -> u64| counts.stages.iter().map(of).sum::<u64>();
    let (offered, lost) = (sum(|stage| stage.offered), sum(|stage| stage.lost));
    note(&format!("{} packets captured", tally.shown));
    note(&format!(
        "{offered} packets passed the filter of the workers"
    ));
    note(&format!(
        "{lost} packets lost, because the capture did not keep up"
    ));
    if counts.in_kernel > 0 {
        note(&format!(
            "{} packets of the node went through the kernel path meanwhile, unseen",
            counts.in_kernel
        ));
    }
    if !counts.is_final {
        complain(
            "the agent ended the capture early, so these counts are not its last: it was stopped or restarted; start the capture again",
        );
        return PROBLEM;
    }
    debug_assert!(order.count.is_none_or(|count| tally.shown <= count));
    if offered != tally.received + lost {
        complain(format!(
            "of {offered} packets {} arrived and {lost} were lost: this is a fault of Tartan's, please report it",
            tally.received
        ));
        return PROBLEM;
    }
    OK
}

fn refuse(output: Form, error: &ClientError) -> u8 {
    match output {
        Form::Table => complain_with_causes(error),
        Form::Json => {
            print(failure(output, error));
        }
    }
    code_of(error)
}

/// Tells something on standard error, where it does not mix with packets.
fn note(sentence: &str) {
    // If standard error is closed, it cannot be told.
    let _ = writeln!(io::stderr().lock(), "tartan: {sentence}");
}

fn whole(snap_length: u32) -> u32 {
    if snap_length == 0 {
        MOST_BYTES as u32
    } else {
        snap_length
    }
}

fn stage_name(name: &str) -> Result<String, String> {
    stage(name).map(|stage| stage.name().to_owned())
}

fn reason_name(name: &str) -> Result<String, String> {
    reason(name).map(|reason| reason.name().to_owned())
}

const ALL_STAGES: [&str; 5] = ["device", "sent", "received", "written", "dropped"];
/// Of the largest packet, with headers around it.
const MOST_BYTES: i64 = 65_600;
