//! The board: every problem that there is now, since when, and one line of the log for each that comes or goes.
//!
//! Each part of the control loop is an [`Origin`] and posts all of its problems at once. What it posted before and does
//! not post again is solved. A problem that stays keeps its time, whatever its sentence says now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use tracing::{error, info, warn};

use super::{Problem, Severity};

/// Who posts a problem, in the order in which problems are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The cluster's configuration.
    NetConf,
    /// The registry.
    Registry,
    /// The adoption of tables by the workers.
    Adoption,
    /// The API socket.
    Api,
    /// The locks in the run directory.
    Locks,
    /// The last good state on disk.
    State,
    /// The record of changed kernel settings.
    Settings,
    /// The underlay sockets.
    Underlay,
    /// The workers' places.
    Workers,
    /// The kernel's state, as far as Tartan brings it about.
    Kernel,
    /// The node file.
    NodeFile,
    /// The upkeep of pods.
    Pods,
    /// What the decision itself shows.
    Decision,
}

/// A problem on the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// What is wrong.
    pub problem: Problem,
    /// When it was posted first.
    pub since: SystemTime,
}

/// All problems.
#[derive(Debug, Default)]
pub struct Board {
    posted: BTreeMap<Origin, Vec<Posted>>,
    /// The same in one list, shared with whoever shows it.
    list: Arc<[Posted]>,
}

impl Board {
    /// Replaces what `origin` posted before.
    pub fn post(&mut self, origin: Origin, problems: impl IntoIterator<Item = Problem>) {
        let before = self.posted.remove(&origin).unwrap_or_default();
        let mut now: Vec<Posted> = Vec::new();
        for problem in problems {
            if now.iter().any(|posted| is_same(&posted.problem, &problem)) {
                continue;
            }
            let known = before.iter().find(|old| is_same(&old.problem, &problem));
            let since = known.map_or_else(
                || {
                    log(&problem);
                    SystemTime::now()
                },
                |known| known.since,
            );
            now.push(Posted { problem, since });
        }
        let is_gone = |old: &&Posted| !now.iter().any(|new| is_same(&new.problem, &old.problem));
        for old in before.iter().filter(is_gone) {
            let (code, sentence) = (old.problem.code(), old.problem.sentence());
            info!(code, "solved: {sentence}");
        }
        let is_changed = before != now;
        if !now.is_empty() {
            self.posted.insert(origin, now);
        }
        if is_changed {
            self.list = self.posted.values().flatten().cloned().collect();
        }
    }

    /// Replaces what the origins of these problems posted before.
    pub fn post_all(&mut self, problems: Vec<(Origin, Problem)>) {
        let mut by_origin: BTreeMap<Origin, Vec<Problem>> = BTreeMap::new();
        for (origin, problem) in problems {
            by_origin.entry(origin).or_default().push(problem);
        }
        for (origin, problems) in by_origin {
            self.post(origin, problems);
        }
    }

    /// Every problem, those of the first origin first.
    pub fn list(&self) -> Arc<[Posted]> {
        Arc::clone(&self.list)
    }

    /// The problems of one origin.
    pub fn of(&self, origin: Origin) -> &[Posted] {
        self.posted.get(&origin).map_or(&[], Vec::as_slice)
    }

    /// Whether anything on the board calls for another try.
    pub fn is_retry_due(&self) -> bool {
        self.list.iter().any(|posted| posted.problem.is_retried())
    }
}

/// Whether two values are one problem, whatever their sentences.
fn is_same(one: &Problem, other: &Problem) -> bool {
    one == other || (one.code(), one.subject()) == (other.code(), other.subject())
}

fn log(problem: &Problem) {
    let code = problem.code();
    match problem.severity() {
        Severity::Error => error!(code, "{problem}"),
        Severity::Warning => warn!(code, "{problem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(reason: &str) -> Problem {
        Problem::ApiSocket {
            path: "/run/tartan/tartan.sock".into(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_problem_keeps_its_time_while_its_reason_changes() {
        let mut board = Board::default();
        board.post(Origin::Api, [taken("one")]);
        let first = board.list()[0].clone();
        board.post(Origin::Api, [taken("two")]);
        let second = board.list()[0].clone();
        assert_eq!(first.since, second.since);
        assert_eq!(second.problem, taken("two"));
        board.post(Origin::Api, []);
        assert!(board.list().is_empty());
    }

    #[test]
    fn origins_replace_their_own_problems_alone_and_are_shown_in_order() {
        let mut board = Board::default();
        board.post(Origin::Pods, [Problem::PodUpkeep { reason: "x".into() }]);
        board.post(Origin::Api, [taken("one"), taken("one again")]);
        let codes = |board: &Board| -> Vec<&str> {
            board
                .list()
                .iter()
                .map(|posted| posted.problem.code())
                .collect()
        };
        assert_eq!(codes(&board), ["api-socket", "pod-upkeep"]);
        assert!(board.is_retry_due());
        board.post(Origin::Api, []);
        assert_eq!(codes(&board), ["pod-upkeep"]);
        assert_eq!(board.of(Origin::Pods).len(), 1);
    }
}
