//! The load that `scripts/bench` and the tests put on a pod network: UDP floods and their sink, a ping-pong for latency,
//! new TCP connections, many flows at once, and numbered datagrams that are accounted for one by one.
//!
//! Every mode but `count` ends by itself; each prints one line of JSON, `spread` also one after each of its first turns.

mod answer;
mod connect;
mod count;
mod flood;
mod ping;
mod send;
mod sink;
mod spread;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// UDP and TCP load for benches and tests. Prints one line of JSON.
#[derive(Parser)]
#[command(name = "tartan-load", version)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Sends datagrams as fast as they go (sendmmsg).
    Flood {
        /// Where to.
        #[arg(long)]
        to: SocketAddr,
        /// Payload bytes of a datagram, 1 to 65507.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=65507))]
        size: u16,
        /// Flows: sockets with a source port of their own, served in turn, 1 to 64.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
        flows: u16,
        /// How long.
        #[arg(long, default_value = "2")]
        seconds: Seconds,
    },
    /// Counts datagrams that arrive (recvmmsg).
    Sink {
        /// Where to listen.
        #[arg(long)]
        listen: SocketAddr,
        /// How long, from the start.
        #[arg(long, default_value = "3")]
        seconds: Seconds,
    },
    /// Sends numbered datagrams, one call each.
    Send {
        /// Where to.
        #[arg(long)]
        to: SocketAddr,
        /// Payload bytes of a datagram, 10 to 65507.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(10..=65507))]
        size: u16,
        /// How many.
        #[arg(long)]
        count: u32,
    },
    /// Counts datagrams by port until SIGTERM: their sizes, and which numbers are doubled or late.
    Count {
        /// Where to listen, in both families.
        #[arg(required = true)]
        ports: Vec<u16>,
    },
    /// Sends every datagram back.
    Echo {
        /// Where to listen.
        #[arg(long)]
        listen: SocketAddr,
        /// How long, from the start.
        #[arg(long, default_value = "3")]
        seconds: Seconds,
    },
    /// Sends one datagram after the other to an echo and measures each round trip.
    Ping {
        /// Where the echo listens.
        #[arg(long)]
        to: SocketAddr,
        /// Payload bytes, 8 to 65507.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=65507))]
        size: u16,
        /// How long.
        #[arg(long, default_value = "2")]
        seconds: Seconds,
    },
    /// Opens TCP connections, each closed by the far end (`accept`), and counts them.
    Connect {
        /// Where to.
        #[arg(long)]
        to: SocketAddr,
        /// Connections at a time, a thread each, 1 to 256.
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
        parallel: u16,
        /// How long.
        #[arg(long, default_value = "2")]
        seconds: Seconds,
    },
    /// Accepts TCP connections and closes each at once.
    Accept {
        /// Where to listen.
        #[arg(long)]
        listen: SocketAddr,
        /// How long, from the start.
        #[arg(long, default_value = "3")]
        seconds: Seconds,
    },
    /// Answers the greetings of `spread` at 100 ports, and nothing else.
    Answer {
        /// Where to listen; the port is the first of 100.
        #[arg(long)]
        listen: SocketAddr,
        /// How long, up to an hour.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
        seconds: u32,
    },
    /// Keeps many UDP flows alive: 100 destination ports from each of many source ports. Prints a line after each of the first
    /// three turns too: greetings, first datagrams, the first turn of one each.
    Spread {
        /// Where to; the port is the first of 100.
        #[arg(long)]
        to: SocketAddr,
        /// How many flows, 1 to 1000000.
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        flows: u32,
        /// Datagrams that a flow sends at first, 3 s after a greeting that is answered; from then on it sends one in each turn
        /// of all flows. 1 to 1000.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
        first: u32,
        /// Datagrams a second of all flows together until then, at most; 1 to 1000000.
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        first_rate: u32,
        /// From then on; 1 to 1000000.
        #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        rate: u32,
        /// How long, up to an hour.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
        seconds: u32,
    },
}

/// A duration in seconds, more than none and at most a minute.
#[derive(Clone, Copy)]
struct Seconds(Duration);

impl std::str::FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seconds, String> {
        let refused = || format!("{text:?} is no number of seconds, more than 0 and at most 60");
        let seconds: f64 = text.parse().map_err(|_| refused())?;
        if seconds > 0.0 && seconds <= 60.0 {
            Ok(Seconds(Duration::from_secs_f64(seconds)))
        } else {
            Err(refused())
        }
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().mode) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tartan-load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mode: Mode) -> io::Result<String> {
    match mode {
        Mode::Flood {
            to,
            size,
            flows,
            seconds,
        } => flood::flood(to, size.into(), flows.into(), seconds.0),
        Mode::Sink { listen, seconds } => sink::sink(listen, seconds.0),
        Mode::Send { to, size, count } => send::send(to, size.into(), count.into()),
        Mode::Count { ports } => count::count(&ports),
        Mode::Echo { listen, seconds } => ping::echo(listen, seconds.0),
        Mode::Ping { to, size, seconds } => ping::ping(to, size.into(), seconds.0),
        Mode::Connect {
            to,
            parallel,
            seconds,
        } => connect::connect(to, parallel.into(), seconds.0),
        Mode::Accept { listen, seconds } => connect::accept(listen, seconds.0),
        Mode::Answer { listen, seconds } => {
            answer::answer(listen, Duration::from_secs(seconds.into()))
        }
        Mode::Spread {
            to,
            flows,
            first,
            first_rate,
            rate,
            seconds,
        } => spread::spread(
            to,
            usize::try_from(flows).map_err(io::Error::other)?,
            [(1, first_rate), (first, first_rate), (1, rate)],
            Duration::from_secs(seconds.into()),
        ),
    }
}
