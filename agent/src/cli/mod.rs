//! The command line: `tartan run` and the commands that ask a running agent.
//!
//! Exit codes: 0 ok; 1 a problem was found and printed, or the agent refused the request; 2 the command line or the
//! configuration is wrong, and only an edit corrects it (a missing file or a refused list of nodes is 1, because it
//! may still change); 3 no agent answers.

mod adopt;
mod amount;
mod check;
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
use std::path::{Path, PathBuf};
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
use crate::config::node::{check_variables, is_flag, variable};

/// No problem was found.
pub const OK: u8 = 0;
/// A problem was found.
pub const PROBLEM: u8 = 1;
/// The command line or the configuration is wrong.
pub const USAGE: u8 = 2;
/// No agent answers.
pub const UNREACHABLE: u8 = 3;

/// Parses the process's arguments, executes the command, and returns the exit code.
pub fn main() -> ExitCode {
    ExitCode::from(match Cli::try_parse() {
        Ok(cli) => execute(cli),
        Err(error) => match of_variable(&error) {
            Some(sentence) => {
                complain(sentence);
                USAGE
            }
            None => error.exit(),
        },
    })
}

/// The sentence of a value that cannot be read, where it is that of a variable: the parser names the flag.
fn of_variable(error: &clap::Error) -> Option<String> {
    let invalid = error.get(clap::error::ContextKind::InvalidArg)?.to_string();
    let key = invalid.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    let variable = variable(key);
    if is_flag(key) || std::env::var_os(&variable).is_none() {
        return None;
    }
    let text = error.to_string();
    let sentence = text.lines().next()?.trim_start_matches("error: ");
    Some(sentence.replace(&format!("'{invalid}'"), &variable))
}

#[derive(Parser, Debug)]
#[command(
    name = "tartan",
    version,
    about = "Carries pod packets between nodes in user space, in flannel's udp and vxlan formats",
    after_help = EXAMPLES,
    disable_help_subcommand = true,
)]
struct Cli {
    /// Use the agent files below DIR; several agents can share a host [default: /]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run this node's agent in the foreground
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Print the state of this node, problems first
    Status(Query),
    /// List the other nodes with format, addresses, path MTU and traffic, and refused sources
    Peers(Query),
    /// List which node owns which prefix, and kernel routes that bypass the overlay
    Routes(Query),
    /// List the pods and prefixes that this node delivers to
    Pods(Query),
    /// Print how many packets were dropped and why, and check that every packet is accounted for
    Drops(Query),
    /// Adopt a list of nodes that is held back because it loses most of them
    Adopt(Query),
    /// Install or uninstall the CNI plugin for container runtimes
    Cni(cni::CniArgs),
    /// Judge configuration files before they are used, and print what they would change
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<check::CheckArgs>),
    /// Remove what a stopped agent left on the host: device, routes, settings, files
    #[command(after_help = CLEANUP_NOTE)]
    Cleanup(cleanup::CleanupArgs),
    /// Run the service; `tartan run` starts it as its child
    #[command(hide = true)]
    Service {
        /// What the keeper goes by as `root`.
        #[arg(long, value_name = "DIR")]
        agent_root: PathBuf,
        /// The arguments of `tartan run`, from its name on.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Args, Debug)]
struct Query {
    #[command(flatten)]
    root_arg: RootArg,
    /// Select the output form
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Args, Clone, Debug)]
struct RootArg {
    /// Use the agent files below DIR [default: /]
    #[arg(long, env = ROOT_VARIABLE, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Aligned columns for a terminal
    Table,
    /// JSON for scripts, with stable field names and exact numbers
    Json,
}

fn execute(cli: Cli) -> u8 {
    let before = cli.root;
    match cli.command {
        Command::Run(_) | Command::Check(_) if unknown_variable() => USAGE,
        Command::Run(args) => run::keeper(with_root(*args, before)),
        Command::Service {
            agent_root,
            arguments,
        } => service(&agent_root, arguments),
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
        // A drop alone is not a problem.
        Command::Drops(query) => ask(&query, before, &Request::Drops, drops::render, |_| false),
        Command::Adopt(query) => ask(&query, before, &Request::AdoptList, adopt::render, |_| {
            false
        }),
        Command::Cni(args) => cni::execute(args, before),
        Command::Check(args) => check::execute(*args, before),
        Command::Cleanup(args) => {
            let root = root(before, args.root_arg.root.clone());
            cleanup::execute(&args, root)
        }
    }
}

/// Complains of a variable that looks like one of ours and is none.
fn unknown_variable() -> bool {
    let checked = check_variables();
    if let Err(sentence) = &checked {
        complain(sentence);
    }
    checked.is_err()
}

/// Parses the arguments that the keeper passed on: those of `tartan run`.
fn service(agent_root: &Path, arguments: Vec<OsString>) -> u8 {
    let own_name = OsString::from("tartan");
    match Cli::try_parse_from([own_name].into_iter().chain(arguments)) {
        Ok(Cli {
            root,
            command: Command::Run(args),
        }) => run::service(with_root(*args, root), agent_root),
        Ok(_) => {
            complain("only `tartan run` starts `tartan service`; use `tartan run`");
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

/// Accepts `--root` before or after the command. A flag overrides the variable.
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
    // A value that was read from JSON can always be written as JSON.
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .unwrap_or_default()
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
fn print(text: impl AsRef<str>) {
    let written = io::stdout().lock().write_all(text.as_ref().as_bytes());
    if let Err(error) = written.and_then(|()| io::stdout().flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        complain(&error);
    }
}

fn complain(what: impl std::fmt::Display) {
    // If standard error is closed, the error cannot be reported.
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
  tartan status                                                print the node's state
  tartan peers -o json | jq '.peers[].path_mtu'                read one field in a script
  tartan --root /srv/node2 status                              ask a second agent on this host

Exit codes: 0 ok, 1 a problem was found, 2 wrong command line or configuration, 3 no agent answers.";

const RUN_EXAMPLES: &str = "\
net-conf.json, as flannel reads it:
  {\"Network\": \"10.244.0.0/16\", \"Backend\": {\"Type\": \"vxlan\"}}

nodes.toml, one entry for each node, including this one; the same file on every node:
  [[node]]
  name = \"node1\"
  subnets = [\"10.244.1.0/24\"]
  public-ip = \"192.0.2.1\"

Each flag is also a key of ROOT/etc/tartan/tartan.toml and a TARTAN_* variable.
A flag overrides its variable, and a variable overrides the file. SIGTERM stops
the agent. The next start adopts what it left on the host, and `tartan cleanup`
removes it. SIGHUP has the agent read its files again.";

const CHECK_EXAMPLES: &str = "\
Examples:
  tartan check                    judge the files in /etc/tartan
  tartan check /tmp/nodes.toml    judge a list of nodes before it is copied there

The files are compared with what this node forwarded by last. No agent needs to run.
Give the flags of `tartan run` if the agent is started with any.
Exit codes: 0 no fault, 1 a fault was found.";

const CLEANUP_NOTE: &str = "\
Stop the agent first. The command also cleans up after an agent that was killed.
It does not restore a kernel setting that another program has changed since
Tartan changed it.";

#[cfg(test)]
mod tests;
