//! The program under the name `flanneld`: flannel's command line, its variables and its exit codes (flannel `main.go`).
//!
//! Theory of operation. A link named `flanneld`, or a copy of that name, is started where flanneld was. Its flags and
//! `FLANNELD_*` variables become the keys of `tartan run`, of which the `TARTAN_*` variables and `tartan.toml` can still give
//! those that flanneld does not have. The keeper passes the same words to the service, which reads them again; what a
//! variable says it finds in its own environment, so that no password gets onto a command line that was not there before.
//!
//! Exit codes: 0 after SIGTERM, `-version` and `-help`; 2 for a wrong command line; 1 for everything else, as flanneld.
//! Where flanneld prints usage for a wrong flag and exits with 0, a service manager could not tell; hence 2.

mod arguments;
mod flags;
mod go_flags;
mod own_node;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap::Parser;

use super::{
    Cli, Command, OK, PROBLEM, USAGE, complain, complain_with_causes, run, unknown_variable,
};
use crate::config::RunArgs;
use arguments::run_args;
use flags::FLAGS;
use go_flags::{Given, Stop};

/// Whether this process was started as `flanneld`.
pub(super) fn is_own_name() -> bool {
    let name = std::env::args_os().next();
    let name = name.as_deref().map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| name == NAME)
}

/// Runs the keeper; returns the exit code. `words` are the arguments of this process.
pub(super) fn keeper(words: Vec<OsString>) -> u8 {
    let given = match Given::parse(&in_unicode(&words), &FLAGS) {
        Ok(given) => given,
        Err(stop) => return stopped(&stop),
    };
    if given.flag("version") == Some(true) {
        say(&format!("tartan {}\n", env!("CARGO_PKG_VERSION")));
        return OK;
    }
    let Ok((mut args, ignored)) = read(given, None) else {
        return PROBLEM;
    };
    for sentence in ignored {
        complain(sentence);
    }
    let mut passed = vec!["--as-flanneld".into()];
    if is_kubernetes(&args) && args.node_name.is_none() {
        let name = match own_node::name(&args) {
            Ok(name) => name,
            Err(error) => {
                complain_with_causes(&error);
                return PROBLEM;
            }
        };
        passed.extend(["--node-name".into(), name.clone().into()]);
        args.node_name = Some(name);
    }
    passed.push("--".into());
    passed.extend(words);
    as_flanneld(run::keeper(args, passed))
}

/// Runs the service that a keeper of [`keeper`] starts with the same words. `node_name` is what it has learned of the API.
pub(super) fn service(agent_root: &Path, node_name: Option<String>, words: Vec<OsString>) -> u8 {
    let given = match Given::parse(&in_unicode(&words), &FLAGS) {
        Ok(given) => given,
        Err(stop) => return stopped(&stop),
    };
    match read(given, node_name) {
        Ok((args, _)) => run::service(args, agent_root),
        Err(Complained) => PROBLEM,
    }
}

/// A sentence for the operator was printed.
struct Complained;

/// The keys, and a sentence on each variable or word that is ignored.
fn read(mut given: Given, node_name: Option<String>) -> Result<(RunArgs, Vec<String>), Complained> {
    let variable = |name: &str| std::env::var(name).ok();
    let mut ignored = given.complete(&FLAGS, PREFIX, variable);
    ignored.extend(given.ignored_words());
    if unknown_variable() {
        return Err(Complained);
    }
    let mut own = own_variables()?;
    // As flannel, which asks the API for the name of a pod's node only where this is not set.
    let named = || variable(NODE_NAME).filter(|name| !name.is_empty());
    own.node_name = own.node_name.or_else(named).or(node_name);
    let args = run_args(&given, own).map_err(|error| {
        complain(error);
        Complained
    })?;
    Ok((args, ignored))
}

fn is_kubernetes(args: &RunArgs) -> bool {
    args.registry.registry.as_deref() == Some("kubernetes")
}

/// What `TARTAN_*` variables set.
fn own_variables() -> Result<RunArgs, Complained> {
    let fault = match Cli::try_parse_from(["tartan", "run"]) {
        Ok(Cli {
            command: Command::Run(args),
            ..
        }) => return Ok(*args),
        Ok(_) => return Ok(RunArgs::default()),
        Err(error) => super::of_variable(&error).unwrap_or_else(|| error.to_string()),
    };
    complain(fault);
    Err(Complained)
}

/// A word that is no Unicode is no flag, and no value that any flag takes.
fn in_unicode(words: &[OsString]) -> Vec<String> {
    let words = words.iter().map(|word| word.to_string_lossy().into_owned());
    words.collect()
}

fn stopped(stop: &Stop) -> u8 {
    let usage = go_flags::usage(NAME, &FLAGS);
    match stop {
        Stop::Help => {
            say(&usage);
            OK
        }
        Stop::Wrong(reason) => {
            say(&format!("{reason}\n{usage}"));
            USAGE
        }
    }
}

/// Writes to standard error, where flanneld writes everything.
fn say(text: &str) {
    // If standard error is closed, nothing can be reported.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// flanneld has one code for whatever goes wrong behind its flags.
pub(super) fn as_flanneld(code: u8) -> u8 {
    match code {
        OK => OK,
        _ => PROBLEM,
    }
}

const NAME: &str = "flanneld";
/// Of the variables that stand in for flags.
const PREFIX: &str = "FLANNELD";
const NODE_NAME: &str = "NODE_NAME";
