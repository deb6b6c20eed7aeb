//! `tartan check`: what keeps files from being used, and what they would change.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;

use super::table::printable;
use super::{OK, Output, PROBLEM, USAGE, complain_with_causes, print, with_root};
use crate::check::{self, Verdict};
use crate::config::RunArgs;
use crate::registry::few;

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// Judge these files, each recognised as net-conf, list of nodes or tartan.toml [default: those that the configuration names]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Select the output form
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    run: RunArgs,
}

pub(super) fn execute(args: CheckArgs, root: Option<PathBuf>) -> u8 {
    let verdict = match check::check(&with_root(args.run, root), &args.files) {
        Ok(verdict) => verdict,
        Err(error) => {
            complain_with_causes(&error);
            return USAGE;
        }
    };
    print(match args.output {
        Output::Table => render(&verdict),
        // It has neither maps with other keys than text nor numbers that JSON lacks.
        Output::Json => {
            serde_json::to_value(&verdict).map_or_else(|_| String::new(), |v| super::json(&v))
        }
    });
    if verdict.faults.is_empty() {
        OK
    } else {
        PROBLEM
    }
}

fn render(verdict: &Verdict) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let mut line = |sentence: String| {
        let _ = writeln!(text, "{}", printable(&sentence));
    };
    for fault in &verdict.faults {
        line(format!("FAULT: {}", fault.sentence));
    }
    for note in &verdict.notes {
        line(format!("note: {}", note.sentence));
    }
    for file in verdict.files.iter().filter(|file| file.usable) {
        line(format!("{}: ok", file.path.display()));
    }
    let nodes = &verdict.nodes;
    if verdict.shrinks {
        line(format!(
            "WARNING: the list loses {} of {} nodes: it is held back for a time (shrink-grace), or until `tartan adopt`",
            verdict.lost.len(),
            verdict.nodes_in_force
        ));
    }
    let Some(compared_with) = &verdict.compared_with else {
        line(format!(
            "compared with nothing: {}",
            match verdict {
                _ if !verdict.is_remembered => "no service of this node has forwarded yet",
                _ if verdict.faults.is_empty() => "a note says why",
                _ => "the faults and notes say why",
            }
        ));
        return text;
    };
    let compared: Vec<&str> = verdict.compared.iter().map(|kind| kind.name()).collect();
    line(format!(
        "compared with what this node forwarded by last ({}): {}",
        compared_with.display(),
        compared.join(", ")
    ));
    if nodes.is_empty() && verdict.settings.is_empty() {
        line("nothing would change".to_owned());
    }
    let when = match verdict.shrinks {
        true => "not before the list is adopted",
        false => "adopted at once",
    };
    for (what, names) in [("added", &nodes.added), ("removed", &nodes.removed)] {
        if !names.is_empty() {
            line(format!("  {} {what}: {when}", few(names)));
        }
    }
    for changed in nodes.changed.iter().take(CHANGED_SHOWN) {
        let keys = changed.keys.join(", ");
        line(format!("  {} changed: {keys}: {when}", changed.name));
    }
    if let Some(more @ 1..) = nodes.changed.len().checked_sub(CHANGED_SHOWN) {
        line(format!("  and {more} more changed"));
    }
    for setting in &verdict.settings {
        let taken = match setting.needs_restart {
            true => "needs a restart of the agent",
            false => "taken on SIGHUP (systemctl reload tartan) or at the next start",
        };
        let (key, before, after) = (setting.key, &setting.before, &setting.after);
        line(format!("  {key}: {before} -> {after}: {taken}"));
    }
    text
}

const CHANGED_SHOWN: usize = 10;
