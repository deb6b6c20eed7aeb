//! The command line: `tartan run` and the commands that ask a running agent.
//!
//! Exit codes: 0 ok; 1 a problem was found and printed, or the agent refused the request; 2 the command line or the
//! configuration is wrong, and only an edit corrects it (a missing file or a refused list of nodes is 1, because it
//! may still change); 3 no agent answers.

mod adopt;
mod amount;
mod capture;
mod check;
mod cleanup;
mod cni;
mod doctor;
mod drops;
mod flanneld;
mod last_good;
mod manual;
mod order;
mod peers;
mod pods;
mod previous;
mod query;
mod ready;
mod report;
mod routes;
mod run;
mod status;
mod table;
mod top;
mod trace;
mod unserved;
mod upgrade;
mod view;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::Value;

use crate::api::wire::Request;
use crate::causes::causes;
use crate::config::RunArgs;
use crate::config::node::{check_variables, is_flag, variable};
use crate::keeper::channel::PROTOCOL;
use crate::keeper::handed_state;
use crate::log;
use query::{Asked, PeersQuery, Query, RowQuery, Target, ask, order};
use view::RowArgs;

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
    cni_shim::panics::abort_at_panic();
    if let Some(state) = handed_state::take() {
        let code = run::keeper_goes_on(state);
        return ExitCode::from(match flanneld::is_own_name() {
            true => flanneld::as_flanneld(code),
            false => code,
        });
    }
    if flanneld::is_own_name() {
        return ExitCode::from(flanneld::keeper(own_arguments().collect()));
    }
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
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Query),
    /// List the other nodes: how they are reached, round trip, loss, MTU, traffic; and refused sources
    #[command(after_help = PEERS_EXAMPLES)]
    Peers(PeersQuery),
    /// List which node owns which prefix, and kernel routes that bypass the overlay
    #[command(after_help = ROUTES_EXAMPLES)]
    Routes(RowQuery),
    /// List the pods and prefixes that this node delivers to
    #[command(after_help = PODS_EXAMPLES)]
    Pods(RowQuery),
    /// Print how many packets were dropped and why, and check that every packet is accounted for
    #[command(after_help = DROPS_EXAMPLES)]
    Drops(DropsArgs),
    /// Show the node's traffic live: by peer, pod, flow and worker, with what is dropped
    #[command(after_help = TOP_EXAMPLES)]
    Top(top::TopArgs),
    /// Capture packets as the workers see them: from pods, to peers and back, and what is dropped, with the reason
    #[command(after_help = CAPTURE_EXAMPLES)]
    Capture(Box<capture::CaptureArgs>),
    /// Trace a packet of a pod, stage by stage, on this node and on the other: what becomes of it, and why
    #[command(after_help = TRACE_EXAMPLES)]
    Trace(Box<trace::TraceArgs>),
    /// Adopt a list of nodes that is held back because it loses most of them
    #[command(after_help = ADOPT_EXAMPLES)]
    Adopt(Target),
    /// Replace the running agent by another program, of this release or another, while packets pass
    #[command(after_help = UPGRADE_EXAMPLES)]
    Upgrade(upgrade::UpgradeArgs),
    /// Tell whether this agent forwards, for the readiness probe of its container
    #[command(after_help = READY_EXAMPLES)]
    Ready(ready::ReadyArgs),
    /// Install or uninstall the CNI plugin for container runtimes
    Cni(cni::CniArgs),
    /// Check configuration files before they are used, and print what they would change
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<check::CheckArgs>),
    /// Examine this node, whether the agent runs or not, and print what is wrong with evidence and remedy
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(Box<doctor::DoctorArgs>),
    /// Write all that is known of this node into one file, without its secrets, for support
    #[command(after_help = REPORT_EXAMPLES)]
    Report(Box<report::ReportArgs>),
    /// Remove what a stopped agent left on the host: device, routes, settings, files; or show and remove what another CNI left
    #[command(after_help = CLEANUP_NOTE)]
    Cleanup(cleanup::CleanupArgs),
    /// Print the version of this program
    #[command(after_help = VERSION_EXAMPLES)]
    Version(VersionArgs),
    /// Write man pages and completions of every command
    #[command(hide = true)]
    Manual(manual::ManualArgs),
    /// Run the service; `tartan run` starts it as its child
    #[command(hide = true)]
    Service {
        /// What the keeper goes by as `root`.
        #[arg(long, value_name = "DIR")]
        agent_root: PathBuf,
        /// The arguments are those of flanneld.
        #[arg(long)]
        as_flanneld: bool,
        /// The name of the Node that flanneld's keeper has asked the API for.
        #[arg(long)]
        node_name: Option<String>,
        /// The arguments of `tartan run`, from its name on.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Args, Clone, Debug)]
struct RootArg {
    /// Use the agent files below DIR [default: /]
    #[arg(long, env = ROOT_VARIABLE, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Arguments of `tartan drops`.
#[derive(Args, Debug)]
struct DropsArgs {
    #[command(flatten)]
    asked: RowQuery,
    #[command(flatten)]
    follow: capture::FollowArgs,
}

#[derive(Args, Clone, Debug)]
struct VersionArgs {
    /// Select the output form
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
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
        Command::Run(_) | Command::Check(_) | Command::Doctor(_) | Command::Report(_)
            if unknown_variable() =>
        {
            USAGE
        }
        Command::Run(args) => run::keeper(with_root(*args, before), own_arguments().collect()),
        Command::Service {
            agent_root,
            as_flanneld: true,
            node_name,
            arguments,
        } => flanneld::service(&agent_root, node_name, arguments),
        Command::Service {
            agent_root,
            as_flanneld: false,
            arguments,
            ..
        } => service(&agent_root, arguments),
        Command::Status(query) => {
            let asked = Asked {
                request: Request::Status,
                columns: &[],
                render: status::render,
                problem: status::problem,
                last_good: Some(last_good::Shown::Node),
            };
            ask(&query, &RowArgs::default(), before, &asked)
        }
        Command::Peers(PeersQuery {
            asked: RowQuery { query, rows },
            wide,
        }) => {
            let asked = Asked {
                request: Request::Peers,
                columns: &peers::COLUMNS,
                render: match wide {
                    true => peers::render_wide,
                    false => peers::render,
                },
                problem: peers::problem,
                last_good: Some(last_good::Shown::Peers),
            };
            ask(&query, &rows, before, &asked)
        }
        Command::Routes(RowQuery { query, rows }) => {
            let asked = Asked {
                request: Request::Routes,
                columns: &routes::COLUMNS,
                render: routes::render,
                problem: routes::problem,
                last_good: Some(last_good::Shown::Routes),
            };
            ask(&query, &rows, before, &asked)
        }
        Command::Pods(RowQuery { query, rows }) => {
            let asked = Asked {
                request: Request::Pods,
                columns: &pods::COLUMNS,
                render: |answer, view| pods::render(answer, unix_now(), view),
                problem: pods::problem,
                last_good: None,
            };
            ask(&query, &rows, before, &asked)
        }
        Command::Drops(DropsArgs { asked, follow }) if follow.follow => {
            capture::follow(&follow, &asked.query.target, before)
        }
        Command::Drops(DropsArgs {
            asked: RowQuery { query, rows },
            ..
        }) => {
            let asked = Asked {
                request: Request::Drops,
                columns: &drops::COLUMNS,
                render: drops::render,
                // A drop alone is not a problem.
                problem: |_| false,
                last_good: None,
            };
            ask(&query, &rows, before, &asked)
        }
        Command::Top(args) => top::execute(&args, before),
        Command::Capture(args) => capture::execute(&args, before),
        Command::Trace(args) => trace::execute(&args, before),
        Command::Adopt(target) => order(&target, before, &Request::AdoptList, adopt::render),
        Command::Upgrade(args) => upgrade::execute(&args, before),
        Command::Ready(args) => ready::execute(&args, before),
        Command::Version(args) => version(&args),
        Command::Cni(args) => cni::execute(args, before),
        Command::Check(args) => check::execute(*args, before),
        Command::Doctor(args) => doctor::execute(*args, before),
        Command::Report(args) => report::execute(*args, before),
        Command::Manual(args) => manual::execute(&args),
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

fn version(args: &VersionArgs) -> u8 {
    let version = env!("CARGO_PKG_VERSION");
    print(match args.output {
        Output::Table => format!("tartan {version}\n"),
        Output::Json => json(&serde_json::json!({
            "version": version,
            "protocol": PROTOCOL,
            "keeper_state": handed_state::FORMAT,
        })),
    });
    OK
}

/// A document: docs/json.md lists the keys. The number of the schema changes when a key goes or gets another meaning.
fn json(value: &Value) -> String {
    let mut document = value.clone();
    if let Value::Object(keys) = &mut document {
        keys.insert("schema".to_owned(), Value::from(SCHEMA));
    }
    // A value that was read from JSON can always be written as JSON.
    serde_json::to_string_pretty(&document)
        .map(|text| text + "\n")
        .unwrap_or_default()
}

/// Writes to standard output. A closed pipe (`| head`) is not an error; whether anybody still reads.
fn print(text: impl AsRef<str>) -> bool {
    let written = io::stdout().lock().write_all(text.as_ref().as_bytes());
    let written = written.and_then(|()| io::stdout().flush());
    if let Err(error) = &written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        complain(error);
    }
    written.is_ok()
}

fn complain(what: impl std::fmt::Display) {
    // If standard error is closed, the error cannot be reported.
    let prefix = log::error_prefix();
    let _ = writeln!(io::stderr().lock(), "{prefix}tartan: {what}");
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
/// Of every document of `-o json`.
const SCHEMA: u64 = 1;

const STATUS_EXAMPLES: &str = "\
Examples:
  tartan status                                        the problems first, then the node
  tartan status --watch                                again every 2 seconds
  tartan status -o json | jq -r '.problems[].code'     the codes of the problems, for a script

Exit code 1: something is wrong. docs/problems.md lists all problems. Exit code 3: no agent
answers; what the node forwarded by last is printed then, with its age.";

const PEERS_EXAMPLES: &str = "\
Examples:
  tartan peers --filter state=silent                   peers of which nothing arrives
  tartan peers --wide --sort -tx-bytes                 who gets most
  tartan peers --filter node7                          rows with node7 in any column
  tartan peers --filter address=192.0.2.7              the peer with that address
  tartan peers -o json | jq '.peers[].path_mtu'        one field of each, for a script
  tartan peers -o json | jq '.peers[] | {name, dropped}'

With --wide: REV says whether the peer hears this node, NEXT when it is probed next, DROPS how
many of its packets were dropped, both ways, and the most frequent reasons.
Exit code 1: a peer is not reached as it should be, or a source is refused that the list of nodes
could name. Exit code 3: no agent answers; the peers of the last good state are printed then.";

const ROUTES_EXAMPLES: &str = "\
Examples:
  tartan routes                                        who owns which prefix
  tartan routes --filter owner=node2                   the prefixes of node2

Exit code 1: a kernel route bypasses the overlay, or a prefix cannot be reached. Exit code 3: no
agent answers; the prefixes of the last good state are printed then.";

const PODS_EXAMPLES: &str = "\
Examples:
  tartan pods --sort age                               the newest first
  tartan pods --filter kube-system/                    the pods of a namespace
  tartan pods --filter addresses=10.244.1.7            who has this address
  tartan pods -o json | jq '.pods[] | {pod, dropped}'  what was dropped of each, by reason

Exit code 1: a pod is stranded or faulty, or its record is refused.";

const DROPS_EXAMPLES: &str = "\
Examples:
  tartan drops --watch                                 what is dropped right now
  tartan drops --filter direction=inbound              of what came from peers
  tartan drops --follow                                each as it happens: pod, peer, packet
  tartan drops --follow --pod default/web -o json      one object a line
  tartan drops -o json | jq '.reasons[] | select(.count > 0)'

docs/drops.md says for each reason what to do.";

const CAPTURE_EXAMPLES: &str = "\
Examples:
  tartan capture                                       a line for each packet
  tartan capture --pod default/web tcp port 80         of one pod, as tcpdump's expressions say
  tartan capture --stage dropped                       what is dropped, and why
  tartan capture --peer node2 -w /tmp/node2.pcapng     a file for Wireshark or tcpdump -r
  ssh node1 tartan capture -w - | wireshark -k -i -

Stages: device (a pod sent it), sent (to a peer), received (before any check), written (for a
pod), dropped. The expression is asked of the inner packet. Ctrl-C ends the capture; what was
lost is printed then. What the kernel path carries is in no capture: set kernel-path = \"off\".
Times are UTC.";

const TRACE_EXAMPLES: &str = "\
Examples:
  tartan trace default/web 10.244.2.7                  would an echo request arrive?
  tartan trace default/web 10.244.2.7 --tcp 80         would a connection to port 80?
  tartan trace web 10.244.2.7 --size 1450 --df         does a packet of this size get there?
  tartan trace web 10.244.2.7 --live                   and what happens to real packets for 5 s
  tartan trace web 10.244.2.7 -o json | jq -r '.stages[] | select(.result == \"refuses\").code'

Nothing is sent in the pod's name. The kernel, the packet filter and the workers' tables of this
node are asked, and the other node by a probe. A tick stands before a stage that passes the packet,
a cross before one that refuses it, and a question mark where that is not known.
Exit codes: 0 no stage refuses it, 1 a stage does, 3 no agent answers.";

const TOP_EXAMPLES: &str = "\
Examples:
  tartan top                                           live; ? explains the keys
  tartan top flows                                     the heaviest flows first
  tartan top --once workers                            one picture as text, of the workers alone
  tartan top -o json | jq '.flows[0]'                  one picture for a script

Flows of pods are counted while something watches, and for ten seconds after it.";

const VERSION_EXAMPLES: &str = "\
Examples:
  tartan version
  tartan version -o json | jq -r .version";

const EXAMPLES: &str = "\
Examples:
  tartan run --net-conf net-conf.json --node-file nodes.toml   run this node
  tartan status                                                print the node's state
  tartan peers -o json | jq '.peers[].path_mtu'                read one field in a script
  tartan --root /srv/node2 status                              ask a second agent on this host

Exit codes: 0 ok, 1 a problem was found, 2 wrong command line or configuration, 3 no agent answers.";

const RUN_EXAMPLES: &str = "\
Examples:
  tartan run                                           with the files below /etc and /run
  tartan run --net-conf net-conf.json --node-file nodes.toml
  tartan --root /srv/node2 run --device-name tartan2   a second agent, in its own network namespace

net-conf.json, as flannel reads it:
  {\"Network\": \"10.244.0.0/16\", \"Backend\": {\"Type\": \"vxlan\"}}

nodes.toml, one entry for each node, including this one; the same file on every node:
  [[node]]
  name = \"node1\"
  subnets = [\"10.244.1.0/24\"]
  public-ip = \"192.0.2.1\"

Each flag but --take-over is also a key of ROOT/etc/tartan/tartan.toml, and each a TARTAN_* variable.
A flag overrides its variable, and a variable overrides the file. SIGTERM stops
the agent. The next start adopts what it left on the host, and `tartan cleanup`
removes it. SIGHUP has the agent read its files again.";

const ADOPT_EXAMPLES: &str = "\
Examples:
  tartan adopt                    the nodes that are missing in the list are gone for good
  tartan adopt -o json            the same, with the names of the missing nodes

Put the entries back in the list to keep the nodes. `tartan status` names the nodes that
are missing and the time at which the list is adopted by itself.";

const UPGRADE_EXAMPLES: &str = "\
Examples:
  tartan upgrade                                       to the file that a package has just replaced
  tartan upgrade --program /usr/local/lib/tartan-next/tartan   to this one, until the agent is started anew
  tartan upgrade -o json | jq .pause_us                how long packets waited

The new service starts beside the one that runs, and reads packets once that has finished what
it has read. If it does not forward within a second, the one that ran goes on. No connection
ends, in either case. Changes of workers, ports or the device need a restart or a reload.
Exit codes: 0 upgraded, 1 not, or not all of it, 2 wrong command line, 3 no agent answers.";

const READY_EXAMPLES: &str = "\
Examples:
  tartan ready                         whether the agent of this host carries its pods' packets
  tartan ready --take-over pod-2       and is the one that was started with this name

Two agents of a node share the socket that is asked, while one takes over from the other. The
one that answers tells its name, and the other is not ready.
Exit codes: 0 ready, 1 not, 2 wrong command line, 3 no agent answers.";

const CHECK_EXAMPLES: &str = "\
Examples:
  tartan check                    check the files in /etc/tartan
  tartan check /tmp/nodes.toml    check a list of nodes before it is copied there

The files are compared with what this node forwarded by last. No agent needs to run.
Give the flags of `tartan run` if the agent is started with any.
Exit codes: 0 no fault, 1 a fault was found.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  tartan doctor                                        every check, with a tick or what is wrong
  tartan doctor --all                                  and what every other node says is wrong with it
  tartan doctor -o json | jq -r '.checks[].findings[].code'
  tartan doctor --fix                                  with the agent stopped: forwarding and accept rules

Give the flags of `tartan run` if the agent is started with any and does not run now.
Exit codes: 0 nothing is wrong, 1 something is, 3 no agent answers and nothing else is wrong.";

const REPORT_EXAMPLES: &str = "\
Examples:
  tartan report                                        tartan-report-NODE-TIME.tar.gz in this directory
  tartan report -w - | ssh support 'cat > node1.tar.gz'

It holds configuration, state, counters, rules, routes, links and the last lines of the log.
Passwords, tokens and keys are replaced by (redacted). Read it before you hand it on.";

const CLEANUP_NOTE: &str = "\
Examples:
  tartan cleanup                                       what the agent of this host left
  tartan --root /srv/node2 cleanup                     what a second agent left
  tartan cleanup --previous calico                     show what Calico left
  tartan cleanup --previous calico --remove            and remove it

Stop the agent first. The command also cleans up after an agent that was killed.
It does not restore a kernel setting that another program has changed since
Tartan changed it.

With --previous nothing of Tartan's is touched, and its agent may run. A thing
is taken for the other CNI's by its name and kind, which the table gives with
the place in that project's source. The exit code is 1 where something is left.";

#[cfg(test)]
mod tests;
