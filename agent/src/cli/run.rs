//! `tartan run`: reads the configuration, starts the log, runs the keeper. The keeper starts the hidden
//! `tartan service` as its child.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use cni_shim::RunDir;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tracing::{error, warn};

use super::{PROBLEM, USAGE};
use crate::causes::causes;
use crate::config::RunArgs;
use crate::configuration::{Configuration, Unusable};
use crate::keeper;
use crate::keeper::child::Program;
use crate::keeper::handed_state::State;
use crate::keeper::{Identity, KeeperError};
use crate::log;
use crate::service;
use crate::start_failure;

/// Why neither keeper nor service could start.
#[derive(Debug, Error)]
pub(super) enum RunError {
    #[error("cannot start the event loop; raise the limit of open descriptors (ulimit -n)")]
    Runtime(#[source] io::Error),
    #[error("cannot find the path of this program; check that /proc is mounted")]
    OwnPath(#[source] io::Error),
}

/// Runs the keeper. It passes `arguments` to its child, which makes the same of them as the caller has.
pub(super) fn keeper(args: RunArgs, arguments: Vec<OsString>) -> u8 {
    let config = match configure(&args, None) {
        Ok(configuration) => configuration.config,
        Err(error) => return misconfigured(&error),
    };
    let prepared = runtime().and_then(|runtime| Ok((runtime, program(&config.root, arguments)?)));
    let (runtime, program) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return failed(&error),
    };
    let identity = Identity {
        run_dir: config.run_dir().path().to_owned(),
        program,
        log: config.log,
        instance: config.instance,
    };
    match runtime.block_on(keeper::run(identity)) {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

/// Runs the keeper on from what the program before this one in the same process left.
pub(super) fn keeper_goes_on(state: io::Result<State>) -> u8 {
    let state = match state {
        Ok(state) => state,
        Err(error) => return failed(&KeeperError::State(error)),
    };
    log::start(&state.log);
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    match runtime.block_on(keeper::go_on(state)) {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

/// Runs the service, on the process's first thread: everything is opened in that thread's network namespace.
///
/// `root` is the directory above all files of the agent that the keeper goes by.
pub(super) fn service(args: RunArgs, root: &Path) -> u8 {
    let run_dir = RunDir::under(root);
    let configuration = match configure(&args, Some(root)) {
        Ok(configuration) => configuration,
        Err(error) => {
            start_failure::note(run_dir.path(), &causes(&error));
            return misconfigured(&error);
        }
    };
    let ended = runtime().map(|runtime| runtime.block_on(service::run(configuration)));
    let (error, code): (Box<dyn Error>, u8) = match ended {
        Ok(Ok(code)) => return code,
        Ok(Err(error)) if error.is_misconfiguration() => (error.into(), USAGE),
        Ok(Err(error)) if error.is_of_descriptors() => (error.into(), keeper::DIFFERS),
        Ok(Err(error)) => (error.into(), PROBLEM),
        Err(error) => (error.into(), PROBLEM),
    };
    start_failure::note(run_dir.path(), &causes(&*error));
    failed(&*error);
    code
}

pub(super) fn runtime() -> Result<Runtime, RunError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(RunError::Runtime)
}

fn program(root: &Path, arguments: Vec<OsString>) -> Result<Program, RunError> {
    Ok(Program {
        path: std::env::current_exe().map_err(RunError::OwnPath)?,
        arguments: ["service", "--agent-root"]
            .into_iter()
            .map(OsString::from)
            .chain([root.as_os_str().to_owned()])
            .chain(arguments)
            .collect(),
    })
}

fn configure(args: &RunArgs, root: Option<&Path>) -> Result<Configuration, Unusable> {
    let configuration = Configuration::load(args, root)?;
    log::start(&configuration.config.log);
    if let Some(refused) = &configuration.refused {
        warn!(
            "{}; the text by which a service forwarded last stands in for it",
            causes(refused)
        );
    }
    Ok(configuration)
}

fn misconfigured(error: &Unusable) -> u8 {
    let line = super::table::printable(&causes(error));
    // If standard error is closed, the error cannot be reported.
    let _ = writeln!(io::stderr().lock(), "{}tartan: {line}", log::error_prefix());
    USAGE
}

fn failed(error: &dyn std::error::Error) -> u8 {
    error!("{}", causes(error));
    PROBLEM
}
