//! `tartan top`: the node's traffic, live.
//!
//! Theory of operation. The agent answers `top` with counters alone; a [`picture`] is made here of two answers. Three
//! threads pass on what happens: keys, signals, and answers ([`sampler`]). One loop takes it in, changes the [`screen`], and
//! draws it; it neither waits for the agent nor asks it. With `--web` a browser shows the same ([`web`]).

mod draw;
mod figures;
mod path;
mod picture;
mod sampler;
mod screen;
mod sheet;
mod snapshot;
mod tab;
mod terminal;
#[cfg(test)]
mod tests;
mod web;
mod wrap;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::Event;

use super::query::{Target, code_of, failure};
use super::{OK, Output, PROBLEM, complain, complain_with_causes, json, print};
use crate::api::client::ClientError;
use crate::api::wire::Top;
use picture::Picture;
use screen::{Action, LONGEST_INTERVAL, SHORTEST_INTERVAL, Screen};
use tab::Tab;

/// Arguments of `tartan top`.
#[derive(Args, Debug)]
pub(super) struct TopArgs {
    #[command(flatten)]
    target: Target,
    /// Show this part first; with --once, this part alone
    #[arg(value_enum)]
    part: Option<Tab>,
    /// Print one picture as text and end; so it is in a pipe, and with `-o json`
    #[arg(long)]
    once: bool,
    /// Show it in a browser, at ADDRESS or 127.0.0.1:9892, until interrupted
    ///
    /// The page has no password: at another address than a loopback one, all who reach it see peers, pods and flows. From
    /// elsewhere: ssh -L 9892:127.0.0.1:9892 NODE
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = web::DEFAULT_ADDRESS, conflicts_with_all = ["part", "once", "output"])]
    web: Option<SocketAddr>,
    /// Take a sample every SECONDS, 0.25 to 8
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print at most N rows of each table with --once
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
}

/// What comes to the loop that draws.
enum Incoming {
    /// Of the agent.
    Picture(Box<Picture>),
    /// Why there is none.
    Fault(String),
    /// Of the terminal.
    Event(Event),
    /// A signal asks to end, or the terminal is gone.
    End,
}

/// Shows the picture until interrupted, or once. Returns the exit code.
pub(super) fn execute(args: &TopArgs, before: Option<PathBuf>) -> u8 {
    let socket = args.target.socket(before);
    let first = match sampler::sample(&socket) {
        Ok(first) => first,
        Err(error) => return refuse(args.target.output, &error),
    };
    if let Some(address) = args.web {
        return serve(address, socket, args.interval);
    }
    let is_live = io::stdout().is_terminal() && io::stdin().is_terminal();
    if args.once || args.target.output == Output::Json || !is_live {
        return once(args, &socket, &first);
    }
    match live(args, socket, first) {
        Ok(()) => OK,
        Err(error) => {
            complain(format!(
                "the terminal cannot be drawn on: {error}; use `tartan top --once`"
            ));
            PROBLEM
        }
    }
}

fn serve(address: SocketAddr, socket: PathBuf, interval: Duration) -> u8 {
    let announce = |address: SocketAddr| {
        _ = print(format!(
            "http://{address}/ shows this node; Ctrl-C ends it\n"
        ));
        if !address.ip().is_loopback() {
            complain("it has no password: all who reach this address see peers, pods and flows");
        }
    };
    match web::serve(address, socket, interval, announce) {
        Ok(()) => OK,
        Err(error) => {
            complain(format!(
                "cannot show the node at {address}: {error}; give another address with --web ADDRESS"
            ));
            PROBLEM
        }
    }
}

fn once(args: &TopArgs, socket: &Path, first: &Top) -> u8 {
    thread::sleep(args.interval);
    let second = match sampler::sample(socket) {
        Ok(second) => second,
        Err(error) => return refuse(args.target.output, &error),
    };
    let picture = Picture::new(Some(first), &second);
    match args.target.output {
        Output::Json => {
            let value = serde_json::to_value(&picture).unwrap_or_default();
            print(json(&value));
        }
        Output::Table => {
            let one = args.part.map(|part| [part]);
            let tabs = one.as_ref().map_or(&Tab::ALL[..], |one| &one[..]);
            print(snapshot::text(&picture, tabs, args.rows, width()));
        }
    }
    OK
}

/// The width of the terminal; none in a pipe.
fn width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let columns = size.map(|size| size.ws_col).filter(|columns| *columns > 0);
    columns.filter(|_| io::stdout().is_terminal())
}

fn refuse(output: Output, error: &ClientError) -> u8 {
    match output {
        Output::Table => complain_with_causes(error),
        Output::Json => _ = print(failure(output, error)),
    }
    code_of(error)
}

fn live(args: &TopArgs, socket: PathBuf, first: Top) -> io::Result<()> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut screen = Screen::new(args.part.unwrap_or_default(), args.interval, !no_color);
    screen.show(Picture::new(None, &first), Instant::now());
    let (to, incoming) = channel();
    terminal::pass_signals(to.clone())?;
    let paces = sampler::start(socket, first, args.interval, to.clone())?;
    let mut drawn = terminal::Drawn::take()?;
    terminal::pass_events(to)?;
    while follow(&mut screen, &mut drawn, &incoming, &paces)? {}
    Ok(())
}

/// Draws, then waits for something to happen and takes it in. Returns whether to go on.
fn follow(
    screen: &mut Screen,
    drawn: &mut terminal::Drawn,
    incoming: &Receiver<Incoming>,
    paces: &Sender<Duration>,
) -> io::Result<bool> {
    drawn
        .terminal
        .draw(|frame| draw::draw(frame, screen, Instant::now()))?;
    // The age of what is shown changes by itself.
    let mut next = match incoming.recv_timeout(REDRAWN_EVERY) {
        Ok(next) => Some(next),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => return Ok(false),
    };
    // A burst of keys is drawn once.
    while let Some(now) = next {
        match now {
            Incoming::Picture(picture) => screen.show(*picture, Instant::now()),
            Incoming::Fault(reason) => screen.miss(reason),
            Incoming::End => return Ok(false),
            Incoming::Event(event) => match screen.react(&event) {
                Action::Draw => {}
                Action::Quit => return Ok(false),
                // The sampler ends only with this loop.
                Action::Sample(interval) => _ = paces.send(interval),
            },
        }
        next = incoming.try_recv().ok();
    }
    Ok(true)
}

fn interval(text: &str) -> Result<Duration, String> {
    let number: Option<f64> = text.parse().ok();
    let seconds = number.filter(|number| (0.0..=3_600.0).contains(number));
    let interval = seconds.map(Duration::from_secs_f64);
    interval
        .filter(|interval| (SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(interval))
        .ok_or_else(|| "use 0.25 to 8 seconds".to_owned())
}

const REDRAWN_EVERY: Duration = Duration::from_secs(1);
