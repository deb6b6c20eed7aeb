//! `tartan cni install` and `tartan cni uninstall`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{OK, Output, PROBLEM, RootArg, complain_with_causes, json, print};
use crate::cni::chain::{BIN_DIR, CONF_DIR};
use crate::cni::conf_dir::OUR_PLUGIN;
use crate::cni::install::{Action, CniError, InstallOptions, Report, install};
use crate::cni::installed::{Installed, InstalledList};
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
    #[command(after_help = INSTALL_EXAMPLES)]
    Install(InstallArgs),
    /// Remove both, the configuration first
    #[command(after_help = UNINSTALL_EXAMPLES)]
    Uninstall(UninstallArgs),
}

#[derive(Args, Clone, Debug)]
struct Common {
    #[command(flatten)]
    root_arg: RootArg,
    /// Where runtimes look for plugins [default: where it was installed last, or ROOT/opt/cni/bin]
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    bin_dir: Option<PathBuf>,
    /// Where runtimes look for configurations [default: where it was installed last, or ROOT/etc/cni/net.d]
    #[arg(long, value_name = "DIR", value_parser = absolute)]
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
    /// Name of the configuration; runtimes take the first by name [default: as installed last, or 10-tartan.conflist]
    #[arg(long, value_name = "NAME")]
    conf_name: Option<String>,
    /// Name of the network [default: as installed last, or tartan]
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
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
    // One that cannot be read is reported by the installation.
    let installed = Installed::read(&root).unwrap_or_default();
    let list = installed.lists.last();
    let known_dir = list.and_then(InstalledList::directory);
    let known_name = list.and_then(|list| Some(list.path.file_name()?.to_str()?.to_owned()));
    let known_network = list.map(|list| list.network.clone());
    let or = |known: Option<PathBuf>, default: &str| known.unwrap_or_else(|| root.join(default));
    InstallOptions {
        program: args.from.unwrap_or_else(beside_us),
        bin_dir: args
            .common
            .bin_dir
            .unwrap_or_else(|| or(installed.bin_dirs.last().cloned(), BIN_DIR)),
        conf_dir: args
            .common
            .conf_dir
            .unwrap_or_else(|| or(known_dir, CONF_DIR)),
        conf_name: args
            .conf_name
            .or(known_name)
            .unwrap_or_else(|| "10-tartan.conflist".to_owned()),
        network: args
            .network
            .or(known_network)
            .unwrap_or_else(|| "tartan".to_owned()),
        replace_conf: args.replace_conf,
        dry_run: args.common.dry_run,
        root,
    }
}

fn uninstall_options(args: UninstallArgs, before: Option<PathBuf>) -> UninstallOptions {
    let root = args.common.root(before);
    UninstallOptions {
        bin_dir: args.common.bin_dir,
        conf_dir: args.common.conf_dir,
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
}

/// The record names directories for calls from anywhere.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| error.to_string())
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
    };
    if done.warnings.is_empty() {
        OK
    } else {
        PROBLEM
    }
}

fn render(done: &Report) -> String {
    let steps = done.steps.iter().map(|step| {
        format!(
            "{} {}\n",
            word(step.action, done.dry_run),
            step.file.display()
        )
    });
    let warnings = done
        .warnings
        .iter()
        .map(|warning| format!("PROBLEM: {warning}\n"));
    steps.chain(warnings).collect()
}

fn word(action: Action, would: bool) -> &'static str {
    match (action, would) {
        (Action::Installed, false) => "installed",
        (Action::Installed, true) => "would install",
        (Action::Replaced, false) => "replaced",
        (Action::Replaced, true) => "would replace",
        (Action::Unchanged, false) => "unchanged",
        (Action::Unchanged, true) => "would leave unchanged",
        (Action::Kept, false) => "kept, because it was edited (--replace-conf overwrites it):",
        (Action::Kept, true) => "would keep, because it was edited (--replace-conf overwrites it):",
        (Action::Removed, false) => "removed",
        (Action::Removed, true) => "would remove",
        (Action::SetAside, false) => "set aside, because it was edited, as",
        (Action::SetAside, true) => "would set aside, because it was edited, as",
        (Action::Absent, _) => "there is no",
    }
}

const EXAMPLES: &str = "\
Examples:
  tartan cni install                                     for containerd and CRI-O
  tartan cni install --bin-dir /usr/lib/cni              for Debian's containerd and podman
  tartan cni install --conf-name 00-tartan.conflist      to come before others
  tartan cni uninstall --dry-run                         print what would be removed

Install again to upgrade: the program is exchanged under running pods and runtimes, where it was installed.
Uninstall looks where it was installed too.
Drain the node before you uninstall: runtimes delete pods through the plugin.";

const INSTALL_EXAMPLES: &str = "\
Examples:
  tartan cni install                                     for containerd and CRI-O, or where it was installed last
  tartan cni install --bin-dir /usr/lib/cni              for Debian's containerd and podman
  tartan cni install --dry-run                           print what would be done

Exit code 1: it is installed, and something will not work as it is; the lines with PROBLEM say what.";

const UNINSTALL_EXAMPLES: &str = "\
Examples:
  tartan cni uninstall --dry-run                         print what would be removed
  tartan cni uninstall                                   wherever it was installed

Drain the node first: runtimes delete pods through the plugin.";
