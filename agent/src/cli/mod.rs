//! The command line: `tartan run` and the commands that ask a running agent.
//!
//! Exit codes: 0 ok, 1 a problem was found (printed, or the agent's refusal), 2 usage or configuration (what
//! only an edit mends: not a file that may come yet, nor a list of nodes that may be right yet), 3 no agent
//! answers.

mod amount;
mod cleanup;
mod cni;
mod drops;
mod peers;
mod pods;
mod routes;
mod run;
mod status;
mod table;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cni_shim::RunDir;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::client::{ClientError, call};
use crate::api::wire::Request;
use crate::causes::causes;
use crate::config::RunArgs;

/// Everything is well.
pub const OK: u8 = 0;
/// A problem was found.
pub const PROBLEM: u8 = 1;
/// The command line or the configuration is wrong.
pub const USAGE: u8 = 2;
/// No agent answers.
pub const UNREACHABLE: u8 = 3;

/// Parses the process's arguments, does what they say, and returns the exit code.
pub fn main() -> ExitCode {
    ExitCode::from(execute(Cli::parse()))
}

#[derive(Parser, Debug)]
#[command(
    name = "tartan",
    version,
    about = "Pod networks between nodes, in user space, in flannel's udp and vxlan formats",
    after_help = EXAMPLES,
    disable_help_subcommand = true,
)]
struct Cli {
    /// Directory that every path hangs off, to have several nodes on one host [default: /]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the agent of this node in the foreground
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// The node at a glance; problems first
    Status(Query),
    /// The other nodes: format, addresses, path MTU, traffic, and who was refused
    Peers(Query),
    /// Which node owns which prefix, and what bypasses the overlay
    Routes(Query),
    /// Who is delivered to on this node
    Pods(Query),
    /// Why packets were dropped, and whether every packet is accounted for
    Drops(Query),
    /// Install the CNI plugin for container runtimes, or take it away
    Cni(cni::CniArgs),
    /// Remove every trace of a stopped agent: device, routes, settings, files
    #[command(after_help = CLEANUP_NOTE)]
    Cleanup(cleanup::CleanupArgs),
    /// The child of `tartan run`, started by it alone
    #[command(hide = true)]
    Service {
        /// The arguments of `tartan run`, from its name on.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Args, Debug)]
struct Query {
    #[command(flatten)]
    root_arg: RootArg,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Args, Clone, Debug)]
struct RootArg {
    /// Directory that every path of the agent hangs off [default: /]
    #[arg(long, env = ROOT_VARIABLE, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For scripts: field names are an interface, numbers are exact
    Json,
}

fn execute(cli: Cli) -> u8 {
    let before = cli.root;
    match cli.command {
        Command::Run(args) => run::keeper(with_root(*args, before)),
        Command::Service { arguments } => service(arguments),
        Command::Status(query) => ask(
            &query,
            before,
            &Request::Status,
            status::render,
            status::problem,
        ),
        Command::Peers(query) => ask(
            &query,
            before,
            &Request::Peers,
            peers::render,
            peers::problem,
        ),
        Command::Routes(query) => ask(
            &query,
            before,
            &Request::Routes,
            routes::render,
            routes::problem,
        ),
        Command::Pods(query) => {
            let render = |pods: &_| pods::render(pods, unix_now());
            ask(&query, before, &Request::Pods, render, pods::problem)
        }
        // A drop is a packet's rightful fate: no problem in itself.
        Command::Drops(query) => ask(&query, before, &Request::Drops, drops::render, |_| false),
        Command::Cni(args) => cni::execute(args, before),
        Command::Cleanup(args) => {
            let root = root(before, args.root_arg.root.clone());
            cleanup::execute(&args, root)
        }
    }
}

/// The service parses what its keeper was given: one meaning of every argument.
fn service(arguments: Vec<OsString>) -> u8 {
    let own_name = OsString::from("tartan");
    match Cli::try_parse_from([own_name].into_iter().chain(arguments)) {
        Ok(Cli {
            root,
            command: Command::Run(args),
        }) => run::service(with_root(*args, root)),
        Ok(_) => {
            complain("`tartan service` is started by `tartan run` alone; use `tartan run`");
            USAGE
        }
        Err(error) => {
            complain(&error);
            USAGE
        }
    }
}

fn ask<T: DeserializeOwned>(
    query: &Query,
    before: Option<PathBuf>,
    request: &Request,
    render: impl Fn(&T) -> String,
    problem: impl Fn(&T) -> bool,
) -> u8 {
    let root = root(before, query.root_arg.root.clone()).unwrap_or_else(|| PathBuf::from("/"));
    let value = match call(&RunDir::under(&root).socket(), request) {
        Ok(value) => value,
        Err(error) => {
            complain_with_causes(&error);
            return if error.is_no_answer() {
                UNREACHABLE
            } else {
                PROBLEM
            };
        }
    };
    let text = match query.output {
        Output::Json => json(&value),
        Output::Table => String::new(),
    };
    let answer: T = match serde_json::from_value(value) {
        Ok(answer) => answer,
        Err(error) => {
            complain_with_causes(&ClientError::Answer(error));
            return PROBLEM;
        }
    };
    print(if query.output == Output::Table {
        render(&answer)
    } else {
        text
    });
    if problem(&answer) { PROBLEM } else { OK }
}

/// `--root` stands before or after the command; a flag anywhere beats the variable.
fn root(before: Option<PathBuf>, after: Option<PathBuf>) -> Option<PathBuf> {
    let variable = std::env::var_os(ROOT_VARIABLE).map(PathBuf::from);
    match (before, after) {
        (Some(before), after) if after.is_none() || after == variable => Some(before),
        (_, after) => after,
    }
}

fn with_root(mut args: RunArgs, before: Option<PathBuf>) -> RunArgs {
    args.root = root(before, args.root.take());
    args
}

fn json(value: &Value) -> String {
    // A value that came as JSON goes as JSON.
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .unwrap_or_default()
}

/// Writes to standard output; a reader that left (`| head`) is no error.
fn print(text: impl AsRef<str>) {
    let written = io::stdout().lock().write_all(text.as_ref().as_bytes());
    if let Err(error) = written.and_then(|()| io::stdout().flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        complain(&error);
    }
}

fn complain(what: impl std::fmt::Display) {
    // Nobody is left to be told when standard error is gone.
    let _ = writeln!(io::stderr().lock(), "tartan: {what}");
}

fn complain_with_causes(error: &dyn std::error::Error) {
    complain(table::printable(&causes(error)));
}

fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The arguments of this process after its name.
fn own_arguments() -> impl Iterator<Item = OsString> {
    std::env::args_os().skip(1)
}

const ROOT_VARIABLE: &str = "TARTAN_ROOT";

const EXAMPLES: &str = "\
Examples:
  tartan run --net-conf net-conf.json --node-file nodes.toml   run this node
  tartan status                                                is all well?
  tartan peers -o json | jq '.peers[].path_mtu'                for scripts
  tartan --root /srv/node2 status                              a second node on this host

Exit codes: 0 ok, 1 a problem was found, 2 usage or configuration, 3 no agent answers.";

const RUN_EXAMPLES: &str = "\
net-conf.json, as flannel reads it:
  {\"Network\": \"10.244.0.0/16\", \"Backend\": {\"Type\": \"vxlan\"}}

nodes.toml, one entry per node, this one included; the same file on every node:
  [[node]]
  name = \"node1\"
  subnets = [\"10.244.1.0/24\"]
  public-ip = \"192.0.2.1\"

Each flag is also a key of ROOT/etc/tartan/tartan.toml and a TARTAN_* variable.
A flag beats the variable, the variable beats the file. SIGTERM stops the
agent; the next start adopts what it left, `tartan cleanup` removes it.";

const CLEANUP_NOTE: &str = "\
Stop the agent first. Works after a SIGKILL too. A setting that somebody
changed after Tartan did is left as it is.";

#[cfg(test)]
mod tests;
