//! Commands that ask a running agent and show what it answers.

use std::path::{Path, PathBuf};
use std::thread;

use clap::Args;
use cni_shim::RunDir;
use serde::de::DeserializeOwned;

use super::last_good::{Kept, Shown};
use super::table::{self, Column};
use super::view::{RowArgs, ShowArgs, View};
use super::{OK, Output, PROBLEM, RootArg, UNREACHABLE, USAGE};
use super::{complain, complain_with_causes, json, print, root, unserved};
use crate::api::client::{ClientError, call};
use crate::api::wire::Request;
use crate::causes::causes;
use crate::host::Unserved;

/// Which agent is asked, and in which form its answer is shown.
#[derive(Args, Debug)]
pub(super) struct Target {
    #[command(flatten)]
    root_arg: RootArg,
    /// Select the output form
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}

/// Arguments of a command that shows one answer.
#[derive(Args, Debug)]
pub(super) struct Query {
    #[command(flatten)]
    pub(super) target: Target,
    #[command(flatten)]
    show: ShowArgs,
}

impl Query {
    /// How its answer is shown.
    ///
    /// # Errors
    /// A sentence where the arguments cannot be used.
    pub(super) fn view(&self, columns: &[Column]) -> Result<View, String> {
        View::new(&self.show, &RowArgs::default(), columns)
    }
}

/// Arguments of a command that shows an answer of many rows.
#[derive(Args, Debug)]
pub(super) struct RowQuery {
    #[command(flatten)]
    pub(super) query: Query,
    #[command(flatten)]
    pub(super) rows: RowArgs,
}

/// Arguments of `tartan peers`.
#[derive(Args, Debug)]
pub(super) struct PeersQuery {
    #[command(flatten)]
    pub(super) asked: RowQuery,
    /// Show all columns: subnets, VTEP MACs, traffic and drops too
    #[arg(long)]
    pub(super) wide: bool,
}

/// What a command asks, and how its answer is shown.
pub(super) struct Asked<T> {
    /// The question.
    pub(super) request: Request,
    /// Columns of its rows; none where it has none.
    pub(super) columns: &'static [Column],
    /// The answer as text.
    pub(super) render: fn(&T, &View) -> String,
    /// Whether it is a problem.
    pub(super) problem: fn(&T) -> bool,
    /// What of the last good state shows where no agent answers.
    pub(super) last_good: Option<Shown>,
}

/// Asks and shows, once or until interrupted. Returns the exit code; a watch returns once nothing reads its output.
pub(super) fn ask<T: DeserializeOwned>(
    query: &Query,
    rows: &RowArgs,
    before: Option<PathBuf>,
    asked: &Asked<T>,
) -> u8 {
    let view = match View::new(&query.show, rows, asked.columns) {
        Ok(view) => view,
        Err(misuse) => {
            complain(misuse);
            return USAGE;
        }
    };
    let root = query.target.root(before);
    let socket = RunDir::under(&root).socket();
    loop {
        let render = |answer: &T| (asked.render)(answer, &view);
        let answer = answer(
            &query.target,
            &socket,
            &asked.request,
            render,
            asked.problem,
        );
        let is_unanswered = answer.as_ref().is_err_and(ClientError::is_no_answer);
        let shown = asked.last_good.filter(|_| is_unanswered);
        let kept = shown.map_or_else(Kept::default, |shown| Kept::read(&root, shown, &view));
        let Some(pause) = query.show.watch else {
            return show(query.target.output, answer, &kept);
        };
        // In the text, which would otherwise be printed over it.
        let text = answer.map_or_else(
            |error| failure_beside(query.target.output, &error, &kept),
            |(text, _)| text,
        );
        if !print(view.again(&text)) {
            return OK;
        }
        thread::sleep(pause);
    }
}

/// Has the agent do something, and shows what became of it. Returns the exit code.
pub(super) fn order<T: DeserializeOwned>(
    target: &Target,
    before: Option<PathBuf>,
    request: &Request,
    render: fn(&T) -> String,
) -> u8 {
    let socket = target.socket(before);
    let answer = answer(target, &socket, request, render, |_| false);
    show(target.output, answer, &Kept::default())
}

/// What the agent answers, as text or JSON, and whether it is a problem.
fn answer<T: DeserializeOwned>(
    target: &Target,
    socket: &Path,
    request: &Request,
    render: impl Fn(&T) -> String,
    problem: fn(&T) -> bool,
) -> Result<(String, bool), ClientError> {
    call(socket, request).and_then(|value| {
        let text = match target.output {
            Output::Json => json(&value),
            Output::Table => String::new(),
        };
        let answer: T = serde_json::from_value(value).map_err(ClientError::Answer)?;
        let text = match target.output {
            Output::Json => text,
            Output::Table => render(&answer),
        };
        Ok((text, problem(&answer)))
    })
}

/// Prints an answer, or on standard error why there is none; as JSON that is a document on standard output, so that a
/// script finds one there whatever happened. `kept` shows in the place of an answer. Returns the exit code.
fn show(output: Output, answer: Result<(String, bool), ClientError>, kept: &Kept) -> u8 {
    match (answer, output) {
        (Ok((text, problem)), _) => {
            print(text);
            if problem { PROBLEM } else { OK }
        }
        (Err(error), Output::Table) => {
            complain_with_causes(&error);
            if error.is_no_answer()
                && let Some(sentence) = unserved::sentence(&unserved::read())
            {
                complain(sentence);
            }
            if let Some(refused) = &kept.refused {
                complain(table::printable(refused));
            }
            print(&kept.text);
            code_of(&error)
        }
        (Err(error), Output::Json) => {
            print(failure_beside(output, &error, kept));
            code_of(&error)
        }
    }
}

impl Target {
    pub(super) fn socket(&self, before: Option<PathBuf>) -> PathBuf {
        RunDir::under(&self.root(before)).socket()
    }

    /// The directory below which the agent's files are.
    fn root(&self, before: Option<PathBuf>) -> PathBuf {
        root(before, self.root_arg.root.clone()).unwrap_or_else(|| PathBuf::from("/"))
    }
}

/// Why there is no answer, in place of one.
pub(super) fn failure(output: Output, error: &ClientError) -> String {
    failure_beside(output, error, &Kept::default())
}

/// The same, with what is kept from the time when there was one.
fn failure_beside(output: Output, error: &ClientError, kept: &Kept) -> String {
    match output {
        Output::Table => {
            let all = [Some(causes(error)), kept.refused.clone()];
            let lines = all.iter().flatten();
            let lines = lines.map(|line| format!("tartan: {}\n", table::printable(line)));
            lines.chain([kept.text.clone()]).collect()
        }
        Output::Json => {
            let found = match error.is_no_answer() {
                true => unserved::read(),
                false => Unserved::default(),
            };
            json(&serde_json::json!({
                "error": causes(error),
                "remedy": error.remedy(),
                "code": error.code(),
                "refused": found.refused,
                "device": found.device,
                "device_held": found.is_held,
                "last_good": kept.json,
                "last_good_refused": kept.refused,
            }))
        }
    }
}

pub(super) fn code_of(error: &ClientError) -> u8 {
    if error.is_no_answer() {
        UNREACHABLE
    } else {
        PROBLEM
    }
}
