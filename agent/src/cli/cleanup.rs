//! `tartan cleanup`: removes what a stopped agent left on the host.

use std::path::PathBuf;

use clap::Args;
use dataplane::kernel_path::Pins;

use super::run::runtime;
use super::{OK, Output, PROBLEM, RootArg, complain_with_causes, previous, print};
use crate::config::{NodeConfig, RunArgs};
use crate::host::previous::PreviousCni;
use crate::host::{Outcome, Traces, cleanup, takes_flannel_place};
use crate::keeper::LOCK_FILE;
use crate::keeper::lock::{Lock, LockError};
use crate::problems::HostProblem;
use crate::service::take_service_lock;
use crate::signals::Signals;

/// Arguments of `tartan cleanup`.
#[derive(Args, Clone, Debug)]
pub(super) struct CleanupArgs {
    #[command(flatten)]
    pub(super) root_arg: RootArg,
    /// Remove the tunnel device of this name [default: device-name of tartan.toml, or tartan0]
    #[arg(long, env = "TARTAN_DEVICE_NAME", value_name = "NAME")]
    device_name: Option<String>,
    /// Leave flannel's subnet.env and forwarding to flannel, whose place the agent took [default: as the agent ran last]
    #[arg(long, env = "TARTAN_REPLACE_FLANNEL", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    replace_flannel: Option<bool>,
    /// Show what another CNI left on this node instead, whether Tartan runs or not
    #[arg(long, value_enum, value_name = "CNI")]
    previous: Option<PreviousCni>,
    /// Remove what that CNI left; nothing while its daemon runs
    #[arg(long, requires = "previous")]
    remove: bool,
    /// Stay until SIGTERM where nothing failed: a DaemonSet's container must not end
    #[arg(long, conflicts_with = "previous")]
    stay: bool,
    /// Select the output form
    #[arg(short, long, value_enum, default_value_t = Output::Table, requires = "previous")]
    output: Output,
}

pub(super) fn execute(args: &CleanupArgs, root: Option<PathBuf>) -> u8 {
    if let Some(cni) = args.previous {
        return of_previous(cni, args, root);
    }
    let traces = traces(args, root);
    // A running agent would restore what is removed. While this process holds the locks, no agent starts.
    let locks = match lock(&traces) {
        Ok(locks) => locks,
        Err(error) => {
            complain_with_causes(&error);
            return PROBLEM;
        }
    };
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain_with_causes(&error);
            return PROBLEM;
        }
    };
    // Before the removal: the kernel drops a signal that the first process of a container does not catch.
    let signals = args.stay.then(|| {
        let _inside = runtime.enter();
        Signals::listen()
    });
    let outcomes = runtime.block_on(cleanup(&traces));
    let text: String = outcomes
        .iter()
        .map(|outcome| format!("{}\n", line(outcome)))
        .collect();
    print(if outcomes.is_empty() {
        "nothing to clean up\n"
    } else {
        &text
    });
    let failed = outcomes
        .iter()
        .any(|outcome| matches!(outcome, Outcome::Failed { .. }));
    drop(locks);
    match (failed, signals) {
        (true, _) => PROBLEM,
        (false, None) => OK,
        (false, Some(Ok(mut signals))) => {
            runtime.block_on(signals.stop());
            OK
        }
        (false, Some(Err(error))) => {
            complain_with_causes(&error);
            PROBLEM
        }
    }
}

/// Tartan's own traces stay, so its locks are not needed.
fn of_previous(cni: PreviousCni, args: &CleanupArgs, root: Option<PathBuf>) -> u8 {
    let directory = root.clone().unwrap_or_else(|| PathBuf::from("/"));
    let traces = traces(args, root);
    match runtime() {
        Ok(runtime) => runtime.block_on(previous::execute(
            cni,
            args.remove,
            args.output,
            &directory,
            &traces,
        )),
        Err(error) => {
            complain_with_causes(&error);
            PROBLEM
        }
    }
}

/// What became of one trace, with the remedy where it could not be removed.
fn line(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Failed { error, .. } => format!("{outcome}: {}", HostProblem::of(error).remedy),
        Outcome::Removed(_) | Outcome::Kept { .. } => outcome.to_string(),
    }
}

/// A broken configuration file must not prevent a cleanup: then the flags and the defaults apply.
fn traces(args: &CleanupArgs, root: Option<PathBuf>) -> Traces {
    let given = RunArgs {
        root: root.clone(),
        device_name: args.device_name.clone(),
        replace_flannel: args.replace_flannel,
        ..RunArgs::default()
    };
    let mut traces = match NodeConfig::load(&given) {
        Ok(config) => Traces {
            run_dir: config.run_dir(),
            state_dir: config.state_dir(),
            subnet_file: config.subnet_file.clone(),
            pins: Pins::below(&config.root),
            for_flannel: config.replace_flannel,
            device: config.device_name,
        },
        Err(error) => {
            complain_with_causes(&error);
            let root = root.unwrap_or_else(|| PathBuf::from("/"));
            Traces {
                run_dir: cni_shim::RunDir::under(&root),
                state_dir: root.join("var/lib/tartan"),
                subnet_file: root.join(SUBNET_FILE),
                pins: Pins::below(&root),
                // In doubt flannel's plugin keeps what it reads at every pod.
                for_flannel: args.replace_flannel.unwrap_or(true),
                device: args
                    .device_name
                    .clone()
                    .unwrap_or_else(|| "tartan0".to_owned()),
            }
        }
    };
    let noted = takes_flannel_place(&traces.state_dir);
    if let (None, Some(is_taken)) = (args.replace_flannel, noted) {
        traces.for_flannel = is_taken;
    }
    traces
}

/// Where flannel has it, and Tartan unless it is told otherwise.
const SUBNET_FILE: &str = "run/flannel/subnet.env";

/// Without a run directory no agent runs, and none is created for the locks.
fn lock(traces: &Traces) -> Result<Option<(Lock, Lock)>, LockError> {
    let run_dir = traces.run_dir.path();
    if !run_dir.exists() {
        return Ok(None);
    }
    let keeper = Lock::take(&run_dir.join(LOCK_FILE))?;
    Ok(Some((keeper, take_service_lock(run_dir)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::note_flannel_place;

    fn is_for_flannel(root: &std::path::Path, flag: Option<bool>) -> bool {
        let args = CleanupArgs {
            root_arg: RootArg { root: None },
            device_name: None,
            replace_flannel: flag,
            previous: None,
            remove: false,
            stay: false,
            output: Output::Table,
        };
        traces(&args, Some(root.to_owned())).for_flannel
    }

    /// It was given by a flag, a variable or the name flanneld, or the file is broken by now.
    #[test]
    fn subnet_env_stays_by_the_note_of_the_service() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("var/lib/tartan");
        let file = root.path().join("etc/tartan/tartan.toml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        assert!(!is_for_flannel(root.path(), None));
        assert!(is_for_flannel(root.path(), Some(true)));
        std::fs::write(&file, "replace-flannel = true\n").unwrap();
        assert!(is_for_flannel(root.path(), None));
        for text in ["", "broken", "replace-flannel = true\n"] {
            std::fs::write(&file, text).unwrap();
            for is_taken in [true, false] {
                note_flannel_place(&state, is_taken).unwrap();
                assert_eq!(is_for_flannel(root.path(), None), is_taken, "{text}");
                assert!(is_for_flannel(root.path(), Some(true)), "{text}");
                assert!(!is_for_flannel(root.path(), Some(false)), "{text}");
            }
        }
        std::fs::write(&file, "broken").unwrap();
        std::fs::remove_dir_all(&state).unwrap();
        assert!(is_for_flannel(root.path(), None), "in doubt it stays");
    }
}
