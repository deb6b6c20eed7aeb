//! `tartan cleanup --previous`: shows what another CNI left on the node, and removes it where it is told to.

use std::path::Path;

use serde::Serialize;

use super::table::{Column, printable, render};
use super::{OK, Output, PROBLEM, print};
use crate::host::Traces;
use crate::host::previous::{self, Leftover, LeftoverError, Leftovers, PreviousCni};

/// What was found, and what became of it.
#[derive(Debug, Serialize)]
struct Report {
    /// The project.
    previous: &'static str,
    /// Its daemon that runs here.
    daemon: Option<String>,
    leftovers: Vec<Row>,
    /// What could not be looked for.
    unread: Vec<Unread>,
}

#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    place: String,
    why: String,
    effect: String,
    /// Rules in chains of others that go with it.
    rules: Vec<String>,
    /// Why it stays in any case.
    kept: Option<String>,
    /// `found`, `kept`, `removed` or `failed`.
    outcome: &'static str,
    error: Option<String>,
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct Unread {
    what: &'static str,
    error: String,
    remedy: String,
}

impl Report {
    fn of(cni: PreviousCni, daemon: Option<String>, leftovers: &Leftovers) -> Report {
        let unread = leftovers.unread.iter().map(|(what, error)| Unread {
            what,
            error: error.sentence(),
            remedy: error.remedy(),
        });
        Report {
            previous: cni.name(),
            daemon,
            leftovers: leftovers.found.iter().map(Row::of).collect(),
            unread: unread.collect(),
        }
    }

    /// Whether something is left that is not kept on purpose, or that nothing is known of.
    fn leaves_something(&self) -> bool {
        let is_left = |row: &Row| ["found", "failed"].contains(&row.outcome);
        !self.unread.is_empty() || self.leftovers.iter().any(is_left)
    }
}

impl Row {
    fn of(leftover: &Leftover) -> Row {
        Row {
            what: leftover.kind.name(),
            place: leftover.place.clone(),
            why: leftover.why.clone(),
            effect: leftover.effect.clone(),
            rules: leftover.rules.clone(),
            kept: leftover.kept.clone(),
            outcome: match leftover.kept {
                Some(_) => "kept",
                None => "found",
            },
            error: None,
            remedy: None,
        }
    }

    fn settle(&mut self, done: Result<(), LeftoverError>) {
        match done {
            Ok(()) => self.outcome = "removed",
            Err(error) => {
                self.outcome = "failed";
                self.error = Some(error.sentence());
                self.remedy = Some(error.remedy());
            }
        }
    }

    /// The last column: what removal does, or what became of it.
    fn said(&self) -> String {
        match (self.outcome, &self.kept, &self.error) {
            ("kept", Some(why), _) => format!("kept: {why}"),
            ("failed", _, Some(error)) => format!("FAILED: {error}"),
            ("removed", ..) => "removed".to_owned(),
            _ => self.effect.clone(),
        }
    }
}

/// Shows what `cni` left, and removes it with `remove`.
pub(super) async fn execute(
    cni: PreviousCni,
    remove: bool,
    output: Output,
    root: &Path,
    traces: &Traces,
) -> u8 {
    let found = previous::find(cni, root, traces).await;
    let running = || cni.daemon().map(|daemon| daemon.to_string());
    let mut report = Report::of(cni, running(), &found);
    if remove {
        let mut last = None;
        for (row, leftover) in report.leftovers.iter_mut().zip(&found.found) {
            // One that starts meanwhile would put back what is gone already.
            if report.daemon.is_none() && last != Some(leftover.kind) {
                last = Some(leftover.kind);
                report.daemon = running();
            }
            if report.daemon.is_some() {
                break;
            }
            if leftover.kept.is_none() {
                row.settle(previous::remove(cni, leftover).await);
            }
        }
        report.daemon = report.daemon.or_else(running);
    }
    print(match output {
        Output::Table => in_words(&report, remove),
        Output::Json => {
            serde_json::to_value(&report).map_or_else(|_| String::new(), |v| super::json(&v))
        }
    });
    match (remove && report.daemon.is_some()) || report.leaves_something() {
        true => PROBLEM,
        false => OK,
    }
}

fn in_words(report: &Report, remove: bool) -> String {
    let project = report.previous;
    let mut text = String::new();
    if report.leftovers.is_empty() {
        text.push_str(&format!("nothing of {project} is left\n"));
    }
    let last = if remove { "OUTCOME" } else { "REMOVAL" };
    let columns = [
        Column::Words("WHAT"),
        Column::Words("WHERE"),
        Column::Words("WHY"),
        Column::Words(last),
    ];
    let rows = report.leftovers.iter().map(|row| {
        vec![
            row.what.to_owned(),
            row.place.clone(),
            row.why.clone(),
            row.said(),
        ]
    });
    text.push_str(&render(&columns, rows, None));
    for row in &report.leftovers {
        for rule in &row.rules {
            text.push_str(&printable(&format!("rule in {}: {rule}", row.place)));
            text.push('\n');
        }
    }
    for row in &report.leftovers {
        if let Some(remedy) = &row.remedy {
            text.push_str(&printable(&format!("{}: {remedy}", row.place)));
            text.push('\n');
        }
    }
    for unread in &report.unread {
        let line = format!(
            "{} cannot be read: {}: {}",
            unread.what, unread.error, unread.remedy
        );
        text.push_str(&printable(&line));
        text.push('\n');
    }
    match (&report.daemon, remove) {
        (Some(daemon), true) => {
            let is_begun = report.leftovers.iter().any(|row| row.outcome == "removed");
            let what = match is_begun {
                true => "a daemon started meanwhile, and may put back what was removed",
                false => "nothing was removed",
            };
            let line = format!(
                "{what}: {project} runs on this node: {daemon}: stop it, and keep it from this node"
            );
            text.push_str(&printable(&line));
            text.push('\n');
        }
        (Some(daemon), false) => {
            let line = format!("{project} runs on this node: {daemon}: stop it before --remove");
            text.push_str(&printable(&line));
            text.push('\n');
        }
        (None, false) if report.leaves_something() => {
            text.push_str("nothing was removed: --remove does that\n");
        }
        _ => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kept: Option<&str>) -> Row {
        Row {
            what: "device",
            place: "flannel.1".to_owned(),
            why: "a vxlan device".to_owned(),
            effect: "the device goes".to_owned(),
            rules: Vec::new(),
            kept: kept.map(str::to_owned),
            outcome: if kept.is_some() { "kept" } else { "found" },
            error: None,
            remedy: None,
        }
    }

    fn report(leftovers: Vec<Row>) -> Report {
        Report {
            previous: "flannel",
            daemon: None,
            leftovers,
            unread: Vec::new(),
        }
    }

    #[test]
    fn what_is_kept_on_purpose_is_not_left() {
        assert!(!report(Vec::new()).leaves_something());
        assert!(!report(vec![row(Some("Tartan uses it"))]).leaves_something());
        assert!(report(vec![row(None)]).leaves_something());
        let mut removed = row(None);
        removed.settle(Ok(()));
        assert!(!report(vec![removed]).leaves_something());
        let mut failed = row(None);
        failed.settle(Err(LeftoverError::MountPoint("/run/cilium".into())));
        let failed = report(vec![failed]);
        assert!(failed.leaves_something());
        let text = in_words(&failed, true);
        assert!(
            text.contains("FAILED: /run/cilium is a mount point"),
            "{text}"
        );
        assert!(
            text.contains("flannel.1: look at what is there, `umount /run/cilium`"),
            "{text}"
        );
    }

    #[test]
    fn the_words_say_what_to_do() {
        let text = in_words(&report(Vec::new()), false);
        assert_eq!(text, "nothing of flannel is left\n");
        let mut found = report(vec![row(None)]);
        found.leftovers[0].rules = vec!["FORWARD -o weave -j DROP handle 7: the rule".to_owned()];
        let shown = in_words(&found, false);
        assert!(
            shown.contains("rule in flannel.1: FORWARD -o weave -j DROP handle 7"),
            "{shown}"
        );
        assert!(in_words(&found, false).ends_with("nothing was removed: --remove does that\n"));
        found.daemon = Some("process 7 (`/opt/bin/flanneld`)".to_owned());
        let text = in_words(&found, true);
        assert!(
            text.contains("nothing was removed: flannel runs on this node: process 7"),
            "{text}"
        );
        let mut removed = row(None);
        removed.settle(Ok(()));
        found.leftovers.push(removed);
        let text = in_words(&found, true);
        assert!(
            text.contains("may put back what was removed: flannel runs on this node: process 7"),
            "{text}"
        );
        assert!(!text.contains("nothing was removed"), "{text}");
    }
}
