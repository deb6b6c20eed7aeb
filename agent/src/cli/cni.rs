//! `tartan cni install` and `tartan cni uninstall`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::{OK, Output, PROBLEM, RootArg, complain_with_causes, json, print};
use crate::cni::chain::CONF_DIR;
use crate::cni::conf_dir::OUR_PLUGIN;
use crate::cni::install::{Action, CniError, InstallOptions, Report, install};
use crate::cni::uninstall::{UninstallOptions, uninstall};

/// Arguments of `tartan cni`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct CniArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Clone, Debug)]
enum Verb {
    /// Put the plugin and its configuration where container runtimes look, or renew them
    Install(InstallArgs),
    /// Remove both, the configuration first
    Uninstall(UninstallArgs),
}

#[derive(Args, Clone, Debug)]
struct Common {
    #[command(flatten)]
    root_arg: RootArg,
    /// Where runtimes look for plugins [default: ROOT/opt/cni/bin]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Where runtimes look for configurations [default: ROOT/etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Args, Clone, Debug)]
struct InstallArgs {
    #[command(flatten)]
    common: Common,
    /// The plugin's program [default: tartan-cni beside this program]
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Name of the configuration; runtimes take the first by name
    #[arg(long, value_name = "NAME", default_value = "10-tartan.conflist")]
    conf_name: String,
    /// Name of the network
    #[arg(long, value_name = "NAME", default_value = "tartan")]
    network: String,
    /// Overwrite a configuration of that name, whatever its content
    #[arg(long)]
    replace_conf: bool,
}

#[derive(Args, Clone, Debug)]
struct UninstallArgs {
    #[command(flatten)]
    common: Common,
    /// Remove the plugin even while pods are attached; no runtime can delete those pods afterwards
    #[arg(long)]
    force: bool,
}

pub(super) fn execute(args: CniArgs, before: Option<PathBuf>) -> u8 {
    let (output, done) = match args.verb {
        Verb::Install(args) => {
            let output = args.common.output;
            (output, install(&install_options(args, before)))
        }
        Verb::Uninstall(args) => {
            let output = args.common.output;
            (output, uninstall(&uninstall_options(args, before)))
        }
    };
    report(output, done)
}

fn install_options(args: InstallArgs, before: Option<PathBuf>) -> InstallOptions {
    let root = args.common.root(before);
    InstallOptions {
        program: args.from.unwrap_or_else(beside_us),
        bin_dir: args.common.bin_dir(&root),
        conf_dir: args.common.conf_dir(&root),
        conf_name: args.conf_name,
        network: args.network,
        replace_conf: args.replace_conf,
        dry_run: args.common.dry_run,
        root,
    }
}

fn uninstall_options(args: UninstallArgs, before: Option<PathBuf>) -> UninstallOptions {
    let root = args.common.root(before);
    UninstallOptions {
        bin_dir: args.common.bin_dir(&root),
        conf_dir: args.common.conf_dir(&root),
        force: args.force,
        dry_run: args.common.dry_run,
        root,
    }
}

impl Common {
    fn root(&self, before: Option<PathBuf>) -> PathBuf {
        let root = super::root(before, self.root_arg.root.clone());
        let root = root.unwrap_or_else(|| PathBuf::from("/"));
        // The plugin is run in other directories than this one.
        std::path::absolute(&root).unwrap_or(root)
    }

    fn bin_dir(&self, root: &Path) -> PathBuf {
        let named = self.bin_dir.clone();
        named.unwrap_or_else(|| root.join("opt/cni/bin"))
    }

    fn conf_dir(&self, root: &Path) -> PathBuf {
        let named = self.conf_dir.clone();
        named.unwrap_or_else(|| root.join(CONF_DIR))
    }
}

fn beside_us() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.with_file_name(OUR_PLUGIN)
}

fn report(output: Output, done: Result<Report, CniError>) -> u8 {
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            complain_with_causes(&error);
            return PROBLEM;
        }
    };
    match (output, serde_json::to_value(&done)) {
        (Output::Json, Ok(value)) => print(json(&value)),
        _ => print(render(&done)),
    }
    if done.warnings.is_empty() {
        OK
    } else {
        PROBLEM
    }
}

fn render(done: &Report) -> String {
    let steps = done
        .steps
        .iter()
        .map(|step| format!("{} {}\n", word(step.action), step.file.display()));
    let warnings = done
        .warnings
        .iter()
        .map(|warning| format!("PROBLEM: {warning}\n"));
    steps.chain(warnings).collect()
}

fn word(action: Action) -> &'static str {
    match action {
        Action::Installed => "installed",
        Action::Replaced => "replaced",
        Action::Unchanged => "unchanged",
        Action::Kept => "kept, because it was edited (--replace-conf overwrites it):",
        Action::Removed => "removed",
        Action::SetAside => "set aside, because it was edited, as",
        Action::Absent => "there is no",
    }
}

const EXAMPLES: &str = "\
Examples:
  tartan cni install                                     for containerd and CRI-O
  tartan cni install --bin-dir /usr/lib/cni              for Debian's containerd and podman
  tartan cni install --conf-name 00-tartan.conflist      to come before others
  tartan cni uninstall --dry-run                         what would go

Install again to upgrade: the program is exchanged under running pods and runtimes.
Drain the node before you uninstall: runtimes delete pods through the plugin.";
